"""The narrow view of a cluster that planning needs, so that a fake can stand in for brokers in tests.

Owns the `Cluster` protocol and its values. Never talks to a broker itself: `connect.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fenceline.client.offsets import EpochEnd
from fenceline.ids import TopicPartition

__all__ = ["Cluster", "EpochEnd", "LogEnd", "TopicFacts"]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that exists. `id` is Kafka's text form, None from brokers without topic ids."""

    id: str | None
    partitions: tuple[int, ...]
    is_internal: bool = False


class LogEnd(NamedTuple):
    """End of what may be read (high watermark, or last stable offset) and the leader's current epoch (-1: unknown)."""

    offset: int
    leader_epoch: int


class Cluster(Protocol):
    """What the driver asks of a cluster. Every method raises a `FencelineError` when the cluster can not answer."""

    def cluster_id(self) -> str | None:
        """Of the cluster that answered `topics` last; None from brokers that do not tell."""
        ...

    def topics(self, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        """Those of `names` that exist (None: all topics)."""
        ...

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset of each partition's log."""
        ...

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        """Where each partition's readable log ends now."""
        ...

    def offsets_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Offset of the first record that is not older; None where there is none."""
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd]:
        """OffsetForLeaderEpoch: partition -> (epoch asked for, current leader epoch) to what the leader knows of it."""
        ...

    def cleanup_policies(self, topics: Collection[str]) -> Mapping[str, str]:
        """`cleanup.policy` of topics that exist. Raises `PeerError` where the user may not ask for it."""
        ...

    def await_news(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        """Wait at the brokers until something changed for who reads at `positions` (next offset, epoch before it), or
        the time is over: then False."""
        ...
