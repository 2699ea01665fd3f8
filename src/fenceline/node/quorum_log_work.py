"""What duties of the quorum do to the metadata log: append, flush, cut, begin anew at a snapshot, remember an election.

Owns the flushes (one at a time, none forgotten) and the work that must be done before anything else happens
(`alone`): what it changes is looked at by nobody meanwhile, and no flush runs beside it. All of it runs in threads; the
event loop only appends. Decides nothing: what was done is told by `call`.

A failed flush leaves the disk in an unknown state: then `failed` is told, and the node ends. A disk that is full when a
flush is to begin is tried again.

Until the node runs there is nobody to wait for: what is ordered is done here and now.

Rules: raft.md Q2, Q12, Q28, Q29, Q36; snapshots.md N35, N36; since_4_0.md K14; gaps.md G24, G25, G35.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from fenceline.errors import PeerError
from fenceline.log.disk import Disk
from fenceline.log.errors import StorageError
from fenceline.node import snapshot_files
from fenceline.node.clock import Clock
from fenceline.node.fetched_batches import complete_batches
from fenceline.node.logs import Logger
from fenceline.node.metadata_batches import control_batch
from fenceline.node.metadata_log import METADATA_PARTITION, MetadataLog
from fenceline.node.metadata_replay import Replayed
from fenceline.node.quorum_log import QuorumLog
from fenceline.node.snapshot_downloads import Call, read_image
from fenceline.node.snapshot_files import SnapshotDamaged
from fenceline.node.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import ControlRecord
from fenceline.quorum.duties import AppendFetched
from fenceline.quorum.log_view import NOTHING, SnapshotId
from fenceline.wire.errors import MalformedRequest

T = TypeVar("T")

log = Logger("quorum")

_RETRY_S: Final = 0.1
"""Between two attempts to begin a flush."""


class QuorumLogWork:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: MetadataLog,
        view: QuorumLog,
        clock: Clock,
        executor: Callable[[], Executor | None],
        trouble: StorageTrouble,
        call: Call,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._view = view
        self._clock = clock
        self._executor = executor
        self._trouble = trouble
        self._call = call
        self._failed = failed
        self.is_starting = False
        """Nothing waits for a thread yet."""
        self.has_ended = False
        """Nothing new is begun."""
        self._flush: asyncio.Future[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._is_behind = False
        """A full disk has put off the indexes of the log; the operator knows."""

    # -- before anything else ------------------------------------------------------------------------------------------

    async def alone(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread, while nobody else touches the log. Raises what it raises."""
        while self._flush is not None:
            await asyncio.wait([self._flush])
        self._log.is_changing = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor(), work)
        finally:
            self._log.is_changing = False

    # -- appending -----------------------------------------------------------------------------------------------------

    def append_control(self, epoch: int, records: tuple[ControlRecord, ...]) -> None:
        """The leader's own control records. Raises StorageError at a start; else the quorum hears of it."""
        now_ms = self._clock.now_ms()
        try:
            base_offset = self._log.append(control_batch(records, now_ms), epoch, now_ms)
        except StorageError as error:
            if self.is_starting:
                raise
            self._refused(error)
            return
        self._view.control_appended(base_offset, records)
        self.flush()
        self._call(lambda quorum, now: quorum.appended(now))

    def append_fetched(self, duty: AppendFetched) -> None:
        """Whole and undamaged batches of the leader, as far as they fit (K14)."""
        records = memoryview(bytearray(memoryview(duty.records)))  # type: ignore[arg-type]
        good, controls, reason = complete_batches(records, duty.base_offset, self._view.end.epoch, duty.leader_epoch)
        if good:
            try:
                self._log.partition_log.append_as_follower(records[:good], now_ms=self._clock.now_ms())
            except StorageError as error:
                self._refused(error)
                return
        if not good:
            self._call(lambda quorum, now: quorum.append_failed(now, reason))
            return
        for base_offset, found in controls:
            self._view.control_appended(base_offset, found)
        if duty.flush:
            self.flush()
        self._call(lambda quorum, now: quorum.appended(now))

    def _refused(self, error: StorageError) -> None:
        self._trouble.refused(METADATA_PARTITION, self._log.end_offset, error)
        reason = error.message
        self._call(lambda quorum, now: quorum.append_failed(now, reason))

    # -- flushing ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make durable what was appended; at a start here and now (raises StorageError)."""
        if self.has_ended or self._log.is_changing or self._flush is not None or self._retry is not None:
            return
        end_offset = self._log.end_offset
        try:
            flush = self._log.begin_flush()
        except StorageError as error:
            if self.is_starting:
                raise
            # Nothing was asked of the disk yet, so nothing is uncertain: those who wait go on waiting.
            self._trouble.refused(METADATA_PARTITION, end_offset, error)
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._flush_again)
            return
        if flush is None:
            self._flushed(end_offset)
            return
        if self.is_starting:
            try:
                flush()
            except StorageError as error:
                flush.end(error)
                raise
            self._tell_put_off(flush.end(None))
            self._flushed(end_offset)
            return

        def ended(done: asyncio.Future[None]) -> None:
            self._flush = None
            error = done.exception()
            if error is None or isinstance(error, StorageError):
                self._tell_put_off(flush.end(error))
            if error is not None:
                self._failed(error)
                return
            self._flushed(end_offset)
            if self._log.end_offset > self._view.flushed.offset:
                self.flush()

        self._flush = asyncio.get_running_loop().run_in_executor(self._executor(), flush)
        self._flush.add_done_callback(ended)

    def _flush_again(self) -> None:
        self._retry = None
        self.flush()

    def _flushed(self, end_offset: int) -> None:
        self._view.flushed_to(end_offset)
        self._look_at_promise()
        self._call(lambda quorum, now: quorum.flushed(now))

    def _look_at_promise(self) -> None:
        """Whether the log is again what this node has told others that it has."""
        if self._log.promised != NOTHING and self._view.flushed >= self._log.promised:
            self._log.promised = NOTHING
            log.info("metadata log has everything again that this node had acknowledged")
            asyncio.get_running_loop().run_in_executor(self._executor(), self._log.forget_promise)

    def _tell_put_off(self, error: StorageError | None) -> None:
        if error is not None and not self._is_behind:
            log.warning(
                "metadata log without its indexes",
                reason=error.message,
                advice="Make room on the disk. Nothing is lost: they are written as soon as there is room.",
            )
        self._is_behind = error is not None

    async def finish(self) -> None:
        """Begin nothing more; wait for the flush that is under way."""
        self.has_ended = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._flush is not None:
            await asyncio.wait([self._flush])

    # -- beginning anew ------------------------------------------------------------------------------------------------

    def cut(self, end_offset: int) -> None:
        """Q29, for a thread: the log ends at `end_offset`. Raises StorageError."""
        self._log.partition_log.truncate_to(end_offset)

    def was_cut(self, end_offset: int) -> None:
        self._view.truncated(end_offset)
        self._call(lambda quorum, now: quorum.truncated(now))

    def load(self, snapshot_id: SnapshotId, known: Replayed | None) -> Replayed | str:
        """N35, for a thread: the log begins anew at a frozen snapshot. `known`: what is in it, where it was just looked
        through; else it is read now. Gives back why it can not be loaded (G24): the log is as it was then, and the file
        out of the way. Raises StorageError, OSError."""
        if known is None:
            path = self._log.path_of(snapshot_id)
            try:
                known = read_image(self._disk, path, snapshot_id)
            except (SnapshotDamaged, PeerError, MalformedRequest) as error:
                snapshot_files.set_aside(self._disk, path)
                return str(error)
        self._log.partition_log.truncate_fully_and_start_at(snapshot_id.end_offset)
        return known

    def was_loaded(self, snapshot_id: SnapshotId, loaded: Replayed) -> None:
        """Older snapshots stand for nothing that the log could follow on (N35)."""
        gone = [each for each in self._log.snapshots if each.end_offset < snapshot_id.end_offset]
        self._log.snapshots[:] = [each for each in self._log.snapshots if each not in gone]
        self._view.snapshot_loaded(snapshot_id, loaded.kraft_version, loaded.voters)
        self._look_at_promise()
        paths = [self._log.path_of(each) for each in gone]
        if paths:
            asyncio.get_running_loop().run_in_executor(self._executor(), partial(_unlink, self._disk, paths))

    def was_not_loaded(self, snapshot_id: SnapshotId, reason: str) -> None:
        """It is fetched again."""
        self._log.snapshots.remove(snapshot_id)
        self._call(lambda quorum, now: quorum.snapshot_not_loaded(now, snapshot_id, reason))


def _unlink(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except OSError as error:
            log.warning("old metadata not deleted", path=path, reason=str(error), advice="It may be deleted by hand.")
