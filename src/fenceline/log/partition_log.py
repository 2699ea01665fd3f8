"""One partition's log: append, read, epochs, end offsets. The face of this room towards replicas and coordinators.

Owns the in-memory truth about one log and keeps it in step with its files. Never knows who leads or who follows, and
never waits for a disk on the loop but for the one write of an append and for opening a file: flushes, loads of what is
not in the page cache, look-ups by time, deletion and truncation are for threads and say so.

An append is: checks of the batch, checks of its producer, assignment in place, the write, bookkeeping in memory. Index
entries stay in memory until the segment is sealed; the epoch checkpoint is written with the next flush (what a crash
loses of both is read back from the batches). A log without records has no directory and no open file.

Invariants: log start <= high watermark <= log end; segments lie one behind the other and the last one is the only one
that is written; everything in memory belongs to bytes that were written whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.ids import TopicPartition
from fenceline.log import maintenance, reading
from fenceline.log.checkpoints import encode_partition_metadata
from fenceline.log.config import LogConfig
from fenceline.log.disk import Disk, replace_file
from fenceline.log.epoch_cache import EpochCache
from fenceline.log.errors import StorageError
from fenceline.log.flush import FlushWork
from fenceline.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, AbortedTransaction
from fenceline.log.open_files import OpenFiles
from fenceline.log.producer_state import EndMarker, Origin, ProducerStates
from fenceline.log.reading import FoundOffset, LogRead, NotResident, Request
from fenceline.log.recovery import METADATA_FILE, RecoveryReport, apply_to_producers, load, read_end_marker
from fenceline.log.scan import Found
from fenceline.log.segment import MAX_RELATIVE_OFFSET, Segment
from fenceline.log.tail import NOT_PLAIN, WRITE_BYTES, LogTail
from fenceline.records.batch import BatchHeader, assign_in_place, check_crc, iter_headers, read_header
from fenceline.records.validate import ZSTD_SINCE_VERSION, validate_produced

NEWEST_PRODUCE_VERSION: Final = 13
HINTS_KEPT: Final = 8


class AppendInfo(NamedTuple):
    """What an append did. Offsets are those of the older batch when `duplicate`."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic stores log append time."""
    log_start_offset: int
    duplicate: bool
    size_bytes: int


class PartitionLog(LogTail):
    """One thread of control. Methods that may wait for the disk say "for a thread"; only one of them at a time."""

    segments: list[Segment]

    __slots__ = (
        "__weakref__",
        "_bases",
        "_files",
        "_flushing",
        "_high_watermark",
        "_hints",
        "_new_files",
        "_unsaved",
        "_unsaved_snapshots",
        "directory",
        "jitter_ms",
        "last_flush_ms",
        "recovery",
        "recovery_point",
        "topic_id",
        "topic_partition",
    )

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
    ) -> None:
        """An empty log; `PartitionLog.open` reads what is on the disk."""
        super().__init__(disk, config, EpochCache(), ProducerStates(), log_start_offset)
        self._files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._high_watermark = log_start_offset
        self.recovery_point = log_start_offset
        self._bases: list[int] = []
        self.recovery: RecoveryReport | None = None
        """What opening did; None for a log that was never written."""
        self.last_flush_ms = 0
        self.jitter_ms: Callable[[int], int] | None = None
        """Draws a segment's share of `segment.jitter.ms`; None: no jitter."""
        self._flushing: FlushWork | None = None
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._new_files = False
        self._unsaved: list[Segment] = []
        self._unsaved_snapshots: list[tuple[int, bytes]] = []

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
        only_torn: bool = False,
    ) -> PartitionLog:
        """Open or recover (for a thread when there is something to recover). Raises CorruptLog.

        `only_torn`: every append was fsynced before it counted, so recovery cuts nothing but the end of the last write.
        """
        log = cls(
            disk,
            directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            files=files or OpenFiles(disk),
            log_start_offset=log_start_offset,
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
            only_torn=only_torn,
        )
        log.segments = loaded.segments
        log._bases = [segment.base_offset for segment in loaded.segments]
        log._unsaved = [segment for segment in loaded.segments[:-1] if not segment.indexes_saved]
        log.epochs = loaded.epochs
        log.producers = loaded.producers
        log.log_start_offset = loaded.log_start_offset
        log.log_end_offset = loaded.log_end_offset
        log.size_bytes = sum(segment.size_bytes for segment in loaded.segments)
        log.recovery_point = loaded.log_end_offset if clean else min(recovery_point, loaded.log_end_offset)
        log.recovery_point = max(log.recovery_point, log.log_start_offset)
        log.recovery = loaded.report
        log._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.high_watermark_moved(log._high_watermark)
        return log

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- offsets ------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    def advance_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by log start and log end (E29: it may go down). Returns what it is now."""
        self._high_watermark = bounded = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.high_watermark_moved(bounded)
        return bounded

    @property
    def last_stable_offset(self) -> int:
        """End of what read_committed readers may see: below the high watermark and every undecided transaction."""
        unstable = self.producers.first_unstable_offset
        if 0 <= unstable < self._high_watermark:
            return max(unstable, self.log_start_offset)
        return self._high_watermark

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    @property
    def active_segment_base(self) -> int:
        return self._bases[-1] if self._bases else self.log_end_offset

    @property
    def is_written(self) -> bool:
        """Whether the log has a directory."""
        return bool(self.segments) or self.recovery is not None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) by `epochs.md E13`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def assign_epoch(self, epoch: int) -> None:
        """A new leader epoch starts at the log end (E17)."""
        self.epochs.assign(epoch, self.log_end_offset)

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
    ) -> AppendInfo:
        """Check one produced batch, give it offsets and epoch in place, write it. `records` must be writable.

        Other origins than CLIENT may hand over several batches that this node built itself. Raises RecordsError and
        PeerError with Kafka's codes (2, 10, 18, 32, 45, 47, 48, 52, 76, 87), StorageError (56) with the log unchanged.
        """
        config = self.config
        latest_epoch = self.epochs.latest_epoch
        assert leader_epoch >= latest_epoch or leader_epoch < 0, "a leader never writes with an older epoch"
        if origin is not Origin.CLIENT:
            return self._append_own(records, leader_epoch, now_ms, origin, transaction_version)
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
            seen = self.producers.check(header, origin, self.topic_partition, base)
            if seen is not None:
                return AppendInfo(
                    seen.first_offset, seen.last_offset, seen.timestamp_ms, self.log_start_offset, True, size
                )
        assign_in_place(payload, 0, base, leader_epoch)
        if leader_epoch > latest_epoch:
            self.epochs.assign(leader_epoch, base)
        segment = self._write(payload, base, last, header.max_timestamp, now_ms)
        segment.appended(base, last, header.max_timestamp, size, config.index_interval_bytes)
        self.log_end_offset = last + 1
        self.size_bytes += size
        if header.producer_id >= 0:
            self.producers.record(header, base)
        return AppendInfo(base, last, log_append_time_ms, self.log_start_offset, False, size)

    def _append_own(
        self, records: memoryview, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int
    ) -> AppendInfo:
        """Batches of this node's own making: offsets count on from batch to batch."""
        base = self.log_end_offset
        found: list[Found] = []
        next_offset = base
        position = 0
        for header in iter_headers(records):
            assign_in_place(records, position, next_offset, leader_epoch)
            content = records[position : position + header.size_bytes]
            header = read_header(content)
            if header.producer_id >= 0:
                marker = self._marker(header, content)
                where = self.topic_partition
                if marker is not None:
                    self.producers.check_marker(header, marker, where, next_offset, transaction_version)
                elif not header.is_control:
                    self.producers.check(header, origin, where, next_offset)
            found.append(Found(position, header, content))
            next_offset = header.next_offset
            position += header.size_bytes
        if not found:
            raise PeerError(ErrorCode.INVALID_RECORD, "nothing to append")
        if leader_epoch > self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, base)
        self._append_batches(records, found, now_ms)
        return AppendInfo(base, next_offset - 1, -1, self.log_start_offset, False, position)

    def append_as_follower(self, records: memoryview, *, now_ms: int = 0) -> AppendInfo:
        """Write batches as the leader has them; a batch that is cut short at the end is left out.

        Every CRC is checked. Offsets must go on from the log end, gaps are allowed (compaction). Raises RecordsError(2)
        on damage, InternalError when the batches do not continue this log (E26), StorageError.
        """
        found: list[Found] = []
        next_offset = self.log_end_offset
        taken = 0
        for header in iter_headers(records, allow_partial_tail=True):
            check_crc(records, header)
            if header.base_offset < next_offset:
                if found or self.log_start_offset != self.log_end_offset or header.last_offset < next_offset:
                    raise InternalError(
                        f"{self.topic_partition}: batch at offset {header.base_offset} does not continue the log "
                        f"at {next_offset}"
                    )
                # An empty log that starts inside of the leader's first batch (DeleteRecords there).
                self.truncate_fully_and_start_at(header.base_offset)
            content = records[header.position : header.position + header.size_bytes]
            found.append(Found(header.position, header, content))
            next_offset = header.next_offset
            taken = header.position + header.size_bytes
        if not found:
            return AppendInfo(-1, -1, -1, self.log_start_offset, False, 0)
        for batch in found:
            if batch.header.leader_epoch >= 0:
                self.epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
        self._append_batches(records[:taken], found, now_ms)
        return AppendInfo(found[0].header.base_offset, next_offset - 1, -1, self.log_start_offset, False, taken)

    def _append_batches(self, records: memoryview, found: list[Found], now_ms: int) -> None:
        config = self.config
        size = len(records)
        if size > config.segment_bytes:
            raise _too_large(size, config.segment_bytes)
        first, last = found[0].header, found[-1].header
        newest_ms = max(batch.header.max_timestamp for batch in found)
        segment = self._write(records, first.base_offset, last.last_offset, newest_ms, now_ms)
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

    @staticmethod
    def _marker(header: BatchHeader, content: memoryview) -> EndMarker | None:
        return read_end_marker(header, content) if header.is_control else None

    def _write(self, payload: memoryview, base: int, last: int, newest_ms: int, now_ms: int) -> Segment:
        """Write at the end of the segment that takes the batch. Raises StorageError with nothing changed."""
        if self.offline is not None:
            raise self.offline
        size = payload.nbytes
        try:
            segment = self.segments[-1] if self.segments else None
            if segment is None or self._roll_due(segment, size, last, newest_ms, now_ms):
                segment = self._start_segment(base, now_ms)
            fd = segment.fd if segment.fd >= 0 else self._files.open(segment)
        except OSError as error:
            raise StorageError.of(f"opening a segment of {self.topic_partition}", error) from error
        segment.recently_used = True
        try:
            written = self._disk.write(fd, payload if size <= WRITE_BYTES else payload[:WRITE_BYTES])
            while written < size:
                written += self._disk.write(fd, payload[written : written + WRITE_BYTES])
        except OSError as error:
            raise self._write_failed(segment, error) from error
        return segment

    def _write_failed(self, segment: Segment, reason: OSError) -> StorageError:
        """Cut back a partial write: bytes past `size_bytes` were never shown to anybody. Only here a file shrinks."""
        try:
            self._disk.truncate(segment.fd, segment.size_bytes)
        except OSError as error:
            self.offline = StorageError(
                f"{segment.path} can not be cut back to {segment.size_bytes} bytes ({error.strerror}) after a failed "
                f"write ({reason.strerror}): the partition takes no more records until the node is restarted",
                error.errno or 0,
            )
        return StorageError.of(f"appending to {segment.path}", reason)

    # -- segments -----------------------------------------------------------------------------------------------

    def _roll_due(self, segment: Segment, size: int, last: int, newest_ms: int, now_ms: int) -> bool:
        config = self.config
        if segment.size_bytes > config.segment_bytes - size or last - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if segment.size_bytes == 0:
            return False
        first_ms = segment.first_timestamp_ms
        waited_ms = newest_ms - first_ms if first_ms >= 0 else now_ms - segment.created_ms
        if waited_ms > config.segment_ms - segment.jitter_ms:
            return True
        index, time_index = segment.index, segment.time_index
        if index is None or time_index is None:
            return False
        limit = config.segment_index_bytes
        return (
            len(index.offsets) * OFFSET_ENTRY_BYTES > limit - OFFSET_ENTRY_BYTES
            or len(time_index.offsets) * TIME_ENTRY_BYTES > limit - 2 * TIME_ENTRY_BYTES
        )

    def maybe_roll(self, now_ms: int) -> bool:
        """Seal the active segment when it is older than `segment.ms` by the clock. Raises StorageError."""
        if not self.segments or not self.segments[-1].size_bytes:
            return False
        segment = self.segments[-1]
        if now_ms - segment.created_ms <= self.config.segment_ms - segment.jitter_ms:
            return False
        return self.roll(now_ms)

    def roll(self, now_ms: int) -> bool:
        """Start a new segment at the log end, unless the active one is empty. Raises StorageError."""
        if not self.segments or not self.segments[-1].size_bytes:
            return False
        try:
            self._start_segment(self.log_end_offset, now_ms)
        except OSError as error:
            raise StorageError.of(f"starting a segment of {self.topic_partition}", error) from error
        return True

    def _start_segment(self, base: int, now_ms: int) -> Segment:
        if not self.segments:
            self._make_directory()
        segment = Segment(self._disk, self.directory, base, now_ms)
        if self.jitter_ms is not None and self.config.segment_jitter_ms:
            segment.jitter_ms = min(self.jitter_ms(self.config.segment_jitter_ms), self.config.segment_ms)
        self._files.open(segment, create=True)
        self._new_files = True
        if self.segments:
            previous = self.segments[-1]
            previous.seal()
            self._unsaved.append(previous)
            self._unsaved_snapshots.append((self.log_end_offset, self.producers.encode()))
        self.segments.append(segment)
        self._bases.append(base)
        return segment

    def _make_directory(self) -> None:
        self._disk.mkdir(self.directory)
        path = f"{self.directory}/{METADATA_FILE}"
        if self.topic_id is not None and self._disk.stat(path) is None:
            replace_file(self._disk, path, encode_partition_metadata(self.topic_id), durable=False)

    # -- read ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset_exclusive: int, at_least_one: bool = True) -> LogRead:
        """Whole batches from the one that holds `offset`, none of them at or past `end_offset_exclusive`.

        At most `max_bytes`, but the first batch in any case if `at_least_one`. Raises PeerError(OFFSET_OUT_OF_RANGE)
        outside of log start..log end (E11), StorageError.
        """
        log_end = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end:
            raise PeerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self.topic_partition} is outside of {self.log_start_offset}..{log_end}",
            )
        end = min(end_offset_exclusive, log_end)
        if offset >= end:
            return LogRead(offset)
        number = self._segment_number(offset)
        segment = self.segments[number]
        if offset >= segment.next_offset and number + 1 < len(self.segments):
            number += 1  # the batches between were compacted away
            segment = self.segments[number]
        hint = self._hints.get(offset)
        position = hint[1] if hint is not None and hint[0] is segment else -1
        request = Request(offset, end, max_bytes, at_least_one, position)
        try:
            records, stored, position, whole = reading.read_now(self._files, segment, request)
        except NotResident:
            pending = reading.loader(self._files, segment, request)
            return LogRead(offset, position=position, segment_base_offset=segment.base_offset, loader=pending)
        except OSError as error:
            raise StorageError.of(f"reading {segment.path}", error) from error
        if whole and end == segment.next_offset and segment is self.segments[-1]:
            hints = self._hints
            if len(hints) >= HINTS_KEPT and end not in hints:
                del hints[next(iter(hints))]
            hints[end] = (segment, position + len(records))
        return LogRead(offset, records, position=position, segment_base_offset=segment.base_offset, payload=stored)

    def readable_bytes(self, offset: int, end_offset_exclusive: int) -> int:
        """About how many bytes a read between two offsets would find; exact at the log's end, never a disk access."""
        end = min(end_offset_exclusive, self.log_end_offset)
        if offset < self.log_start_offset or offset >= end:
            return 0
        low, high = self._segment_number(offset), self._segment_number(end)
        total = self._estimate(self.segments[high], end) - self._estimate(self.segments[low], offset)
        total += sum(segment.size_bytes for segment in self.segments[low:high])
        return max(1, total)

    def _estimate(self, segment: Segment, offset: int) -> int:
        if offset >= segment.next_offset:
            return segment.size_bytes
        if offset == segment.last_batch_offset:
            return segment.last_batch_position
        hint = self._hints.get(offset)
        if hint is not None and hint[0] is segment:
            return hint[1]
        return segment.index.floor(offset - segment.base_offset) if segment.index is not None else 0

    def _segment_number(self, offset: int) -> int:
        bases = self._bases
        if offset >= bases[-1]:
            return len(bases) - 1
        return max(0, bisect_right(bases, offset) - 1)

    def offset_for_timestamp(self, timestamp_ms: int, *, end_offset_exclusive: int | None = None) -> FoundOffset | None:
        """First record at or after a time, below the end given (L22, L23). For a thread. Raises StorageError."""
        end = self.log_end_offset if end_offset_exclusive is None else min(end_offset_exclusive, self.log_end_offset)
        return reading.find_by_timestamp(self._disk, tuple(self.segments), timestamp_ms, self.log_start_offset, end)

    def offset_of_max_timestamp(self, *, end_offset_exclusive: int | None = None) -> FoundOffset | None:
        """The record with the largest timestamp; None when there is none below the end (L20). For a thread."""
        end = self.log_end_offset if end_offset_exclusive is None else min(end_offset_exclusive, self.log_end_offset)
        found = reading.find_max_timestamp(self._disk, tuple(self.segments), self.log_start_offset)
        return found if found is not None and found.offset < end else None

    def aborted_to_load(self, offset: int, end_offset_exclusive: int) -> list[Segment]:
        """Segments of which `aborted_transactions` of the same offsets would wait for the disk."""
        found: list[Segment] = []
        for segment in self.segments[self._segment_number(offset) :] if self.segments else ():
            if segment.aborted is None:
                found.append(segment)
            elif any(entry.last_stable_offset >= end_offset_exclusive for entry in segment.aborted):
                break
        return found

    def aborted_transactions(self, offset: int, end_offset_exclusive: int) -> list[AbortedTransaction]:
        """Aborted transactions that a read_committed reader of these offsets must know. Raises StorageError."""
        found: list[AbortedTransaction] = []
        if not self.segments:
            return found
        try:
            for segment in self.segments[self._segment_number(offset) :]:
                for entry in segment.aborted_transactions():
                    if entry.last_offset >= offset and entry.first_offset < end_offset_exclusive:
                        found.append(entry)
                    if entry.last_stable_offset >= end_offset_exclusive:
                        return found
        except OSError as error:
            raise StorageError.of(f"reading the aborted transactions of {self.topic_partition}", error) from error
        return found

    # -- upkeep: see maintenance.py -----------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages`, `flush.ms` or sealed segments ask for a flush now."""
        if self._unsaved and self._flushing is None:
            return True
        waiting = self.log_end_offset - self.recovery_point
        if not waiting or self._flushing is not None:
            return False
        return waiting >= self.config.flush_messages or now_ms - self.last_flush_ms >= self.config.flush_ms

    def flush_work(self, now_ms: int = 0) -> FlushWork | None:
        """Work that makes everything up to the log end durable; None when nothing is to do or one is under way."""
        return maintenance.flush_work(self, now_ms)

    def advance_log_start(self, offset: int) -> bool:
        """Forget records below `offset` (DeleteRecords); segments go with the next retention. Whether it moved.

        Raises PeerError(OFFSET_OUT_OF_RANGE) above the high watermark.
        """
        return maintenance.advance_log_start(self, offset)

    def enforce_retention(self, now_ms: int) -> list[maintenance.RemovedSegment]:
        """Take out segments by log start, time and size, and forget idle producers. Raises StorageError.

        Files are only renamed here; `RemovedSegment.delete` unlinks them, in a thread.
        """
        return maintenance.enforce_retention(self, now_ms)

    def truncate_to(self, offset: int) -> maintenance.Truncated:
        """Cut the log back to end at `offset`, keeping what was cut (E18, E19). For a thread. Raises StorageError."""
        return maintenance.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> maintenance.Truncated:
        """Empty the log; it goes on at `offset` (E19). For a thread. Raises StorageError."""
        return maintenance.truncate_fully_and_start_at(self, offset)

    def close(self, clean: bool = True) -> None:
        """Flush everything if `clean`, let go of all files. For a thread. Raises StorageError when it can not."""
        maintenance.close(self, clean)


def _too_large(size: int, segment_bytes: int) -> PeerError:
    return PeerError(
        ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes of batches do not fit a segment of at most {segment_bytes}"
    )
