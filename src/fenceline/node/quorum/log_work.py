"""Executes the quorum's duties on the metadata log: append, flush, truncate, load a snapshot, persist an election.

Owns the flushes (one at a time) and exclusive work (`alone`): nothing else reads or flushes the log meanwhile. All of
it runs in threads; the event loop only appends. Decides nothing: results are reported through `call`.

A failed flush leaves the disk in an unknown state: then `failed` is called, and the node stops. If the disk is full
when a flush starts, it is retried.

Until the node runs, duties are executed synchronously.

Rules: raft.md Q2, Q12, Q28, Q29, Q36; snapshots.md N35, N36; since_4_0.md K14; gaps.md G11, G24, G25, G35.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from fenceline.errors import PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.batches import control_batch
from fenceline.node.metadata.metadata_log import METADATA_PARTITION, MetadataLog
from fenceline.node.metadata.replay import Replayed
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.node.quorum.log import QuorumLog
from fenceline.node.quorum.snapshot_downloads import Call
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import ControlRecord, decode_control
from fenceline.quorum.duties import AppendFetched
from fenceline.quorum.log_view import NO_PROMISED_END, SnapshotId
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

T = TypeVar("T")

log = Logger("quorum")

_RETRY_S: Final = 0.1
"""Interval between attempts to start a flush."""


class QuorumLogWork:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: MetadataLog,
        view: QuorumLog,
        clock: Clock,
        executor: Executor | None,
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
        """Duties are still executed synchronously."""
        self.has_ended = False
        """No new work is started."""
        self._flush: asyncio.Future[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._is_behind = False
        """A full disk has postponed the indexes of the log, which was logged."""

    # -- exclusive work -----------------------------------------------------------------------------------------------

    async def alone(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread with exclusive use of the log. Raises its exceptions."""
        while self._flush is not None:
            await asyncio.wait([self._flush])
        self._log.is_changing = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._log.is_changing = False

    # -- appending -----------------------------------------------------------------------------------------------------

    def append_control(self, epoch: int, records: tuple[ControlRecord, ...]) -> None:
        """Append the leader's control records. Raises StorageError during a start; otherwise reports to the quorum."""
        now_ms = self._clock.now_ms()
        try:
            base_offset = self._log.append(control_batch(records, now_ms), epoch, now_ms)
        except StorageError as error:
            if self.is_starting:
                raise
            self._rejected(error)
            return
        self._view.control_appended(base_offset, records)
        self.flush()
        self._call(lambda quorum, now: quorum.appended(now))

    def append_fetched(self, duty: AppendFetched) -> None:
        """Append complete and valid batches from the leader, as far as they fit (K14)."""
        records = memoryview(bytearray(memoryview(duty.records)))  # type: ignore[arg-type]
        good, controls, reason = _complete_batches(records, duty.base_offset, self._view.end.epoch, duty.leader_epoch)
        if good:
            try:
                self._log.partition_log.append_as_follower(records[:good], now_ms=self._clock.now_ms())
            except StorageError as error:
                self._rejected(error)
                return
        if not good:
            self._call(lambda quorum, now: quorum.append_failed(now, reason))
            return
        for base_offset, found in controls:
            self._view.control_appended(base_offset, found)
        if duty.flush:
            self.flush()
        self._call(lambda quorum, now: quorum.appended(now))

    def _rejected(self, error: StorageError) -> None:
        self._trouble.rejected(METADATA_PARTITION, self._log.end_offset, error)
        reason = error.message
        self._call(lambda quorum, now: quorum.append_failed(now, reason))

    # -- flushing ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush appended records; synchronously during a start (raises StorageError)."""
        if self.has_ended or self._log.is_changing or self._flush is not None or self._retry is not None:
            return
        end_offset = self._log.end_offset
        try:
            flush = self._log.begin_flush()
        except StorageError as error:
            if self.is_starting:
                raise
            # The disk was not written yet, so its content is certain: waiters keep waiting.
            self._trouble.rejected(METADATA_PARTITION, end_offset, error)
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
            self._log_postponed(flush.end(None))
            self._flushed(end_offset)
            return

        def ended(done: asyncio.Future[None]) -> None:
            self._flush = None
            error = done.exception()
            if error is None or isinstance(error, StorageError):
                self._log_postponed(flush.end(error))
            if error is not None:
                self._failed(error)
                return
            self._flushed(end_offset)
            if self._log.end_offset > self._view.flushed.offset:
                self.flush()

        self._flush = asyncio.get_running_loop().run_in_executor(self._executor, flush)
        self._flush.add_done_callback(ended)

    def _flush_again(self) -> None:
        self._retry = None
        self.flush()

    def _flushed(self, end_offset: int) -> None:
        self._view.flushed_to(end_offset)
        self._check_promised_end()
        self._call(lambda quorum, now: quorum.flushed(now))

    def _check_promised_end(self) -> None:
        """Check whether the log has reached the promised end again."""
        if self._log.promised != NO_PROMISED_END and self._view.flushed >= self._log.promised:
            self._log.promised = NO_PROMISED_END
            log.info("the metadata log again has all records that this node had acknowledged")
            asyncio.get_running_loop().run_in_executor(self._executor, self._log.delete_promised_end)

    def _log_postponed(self, error: StorageError | None) -> None:
        if error is not None and not self._is_behind:
            log.warning(
                "could not write indexes of the metadata log",
                reason=error.message,
                advice="Free disk space. No data is lost: the indexes are written once there is space.",
            )
        self._is_behind = error is not None

    async def finish(self) -> None:
        """Start no more work, and wait for the flush in progress."""
        self.has_ended = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._flush is not None:
            await asyncio.wait([self._flush])

    # -- loading snapshots ---------------------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> None:
        """Q29, for a thread: truncate the log to `end_offset`. Raises StorageError."""
        self._log.partition_log.truncate_to(end_offset)

    def truncated(self, end_offset: int) -> None:
        self._view.truncated(end_offset)
        self._call(lambda quorum, now: quorum.truncated(now))

    def load(self, snapshot_id: SnapshotId, known: Replayed | None) -> Replayed | str:
        """N35, for a thread: restart the log at a frozen snapshot. `known`: its content if it was just verified;
        otherwise it is read now. Returns the reason if it cannot be loaded (G24): then the log is unchanged, and the
        file is set aside. Raises StorageError, OSError."""
        if known is None:
            try:
                known = self._log.read_snapshot(snapshot_id)
            except (SnapshotDamaged, PeerError, MalformedRequest) as error:
                snapshot_files.set_aside(self._disk, self._log.path_of(snapshot_id))
                return str(error)
        self._log.partition_log.truncate_fully_and_start_at(snapshot_id.end_offset)
        return known

    def loaded(self, snapshot_id: SnapshotId, loaded: Replayed) -> None:
        """Older snapshots do not connect to the log any more (N35)."""
        obsolete = [each for each in self._log.snapshots if each.end_offset < snapshot_id.end_offset]
        self._log.snapshots[:] = [each for each in self._log.snapshots if each not in obsolete]
        self._view.snapshot_loaded(snapshot_id, loaded.kraft_version, loaded.voters)
        self._check_promised_end()
        paths = [self._log.path_of(each) for each in obsolete]
        if paths:
            asyncio.get_running_loop().run_in_executor(self._executor, partial(_unlink, self._disk, paths))

    def load_failed(self, snapshot_id: SnapshotId, reason: str) -> None:
        """The snapshot will be fetched again."""
        self._log.snapshots.remove(snapshot_id)
        self._call(lambda quorum, now: quorum.snapshot_not_loaded(now, snapshot_id, reason))


def _complete_batches(
    records: memoryview, base_offset: int, last_epoch: int, leader_epoch: int
) -> tuple[int, list[tuple[int, list[ControlRecord | None]]], str]:
    """Bytes of complete, valid batches that continue the log (K14, G11), their control records, why the scan ended."""
    good = 0
    controls: list[tuple[int, list[ControlRecord | None]]] = []
    try:
        for header in iter_headers(records, allow_partial_tail=True):
            check_crc(records, header)
            if header.base_offset != base_offset or not last_epoch <= header.leader_epoch <= leader_epoch:
                reason = f"the batch at {header.base_offset} of epoch {header.leader_epoch} does not continue the log"
                return good, controls, reason
            if header.is_control:
                decoded = decode_batch(records, header)
                controls.append((header.base_offset, [decode_control(one.key, one.value) for one in decoded]))
            base_offset, last_epoch, good = header.next_offset, header.leader_epoch, header.end_position
    except PeerError as error:
        return good, controls, error.message
    except MalformedRequest as error:
        return good, controls, str(error)
    return good, controls, "no complete batch"


def _unlink(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except OSError as error:
            log.warning(
                "could not delete old metadata",
                path=path,
                reason=str(error),
                advice="The file may be deleted manually.",
            )
