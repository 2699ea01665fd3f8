"""A log as files: the directory, its ordered segments, and the write at the end of the last one.

Owns when a segment is full, how the next one begins, and which parts are not on the disk yet. Never reads inside a
batch. A log without records has no directory and no open file.

Invariants: segments are ordered and only the last one is written; all state in memory belongs to bytes that were
completely written.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import DirectoryIdentity, encode_partition_metadata
from fenceline.log.core.compaction_bound import CompleteFrom
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
from fenceline.log.recovery.recovery import Loaded


class SegmentedLog(LogTail):
    """See `partition_log.PartitionLog`, the only subclass that is instantiated."""

    segments: list[Segment]

    __slots__ = (
        "_bases",
        "_files",
        "_flushing",
        "_hints",
        "_new_files",
        "_new_id",
        "_saved_complete_from",
        "_unsaved",
        "_unsaved_snapshots",
        "complete_from",
        "directory",
        "incarnation",
        "jitter_ms",
        "on_sealed",
        "times_emptied",
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
        log_start_offset: int,
        incarnation: UUID | None = None,
    ) -> None:
        super().__init__(disk, config, EpochCache(), ProducerStates(), log_start_offset)
        self._files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.incarnation = incarnation
        """Of the directory; None if Fenceline did not create it, or if it belongs to no `LogDir`."""
        self.jitter_ms: Callable[[int], int] | None = None
        """Draws a segment's share of `segment.jitter.ms`; None: no jitter."""
        self.on_sealed: Callable[[TopicPartition], None] | None = None
        """Called when a segment is sealed."""
        self.complete_from = CompleteFrom()
        """A log truncated below it may lack records that other replicas have (`compaction_bound`)."""
        self._saved_complete_from = CompleteFrom()
        """The value on the disk."""
        self.times_emptied = 0
        """Since it was opened."""
        self._bases: list[int] = []
        """Base offsets of the segments, for bisecting."""
        self._unsaved: list[Segment] = []
        """Sealed segments whose indexes are not on the disk."""
        self._unsaved_snapshots: list[tuple[int, bytes]] = []
        self._new_files = False
        """Whether the directory has entries that were not synced."""
        self._new_id = False
        """Whether a power loss could remove the topic id; it would then be unknown which topic the batches belong to.
        """
        self._flushing: FlushWork | None = None
        self._hints: dict[int, tuple[Segment, int]] = {}
        """Where recent reads ended: offset to segment and position. Cleared when segments are removed."""

    @property
    def identity(self) -> DirectoryIdentity:
        """Of the directory, as its `partition.metadata` has or will have it."""
        return DirectoryIdentity(self.topic_id, self.incarnation)

    def mark_identity_unsaved(self) -> None:
        """`partition.metadata` is missing or damaged: the next flush of a log with a segment writes it."""
        self._new_id = self._new_id or self.topic_id is not None

    @property
    def active_segment_base(self) -> int:
        return self._bases[-1] if self._bases else self.log_end_offset

    def _adopt(self, loaded: Loaded) -> None:
        """Use the files found on the disk as the complete log."""
        self.segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._unsaved = [segment for segment in loaded.segments[:-1] if not segment.indexes_saved]
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.complete_from = self.complete_from.raised(*loaded.complete_from)
        self.size_bytes = sum(segment.size_bytes for segment in loaded.segments)

    def _segment_number(self, offset: int) -> int:
        bases = self._bases
        if offset >= bases[-1]:
            return len(bases) - 1
        return max(0, bisect_right(bases, offset) - 1)

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
        if self.on_sealed is not None and len(self.segments) > 1:
            self.on_sealed(self.topic_partition)
        return segment

    def _make_directory(self) -> None:
        self._disk.mkdir(self.directory)
        path = f"{self.directory}/{METADATA_FILE}"
        if self.topic_id is not None and self._disk.stat(path) is None:
            replace_file(self._disk, path, encode_partition_metadata(self.topic_id, self.incarnation), durable=False)
            self._new_id = True

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
                segment = self._start_segment(max(self.log_end_offset, last - MAX_RELATIVE_OFFSET), now_ms)
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
            self._disk.truncate(segment.fd, segment.size_bytes)
        except OSError as error:
            self.offline = StorageError(
                f"{segment.path} cannot be truncated to {segment.size_bytes} bytes ({error.strerror}) after a failed "
                f"write ({reason.strerror}): the partition is offline for writes until the node is restarted",
                error.errno or 0,
            )
            return self.offline
        return StorageError.of(f"appending to {segment.path}", reason)
