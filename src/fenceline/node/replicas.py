"""The partitions that this node leads: found by name or id on every produce and fetch, built on first use.

Owns the `Replica` objects and who waits for them. An untouched partition of the image has no object at all, so ten
thousand idle partitions cost nothing here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import INTERNAL_TOPICS, METADATA_TOPIC, TopicPartition
from fenceline.log.config import LogConfig
from fenceline.log.errors import CorruptLog, StorageError
from fenceline.log.log_dir import LogDir
from fenceline.log.partition_log import PartitionLog
from fenceline.metadata.image import ConfigResourceType
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.replica.leader import LeaderState

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replicas")

_OFFLINE_ADVICE: Final = (
    "This partition is offline, the others are served. Check the disk (dmesg, smartctl), then restart the node."
)
_PASSING: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""System errors that go away without a repair of the disk."""


class Replica:
    """One partition on this node: its log, its leader state, and who waits for its high watermark."""

    __slots__ = (
        "config",
        "is_internal",
        "leader",
        "log",
        "topic_id",
        "topic_id_bytes",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        partition_log: PartitionLog,
        leader: LeaderState | None,
        config: LogConfig,
    ) -> None:
        self.topic_partition = topic_partition
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.topic_id = topic_id
        self.topic_id_bytes = topic_id.bytes
        self.log = partition_log
        self.leader = leader
        self.config = config
        self.waiters: set[Callable[[], None]] = set()

    @property
    def is_leader(self) -> bool:
        return self.leader is not None

    @property
    def leader_epoch(self) -> int:
        return self.leader.leader_epoch if self.leader is not None else -1

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def appended(self) -> None:
        """The log grew: move the high watermark and wake who waits for it."""
        leader = self.leader
        if leader is not None and leader.on_append(self.log.log_end_offset, self.config.min_insync_replicas):
            self.log.advance_high_watermark(leader.high_watermark)
            self.wake()

    def wake(self) -> None:
        """Call everybody who waits for a change of this partition; they take themselves off."""
        if self.waiters:
            for callback in tuple(self.waiters):
                callback()

    def end_leadership(self) -> None:
        self.leader = None
        self.wake()


def tell_recovery(partition_log: PartitionLog) -> None:
    """Say what opening a log had to cut off."""
    report = partition_log.recovery
    if report is not None and (report.torn_bytes or report.cut_bytes):
        log.warning(
            "log cut back by recovery",
            partition=str(partition_log.topic_partition),
            torn_bytes=report.torn_bytes,
            cut_bytes=report.cut_bytes,
            reason=report.reason,
            evidence=report.evidence,
            log_end_offset=partition_log.log_end_offset,
        )


class Replicas:
    """Lookup of replicas, in step with the metadata image."""

    def __init__(
        self,
        node_id: int,
        log_dirs: list[LogDir],
        image: Callable[[], MetadataImage],
        topic_config: Callable[[str], Mapping[str, str]],
        clock: Clock,
        delete_later: Callable[[Callable[[], None], int], None],
    ) -> None:
        self._clock = clock
        self._delete_later = delete_later
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._image = image
        self._topic_config = topic_config
        self.open_by_name: dict[tuple[str, int], Replica] = {}
        """Replicas in use by topic name and partition."""
        self.open_by_id: dict[tuple[bytes, int], Replica] = {}
        """The same ones by the 16 bytes of the topic id and partition."""
        self._configs: dict[str, LogConfig] = {}
        self.offline: dict[TopicPartition, str] = {}

    def __len__(self) -> int:
        return len(self.open_by_name)

    def __iter__(self) -> Iterator[Replica]:
        """The replicas in use; a snapshot, safe against changes."""
        return iter(list(self.open_by_name.values()))

    def get(self, topic: str, index: int) -> Replica | None:
        """The replica of a partition on this node, or None when this node has none."""
        replica = self.open_by_name.get((topic, index))
        if replica is None:
            image = self._image().topics_by_name.get(topic)
            replica = self._open(image, index) if image is not None else None
        return replica

    def log_end_offset(self, topic_partition: TopicPartition) -> int | None:
        """Of a replica in use; None when it is not."""
        replica = self.open_by_name.get(topic_partition)
        return replica.log.log_end_offset if replica is not None else None

    def holds(self, replica: Replica) -> bool:
        """Whether this very replica is still in service, neither deleted nor taken offline."""
        return self.open_by_name.get(replica.topic_partition) is replica

    def by_id(self, topic_id: bytes, index: int) -> Replica | None:
        """As `get`, by the topic id's 16 bytes."""
        replica = self.open_by_id.get((topic_id, index))
        if replica is None:
            image = self._image().topics_by_id.get(UUID(bytes=topic_id))
            replica = self._open(image, index) if image is not None else None
        return replica

    def leader(self, topic: str | None, topic_id: bytes | None, index: int) -> Replica:
        """The replica that leads the partition here.

        Raises PeerError in the order of `epochs.md E4`: 56 offline, 100 or 3 unknown, 6 not leader.
        """
        if topic_id is not None:
            replica = self.open_by_id.get((topic_id, index)) or self.by_id(topic_id, index)
        else:
            replica = self.open_by_name.get((topic or "", index)) or self.get(topic or "", index)
        if replica is None:
            self._raise_missing(topic, topic_id, index)
            raise AssertionError("unreachable")
        if replica.leader is None:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def _raise_missing(self, topic: str | None, topic_id: bytes | None, index: int) -> None:
        image = self._image()
        found = image.topics_by_id.get(UUID(bytes=topic_id)) if topic_id else image.topics_by_name.get(topic or "")
        if found is None:
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_ID if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if TopicPartition(found.name, index) in self.offline:
            raise PeerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline[TopicPartition(found.name, index)])
        if not 0 <= index < len(found.partitions):
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def recover(self) -> None:
        """Open every partition that has a directory, after a crash. Blocks: for a thread, before anything is served.

        A broken partition goes offline alone; one that the cluster does not know is renamed to `-stray`.
        """
        log_dir = self._log_dirs[0]
        for found in list(log_dir.existing()):
            topic_partition = found.topic_partition
            if topic_partition.topic == METADATA_TOPIC:
                continue
            topic = self._image().topics_by_name.get(topic_partition.topic)
            if topic is None or (found.topic_id is not None and found.topic_id != topic.id):
                self._set_aside(log_dir, topic_partition)
                continue
            replica = self._open(topic, topic_partition.partition)
            if replica is not None:
                tell_recovery(replica.log)

    def set_aside_strays(self) -> None:
        """Rename what the cluster has deleted while this node was down (snapshots.md N41). Blocks, as `recover`."""
        log_dir = self._log_dirs[0]
        for found in list(log_dir.existing()):
            topic = self._image().topics_by_name.get(found.topic_partition.topic)
            is_gone = topic is None or (found.topic_id is not None and found.topic_id != topic.id)
            if is_gone and found.topic_partition.topic != METADATA_TOPIC:
                self._set_aside(log_dir, found.topic_partition)

    @staticmethod
    def _set_aside(log_dir: LogDir, topic_partition: TopicPartition) -> None:
        try:
            stray = log_dir.set_aside_stray(topic_partition)
        except StorageError as error:
            log.error("stray partition can not be set aside", partition=str(topic_partition), reason=error.message)
            return
        log.warning(
            "stray partition set aside",
            partition=str(topic_partition),
            path=stray.path if stray is not None else None,
            reason="the cluster's metadata does not know a topic with this name and id",
            advice="Nothing is deleted. Remove the directory when its records are not needed.",
        )

    # --- following the image --------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> None:
        """Bring the open replicas in step with a new image; cost follows what changed."""
        for topic in delta.deleted_topics:
            self._drop(topic)
        for resource in delta.changed_configs:
            if resource.type is ConfigResourceType.TOPIC:
                self.reload_config(resource.name)
            elif resource.type is ConfigResourceType.BROKER:
                self.reload_config()
        for changed in delta.changed_partitions:
            replica = self.open_by_name.get((changed.topic, changed.index))
            if replica is not None:
                self._follow(replica, changed.after)

    def reload_config(self, topic: str | None = None) -> None:
        """Take over changed settings of one topic, or of all topics when the node's own settings changed."""
        if topic is None:
            self._configs.clear()
        else:
            self._configs.pop(topic, None)
        for replica in self:
            if topic is None or replica.topic_partition.topic == topic:
                replica.config = self._config_of(replica.topic_partition.topic)
                replica.log.config = replica.config

    def _config_of(self, topic: str) -> LogConfig:
        cached = self._configs.get(topic)
        if cached is None:
            cached = self._configs[topic] = LogConfig.from_mapping(self._topic_config(topic))
        return cached

    def _open(self, topic: TopicImage, index: int) -> Replica | None:
        if not 0 <= index < len(topic.partitions):
            return None
        partition = topic.partitions[index]
        if self._node_id not in partition.replicas:
            return None
        topic_partition = TopicPartition(topic.name, index)
        if topic_partition in self.offline:
            return None
        config = self._config_of(topic.name)
        try:
            partition_log = self._log_dirs[0].partition(topic_partition, topic.id, config, now_ms=self._clock.now_ms())
        except CorruptLog as error:
            self.set_offline(topic_partition, error.message, error.advice)
            return None
        except OSError as error:
            self.set_offline(topic_partition, f"{error.filename or topic_partition}: {error.strerror or error}")
            return None
        replica = Replica(topic_partition, topic.id, partition_log, None, config)
        self._follow(replica, partition)
        self.open_by_name[topic_partition.topic, index] = replica
        self.open_by_id[topic.id.bytes, index] = replica
        return replica

    def _follow(self, replica: Replica, partition: PartitionImage) -> None:
        if partition.leader != self._node_id:
            replica.end_leadership()
            return
        leader = replica.leader
        isr = frozenset(partition.isr)
        if leader is not None and leader.leader_epoch == partition.leader_epoch:
            if leader.on_isr_change(isr, partition.partition_epoch, replica.config.min_insync_replicas):
                replica.log.advance_high_watermark(leader.high_watermark)
                replica.wake()
            return
        replica.log.assign_epoch(partition.leader_epoch)
        replica.leader = LeaderState(
            node_id=self._node_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=isr,
            replica_count=len(partition.replicas),
            epoch_start_offset=replica.log.log_end_offset,
            high_watermark=replica.log.high_watermark,
        )
        replica.appended()
        replica.wake()

    def storage_failed(self, replica: Replica, error: StorageError) -> None:
        """A flush or a read met the disk's trouble: where it will not pass by itself, the partition goes offline."""
        if self.open_by_name.get(replica.topic_partition) is not replica:
            return  # deleted meanwhile, perhaps created anew: its files are gone with reason
        if error.errno in _PASSING and replica.log.offline is None:
            log.warning("disk access failed", partition=str(replica.topic_partition), reason=error.message)
        else:
            self.set_offline(replica.topic_partition, error.message)

    def set_offline(self, topic_partition: TopicPartition, reason: str, advice: str = _OFFLINE_ADVICE) -> None:
        """Take one partition out of service; the others go on. The operator reads why and what to do."""
        self.offline[topic_partition] = reason
        log.error("partition offline", partition=str(topic_partition), reason=reason, advice=advice)
        replica = self.open_by_name.pop(topic_partition, None)
        if replica is not None:
            self.open_by_id.pop((replica.topic_id_bytes, topic_partition.partition), None)
            replica.end_leadership()

    def _drop(self, topic: TopicImage) -> None:
        self._configs.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            topic_partition = TopicPartition(topic.name, index)
            self.offline.pop(topic_partition, None)
            replica = self.open_by_name.pop(topic_partition, None)
            if replica is not None:
                self.open_by_id.pop((replica.topic_id_bytes, index), None)
                replica.end_leadership()
            try:
                removed = self._log_dirs[0].delete_partition(topic_partition)
            except StorageError as error:
                log.error(
                    "files of a deleted topic stay",
                    partition=str(topic_partition),
                    reason=error.message,
                    advice="Check the disk; the next start sets the directory aside as -stray.",
                )
                continue
            if removed is not None:
                self._delete_later(removed.delete, 0)
