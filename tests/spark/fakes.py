"""An in-memory cluster: logs are lists of leader epochs that tests truncate and append to; it answers like a leader
(E13)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import EpochEnd, ReadableEnd, TopicFacts
from pyspark_fenceline.delta import evidence as delta_evidence


@dataclass
class FakeLog:
    """Record `i` was written in epoch `epochs[i]`; the leader's own epoch may be newer than any record."""

    epochs: list[int] = field(default_factory=list)
    leader_epoch: int = 0
    start: int = 0
    timestamps: dict[int, int] = field(default_factory=dict)

    def append(self, count: int) -> None:
        self.epochs += [self.leader_epoch] * count

    def elect(self, epoch: int, *, keep: int | None = None) -> None:
        """Elect a new leader; after an unclean election the log has only the first `keep` records."""
        self.leader_epoch = epoch
        if keep is not None:
            del self.epochs[keep:]

    def epoch_end(self, asked: int) -> EpochEnd:
        # As a broker keeps it: (epoch, start) from the log start on, the leader's own epoch assigned at election.
        entries: list[tuple[int, int]] = []
        for offset in range(self.start, len(self.epochs)):
            if not entries or entries[-1][0] != self.epochs[offset]:
                entries.append((self.epochs[offset], offset))
        if not entries or entries[-1][0] < self.leader_epoch:
            entries.append((self.leader_epoch, len(self.epochs)))
        if asked == entries[-1][0]:
            return EpochEnd(asked, len(self.epochs))
        higher = [start for epoch, start in entries if epoch > asked]
        if asked < 0 or not higher:
            return EpochEnd(-1, -1)
        known = [epoch for epoch, _ in entries if epoch <= asked]
        return EpochEnd(known[-1] if known else asked, higher[0])


class FakeCluster:
    def __init__(self, **topics: int) -> None:
        """Topics by name with their number of partitions."""
        self.id: str | None = "a-cluster"
        self.ids: dict[str, str | None] = {}
        self.internal: set[str] = set()
        self.policies: dict[str, str] = {}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.questions: list[str] = []
        self.keeps_epochs = True
        self.has_news = True
        self.stale_ends: dict[TopicPartition, list[int]] = {}
        for name, count in topics.items():
            self.create(name, count)

    def reach(self) -> None:
        """It is always there."""

    def create(self, name: str, count: int, *, id: str | None = "auto") -> None:
        self.ids[name] = f"{name}-{len(self.logs)}-id" if id == "auto" else id
        for index in range(count):
            self.logs[TopicPartition(name, index)] = FakeLog()

    def delete(self, name: str) -> None:
        del self.ids[name]
        for tp in [tp for tp in self.logs if tp.topic == name]:
            del self.logs[tp]

    def log(self, name: str, index: int = 0) -> FakeLog:
        return self.logs[TopicPartition(name, index)]

    def cluster_id(self) -> str | None:
        return self.id

    def topics(self, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        self.questions.append("topics")
        found = {}
        for name, id in sorted(self.ids.items()):
            if names is None or name in names:
                indexes = tuple(sorted(tp.partition for tp in self.logs if tp.topic == name))
                found[name] = TopicFacts(id, indexes, name in self.internal)
        return found

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.questions.append("log_starts")
        return {tp: self._known(tp).start for tp in partitions}

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ReadableEnd]:
        self.questions.append("log_ends")
        ends = {}
        for tp in partitions:
            log = self._known(tp)
            stale = self.stale_ends.get(tp)
            offset = stale.pop(0) if stale else len(log.epochs)
            ends[tp] = ReadableEnd(offset, log.leader_epoch if self.keeps_epochs else -1)
        return ends

    def log_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, ReadableEnd]]:
        return self.log_starts(partitions), self.log_ends(partitions)

    def offsets_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, wanted in timestamps_ms.items():
            later = [offset for offset, time in sorted(self.logs[tp].timestamps.items()) if time >= wanted]
            found[tp] = later[0] if later else None
        return found

    def epoch_ends(self, epochs: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd]:
        self.questions.append("epoch_ends")
        answers = {}
        for tp, (asked, current) in epochs.items():
            log = self._known(tp)
            if current != log.leader_epoch:
                raise PeerError(ErrorCode.FENCED_LEADER_EPOCH, f"{tp}")
            answers[tp] = log.epoch_end(asked)
        return answers

    def cleanup_policies(self, topics: Collection[str]) -> Mapping[str, str]:
        self.questions.append("cleanup_policies")
        return {topic: self.policies.get(topic, "delete") for topic in topics if topic in self.ids}

    def await_news(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        self.questions.append("await_news")
        return self.has_news

    def _known(self, tp: TopicPartition) -> FakeLog:
        if tp not in self.logs:
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp}")
        return self.logs[tp]


def install_fake_cluster(monkeypatch: pytest.MonkeyPatch, **topics: int) -> FakeCluster:
    """Every new connection gets this cluster, with empty caches."""
    made = FakeCluster(**topics)
    monkeypatch.setattr(connect, "connect", lambda _: made)
    monkeypatch.setattr(delta_evidence, "_caches", {})
    return made
