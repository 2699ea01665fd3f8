"""The interface to a cluster that planning needs, so that tests can use a fake instead of brokers.

Owns the `SourceCluster` protocol and its values. Never talks to a broker itself: `connect.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fenceline.client.core.offsets import EpochEnd
from fenceline.ids import TopicPartition

__all__ = ["EpochEnd", "ReadableEnd", "SourceCluster", "TopicFacts", "partitions_of"]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that exists. `id` is Kafka's text form, None from brokers without topic ids."""

    id: str | None
    partitions: tuple[int, ...]
    is_internal: bool = False


def partitions_of(topics: Mapping[str, TopicFacts]) -> list[TopicPartition]:
    return [TopicPartition(name, index) for name, facts in topics.items() for index in facts.partitions]


class ReadableEnd(NamedTuple):
    """Readable end (high watermark, or last stable offset) and the leader's current epoch (-1: unknown)."""

    offset: int
    leader_epoch: int


class SourceCluster(Protocol):
    """The driver's requests to a cluster. Every method raises a `FencelineError` if the cluster cannot answer."""

    def cluster_id(self) -> str | None:
        """Of the cluster that answered `topics` last; None from brokers that do not return one."""
        ...

    def topics(self, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        """Those of `names` that exist (None: all topics)."""
        ...

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset of each partition's log."""
        ...

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ReadableEnd]:
        """Current end of each partition's readable log."""
        ...

    def log_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, ReadableEnd]]:
        """`log_starts` and `log_ends` with one look at the leaders. No start lies above its end."""
        ...

    def offsets_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Offset of the first record that is not older; None where there is none."""
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd]:
        """OffsetForLeaderEpoch. `epochs`: (requested epoch, current leader epoch) by partition."""
        ...

    def cleanup_policies(self, topics: Collection[str]) -> Mapping[str, str]:
        """`cleanup.policy` of existing topics. Raises `PeerError` if the user is not authorized."""
        ...

    def await_news(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        """Wait at the brokers until something changes for a reader at `positions` (next offset, epoch before it). False
        after the timeout."""
        ...
