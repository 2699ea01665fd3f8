"""The replicas of this node: looked up by name or id on every produce and fetch, kept in step with the metadata image.

Owns the `Replica` objects; `ReplicaRoles` sets their roles. An unused partition with a single replica has no object, so
ten thousand idle partitions cost nothing here. A followed partition without files has none either: it is opened for its
first record (`leader_duties`), or for a request that names it.

Rules: `epochs.md E4`, `E33`; `recovery.md V37`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER, TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import CorruptLog, LogOffline, StorageError, is_transient
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.log.partition.partition_log import NO_LIMIT, PartitionLog
from fenceline.metadata.image import ConfigResourceType, LeaderRecoveryState
from fenceline.node.clock import Clock
from fenceline.node.garbage import free_in_parts
from fenceline.node.logs import Logger
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replica_directories import OfflineDirectory, ReplicaDirectories
from fenceline.node.replication.replica_roles import ReplicaRoles, Roles
from fenceline.replica.leader import InSyncRules

if TYPE_CHECKING:
    from fenceline.log.core.agreement import EpochsOfLog
    from fenceline.log.core.epoch_cache import EpochCache
    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.changes import ChangedPartition, Delta
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replicas")

_AT_ONCE: Final = 100
"""Replicas that begin to work in one iteration of the event loop: some milliseconds."""
_OFFLINE_ADVICE: Final = (
    "This partition is offline, the others are served. Check the disk (dmesg, smartctl), then restart the node."
)


def log_recovery_report(partition_log: PartitionLog) -> None:
    """Log the bytes that recovery removed when the log was opened."""
    report = partition_log.recovery
    if report is not None and (report.torn_bytes or report.cut_bytes):
        log.warning(
            "log truncated by recovery",
            partition=str(partition_log.topic_partition),
            torn_bytes=report.torn_bytes,
            cut_bytes=report.cut_bytes,
            reason=report.reason,
            evidence=report.evidence,
            log_end_offset=partition_log.log_end_offset,
        )


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The part of a closed log that the comparison with its leader needs."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache

    @classmethod
    def of(cls, log: PartitionLog) -> Self:
        return cls(log.log_start_offset, log.log_end_offset, log.epochs)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) by `epochs.md E13`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)


@dataclass(slots=True)
class RemovedReplica:
    """The directory of a replica that a reassignment removed, set aside. `log`: summary of the log if it was open;
    None: the files are read. `clean_since`: as of `Replica`. `was_found`: at the start. `compared_in`: the leader epoch
    of the comparison, -1 before it."""

    log_dir: LogDir
    removed: RemovedPartition
    topic_id: UUID
    log: EpochsOfLog | None = None
    clean_since: int = NO_LIMIT
    was_found: bool = False
    compared_in: int = -1


class Replicas:
    """Lookup of replicas, in step with the metadata image."""

    def __init__(
        self,
        node_id: int,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        log_config: Callable[[str], Mapping[str, str | None]],
        clock: Clock,
        delete_later: Callable[[Callable[[], None], int], None],
        *,
        roles: Roles,
        rules: InSyncRules,
        broker_epoch: Callable[[], int],
        in_service: OpenReplicas | None = None,
        delete_partition: Callable[[RemovedPartition], None] = RemovedPartition.delete,
        compare_removed: Callable[[RemovedReplica], None] | None = None,
        report_directory: Callable[[UUID, int, UUID], None] = lambda *_: None,
        suspect: Callable[[LogDir, OSError | StorageError], None] = lambda *_: None,
    ) -> None:
        """`in_service`: what the other parts of the node see. `compare_removed` receives replicas that a reassignment
        removes; without it they are deleted. `report_directory`: see `ReplicaDirectories`. `suspect` is called, in any
        thread, for errors that a directory may have caused."""
        self._roles = roles
        self._delete_partition = delete_partition
        self._compare_removed = compare_removed
        self._role_of = ReplicaRoles(node_id, roles, rules, broker_epoch, clock)
        self._clock = clock
        self._delete_later = delete_later
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._suspect = suspect
        self.directories = ReplicaDirectories(node_id, log_dirs, image, report_directory, clock.now_ms)
        self._image = image
        self._log_config = log_config
        self.in_service = OpenReplicas() if in_service is None else in_service
        self.in_service.storage_failed.listen(self.storage_failed)
        self.in_service.thread_ended.listen(self.thread_ended)
        self.in_service.cut_ended.listen(self.cut_ended)
        for log_dir in log_dirs.opened:
            log_dir.on_segment = self._segment_started
        self.open_by_name = self.in_service.by_name
        self.open_by_id = self.in_service.by_id
        self.offline = self.in_service.offline
        self._configs: dict[str, LogConfig] = {}
        self._without_directory: set[TopicPartition] = set()
        """The subset of `offline` without a usable directory: checked again with each change of the partition."""
        self._leaving: dict[TopicPartition, Replica | None] = {}
        """Removed while a thread uses their logs; their files are deleted when it finishes, and a new partition of that
        name waits. None for a held one."""
        self._stopped: dict[TopicPartition, Replica] = {}
        """Taken offline while a thread uses their logs: neither opened again nor deleted before it finishes."""
        self._vacated: dict[TopicPartition, asyncio.Future[None]] = {}
        """Futures of the leaving partitions whose names are waited for."""
        self._held: set[TopicPartition] = set()
        self._postponed: dict[tuple[str, int], None] = {}
        """Topics and indexes of replicas whose roles are applied soon; in order."""
        self._opened_at_once = 0
        self._idle: PartitionImage | None = None
        """While a delta is applied: a state after a change for which nothing was to be done."""
        self._moved_away: dict[TopicPartition, tuple[UUID, int]] = {}
        """Removed by a reassignment: topic id and `clean_since`."""

    def get(self, topic: str, index: int) -> Replica | None:
        """The replica of a partition on this node, or None if there is none."""
        replica = self.open_by_name.get((topic, index))
        if replica is None:
            image = self._image().topics_by_name.get(topic)
            replica = self._open(image, index) if image is not None else None
        return replica

    def log_of(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """A partition's log, opened if necessary, whatever its role. Used at start; None if this node has none."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        return self._open_log(topic, topic_partition.partition) if topic is not None else None

    def by_id(self, topic_id: bytes, index: int) -> Replica | None:
        """As `get`, by the topic id's 16 bytes."""
        replica = self.open_by_id.get((topic_id, index))
        if replica is None:
            image = self._image().topics_by_id.get(UUID(bytes=topic_id))
            replica = self._open(image, index) if image is not None else None
        return replica

    def hosted(self, topic: str | None, topic_id: bytes | None, index: int) -> Replica:
        """The replica of a partition on this node, whatever its role.

        Raises PeerError in the order of `epochs.md E4`: 56 offline, 100 or 3 unknown, 6 not here.
        """
        if topic_id is not None:
            replica = self.open_by_id.get((topic_id, index)) or self.by_id(topic_id, index)
        else:
            replica = self.open_by_name.get((topic or "", index)) or self.get(topic or "", index)
        if replica is None:
            self._raise_missing(topic, topic_id, index)
            raise AssertionError("unreachable")
        return replica

    def leader(self, topic: str | None, topic_id: bytes | None, index: int) -> Replica:
        """The replica if it leads the partition and has recovered (V37). Raises as `hosted`, or 6."""
        replica = self.hosted(topic, topic_id, index)
        if replica.leader is None or replica.is_recovering:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def _raise_missing(self, topic: str | None, topic_id: bytes | None, index: int) -> None:
        image = self._image()
        found = image.topics_by_id.get(UUID(bytes=topic_id)) if topic_id else image.topics_by_name.get(topic or "")
        if found is None:
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_ID if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if TopicPartition(found.name, index) in self.offline:
            raise LogOffline(self.offline[TopicPartition(found.name, index)])
        if not 0 <= index < len(found.partitions):
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def recover(self, found: Iterable[TopicPartition]) -> None:
        """Open logs after a crash. Blocks: runs in a thread, before anything is served. A damaged log goes offline."""
        for topic_partition in found:
            partition_log = self.log_of(topic_partition)
            if partition_log is not None:
                log_recovery_report(partition_log)

    # --- following the image --------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> None:
        """Apply a metadata change to the open replicas; the cost depends on the size of the change. If it gives work to
        many that are not open, most of them begin in the next iterations of the event loop."""
        self._opened_at_once = 0
        for topic in delta.deleted_topics:
            self._drop(topic)
        for resource in delta.changed_configs:
            if resource.type is ConfigResourceType.TOPIC:
                self.reload_config(resource.name)
            elif resource.type is ConfigResourceType.BROKER:
                self.reload_config()
        for topic in delta.created_topics:
            self._apply_roles_of(topic, at_once=_AT_ONCE)
        for changed in delta.changed_partitions:
            self._apply_change(changed)
        self._idle = None

    def apply_roles(self) -> None:
        """At start: start to follow partitions that are led elsewhere, and to recover uncleanly elected leaders."""
        self._opened_at_once = 0
        with self.directories.listed():
            for topic in self._image().topics_by_id.values():
                self._apply_roles_of(topic)

    def _apply_roles_of(self, topic: TopicImage, *, at_once: int | None = None) -> None:
        """`at_once`: how many partitions are not postponed; None: all."""
        idle: PartitionImage | None = None
        for index, partition in enumerate(topic.partitions):
            if partition is idle:
                continue  # equal partitions share one image
            if self._needs_nothing(partition):
                idle = partition
            elif at_once is not None and index >= at_once:
                self._postpone(topic, index)
            else:
                self._apply_role(topic, index)

    def _apply_role(self, topic: TopicImage, index: int) -> None:
        partition = topic.partitions[index]
        if self._node_id in partition.replicas and not self.directories.is_as_recorded(partition):
            self._check_assignment(topic, index)
        if self._has_work(partition):
            self._begin_work(topic, index)

    def _needs_nothing(self, partition: PartitionImage) -> bool:
        """Whether nothing is done for a partition in this state while it has no object."""
        if self._node_id not in partition.replicas:
            return True
        return not self._has_work(partition) and self.directories.is_as_recorded(partition)

    def _begin_work(self, topic: TopicImage, index: int) -> None:
        """Open a replica that has work, unless it works without a log."""
        if self._is_unused_leader(topic, index):
            self._roles.leads_unused(topic, index, self.get)
        elif self._is_unused_follower(topic, index):
            self._roles.follows_unused(topic, index)
        elif self._opened_at_once < _AT_ONCE or (topic.name, index) in self.open_by_name:
            self._opened_at_once += 1
            self.get(topic.name, index)
        else:
            self._postpone(topic, index)

    def _postpone(self, topic: TopicImage, index: int) -> None:
        if not self._postponed:
            asyncio.get_running_loop().call_soon(self._apply_postponed)
        self._postponed[topic.name, index] = None

    def _apply_postponed(self) -> None:
        """Apply the roles that a large change has left for later, as they are now."""
        self._opened_at_once = 0
        for name, index in list(islice(self._postponed, _AT_ONCE)):
            del self._postponed[name, index]
            topic = self._image().topics_by_name.get(name)
            if topic is not None and index < len(topic.partitions):
                self._apply_role(topic, index)
        if self._postponed:
            asyncio.get_running_loop().call_soon(self._apply_postponed)

    def _is_unused_leader(self, topic: TopicImage, index: int) -> bool:
        """Whether the replica here leads, has to recover (KIP-704), and has no files in the directory that it would
        get."""
        partition = topic.partitions[index]
        return (
            partition.leader == self._node_id
            and partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
            and partition.isr == (self._node_id,)
            and self.is_unused(topic, index)
        )

    def _is_unused_follower(self, topic: TopicImage, index: int) -> bool:
        """Whether the replica here follows, and has no files in the directory that it would get."""
        return self._is_follower(topic.partitions[index]) and self.is_unused(topic, index)

    def _is_follower(self, partition: PartitionImage) -> bool:
        return partition.leader not in (NO_LEADER, self._node_id) and self._node_id in partition.replicas

    def is_unused(self, topic: TopicImage, index: int) -> bool:
        """Whether the replica here can be opened at any time, and would be empty."""
        topic_partition = TopicPartition(topic.name, index)
        return (
            topic_partition not in self.open_by_name
            and topic_partition not in self.offline
            and topic_partition not in self._leaving
            and topic_partition not in self._stopped
            and self.directories.is_as_recorded(topic.partitions[index])
            and self.directories.has_no_files(topic_partition)
        )

    def _check_assignment(self, topic: TopicImage, index: int) -> None:
        if (topic.name, index) not in self.offline and (topic.name, index) not in self._leaving:
            self.directories.check_assignment(topic, index)

    def _retry_directory(self, topic: TopicImage, index: int) -> None:
        """Retry a partition that went offline because its replica could have been elected without its records."""
        if not self._without_directory or (topic.name, index) not in self._without_directory:
            return
        topic_partition = TopicPartition(topic.name, index)
        try:
            self.directories.of(topic, index)
        except OfflineDirectory:
            return
        self._set_online(topic_partition)

    def _set_online(self, topic_partition: TopicPartition) -> None:
        """The reason why the partition was offline no longer applies."""
        self._without_directory.discard(topic_partition)
        if self.offline.pop(topic_partition, None) is not None:
            log.warning("partition online again", partition=str(topic_partition))

    def _has_work(self, partition: PartitionImage) -> bool:
        """Whether a replica here has work without a client request: following or recovering."""
        if partition.leader == self._node_id:
            return partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        return partition.leader != NO_LEADER and self._node_id in partition.replicas

    def _apply_change(self, changed: ChangedPartition) -> None:
        replica = self.open_by_name.get((changed.topic, changed.index))
        if replica is None:
            self._roles.stops_resting(changed.topic_id, changed.index)
            if not self._is_follower(changed.after):
                self._roles.stops_following_unused(changed.topic_id, changed.index)
        if replica is None and changed.after is self._idle and not self.offline:
            return
        is_as_recorded = self.directories.is_as_recorded(changed.after)
        if replica is None and is_as_recorded and self._roles.is_followed_unused(changed):
            return
        if self._node_id not in changed.after.replicas:
            if changed.before is not None and self._node_id in changed.before.replicas:
                self._record_move(changed, replica)
                self._remove(TopicPartition(changed.topic, changed.index))
            return
        if (topic := self._image().topics_by_name.get(changed.topic)) is not None:
            self._retry_directory(topic, changed.index)
            if not is_as_recorded:
                self._check_assignment(topic, changed.index)
        if replica is not None:
            self.in_service.watch(replica.topic_partition)
            self._role_of.apply(replica, changed.after)
        elif self._has_work(changed.after):
            if topic is not None and topic.partitions[changed.index] is changed.after:
                self._begin_work(topic, changed.index)
            else:
                self.get(changed.topic, changed.index)
        elif self._needs_nothing(changed.after):
            self._idle = changed.after

    def _record_move(self, changed: ChangedPartition, replica: Replica | None) -> None:
        topic = self._image().topics_by_name.get(changed.topic)
        if topic is not None:
            since = replica.clean_since if replica is not None else NO_LIMIT
            self._moved_away[TopicPartition(changed.topic, changed.index)] = topic.id, since

    def thread_ended(self, replica: Replica) -> None:
        """A thread has flushed or compacted the log. If the replica was removed meanwhile, delete its files now, unless
        another thread uses them; if it went offline, it may be opened again."""
        topic_partition = replica.topic_partition
        if _is_busy(replica):
            return
        if self._leaving.get(topic_partition) is replica:
            self._finish_removal(topic_partition)
        elif self._stopped.get(topic_partition) is replica:
            del self._stopped[topic_partition]
            self._reopen(topic_partition)

    def cut_ended(self, replica: Replica) -> None:
        """A thread has truncated the log; apply metadata changes that arrived meanwhile."""
        self.thread_ended(replica)
        topic = self._image().topics_by_id.get(replica.topic_id)
        if topic is not None and self.in_service.holds(replica):
            self.in_service.watch(replica.topic_partition)
            self._role_of.apply(replica, topic.partitions[replica.topic_partition.partition])

    async def vacated(self, topics: Collection[str], timeout_s: float) -> None:
        """Wait until nothing is left of earlier topics with these names, at most `timeout_s`: from then on the new
        topics are served."""
        waiting = []
        for topic_partition in self._leaving:
            if topic_partition.topic in topics:
                if topic_partition not in self._vacated:
                    self._vacated[topic_partition] = asyncio.get_running_loop().create_future()
                waiting.append(self._vacated[topic_partition])
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    def _finish_removal(self, topic_partition: TopicPartition) -> None:
        """The thread that used the log of a removed replica has finished."""
        del self._leaving[topic_partition]
        self._delete_files(topic_partition)
        self._reopen(topic_partition)
        vacated = self._vacated.pop(topic_partition, None)
        if vacated is not None:
            vacated.set_result(None)

    def _reopen(self, topic_partition: TopicPartition) -> None:
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is not None and topic_partition.partition < len(topic.partitions):
            self._apply_role(topic, topic_partition.partition)

    def reserve(self, topic_partition: TopicPartition) -> bool:
        """Reserve the files of an offline partition for a thread; False if it is not offline. Must be followed by
        `release`."""
        is_busy = topic_partition in self._leaving or topic_partition in self._stopped
        if is_busy or topic_partition not in self.offline:
            return False
        self._held.add(topic_partition)
        return True

    def opener(self, topic_partition: TopicPartition, log_dir: LogDir) -> Callable[[], PartitionLog] | None:
        """Opens the log of a held partition, in a thread; it raises CorruptLog. None: the topic was deleted."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is None:
            return None
        config = self._config_of(topic.name)
        return partial(log_dir.open_detached, topic_partition, topic.id, config, self._clock.now_ms())

    def release(self, topic_partition: TopicPartition, *, is_back: bool) -> None:
        """The thread has finished. `is_back`: the reason why the partition was offline no longer applies."""
        self._held.discard(topic_partition)
        if topic_partition in self._leaving:
            self._finish_removal(topic_partition)
        elif is_back:
            self._set_online(topic_partition)
            self._reopen(topic_partition)

    def log_replaced(self, replica: Replica) -> None:
        """The log is in another directory now: a follower continues from there."""
        topic = self._image().topics_by_id.get(replica.topic_id)
        index = replica.topic_partition.partition
        if topic is not None and index < len(topic.partitions):
            leader = topic.partitions[index].leader
            if replica.leader is None and leader not in (NO_LEADER, self._node_id):
                self._roles.follows(replica, leader)
        replica.wake()

    def reload_config(self, topic: str | None = None) -> None:
        """Apply changed configs of one topic, or of all topics if the broker's configs changed."""
        if topic is None:
            self._configs.clear()
        else:
            self._configs.pop(topic, None)
        for replica in self.in_service if topic is None else self._open_of(topic):
            replica.config = self._config_of(replica.topic_partition.topic)
            replica.log.config = replica.config
            self.in_service.watch(replica.topic_partition)
            self.in_service.dirty(replica)

    def _open_of(self, topic: str) -> Iterable[Replica]:
        found = self._image().topics_by_name.get(topic)
        replicas = (self.open_by_name.get((topic, index)) for index in range(len(found.partitions) if found else 0))
        return [each for each in replicas if each is not None]

    def _segment_started(self, topic_partition: TopicPartition) -> None:
        """In any thread for the first segment of a log."""
        self.in_service.watch(topic_partition)
        replica = self.open_by_name.get(topic_partition)
        if replica is not None and len(replica.log.segments) > 1:
            self.in_service.dirty(replica)

    def _config_of(self, topic: str) -> LogConfig:
        cached = self._configs.get(topic)
        if cached is None:
            cached = self._configs[topic] = LogConfig.from_mapping(self._log_config(topic))
        return cached

    def _open(self, topic: TopicImage, index: int) -> Replica | None:
        partition_log = self._open_log(topic, index)
        if partition_log is None:
            return None
        topic_partition = TopicPartition(topic.name, index)
        replica = Replica(topic_partition, topic.id, partition_log, self._config_of(topic.name), self._clock)
        self.in_service.add(replica)
        self.in_service.dirty(replica)
        if not self.directories.is_as_recorded(topic.partitions[index]):
            self.directories.check_assignment(topic, index)
        self._role_of.apply(replica, topic.partitions[index])
        self._roles.opened(replica)
        return replica

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog | None:
        """None if this node has no replica, or its log is damaged."""
        topic_partition = TopicPartition(topic.name, index)
        if (
            not 0 <= index < len(topic.partitions)
            or topic_partition in self.offline
            or topic_partition in self._leaving
            or topic_partition in self._stopped
        ):
            return None
        if self._node_id not in topic.partitions[index].replicas:
            return None
        config = self._config_of(topic.name)
        try:
            log_dir = self.directories.of(topic, index)
        except OfflineDirectory as error:
            if not error.is_logged:
                log.error(
                    "partition offline", partition=str(topic_partition), reason=error.message, advice=error.advice
                )
            self._stop(topic_partition, error.message)
            self._without_directory.add(topic_partition)
            return None
        try:
            return log_dir.partition(topic_partition, topic.id, config, now_ms=self._clock.now_ms())
        except CorruptLog as error:
            self.set_offline(topic_partition, error.message, error.advice)
            if isinstance(error.__cause__, OSError):
                self._suspect(log_dir, error.__cause__)
        except OSError as error:
            self.set_offline(topic_partition, f"{error.filename or topic_partition}: {error.strerror or error}")
            self._suspect(log_dir, error)
        return None

    def storage_failed(self, replica: Replica, error: StorageError) -> None:
        """A flush or a read failed: unless the error is transient, take the partition offline."""
        if self.open_by_name.get(replica.topic_partition) is not replica:
            return  # deleted meanwhile, perhaps created again: its files are missing on purpose
        if is_transient(error.errno) and replica.log.offline is None:
            log.warning("disk access failed", partition=str(replica.topic_partition), reason=error.message)
        else:
            self.set_offline(replica.topic_partition, error.message)
            self.suspect_directory_of(replica.topic_partition, error)

    def suspect_directory_of(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """A disk operation of this partition failed; the cause may be its directory."""
        log_dir = self._log_dirs.holder(topic_partition)
        if log_dir is not None:
            self._suspect(log_dir, error)

    def directory_failed(self, log_dir: LogDir, reason: str) -> int:
        """After `LogDirs` was updated: stop serving the replicas in the directory. Returns their number."""
        served = [*self.open_by_name, *self._roles.followed_unused()]
        held = [each for each in served if self._log_dirs.holder(TopicPartition(*each)) is log_dir]
        for topic, index in held:
            self._stop(TopicPartition(topic, index), f"{log_dir.path} is offline: {reason}")
        self._roles.directory_failed()
        return len(held)

    def set_offline(self, topic_partition: TopicPartition, reason: str, advice: str = _OFFLINE_ADVICE) -> None:
        """Take one partition offline; the others are still served. Logs the reason and the remedy."""
        log.error("partition offline", partition=str(topic_partition), reason=reason, advice=advice)
        self._stop(topic_partition, reason)
        self.directories.report_lost(topic_partition)

    def _stop(self, topic_partition: TopicPartition, reason: str) -> None:
        self.offline[topic_partition] = reason
        replica = self.in_service.remove(topic_partition)
        if replica is None and (topic := self._image().topics_by_name.get(topic_partition.topic)) is not None:
            self._roles.stops_following_unused(topic.id, topic_partition.partition)
            self._roles.stops_resting(topic.id, topic_partition.partition)
        self.in_service.stopped(topic_partition, False)
        if replica is not None:
            self._roles.stops_following(replica)
            replica.end_leadership(ErrorCode.KAFKA_STORAGE_ERROR)
            if _is_busy(replica):
                self._stopped[topic_partition] = replica

    def _drop(self, topic: TopicImage) -> None:
        self._configs.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            self._moved_away.pop(TopicPartition(topic.name, index), None)
            self._roles.stops_following_unused(topic.id, index)
            self._roles.stops_resting(topic.id, index)
            self._remove(TopicPartition(topic.name, index))

    def _remove(self, topic_partition: TopicPartition) -> None:
        """The partition no longer belongs to this node: its topic was deleted, or its replica was moved away."""
        self.offline.pop(topic_partition, None)
        self._without_directory.discard(topic_partition)
        replica = self.in_service.remove(topic_partition)
        self.in_service.stopped(topic_partition, True)
        if topic_partition in self._held:
            self._leaving[topic_partition] = None
        if replica is not None:
            self._roles.stops_following(replica)
            replica.end_leadership()
        replica = replica or self._stopped.pop(topic_partition, None)
        if replica is not None and _is_busy(replica):
            # The thread uses paths, and would write the topic id and the epochs of this log into the files of the next
            # partition with this name.
            replica.is_leaving = True
            if replica.cleaning is not None:
                replica.cleaning.ask_to_stop()
            self._leaving[topic_partition] = replica
        if topic_partition not in self._leaving:
            self._delete_files(topic_partition)

    def _delete_files(self, topic_partition: TopicPartition) -> None:
        """Delete its files, keep its receipts. A replica that was moved away is first compared with the leader."""
        moved = self._moved_away.pop(topic_partition, None)
        holders = [self._log_dirs.holder(topic_partition), *self.directories.unresolved.pop(topic_partition, ())]
        self._log_dirs.forget(topic_partition)
        # The next topic of this name has no missing directory.
        self._log_dirs.missing.pop(topic_partition, None)
        self.directories.pending_notes.pop(topic_partition, None)
        for log_dir in holders:
            if log_dir is not None and self._log_dirs.is_online(log_dir):
                self._remove_files(topic_partition, log_dir, moved)
            # Files in a failed directory are set aside when it comes back.

    def _remove_files(self, topic_partition: TopicPartition, log_dir: LogDir, moved: tuple[UUID, int] | None) -> None:
        was_open = log_dir.open_logs.get(topic_partition)
        is_compared = moved is not None and self._compare_removed is not None
        try:
            if is_compared:
                removed = log_dir.set_aside_stray(topic_partition)
            else:
                removed = log_dir.delete_partition(topic_partition)
        except StorageError as error:
            log.error(
                "deleting the files of a removed partition failed",
                partition=str(topic_partition),
                reason=error.message,
                advice="Check the disk; the next start sets the directory aside as -stray.",
            )
            self._suspect(log_dir, error)
            return
        if removed is None:
            return
        if was_open is not None:
            free_in_parts(list(was_open.segments))
        if moved is None or self._compare_removed is None:
            self._delete_later(partial(self._delete_partition, removed), 0)
            return
        topic_id, clean_since = moved
        known = LogSummary.of(was_open) if was_open is not None and was_open.offline is None else None
        self._compare_removed(RemovedReplica(log_dir, removed, topic_id, known, clean_since))


def _is_busy(replica: Replica) -> bool:
    """Whether a thread uses its log."""
    return replica.is_being_cut or replica.cleaning is not None or replica.log.is_flushing
