"""The state of one log, and how its files grow: segments, offsets, and what of it is not on the disk yet.

Owns when a segment is full, how the next one begins, and the write at the end of the last one. Flush and close
(`saving.py`), `retention.py`, `truncation.py` and the exchange of compacted segments (`compaction.swap`) work on this
state; `PartitionLog` is its face to the rest of the node. Never reads inside a batch. A log without records has no
directory and no open file.

Invariants (`check`): segments are ordered and only the last one is written; all state in memory belongs to bytes that
were completely written; log start <= high watermark <= log end; recovery point <= log end; leader epochs and their
start offsets rise strictly. The recovery point may lie below the log start, and a producer's last batch past the log
end, if the log was truncated where compaction had removed that batch.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import DirectoryIdentity, encode_partition_metadata
from fenceline.log.core.compaction_bound import COMPLETE
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.log.core.flush import FlushWork
from fenceline.log.core.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.producer_state import ProducerStates
from fenceline.log.core.segment import MAX_RELATIVE_OFFSET, Segment
from fenceline.log.core.tail import WRITE_BYTES, LogTail
from fenceline.log.recovery.cut import RecoveryReport
from fenceline.log.recovery.recovery import LoadedLog


class UnfinishedTruncation(NamedTuple):
    """The target of a truncation that has begun."""

    offset: int
    keeps_evidence: bool


@dataclass(slots=True)
class Unsaved:
    """What a log has written since the last flush began, except batches, epochs and `complete_from`."""

    sealed: list[Segment] = field(default_factory=list)
    """Sealed segments whose indexes are not on the disk."""
    snapshots: list[tuple[int, bytes]] = field(default_factory=list)
    """Producer snapshots by their offsets."""
    has_new_files: bool = False
    """Whether the directory has entries that were not synced."""
    has_new_id: bool = False
    """Whether a power loss could remove the topic id; it would then be unknown which topic the batches belong to."""


class LogState(LogTail):
    """One object with the fields of `LogTail`, which appends and reads use for each batch."""

    segments: list[Segment]
    producers: ProducerStates

    __slots__ = (
        "bases",
        "complete_from",
        "directory",
        "files",
        "flushing",
        "high_watermark",
        "hints",
        "incarnation",
        "jitter_ms",
        "last_flush_ms",
        "on_segment",
        "recovery",
        "recovery_point",
        "saved_complete_from",
        "snapshots_dropped_below",
        "times_emptied",
        "topic_id",
        "topic_partition",
        "unfinished",
        "unsaved",
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
        incarnation: UUID | None = None,
    ) -> None:
        """An empty log."""
        super().__init__(disk, config, EpochCache(), ProducerStates(), log_start_offset)
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.incarnation = incarnation
        """Of the directory; None if Fenceline did not create it, or if it belongs to no `LogDir`."""
        self.jitter_ms: Callable[[int], int] | None = None
        """Draws a segment's share of `segment.jitter.ms`; None: no jitter."""
        self.on_segment: Callable[[TopicPartition], None] | None = None
        """Called when a segment was started, in the thread that did it."""
        self.high_watermark = log_start_offset
        """Set by `advance_high_watermark`."""
        self.recovery_point = log_start_offset
        self.recovery: RecoveryReport | None = None
        """The result of opening; None for a log that was never written."""
        self.last_flush_ms = 0
        self.unfinished: UnfinishedTruncation | None = None
        """A truncation that the disk interrupted, for a reason that may pass: the log is unusable until `resume` and a
        new truncation to that offset."""
        self.complete_from = COMPLETE
        """A log truncated below it may lack records that other replicas have (`compaction_bound`)."""
        self.saved_complete_from = COMPLETE
        self.snapshots_dropped_below = -1
        """No producer snapshot below it is left, unless the log start has fallen since."""
        """The value on the disk."""
        self.times_emptied = 0
        """Since it was opened."""
        self.bases: list[int] = []
        """Base offsets of the segments, for bisecting."""
        self.unsaved = Unsaved()
        self.flushing: FlushWork | None = None
        self.hints: dict[int, tuple[Segment, int]] = {}
        """Where recent reads ended: offset to segment and position. Cleared when segments are removed."""

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> DirectoryIdentity:
        """Of the directory, as its `partition.metadata` has or will have it."""
        return DirectoryIdentity(self.topic_id, self.incarnation)

    def mark_identity_unsaved(self) -> None:
        """`partition.metadata` is missing or damaged: the next flush of a log with a segment writes it."""
        self.unsaved.has_new_id = self.unsaved.has_new_id or self.topic_id is not None

    @property
    def active_segment_base(self) -> int:
        return self.bases[-1] if self.bases else self.log_end_offset

    @property
    def first_stored_offset(self) -> int:
        """Where the files begin. The log start may be higher (DeleteRecords, a leader's log start), and data below it
        in the same segment may not be on the disk yet: the recovery point must start from here."""
        return self.segments[0].base_offset if self.segments else self.log_start_offset

    @property
    def is_written(self) -> bool:
        """Whether the log has a directory."""
        return bool(self.segments) or self.recovery is not None

    def segment_number(self, offset: int) -> int:
        """Index of the segment with `offset`, of a log that has segments."""
        bases = self.bases
        if offset >= bases[-1]:
            return len(bases) - 1
        return max(0, bisect_right(bases, offset) - 1)

    # -- changes ------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by log start and log end (E29: it may decrease). Returns the new value."""
        self.high_watermark = bounded = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.high_watermark_moved(bounded)
        return bounded

    def adopt(self, loaded: LoadedLog) -> None:
        """Use the files found on the disk as the complete log."""
        self.segments = loaded.segments
        self.bases = [segment.base_offset for segment in loaded.segments]
        self.unsaved.sealed = [segment for segment in loaded.segments[:-1] if not segment.indexes_saved]
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.complete_from = self.complete_from.raised(*loaded.complete_from)
        self.size_bytes = sum(segment.size_bytes for segment in loaded.segments)

    def release(self, segments: Iterable[Segment]) -> None:
        """Close the descriptors, windows and hints of segments that leave the log, change, or are closed."""
        self.hints.clear()
        self.files.close_all(segments)

    # -- invariants ---------------------------------------------------------------------------------------------

    def check_offsets(self) -> None:
        """The invariants of the offsets, after each change of the log start."""
        where, start, end = self.topic_partition, self.log_start_offset, self.log_end_offset
        assert 0 <= start <= end, f"{where}: log start {start}, log end {end}"
        assert start <= self.high_watermark <= end, f"{where}: high watermark {self.high_watermark} of {start}..{end}"
        assert self.recovery_point <= end, f"{where}: recovery point {self.recovery_point}, log end {end}"

    def check(self) -> None:
        """All invariants, before and after each change except an append. They do not hold while a truncation is
        unfinished."""
        self.check_offsets()
        where, end, segments = self.topic_partition, self.log_end_offset, self.segments
        assert self.bases == [segment.base_offset for segment in segments], f"{where}: bases of the segments"
        for before, after in pairwise(segments):
            assert before.sealed, f"{where}: {before.path} is not the last segment, and not sealed"
            assert before.base_offset < after.base_offset, f"{where}: {after.path} does not follow {before.path}"
            assert before.next_offset <= after.base_offset, f"{where}: {before.path} overlaps with {after.path}"
        if segments:
            last = segments[-1]
            assert not last.sealed, f"{where}: the last segment, {last.path}, is sealed"
            assert last.base_offset <= last.next_offset <= end, f"{where}: {last.path} ends past the log end {end}"
        size_bytes = sum(segment.size_bytes for segment in segments)
        assert self.size_bytes == size_bytes, f"{where}: size {self.size_bytes}, of its segments {size_bytes}"
        self.epochs.check(where, end)

    # -- rolling ------------------------------------------------------------------------------------------------

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
        """Seal the active segment if it is older than `segment.ms` by the clock. Raises StorageError."""
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
            self.start_segment(self.log_end_offset, now_ms)
        except OSError as error:
            raise StorageError.of(f"starting a segment of {self.topic_partition}", error) from error
        return True

    def start_segment(self, base: int, now_ms: int) -> Segment:
        """Seal the active segment, begin one at `base`. Raises OSError."""
        if not self.segments:
            self._make_directory()
        else:
            last = self.segments[-1]
            follows = base > last.base_offset and base >= last.next_offset
            assert follows, f"{last.path} ends at {last.next_offset}, and the next segment begins at {base}"
        segment = Segment(self.disk, self.directory, base, now_ms)
        if self.jitter_ms is not None and self.config.segment_jitter_ms:
            segment.jitter_ms = min(self.jitter_ms(self.config.segment_jitter_ms), self.config.segment_ms)
        self.files.open(segment, create=True)
        self.unsaved.has_new_files = True
        if self.segments:
            previous = self.segments[-1]
            previous.seal()
            self.unsaved.sealed.append(previous)
            self.unsaved.snapshots.append((self.log_end_offset, self.producers.encode()))
        self.segments.append(segment)
        self.bases.append(base)
        if self.on_segment is not None:
            self.on_segment(self.topic_partition)
        return segment

    def _make_directory(self) -> None:
        self.disk.mkdir(self.directory)
        path = f"{self.directory}/{METADATA_FILE}"
        if self.topic_id is not None and self.disk.stat(path) is None:
            replace_file(self.disk, path, encode_partition_metadata(self.topic_id, self.incarnation), durable=False)
            self.unsaved.has_new_id = True

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, payload: memoryview, last: int, newest_ms: int, now_ms: int) -> Segment:
        """Write at the end of the active or a new segment. Raises StorageError with nothing changed."""
        if self.offline is not None:
            raise self.offline
        self._check_recovery_point(self.log_end_offset)
        size = payload.nbytes
        try:
            segment = self.segments[-1] if self.segments else None
            if segment is None or self._roll_due(segment, size, last, newest_ms, now_ms):
                # A gap before the batch belongs to the segment, unless relative offsets cannot span it.
                segment = self.start_segment(max(self.log_end_offset, last - MAX_RELATIVE_OFFSET), now_ms)
            fd = segment.fd if segment.fd >= 0 else self.files.open(segment)
        except OSError as error:
            raise StorageError.of(f"opening a segment of {self.topic_partition}", error) from error
        segment.recently_used = True
        try:
            written = self.disk.write(fd, payload if size <= WRITE_BYTES else payload[:WRITE_BYTES])
            while written < size:
                written += self.disk.write(fd, payload[written : written + WRITE_BYTES])
        except OSError as error:
            raise self._write_failed(segment, error) from error
        return segment

    def _check_recovery_point(self, base: int) -> None:
        """The durable recovery point must not exceed the base offset of an append: after a crash that tears it, bytes
        would be missing that were marked as safe. Raises StorageError, which passes with the next checkpoint."""
        if self.durable_recovery_point > base:
            raise StorageError(
                f"{self.topic_partition} accepts records at offset {base} after the next checkpoint: the checkpoint "
                f"on the disk has recovery point {self.durable_recovery_point}",
                errno.EAGAIN,
            )

    def _write_failed(self, segment: Segment, reason: OSError) -> StorageError:
        """Remove a partial write: bytes past `size_bytes` were never visible to a reader. Only this code shrinks a
        file."""
        try:
            self.disk.truncate(segment.fd, segment.size_bytes)
        except OSError as error:
            self.offline = StorageError(
                f"{segment.path} cannot be truncated to {segment.size_bytes} bytes ({error.strerror}) after a failed "
                f"write ({reason.strerror}): the partition is offline for writes until the node is restarted",
                error.errno or 0,
            )
            return self.offline
        return StorageError.of(f"appending to {segment.path}", reason)
