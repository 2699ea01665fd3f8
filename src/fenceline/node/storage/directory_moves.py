"""Moves replicas between the data directories of this broker (AlterReplicaLogDirs; KIP-113, KIP-858).

Owns the moves in progress, the number of moves with a thread, and error handling. One move is a `DirectoryMove`: chunks
are copied in disk threads, within the configured rate; a copy that has caught up is flushed, the controller is informed
of the new directory, and once the metadata contains it the copy replaces the log. `ReplicaDirectories` owns
the directories of the replicas.

A move ends with its replica: the copy of a removed replica is deleted, that of an offline one is kept and continues
after the next start. A copy that fails is deleted and the error logged; the replica stays in its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.errors import ErrorCode, FencelineError, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError, is_transient
from fenceline.log.directories.future_log import FutureLog
from fenceline.log.directories.partition_dir import NAME_LIMIT, RemovedPartition, future_name
from fenceline.metadata.image import ConfigResourceType
from fenceline.node.logs import Logger
from fenceline.node.storage.directory_move import DirectoryMove, MovePorts
from fenceline.replica.throttle import NO_RATE, ReplicationQuota

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.log.directories.log_dir import ExistingPartition, LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.losses.receipt import Receipt
    from fenceline.metadata.changes import Delta
    from fenceline.node.replication.replica import Replica

log = Logger("directories")

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_AT_ONCE: Final = 2
"""Limit of moves with a thread; the disk threads are shared with all other work."""
_RETRY_S: Final = 0.02
_FULL_S: Final = 1.0
_ATTEMPTS: Final = 5
"""Attempts to read a damaged file before the move ends."""


class MoveProgress(NamedTuple):
    """A copy in progress, as in DescribeLogDirs. `lag`: offsets it is behind."""

    where: TopicPartition
    path: str
    size_bytes: int
    lag: int


class DirectoryMoves:
    """The moves of one broker. Event loop only."""

    def __init__(
        self,
        ports: MovePorts,
        config: NodeConfig,
        *,
        suspect: Callable[[LogDir, OSError | StorageError], None],
        evidence_moved: Callable[[LogDir, Sequence[Receipt]], None],
    ) -> None:
        """`suspect` is called for errors that a directory may have caused. `evidence_moved`: receipts, and the evidence
        they name, have moved to another directory with their replica."""
        self._ports = ports
        self._suspect = suspect
        self._evidence_moved = evidence_moved
        self._moves: dict[TopicPartition, DirectoryMove] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._quota = ReplicationQuota()
        self._slots = asyncio.Semaphore(min(_AT_ONCE, max(1, _threads(config, ports.log_dirs))))
        self._is_closed = False
        self.moved = 0
        """Counted since this node started."""
        ports.partitions.in_service.stopped.listen(self.replica_removed)

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[MoveProgress]:
        for where, move in self._moves.items():
            replica = self._ports.partitions.open_by_name.get(where)
            if move.future is not None and replica is not None:
                future = move.future
                lag = max(future.lag(replica.log), 0)
                yield MoveProgress(where, future.target.path, future.log.size_bytes, lag)

    @property
    def in_progress(self) -> Container[TopicPartition]:
        """The replicas with a move in progress."""
        return self._moves.keys()

    # -- requests --------------------------------------------------------------------------------------------------

    def alter(self, where: TopicPartition, path: str) -> ErrorCode:
        """Move the replica to the directory `path`; Kafka's checks in Kafka's order. For a replica that is not here yet
        the directory is remembered."""
        ports, log_dirs = self._ports, self._ports.log_dirs
        if len(future_name(where, "0" * 32)) > NAME_LIMIT:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        target = log_dirs.at(path)
        if path in log_dirs.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if path in log_dirs.cordoned:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if where in ports.partitions.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = self._moves.get(where)
        if move is not None and move.target is not target:
            self._end(move, keep_files=False)
        topic = ports.image().topics_by_name.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            ports.partitions.directories.prefer(where, target)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if ports.node_id not in topic.partitions[where.partition].replicas:
            ports.partitions.directories.prefer(where, target)
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if log_dirs.holder(where) is None:
            ports.partitions.directories.prefer(where, target)
        if ports.partitions.get(*where) is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if log_dirs.holder(where) is target or where in self._moves:
            return ErrorCode.NONE
        if log_dirs.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR  # one of them may already have a copy of it
        self._begin(self._new(where, target))
        return ErrorCode.NONE

    def resume(self, found: list[tuple[LogDir, ExistingPartition]]) -> None:
        """Continue copies that were found at the start; delete those without a replica to copy."""
        ports = self._ports
        self._apply_rate()
        for target, copy in found:
            where = copy.topic_partition
            holder, directories = ports.log_dirs.holder(where), ports.partitions.directories
            if not directories.has_replica_of(copy) or holder is target or where in self._moves:
                if where not in self._moves:
                    directories.moving.pop(where, None)
                log.info("copy of a replica deleted", partition=str(where), path=copy.path)
                with contextlib.suppress(StorageError):
                    self._new(where, target).delete_copy(copy.path)
            elif holder is not None and ports.partitions.get(*where) is not None:
                self._begin(self._new(where, target, copy.path))

    def on_image(self, delta: Delta) -> None:
        if any(kind is ConfigResourceType.BROKER for kind, _ in delta.changed_configs):
            self._apply_rate()

    def _apply_rate(self) -> None:
        image, kind = self._ports.image(), ConfigResourceType.BROKER
        rates = {**image.config(kind, ""), **image.config(kind, str(self._ports.node_id))}
        self._quota.set_rate(int(rates.get(RATE, NO_RATE)), self._ports.clock.monotonic_ms())

    # -- end of a move -----------------------------------------------------------------------------------------------

    def replica_removed(self, where: TopicPartition, is_removed: bool) -> None:
        """The replica is no longer served: `is_removed` from this node, or offline."""
        move = self._moves.get(where)
        if move is not None:
            self._end(move, keep_files=not is_removed)

    def directory_failed(self, log_dir: LogDir) -> None:
        for move in list(self._moves.values()):
            if move.target is log_dir:
                log.warning("move between directories ended", partition=str(move.where), reason="its target failed")
                self._end(move, keep_files=True)

    async def close(self) -> None:
        """The copies are kept, and continue after the next start."""
        self._is_closed = True
        for move in list(self._moves.values()):
            self._end(move, keep_files=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, move: DirectoryMove, *, keep_files: bool) -> None:
        """The move ends at once; its files are deleted when its thread has returned."""
        move.end(keep_files=keep_files)
        self._moves.pop(move.where, None)
        directories = self._ports.partitions.directories
        if directories.moving.pop(move.where, None) is not None and not self._is_closed:
            directories.report_actual(move.where)

    # -- one move ----------------------------------------------------------------------------------------------------

    def _new(self, where: TopicPartition, target: LogDir, path: str | None = None) -> DirectoryMove:
        return DirectoryMove(self._ports, where, target, self._quota, self._replace, path=path)

    def _begin(self, move: DirectoryMove) -> None:
        if self._is_closed:
            return
        earlier = [task for task in self._tasks if task.get_name() == str(move.where)]
        self._moves[move.where] = move
        self._spawn(self._run(move, earlier), str(move.where))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, move: DirectoryMove, earlier: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*earlier, return_exceptions=True)
        log.info("move between directories started", partition=str(move.where), to=move.target.path)
        try:
            while not move.ends:
                async with self._slots:
                    pause_s = await self._attempt(move)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
        finally:
            if self._moves.get(move.where) is move:
                self._end(move, keep_files=False)
            if move.ends:
                await self._delete_files(move)

    async def _attempt(self, move: DirectoryMove) -> float | None:
        """One step; a disk error is retried or ends the move."""
        try:
            pause_s = await move.advance()
        except StorageError as error:
            if error.disk_full:
                return self._full(move, error.message)
            self._suspect(move.target, error)
            self._failed(move, error.message)
        except OSError as error:
            if is_transient(error.errno):
                return self._full(move, error.strerror or str(error))
            return self._unreadable(move, error.strerror or str(error), error)
        except PeerError as error:
            return self._unreadable(move, error.message or error.code.name, None)
        except FencelineError as error:
            self._failed(move, str(error))
        else:
            return pause_s
        return None

    def _full(self, move: DirectoryMove, reason: str) -> float:
        if not move.is_full:
            advice = (
                "Free space there, or move the replica to another directory. The copy then continues automatically."
            )
            log.warning("not enough disk space for a move", partition=str(move.where), reason=reason, advice=advice)
        move.is_full = True
        return _FULL_S

    def _unreadable(self, move: DirectoryMove, reason: str, error: OSError | None) -> float | None:
        """A file deleted by retention or a truncation is looked up again; a damaged one stays damaged."""
        move.failures += 1
        if move.failures < _ATTEMPTS or move.ends:
            return _RETRY_S * move.failures
        source = self._ports.log_dirs.holder(move.where)
        if error is not None and source is not None:
            self._suspect(source, error)
        self._failed(move, reason)
        return None

    def _failed(self, move: DirectoryMove, reason: str) -> None:
        if not move.ends:
            log.error(
                "move between directories ended",
                partition=str(move.where),
                to=move.target.path,
                reason=reason,
                advice="The replica stays in its directory. Check both disks (dmesg, smartctl), then request the"
                " move again.",
            )
            self._end(move, keep_files=False)

    def _replace(self, move: DirectoryMove, future: FutureLog, replica: Replica) -> None:
        ports, where = self._ports, move.where
        replica.log, removed = future.replace(replica.log, replica.config)
        ports.log_dirs.put(where, move.target)
        self._moves.pop(where, None)
        ports.partitions.directories.moving.pop(where, None)
        self.moved += 1
        log.info("replica moved", partition=str(where), path=replica.log.directory, bytes=replica.log.size_bytes)
        ports.partitions.log_replaced(replica)
        if move.carried is not None:
            self._evidence_moved(move.target, move.carried.receipts)
        self._spawn(self._delete_old_log(move, future, removed, replica.config.file_delete_delay_ms))

    async def _delete_old_log(
        self, move: DirectoryMove, future: FutureLog, removed: RemovedPartition | None, delay_ms: int
    ) -> None:
        """Delete the old log once the new one is durable."""
        try:
            await move.thread(future.sync_renames)
            await self._ports.checkpoint()
        except (OSError, StorageError) as error:
            log.error("moved replica not durable yet", partition=str(move.where), reason=str(error))
            self._suspect(move.target, error)
            return
        if removed is not None:
            self._ports.delete_later(removed.delete, delay_ms)

    # -- remaining work ----------------------------------------------------------------------------------------------

    async def _delete_files(self, move: DirectoryMove) -> None:
        future, target = move.future, move.target
        if future is None or (self._is_closed and move.keeps_files):
            return  # the directory's failure closes it
        try:
            if move.keeps_files:
                target.future_logs.pop(move.where, None)
                await move.thread(future.log.close, self._ports.log_dirs.is_online(target))
                target.offsets.note(move.where, future.log)
            else:
                removed = future.abandon()
                if removed is not None:
                    self._ports.delete_later(removed.delete, 0)
        except StorageError as error:
            log.warning("could not delete the copy of a replica", partition=str(move.where), reason=error.message)


def _threads(config: NodeConfig, log_dirs: LogDirs) -> int:
    if config.is_set("num.replica.alter.log.dirs.threads"):
        return config.get_int("num.replica.alter.log.dirs.threads")
    return len(log_dirs.opened)
