"""The move of one replica to another data directory of its broker, step by step.

Owns the order of the steps: copy within the rate limit, copy the evidence, inform the controller, flush the copy,
replace the log. Each call of `advance` is one step; the caller (`DirectoryMoves`) handles errors. The copy itself is
`log.directories.future_log`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fenceline.log.core.errors import CorruptLog
from fenceline.log.directories.future_log import REST_BYTES, FutureLog
from fenceline.log.directories.partition_dir import DELETE_SUFFIX
from fenceline.losses.moved_evidence import CopiedEvidence, copy_evidence, is_complete
from fenceline.metadata.features import MV_DIRECTORIES

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.storage.flushes import LogFlushes
    from fenceline.replica.throttle import ReplicationQuota

_LONGEST_PAUSE_S: Final = 1.0
_CHECK_S: Final = 0.02
_LATER_S: Final = 1.0
_REPORT_AGAIN_MS: Final = 2000
"""Interval between reports: another process may have changed the assignment meanwhile."""
_ATTEMPTS: Final = 5
"""Attempts at the last step before flushes continue."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MovePorts:
    """What moves need of their broker. `checkpoint` writes the offset checkpoints; raises StorageError. `delete_later`
    deletes files in a thread, after a delay in milliseconds."""

    node_id: int
    image: Callable[[], MetadataImage]
    log_dirs: LogDirs
    partitions: Replicas
    flushes: LogFlushes
    clock: Clock
    executor: Executor
    checkpoint: Callable[[], Awaitable[None]]
    delete_later: Callable[[Callable[[], None], int], None]


class DirectoryMove:
    """See the module. Everything belongs to the loop."""

    def __init__(
        self,
        ports: MovePorts,
        where: TopicPartition,
        target: LogDir,
        quota: ReplicationQuota,
        on_caught_up: Callable[[DirectoryMove, FutureLog, Replica], None],
        *,
        path: str | None = None,
    ) -> None:
        """`on_caught_up`: the copy is complete and must replace the log before the callback returns. `path`: of a copy
        that was found at the start."""
        self._ports = ports
        self.where = where
        self.target = target
        self._quota = quota
        self._on_caught_up = on_caught_up
        self.path = path
        self.future: FutureLog | None = None
        self.carried: CopiedEvidence | None = None
        self.ends = False
        self.keeps_files = False
        self.failures = 0
        """Consecutive attempts that failed to read."""
        self.is_full = False
        self._tells_at_ms = 0

    def end(self, *, keep_files: bool) -> None:
        """End the move at the next step, or when the current one has ended."""
        self.ends = True
        self.keeps_files = keep_files

    async def thread(self, work: Callable[..., _T], *given: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._ports.executor, work, *given)

    def delete_copy(self, path: str) -> None:
        """Delete a copy that is neither needed nor open. Raises StorageError."""
        removed = self.target.rename_for_removal(path, self.where, DELETE_SUFFIX)
        if removed is not None:
            self._ports.delete_later(removed.delete, 0)

    async def advance(self) -> float | None:
        """Execute the next chunk or step; returns how long to wait before the one after it, None when the move is
        complete."""
        ports = self._ports
        replica = ports.partitions.open_by_name.get(self.where)
        if replica is None:
            self.end(keep_files=True)
            return None
        if replica.is_being_cut:
            return _CHECK_S
        current, now_ms = replica.log, ports.clock.now_ms()
        if self.future is None:
            await self._open(replica)
            return 0.0
        future = self.future
        end = future.truncation_target(current)
        if end is not None:
            await self.thread(future.drop, end, current.log_start_offset)
            if future.log.durable_recovery_point > future.log.log_end_offset:
                await ports.checkpoint()
            return 0.0
        future.follow_offsets(current)
        if current.readable_bytes(future.log.log_end_offset, current.log_end_offset) > REST_BYTES // 2:
            stretch = future.next_range(current)
            pause_ms = self._quota.pause_ms(ports.clock.monotonic_ms())
            if stretch is not None and pause_ms:
                return min(pause_ms / 1000, _LONGEST_PAUSE_S)
            if stretch is not None:
                taken = await self.thread(future.copy, stretch, now_ms)
                self._quota.passed(taken, ports.clock.monotonic_ms())
                self.failures, self.is_full = 0, False
                return 0.0
        return await self._finish_copy(future, replica)

    async def _open(self, replica: Replica) -> None:
        source = self._ports.log_dirs.holder(self.where)
        assert source is not None, "the replica is open"
        current, now_ms, config = replica.log, self._ports.clock.now_ms(), replica.config
        path, self.path = self.path, None
        try:
            self.future = await self.thread(
                lambda: FutureLog.open(source, self.target, current, path=path, config=config, now_ms=now_ms)
            )
        except CorruptLog:
            if path is None:
                raise
            self.delete_copy(path)  # restart the copy
            return
        self.target.future_logs[self.where] = self.future.log

    # -- the last steps ----------------------------------------------------------------------------------------------

    async def _finish_copy(self, future: FutureLog, replica: Replica) -> float | None:
        """The copy is almost complete: copy the evidence, inform the controller, then take the last step."""
        source = future.source
        if replica.log.is_written:
            if not future.log.is_written:
                await self.thread(future.start_at, replica.log.log_start_offset, self._ports.clock.now_ms())
                return 0.0
            carried = self.carried
            if carried is None or not is_complete(carried, source.disk, replica.log.directory):
                named = self.target.partition_path(self.where)
                self.carried = await self.thread(
                    copy_evidence, source.disk, replica.log.directory, self.target.disk, future.log.directory, named
                )
                self._quota.passed(self.carried.size_bytes, self._ports.clock.monotonic_ms())
                # Wait for a truncation in progress, and for losses that are not recorded yet.
                return 0.0 if is_complete(self.carried, source.disk, replica.log.directory) else _LATER_S
        if not self._is_recorded():
            now_ms = self._ports.clock.monotonic_ms()
            if now_ms >= self._tells_at_ms:
                self._tells_at_ms = now_ms + _REPORT_AGAIN_MS
                self._ports.partitions.directories.report_move(self.where, self.target)
            await self.thread(future.flush, self._ports.clock.now_ms())
            return _CHECK_S
        self._ports.partitions.directories.moving[self.where] = self.target
        return await self._replace_log(future, replica)

    async def _replace_log(self, future: FutureLog, replica: Replica) -> float | None:
        """Flushes of the log are paused: the part that is durable there becomes durable in the copy."""
        flushes, clock = self._ports.flushes, self._ports.clock
        await self._ports.checkpoint()  # its high watermark and log start must be durable before the log is
        flushes.hold(replica)
        try:
            for _ in range(_ATTEMPTS):
                await flushes.idle(replica)
                await self._copy_rest(future, replica)
                await self.thread(future.flush, clock.now_ms())
                if self.ends or replica.is_being_cut or not self._ports.partitions.in_service.holds(replica):
                    return _CHECK_S
                current = replica.log
                if (
                    future.append_rest(current, clock.now_ms())
                    and future.log.recovery_point >= current.recovery_point
                    and not flushes.is_flushing(replica)
                    and self._is_recorded()
                    and (self.carried is None or is_complete(self.carried, future.source.disk, current.directory))
                ):
                    self._on_caught_up(self, future, replica)
                    return None
        finally:
            flushes.release(replica)
        return _CHECK_S

    async def _copy_rest(self, future: FutureLog, replica: Replica) -> None:
        """Copy the small rest in a thread, so that almost nothing is left for the loop."""
        for _ in range(_ATTEMPTS):
            if replica.is_being_cut or future.truncation_target(replica.log) is not None:
                return
            stretch = future.next_range(replica.log)
            if stretch is None:
                return
            await self.thread(future.copy, stretch, self._ports.clock.now_ms())

    def _is_recorded(self) -> bool:
        """Whether the metadata has the replica in the target directory, or has no directories."""
        image = self._ports.image()
        topic = image.topics_by_name.get(self.where.topic)
        if topic is None or self.where.partition >= len(topic.partitions):
            return False
        if image.metadata_version < MV_DIRECTORIES:
            return True
        return topic.partitions[self.where.partition].directory_of(self._ports.node_id) == self.target.directory_id
