"""One partition's log: append, epochs, end offsets. The interface of this package for replicas and coordinators.

Owns the offsets of one log and how an append changes them. Its base classes hold the look-ups (`readable_log.py`), the
segments and the write (`state.py`) and the state of the log's end (`tail.py`). Other modules hold the checks of
fetched batches (`follower_batches.py`), opening (`recovery.py`) and, on its private parts, flush and close
(`saving.py`), `retention.py` and `truncation.py`.

Never knows which replica leads. On the loop it waits for the disk only in the write of an append and when it opens a
file: flushes, loads of what is not in the page cache, look-ups by time, deletion and truncation are for threads and say
so.

An append: check the batch, check its producer, assign offsets in place, write, update memory. Index entries stay in
memory until the segment is sealed; the epoch checkpoint is written with the next flush. After a crash both are read
back from the batches; epochs that cannot be read back are flushed at once.

Invariants: those of the state (`state.py`); when an append begins, the recovery point on the disk is at or below the
log end (`_check_recovery_point`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.core.flush import FlushWork
from fenceline.log.core.guards import WITHOUT_VERIFICATION, VerificationGuard, VerificationGuards
from fenceline.log.core.lost_batches import LostPiece
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.producer_state import Origin
from fenceline.log.core.replay import apply_to_producers
from fenceline.log.core.scan import Found
from fenceline.log.core.tail import NOT_PLAIN, BatchSeen
from fenceline.log.partition import retention, saving, truncation
from fenceline.log.partition.follower_batches import validate_fetched
from fenceline.log.partition.out_of_sequence import FailedBatches, find_earlier
from fenceline.log.partition.readable_log import ReadableLog
from fenceline.log.partition.retention import RemovedSegment
from fenceline.log.partition.truncation import Truncated
from fenceline.log.recovery.recovery import load
from fenceline.records.batch import BatchHeader, assign_in_place, iter_headers, read_header
from fenceline.records.markers import read_end_marker
from fenceline.records.validate import ZSTD_SINCE_VERSION, validate_produced

NEWEST_PRODUCE_VERSION: Final = 13
NO_LIMIT: Final = 2**31 - 1
"""Of a leader epoch, if the caller knows none."""


class AppendInfo(NamedTuple):
    """The result of an append. Offsets are those of the earlier batch if `duplicate`."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic stores log append time."""
    log_start_offset: int
    duplicate: bool
    size_bytes: int
    lacks_records: bool = False
    """Whether the leader's log has no record at some of the fetched offsets: it was compacted."""


class PartitionLog(ReadableLog):
    """One thread of control. Methods that may wait for the disk say "for a thread"; only one of them at a time."""

    __slots__ = ("__weakref__", "failed_batches", "guards")

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
        files: OpenFiles,
        log_start_offset: int = 0,
        incarnation: UUID | None = None,
    ) -> None:
        """An empty log; `PartitionLog.open` reads the files on disk."""
        super().__init__(
            disk,
            directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            files=files,
            log_start_offset=log_start_offset,
            incarnation=incarnation,
        )
        self.failed_batches = FailedBatches()
        """Kept by the code that appends as a leader."""
        self.guards = VerificationGuards()
        """Of the current leader epoch."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
        recovery_point: int = 0,
        clean: bool = False,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        now_ms: int,
        files: OpenFiles | None = None,
        incarnation: UUID | None = None,
        first_segment: int | None = None,
        segment_count: int | None = None,
        only_torn: bool = False,
        before_cut: Callable[[CorruptLog], None] | None = None,
    ) -> PartitionLog:
        """Open or recover (for a thread if recovery is needed). Raises CorruptLog.

        `only_torn`: every append was fsynced before it counted, so recovery cuts only the end of the last write, unless
        `before_cut` allows more (`recovery.load`).
        """
        log = cls(
            disk,
            directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            files=files or OpenFiles(disk),
            log_start_offset=log_start_offset,
            incarnation=incarnation,
        )
        log.last_flush_ms = now_ms
        if disk.stat(directory) is None:
            return log
        loaded = load(
            disk,
            directory,
            config=config,
            recovery_point=recovery_point,
            clean=clean,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            known_end=min(recovery_point, high_watermark),
            first_segment=first_segment,
            segment_count=segment_count,
            knows_gaps=incarnation is not None,
            only_torn=only_torn,
            before_cut=before_cut,
        )
        log.adopt(loaded)
        log.recovery_point = loaded.log_end_offset if clean else min(recovery_point, loaded.log_end_offset)
        log.recovery_point = max(log.recovery_point, log.first_stored_offset)
        log.recovery = loaded.report
        if clean:
            log.saved_complete_from = log.complete_from
        log.advance_high_watermark(high_watermark)
        # Data of the previous session that was not flushed, including file names.
        log.unsaved.has_new_files = log.recovery_point < log.log_end_offset
        log.unsaved.has_new_id = (
            not clean and recovery_point == 0 and topic_id is not None and log.unsaved.has_new_files
        )
        log.check()
        return log

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- offsets ------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The read_committed limit: below the high watermark and every undecided transaction."""
        unstable = self.producers.first_unstable_offset
        if 0 <= unstable < self.high_watermark:
            return max(unstable, self.log_start_offset)
        return self.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    @property
    def latest_epoch_start(self) -> int:
        return self.epochs.latest_start

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is in progress, or was created and has not begun."""
        return self.flushing is not None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) by `epochs.md E13`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def last_deleted_epoch_is(self, epoch: int) -> bool:
        """Whether a log whose last record before this log's start has `epoch` contains everything that was deleted
        here."""
        return self.epochs.last_deleted_epoch_is(epoch)

    def raise_complete_from(self, offset: int, leader_epoch: int) -> None:
        """Compaction removed records, here or at the leader they were fetched from, whose newer versions lie below
        `offset`."""
        self.complete_from = self.complete_from.raised(offset, leader_epoch)

    def assign_epoch(self, epoch: int) -> None:
        """A new leader epoch starts at the log end (E17). Records missing here are missing in the partition: the log is
        complete from its end. Guards of an earlier epoch are void: another leader may have appended markers since."""
        self.guards.clear()
        self.epochs.assign(epoch, self.log_end_offset)
        self.complete_from = self.complete_from.lowered(self.log_end_offset)

    # -- append -------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        version: int = NEWEST_PRODUCE_VERSION,
        transaction_version: int = 0,
        guard: VerificationGuard | None = WITHOUT_VERIFICATION,
    ) -> AppendInfo:
        """Check one produced batch, assign its offsets and epoch in place, write it. `records` must be writable.

        Origins other than CLIENT may pass several batches that this node built. `transaction_version`: of markers.
        `guard`: a batch that opens a transaction must bring one of `begin_verification`; None if it has none. Raises
        RecordsError and PeerError with Kafka's codes (2, 10, 18, 32, 45, 47, 48, 52, 76, 87), StorageError (56) with
        the log unchanged.
        """
        config = self.config
        latest_epoch = self.epochs.latest_epoch
        assert leader_epoch >= latest_epoch or leader_epoch < 0, "a leader never writes with an older epoch"
        if origin is not Origin.CLIENT:
            return self._append_own(records, leader_epoch, now_ms, origin, transaction_version, guard)
        if version >= ZSTD_SINCE_VERSION:
            base = self.append_plain(records, leader_epoch, now_ms)
            if base != NOT_PLAIN:
                return AppendInfo(base, self.log_end_offset - 1, -1, self.log_start_offset, False, records.nbytes)
        payload, header, log_append_time_ms, _ = validate_produced(
            records,
            version=version,
            max_message_bytes=config.max_message_bytes,
            timestamp_type=config.timestamp_type,
            target_codec=config.compression_type,
            compression_level=config.compression_level,
            now_ms=now_ms,
            timestamp_before_max_ms=config.timestamp_before_max_ms,
            timestamp_after_max_ms=config.timestamp_after_max_ms,
            compacted=config.compacted,
            check_compressed=config.validate_compressed_records,
        )
        base = self.log_end_offset
        last = base + header.last_offset_delta
        size = header.size_bytes
        if size > config.segment_bytes:
            raise _too_large(size, config.segment_bytes)
        if header.producer_id >= 0:
            if self.failed_batches:
                self.failed_batches.check(header, self.producers, now_ms)
            seen = self._seen_before(header, base, guard)
            if seen is not None:
                return AppendInfo(
                    seen.first_offset, seen.last_offset, seen.timestamp_ms, self.log_start_offset, True, size
                )
        assign_in_place(payload, 0, base, leader_epoch)
        segment = self._write(payload, last, header.max_timestamp, now_ms)
        if leader_epoch > latest_epoch:
            self.epochs.assign(leader_epoch, base)
        segment.appended(base, last, header.max_timestamp, size, config.index_interval_bytes)
        self.log_end_offset = last + 1
        self.size_bytes += size
        if header.producer_id >= 0:
            self.producers.record(header, base)
            if header.is_transactional and self.guards:
                self.guards.on_data(header.producer_id, header.producer_epoch)
        return AppendInfo(base, last, log_append_time_ms, self.log_start_offset, False, size)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partition: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Before the coordinator is asked about a transactional batch: the guard to append it with (X37); None if the
        transaction is open here, and the coordinator need not be asked."""
        if self.producers.is_open(producer_id, epoch):
            return None
        return self.guards.begin(producer_id, epoch, sequence, adds_partition=adds_partition, now_ms=now_ms)

    def _seen_before(self, header: BatchHeader, base: int, guard: VerificationGuard | None) -> BatchSeen | None:
        """For a client's batch: the earlier batch if it is a duplicate. Raises PeerError."""
        if header.is_transactional:
            guard = self.guards.valid(header.producer_id, header.producer_epoch, guard)
        try:
            return self.producers.check(header, Origin.CLIENT, self.topic_partition, base, guard)
        except PeerError as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            seen = find_earlier(self, header)
            if seen is None:
                raise
            return seen

    def _append_own(
        self,
        records: memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: Origin,
        transaction_version: int,
        guard: VerificationGuard | None,
    ) -> AppendInfo:
        """Batches that this node built: offsets are assigned consecutively."""
        base = self.log_end_offset
        found: list[Found] = []
        next_offset = base
        position = 0
        for header in iter_headers(records):
            assign_in_place(records, position, next_offset, leader_epoch)
            content = records[position : position + header.size_bytes]
            header = read_header(content)
            if header.producer_id >= 0:
                marker = read_end_marker(header, content) if header.is_control else None
                where = self.topic_partition
                if marker is not None:
                    self.producers.check_marker(header, marker, where, next_offset, transaction_version)
                elif not header.is_control:
                    valid = self.guards.valid(header.producer_id, header.producer_epoch, guard)
                    self.producers.check(header, origin, where, next_offset, valid)
            found.append(Found(position, header, content))
            next_offset = header.next_offset
            position += header.size_bytes
        if not found:
            raise PeerError(ErrorCode.INVALID_RECORD, "nothing to append")
        self._append_batches(records, found, now_ms)
        if self.guards:
            for batch in found:
                if batch.header.is_transactional:
                    end = self.guards.on_marker if batch.header.is_control else self.guards.on_data
                    end(batch.header.producer_id, batch.header.producer_epoch)
        if leader_epoch > self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, base)
        return AppendInfo(base, next_offset - 1, -1, self.log_start_offset, False, position)

    def append_as_follower(
        self,
        records: memoryview,
        *,
        leader_epoch: int = NO_LIMIT,
        now_ms: int = 0,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> AppendInfo:
        """Write batches with the leader's offsets and epochs; an incomplete batch at the end is left out.

        Every CRC is checked. Offsets must continue from the log end, gaps are allowed (compaction); epochs never
        decrease and none is above `leader_epoch` (`gaps.md G11`). `epoch_starts`: (epoch, start), oldest first, as far
        as the leader reported them; after a gap the batches do not show them. Raises RecordsError(2) on damage,
        InternalError if the batches do not continue this log (E26), EpochStartUnknown, StorageError; the log is
        unchanged then.
        """
        absent = self.absent_records
        plain_bytes = self.append_fetched(records, leader_epoch, now_ms)
        if plain_bytes != NOT_PLAIN:
            base, lacks_records = int.from_bytes(records[:8], "big"), self.absent_records > absent
            return AppendInfo(
                base, self.log_end_offset - 1, -1, self.log_start_offset, False, plain_bytes, lacks_records
            )
        found = validate_fetched(self, records, leader_epoch, epoch_starts)
        if not found:
            return AppendInfo(-1, -1, -1, self.log_start_offset, False, 0)
        base, size_bytes = found[0].header.base_offset, found[-1].header.end_position
        if base < self.log_end_offset:
            self._check_recovery_point(base)
            self.truncate_fully_and_start_at(base)
        lacks_records = found[-1].header.next_offset - self.log_end_offset > sum(
            batch.header.record_count for batch in found
        )
        self._append_batches(records[:size_bytes], found, now_ms)
        for batch in found:
            if batch.header.leader_epoch > self.epochs.latest_epoch:
                self.epochs.begin(batch.header.leader_epoch, batch.header.base_offset, epoch_starts)
        return AppendInfo(base, self.log_end_offset - 1, -1, self.log_start_offset, False, size_bytes, lacks_records)

    def _append_batches(self, records: memoryview, found: list[Found], now_ms: int) -> None:
        config = self.config
        size = len(records)
        if size > config.segment_bytes:
            raise _too_large(size, config.segment_bytes)
        last = found[-1].header
        newest_ms = max(batch.header.max_timestamp for batch in found)
        segment = self._write(records, last.last_offset, newest_ms, now_ms)
        for batch in found:
            header = batch.header
            segment.appended(
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.size_bytes,
                config.index_interval_bytes,
            )
            apply_to_producers(self.producers, segment, batch)
        self.log_end_offset = last.next_offset
        self.size_bytes += size
        assert segment.next_offset == last.next_offset, f"{segment.path} ends at {segment.next_offset}"

    # -- upkeep: saving.py, retention.py, truncation.py ---------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def lower_recovery_point(self) -> None:
        """The complete log is about to be removed: what a crash leaves of it is no damage. For a thread."""
        saving.stop_flush(self)
        self.recovery_point = self.first_stored_offset

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages`, `flush.ms`, sealed segments, a new directory or epochs that cannot be read back
        require a flush now."""
        unsaved = self.unsaved
        if (
            self.segments
            and (unsaved.sealed or unsaved.has_new_id or self._has_unrecoverable_epochs)
            and self.flushing is None
        ):
            return True
        waiting = self.log_end_offset - self.recovery_point
        if not waiting or self.flushing is not None:
            return False
        return waiting >= self.config.flush_messages or now_ms - self.last_flush_ms >= self.config.flush_ms

    @property
    def _has_unrecoverable_epochs(self) -> bool:
        return self.epochs.has_unrecoverable_entries and self.epochs.changed

    def flush_work(self, now_ms: int = 0) -> FlushWork | None:
        """Work that makes everything up to the log end durable; None if there is nothing to flush or a flush is in
        progress."""
        return saving.flush_work(self, now_ms)

    def advance_log_start(self, offset: int) -> bool:
        """Delete records below `offset` (DeleteRecords); segments are removed by the next retention. Returns whether
        the start moved.

        Raises PeerError(OFFSET_OUT_OF_RANGE) above the high watermark.
        """
        return retention.advance_log_start(self, offset)

    def enforce_retention(self, now_ms: int, *, may_empty: bool = True) -> list[RemovedSegment]:
        """Remove segments by log start, time and size, and idle producers. Raises StorageError.

        Files are only renamed here; `RemovedSegment.delete` unlinks them, in a thread. Unless it `may_empty` the log,
        the last segment with records stays.
        """
        if self.guards:
            self.guards.expire(now_ms, self.config.producer_id_expiration_ms)
        return retention.enforce_retention(self, now_ms, may_empty=may_empty)

    def truncate_to(self, offset: int, *, keep_evidence: bool = True) -> Truncated:
        """Truncate the log to end at `offset`, keeping the truncated bytes (E18, E19). For a thread.

        Raises StorageError: on a full disk nothing has changed, unless evidence was not to be kept.
        """
        return truncation.truncate_to(self, offset, keep_evidence=keep_evidence)

    def truncate_fully_and_start_at(self, offset: int, *, keep_evidence: bool = True) -> Truncated:
        """Empty the log; it continues at `offset` (E19). For a thread. Raises StorageError."""
        return truncation.truncate_fully_and_start_at(self, offset, keep_evidence=keep_evidence)

    def resume(self) -> None:
        """After an unfinished truncation: reload the log from its files. For a thread. Raises StorageError."""
        truncation.resume(self)

    def pieces_from(self, offset: int) -> list[LostPiece]:
        """The byte ranges that `truncate_to(offset)` cuts. For a thread. Raises OSError."""
        return truncation.pieces_from(self, offset)

    def pieces_from_start(self) -> list[LostPiece]:
        """As `pieces_from`, for everything readable: the byte ranges that `truncate_fully_and_start_at` cuts."""
        return truncation.pieces_from_start(self)

    def end_after(self, offset: int) -> int:
        """The log end after `truncate_to(offset)`; 0 if nothing stays. For a thread. Raises OSError."""
        return truncation.end_after(self, offset)

    def close(self, clean: bool = True) -> None:
        """Flush everything if `clean`, release all files. For a thread. Raises StorageError if that fails."""
        saving.close(self, clean)


def _too_large(size: int, segment_bytes: int) -> PeerError:
    return PeerError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"Message batch size is {size} bytes, which exceeds the segment size of {segment_bytes}",
    )
