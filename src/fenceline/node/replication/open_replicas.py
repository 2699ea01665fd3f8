"""The replicas of this node that are in service, and what happens to them.

Owns the lookup, and the signals between the parts that use a replica's log and `Replicas`, which opens and closes them.
Never opens a log, and never decides which replicas are open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fenceline.node.signal import Signal

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.log.core.errors import StorageError
    from fenceline.node.replication.replica import Replica


class OpenReplicas:
    """Changed by `Replicas` only. Event loop only."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int], Replica] = {}
        """By topic name and partition."""
        self.by_id: dict[tuple[bytes, int], Replica] = {}
        """The same replicas by the 16 bytes of the topic id and partition."""
        self.watched: dict[TopicPartition, Replica] = {}
        """Those that periodic work visits. The others have no files, and no follower of theirs is waited for. All
        changes that end this make a replica watched again."""
        self.offline: dict[TopicPartition, str] = {}
        """Partitions of this node that cannot be served, and why."""
        self.storage_failed: Signal[Replica, StorageError] = Signal()
        """A disk operation on the replica's log failed."""
        self.thread_ended: Signal[Replica] = Signal()
        """A thread has flushed or compacted the replica's log."""
        self.cut_ended: Signal[Replica] = Signal()
        """A thread has truncated the replica's log."""
        self.stopped: Signal[TopicPartition, bool] = Signal()
        """A replica is no longer served; whether it no longer belongs to this node."""
        self.dirty: Signal[Replica] = Signal()
        """The replica's log may have something to compact."""

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Replica]:
        """A snapshot, safe against changes."""
        return iter(list(self.by_name.values()))

    def add(self, replica: Replica) -> None:
        topic_partition = replica.topic_partition
        self.by_name[topic_partition] = self.watched[topic_partition] = replica
        self.by_id[replica.topic_id_bytes, topic_partition.partition] = replica

    def remove(self, topic_partition: TopicPartition) -> Replica | None:
        """The replica, if it was in service. `stopped` is the caller's to emit."""
        self.watched.pop(topic_partition, None)
        replica = self.by_name.pop(topic_partition, None)
        if replica is not None:
            self.by_id.pop((replica.topic_id_bytes, topic_partition.partition), None)
        return replica

    def watch(self, topic_partition: TopicPartition) -> None:
        """Periodic work visits the replica, if it is in service. In any thread."""
        replica = self.by_name.get(topic_partition)
        if replica is not None:
            self.watched[topic_partition] = replica

    def unwatch(self, replica: Replica) -> None:
        if self.watched.get(replica.topic_partition) is replica:
            del self.watched[replica.topic_partition]

    def holds(self, replica: Replica) -> bool:
        """Whether this replica object is in service, neither deleted nor taken offline."""
        return self.by_name.get(replica.topic_partition) is replica

    def log_end_offset(self, topic_partition: TopicPartition) -> int | None:
        """Of an open replica; None if it is not open."""
        replica = self.by_name.get(topic_partition)
        return replica.log.log_end_offset if replica is not None else None

    def epoch_end(self, topic: str, index: int, leader_epoch: int) -> int:
        """End offset of an epoch in an open log, whatever its role; -1 if unknown."""
        replica = self.by_name.get((topic, index))
        if replica is None or replica.is_being_cut:
            return -1
        return replica.log.end_offset_for_epoch(leader_epoch)[1]
