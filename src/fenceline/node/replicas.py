"""The partitions that this node has: found by name or id on every produce and fetch, in step with the metadata image.

Owns the `Replica` objects; the role that each has is `ReplicaRoles`'. An untouched partition that has no other replica
has no object at all, so ten thousand idle partitions cost nothing here; one that follows a leader has to be open.

Rules: `epochs.md E4`, `E33`; `recovery.md V37`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER, TopicPartition
from fenceline.log.config import LogConfig
from fenceline.log.errors import CorruptLog, StorageError, is_transient
from fenceline.log.partition_dir import RemovedPartition
from fenceline.log.partition_log import NO_LIMIT, PartitionLog
from fenceline.metadata.image import ConfigResourceType, LeaderRecoveryState
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.removed_replicas import LogSummary, RemovedReplica
from fenceline.node.replica import Replica
from fenceline.node.replica_places import OfflinePlace, ReplicaPlaces
from fenceline.node.replica_roles import ReplicaRoles, Roles
from fenceline.replica.leader import InSyncRules

if TYPE_CHECKING:
    from fenceline.log.log_dir import LogDir
    from fenceline.log.log_dirs import LogDirs
    from fenceline.metadata.changes import ChangedPartition, Delta
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replicas")

_OFFLINE_ADVICE: Final = (
    "This partition is offline, the others are served. Check the disk (dmesg, smartctl), then restart the node."
)


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
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        log_config: Callable[[str], Mapping[str, str | None]],
        clock: Clock,
        delete_later: Callable[[Callable[[], None], int], None],
        *,
        roles: Roles,
        rules: InSyncRules,
        broker_epoch: Callable[[], int],
        delete_partition: Callable[[RemovedPartition], None] = RemovedPartition.delete,
        compare_removed: Callable[[RemovedReplica], None] | None = None,
        tell_place: Callable[[UUID, int, UUID], None] = lambda *_: None,
        suspect: Callable[[LogDir, OSError | StorageError], None] = lambda *_: None,
    ) -> None:
        """`compare_removed` is given what a reassignment takes away; without it that is deleted. `tell_place`: see
        `ReplicaPlaces`. `suspect` hears, in any thread, of errors that a directory may be to
        blame for."""
        self._roles = roles
        self._delete_partition = delete_partition
        self._compare_removed = compare_removed
        self._role_of = ReplicaRoles(node_id, roles, rules, broker_epoch, clock)
        self._clock = clock
        self._delete_later = delete_later
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._suspect = suspect
        self.places = ReplicaPlaces(node_id, log_dirs, image, tell_place, clock.now_ms)
        self._image = image
        self._log_config = log_config
        self.open_by_name: dict[tuple[str, int], Replica] = {}
        """Replicas in use by topic name and partition."""
        self.open_by_id: dict[tuple[bytes, int], Replica] = {}
        """The same ones by the 16 bytes of the topic id and partition."""
        self._configs: dict[str, LogConfig] = {}
        self.offline: dict[TopicPartition, str] = {}
        self._without_place: set[TopicPartition] = set()
        """Of those, the ones that no directory may have as the metadata is: each change of it is looked at."""
        self.on_gone: Callable[[TopicPartition, bool], None] = lambda *_: None
        """Hears of a replica that is not served any more, and whether that is as it is none of this node's."""
        self.on_dirty: Callable[[Replica], None] = lambda _: None
        """Hears of a replica whose log may have something to compact."""
        self._leaving: dict[TopicPartition, Replica | None] = {}
        """Removed while a thread is at their logs; their files go when it ends, and what comes after them waits. None
        for one that was held."""
        self._stopped: dict[TopicPartition, Replica] = {}
        """Went offline while a thread is at their logs: not opened again, and not put away, before it ends."""
        self._vacated: dict[TopicPartition, asyncio.Future[None]] = {}
        """Of those that are leaving: who waits for their names."""
        self._held: set[TopicPartition] = set()
        self._moved_away: dict[TopicPartition, tuple[UUID, int]] = {}
        """Of those that are removed: topic id and `clean_since`, where the partition goes on without this node."""

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

    def log_of(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """A partition's log, opened if it is not, whatever its role. For start; None where this node has none."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        return self._open_log(topic, topic_partition.partition) if topic is not None else None

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
        """The replica that leads the partition here, and has recovered (V37). Raises as `hosted`, or 6."""
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
            raise PeerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline[TopicPartition(found.name, index)])
        if not 0 <= index < len(found.partitions):
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def recover(self, found: Iterable[TopicPartition]) -> None:
        """Open logs after a crash. Blocks: for a thread, before anything is served. A broken one goes offline alone."""
        for topic_partition in found:
            partition_log = self.log_of(topic_partition)
            if partition_log is not None:
                tell_recovery(partition_log)

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
        for topic in delta.created_topics:
            self._take_roles_of(topic)
        for changed in delta.changed_partitions:
            self._take_change(changed)

    def take_roles(self) -> None:
        """At start: begin to follow whatever is led elsewhere, and to recover what has to be."""
        for topic in self._image().topics_by_id.values():
            self._take_roles_of(topic)

    def _take_roles_of(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self._take_role(topic, index)

    def _take_role(self, topic: TopicImage, index: int) -> None:
        partition = topic.partitions[index]
        if self._node_id in partition.replicas:
            self._see(topic, index)
        if self._has_work(partition):
            self.get(topic.name, index)

    def _see(self, topic: TopicImage, index: int) -> None:
        if (topic.name, index) not in self.offline and (topic.name, index) not in self._leaving:
            self.places.see(topic, index)

    def _look_for_place(self, topic: TopicImage, index: int) -> None:
        """Who could have been elected without its records had no place. It has one when others lead without it."""
        topic_partition = TopicPartition(topic.name, index)
        if topic_partition not in self._without_place:
            return
        try:
            self.places.of(topic, index)
        except OfflinePlace:
            return
        self._back(topic_partition)

    def _back(self, topic_partition: TopicPartition) -> None:
        """What kept it out of service has passed."""
        self._without_place.discard(topic_partition)
        if self.offline.pop(topic_partition, None) is not None:
            log.warning("partition in service again", partition=str(topic_partition))

    def _has_work(self, partition: PartitionImage) -> bool:
        """Whether a replica here has something to do without being asked."""
        if partition.leader == self._node_id:
            return partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        return partition.leader != NO_LEADER and self._node_id in partition.replicas

    def _take_change(self, changed: ChangedPartition) -> None:
        replica = self.open_by_name.get((changed.topic, changed.index))
        if self._node_id not in changed.after.replicas:
            if changed.before is not None and self._node_id in changed.before.replicas:
                self._note_move(changed, replica)
                self._remove(TopicPartition(changed.topic, changed.index))
            return
        if (topic := self._image().topics_by_name.get(changed.topic)) is not None:
            self._look_for_place(topic, changed.index)
            self._see(topic, changed.index)
        if replica is not None:
            self._role_of.take(replica, changed.after)
        elif self._has_work(changed.after):
            self.get(changed.topic, changed.index)

    def _note_move(self, changed: ChangedPartition, replica: Replica | None) -> None:
        topic = self._image().topics_by_name.get(changed.topic)
        if topic is not None:
            since = replica.clean_since if replica is not None else NO_LIMIT
            self._moved_away[TopicPartition(changed.topic, changed.index)] = topic.id, since

    def thread_ended(self, replica: Replica) -> None:
        """A thread has flushed or compacted the log. What was removed meanwhile is put away now, unless another thread
        is at it; what went offline may be opened again."""
        topic_partition = replica.topic_partition
        if _is_busy(replica):
            return
        if self._leaving.get(topic_partition) is replica:
            self._left(topic_partition)
        elif self._stopped.get(topic_partition) is replica:
            del self._stopped[topic_partition]
            self._take_up(topic_partition)

    def cut_ended(self, replica: Replica) -> None:
        """A thread has cut the log; what the image said meanwhile counts now."""
        self.thread_ended(replica)
        topic = self._image().topics_by_id.get(replica.topic_id)
        if topic is not None and self.holds(replica):
            self._role_of.take(replica, topic.partitions[replica.topic_partition.partition])

    async def vacated(self, topics: Collection[str], timeout_s: float) -> None:
        """Until nothing that had one of these names before is left of it here, but not longer than that: from then on
        the new topics are served."""
        waiting = []
        for topic_partition in self._leaving:
            if topic_partition.topic in topics:
                if topic_partition not in self._vacated:
                    self._vacated[topic_partition] = asyncio.get_running_loop().create_future()
                waiting.append(self._vacated[topic_partition])
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    def _left(self, topic_partition: TopicPartition) -> None:
        """The thread that was at the log of a removed replica has ended."""
        del self._leaving[topic_partition]
        self._put_away(topic_partition)
        self._take_up(topic_partition)
        vacated = self._vacated.pop(topic_partition, None)
        if vacated is not None:
            vacated.set_result(None)

    def _take_up(self, topic_partition: TopicPartition) -> None:
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is not None and topic_partition.partition < len(topic.partitions):
            self._take_role(topic, topic_partition.partition)

    def hold(self, topic_partition: TopicPartition) -> bool:
        """A thread works on the files of a partition that is offline; False where it is not, or not any more. To be
        followed by `let_go`."""
        is_busy = topic_partition in self._leaving or topic_partition in self._stopped
        if is_busy or topic_partition not in self.offline:
            return False
        self._held.add(topic_partition)
        return True

    def opener(self, topic_partition: TopicPartition, log_dir: LogDir) -> Callable[[], PartitionLog] | None:
        """Opens the log of a partition that is held, in a thread; it raises CorruptLog. None: the topic has gone."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is None:
            return None
        config = self._config_of(topic.name)
        return partial(log_dir.open_detached, topic_partition, topic.id, config, self._clock.now_ms())

    def let_go(self, topic_partition: TopicPartition, *, is_back: bool) -> None:
        """That thread has ended. `is_back`: what kept the partition out of service has passed."""
        self._held.discard(topic_partition)
        if topic_partition in self._leaving:
            self._left(topic_partition)
        elif is_back:
            self._back(topic_partition)
            self._take_up(topic_partition)

    def log_replaced(self, replica: Replica) -> None:
        """Its log lies in another directory now: who follows goes on from there."""
        topic = self._image().topics_by_id.get(replica.topic_id)
        index = replica.topic_partition.partition
        if topic is not None and index < len(topic.partitions):
            leader = topic.partitions[index].leader
            if replica.leader is None and leader not in (NO_LEADER, self._node_id):
                self._roles.follows(replica, leader)
        replica.wake()

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
                self.on_dirty(replica)

    def _sealed(self, topic_partition: TopicPartition) -> None:
        replica = self.open_by_name.get(topic_partition)
        if replica is not None:
            self.on_dirty(replica)

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
        self.open_by_name[topic_partition.topic, index] = replica
        self.open_by_id[topic.id.bytes, index] = replica
        partition_log.on_sealed = self._sealed
        self.on_dirty(replica)
        self.places.see(topic, index)
        self._role_of.take(replica, topic.partitions[index])
        return replica

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog | None:
        """None where this node has no replica, or a broken one."""
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
            log_dir = self.places.of(topic, index)
        except OfflinePlace as error:
            if not error.is_told:
                log.error(
                    "partition offline", partition=str(topic_partition), reason=error.message, advice=error.advice
                )
            self._stop(topic_partition, error.message)
            self._without_place.add(topic_partition)
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
        """A flush or a read met the disk's trouble: where it will not pass by itself, the partition goes offline."""
        if self.open_by_name.get(replica.topic_partition) is not replica:
            return  # deleted meanwhile, perhaps created anew: its files are gone with reason
        if is_transient(error.errno) and replica.log.offline is None:
            log.warning("disk access failed", partition=str(replica.topic_partition), reason=error.message)
        else:
            self.set_offline(replica.topic_partition, error.message)
            self.suspect_directory_of(replica.topic_partition, error)

    def suspect_directory_of(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """The disk refused something of this partition. It may be more than that."""
        log_dir = self._log_dirs.holder(topic_partition)
        if log_dir is not None:
            self._suspect(log_dir, error)

    def directory_failed(self, log_dir: LogDir, reason: str) -> int:
        """`LogDirs` has been told: nothing that lies there is served any more. How many replicas that stopped."""
        held = [each for each in self.open_by_name if self._log_dirs.holder(TopicPartition(*each)) is log_dir]
        for topic, index in held:
            self._stop(TopicPartition(topic, index), f"{log_dir.path} is offline: {reason}")
        return len(held)

    def set_offline(self, topic_partition: TopicPartition, reason: str, advice: str = _OFFLINE_ADVICE) -> None:
        """Take one partition out of service; the others go on. The operator reads why and what to do."""
        log.error("partition offline", partition=str(topic_partition), reason=reason, advice=advice)
        self._stop(topic_partition, reason)
        self.places.lost(topic_partition)

    def _stop(self, topic_partition: TopicPartition, reason: str) -> None:
        self.offline[topic_partition] = reason
        replica = self.open_by_name.pop(topic_partition, None)
        self.on_gone(topic_partition, False)
        if replica is not None:
            self.open_by_id.pop((replica.topic_id_bytes, topic_partition.partition), None)
            self._roles.left(replica)
            replica.end_leadership(ErrorCode.KAFKA_STORAGE_ERROR)
            if _is_busy(replica):
                self._stopped[topic_partition] = replica

    def _drop(self, topic: TopicImage) -> None:
        self._configs.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            self._moved_away.pop(TopicPartition(topic.name, index), None)
            self._remove(TopicPartition(topic.name, index))

    def _remove(self, topic_partition: TopicPartition) -> None:
        """The partition is not this node's any more: its topic was deleted, or its replica moved away."""
        self.offline.pop(topic_partition, None)
        self._without_place.discard(topic_partition)
        replica = self.open_by_name.pop(topic_partition, None)
        self.on_gone(topic_partition, True)
        if topic_partition in self._held:
            self._leaving[topic_partition] = None
        if replica is not None:
            self.open_by_id.pop((replica.topic_id_bytes, topic_partition.partition), None)
            self._roles.left(replica)
            replica.end_leadership()
        replica = replica or self._stopped.pop(topic_partition, None)
        if replica is not None and _is_busy(replica):
            # The thread would go on in the files of whatever has this name next: a flush writes the topic id and the
            # epochs of this log by their path.
            replica.is_leaving = True
            if replica.cleaning is not None:
                replica.cleaning.ask_to_stop()
            self._leaving[topic_partition] = replica
        if topic_partition not in self._leaving:
            self._put_away(topic_partition)

    def _put_away(self, topic_partition: TopicPartition) -> None:
        """Its files go, its receipts stay. What was moved away is compared with the leader first."""
        moved = self._moved_away.pop(topic_partition, None)
        holders = [self._log_dirs.holder(topic_partition), *self.places.unresolved.pop(topic_partition, ())]
        self._log_dirs.forget(topic_partition)
        # The next topic of this name misses nothing.
        self._log_dirs.missing.pop(topic_partition, None)
        self.places.not_noted.pop(topic_partition, None)
        for log_dir in holders:
            if log_dir is not None and self._log_dirs.is_online(log_dir):
                self._remove_files(topic_partition, log_dir, moved)
            # What a failed directory still has of it is set aside when it comes back.

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
                "files of a removed partition stay",
                partition=str(topic_partition),
                reason=error.message,
                advice="Check the disk; the next start sets the directory aside as -stray.",
            )
            self._suspect(log_dir, error)
            return
        if removed is None:
            return
        if moved is None or self._compare_removed is None:
            self._delete_later(partial(self._delete_partition, removed), 0)
            return
        topic_id, clean_since = moved
        known = LogSummary.of(was_open) if was_open is not None and was_open.offline is None else None
        self._compare_removed(RemovedReplica(log_dir, removed, topic_id, known, clean_since))


def _is_busy(replica: Replica) -> bool:
    """Whether a thread is at its log."""
    return replica.is_being_cut or replica.cleaning is not None or replica.log.is_flushing
