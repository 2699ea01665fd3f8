"""Fetches the bounds and epochs of logs from their leaders, for comparison with a table.

Owns the requests: bounds, leader epochs, and the walk down an epoch history, for many partitions in as few requests as
possible. All requests about a partition carry the same leader epoch, so that an election in between is detected and
the answers never mix two leaders. The rule itself is in `log_matching`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import ReadableEnd, SourceCluster, TopicFacts, partitions_of
from pyspark_fenceline.common.epoch_walk import EpochWalk
from pyspark_fenceline.common.log_matching import LogEpochs

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 5
_LEADER_CHANGED: Final = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)

NO_EPOCHS_WARNING: Final = (
    "the brokers keep no leader epochs (they or the topics' message formats are older than Kafka 2.1), or return them "
    "only with the ClusterAction permission (Kafka 2.1 and 2.2): truncation cannot be detected, and stale rows stay"
)


def existing_partitions(
    cluster: SourceCluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, str | None]:
    """The partitions that exist, with their topic's id."""
    wanted = set(partitions)
    if not wanted:
        return {}
    found = cluster.topics({tp.topic for tp in wanted})
    return {
        tp: found[tp.topic].id
        for tp in sorted(wanted)
        if tp.topic in found and tp.partition in found[tp.topic].partitions
    }


def readable_ends(cluster: SourceCluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ReadableEnd]:
    """Readable end and current leader epoch of partitions that exist."""
    return dict(cluster.log_ends(partitions)) if partitions else {}


def readable_ranges(
    cluster: SourceCluster, topics: Mapping[str, TopicFacts]
) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, int]]:
    """First offset and readable end (exclusive) of each log of these topics, and its leader's epoch."""
    every = partitions_of(topics)
    starts = cluster.log_starts(every) if every else {}
    ends = readable_ends(cluster, every)
    return {tp: (starts[tp], ends[tp].offset) for tp in every}, {tp: ends[tp].leader_epoch for tp in every}


class LogEpochsCache:
    """Epochs of logs, cached while their leader's epoch and topic id are unchanged."""

    def __init__(self, cluster: SourceCluster) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, LogEpochs] = {}

    def get(
        self, partitions: Mapping[TopicPartition, str | None], ends: Mapping[TopicPartition, ReadableEnd] | None = None
    ) -> dict[TopicPartition, LogEpochs]:
        """Epochs of `existing_partitions`. Cached epochs are exact; cached bounds may be old.

        Raises PeerError if leaders change during every attempt.
        """
        current = readable_ends(self._cluster, partitions) if ends is None else ends
        logs: dict[TopicPartition, LogEpochs] = {}
        for tp, topic_id in partitions.items():
            known = self._known.get(tp)
            if known is not None and (known.leader_epoch, known.topic_id) == (current[tp].leader_epoch, topic_id):
                logs[tp] = known
        missing = {tp: topic_id for tp, topic_id in partitions.items() if tp not in logs}
        if missing:
            logs.update(self.fetch(missing))
        return logs

    def fetch(self, partitions: Mapping[TopicPartition, str | None]) -> dict[TopicPartition, LogEpochs]:
        """Epochs and current bounds, never from the cache."""
        for attempt in range(1, _ATTEMPTS + 1):
            starts = self._cluster.log_starts(partitions) if partitions else {}
            ends = readable_ends(self._cluster, partitions)
            try:
                found = self._fetch(partitions, starts, ends)
            except PeerError as error:
                if error.code not in _LEADER_CHANGED or attempt == _ATTEMPTS:
                    raise
                _log.info("a leader changed while its epochs were fetched, retrying: %s", error)
                continue
            self._known.update(found)
            return found
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _fetch(
        self,
        partitions: Mapping[TopicPartition, str | None],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, ReadableEnd],
    ) -> dict[TopicPartition, LogEpochs]:
        logs = {
            tp: LogEpochs(ends[tp].leader_epoch, starts[tp], ends[tp].offset, (), topic_id)
            for tp, topic_id in partitions.items()
        }
        with_epochs = [tp for tp, log in logs.items() if log.leader_epoch >= 0]
        # For its own epoch a leader returns its log end offset, which may be above the readable end.
        own = {tp: (logs[tp].leader_epoch, logs[tp].leader_epoch) for tp in with_epochs}
        for tp, answer in self._cluster.epoch_ends(own).items() if own else ():
            logs[tp] = replace(logs[tp], end_offset=max(answer.end_offset, logs[tp].end_offset))
        walks = {tp: EpochWalk(logs[tp].leader_epoch) for tp in with_epochs}
        while questions := {
            tp: (older, walk.leader_epoch)
            for tp, walk in walks.items()
            if (older := walk.next_epoch(logs[tp].start_offset)) is not None
        }:
            for tp, answer in self._cluster.epoch_ends(questions).items():
                walks[tp].add_answer(answer)
        return logs | {tp: replace(logs[tp], epochs=walk.starts(logs[tp].start_offset)) for tp, walk in walks.items()}
