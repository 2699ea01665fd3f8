"""The copy of a log in another directory, until it replaces the log (KIP-113, Kafka's future replica).

Owns the copy: where it continues, what it must drop because the log was truncated, and the step in which it becomes the
log. Never decides to move a partition, and never waits: threads and pauses belong to the node.

It copies complete batches with valid CRCs, read from the log's files while the log is in use. Truncation or retention
of the source is detected by the epochs before the next step, and again before the last one. The copy has its own open
files until it takes over, as a thread writes it.

The last step: the missing records are few and in memory, so they are appended; the log's directory is renamed to
`...-delete`, and the copy's to the log's name. After a crash between the two renames only the copy is left, and has
everything that was safe on the disk. The unique part of its name is that of the `...-delete` directory, which
distinguishes it from a copy whose log lies in an offline directory. After a power loss that kept only the second
rename, both are complete (`duplicate_logs.py`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.agreement import agreed_end
from fenceline.log.core.compaction_bound import raise_bound
from fenceline.log.core.config import LogConfig
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.log.core.errors import StorageError
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.positions import headers_from
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.partition_dir import (
    DELETE_SUFFIX,
    RemovedPartition,
    future_name,
    remove_tree,
    unique_of_future,
)
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import peek_header

CHUNK_BYTES: Final = 1 << 20
REST_BYTES: Final = 1 << 20
"""Maximum number of missing bytes in the last step, which runs on the loop."""
_FILES: Final = 8


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Where the copy continues in the log's files. `near`: position of a batch at or before it. `epochs`: the log's."""

    path: str
    near: int
    end: int
    next_base: int
    """Base offset of the next segment; the log end if there is none."""
    epochs: tuple[tuple[int, int], ...]


class FutureLog:
    """One copy. Methods that block say so: run them in a thread, one at a time; all others belong to the loop."""

    def __init__(self, source: LogDir, target: LogDir, log: PartitionLog) -> None:
        self.source = source
        self.target = target
        self.log = log
        self._reached: tuple[str, int, int] = ("", -1, 0)
        """The file that was read last, the offset after the copied batches, and its position there."""
        self._times_emptied = 0
        """The log's count when it was last copied from."""
        self._copied_from = log.log_start_offset
        """From here to its end the copy holds the log's records."""

    @classmethod
    def open(
        cls,
        source: LogDir,
        target: LogDir,
        current: PartitionLog,
        *,
        path: str | None,
        config: LogConfig,
        now_ms: int,
    ) -> FutureLog:
        """Start a copy, or continue the one at `path`. Blocks. Raises CorruptLog, OSError, StorageError; if a new copy
        could not be started, nothing of it is left."""
        where, files = current.topic_partition, OpenFiles(target.disk, max_files=_FILES)
        is_new = path is None
        if path is None:
            target.offsets.forget(where)
            path = f"{target.path}/{future_name(where, target.draws.name_id().hex)}"
        log = target.open_at(path, where, current.topic_id, config, now_ms, files)
        future = cls(source, target, log)
        future._times_emptied = current.times_emptied
        if not log.segments:
            future._copied_from = current.log_start_offset
            if current.is_written:
                try:
                    future.start_at(current.log_start_offset, now_ms)
                except StorageError:
                    if is_new:
                        future._remove()
                    raise
        return future

    def _remove(self) -> None:
        """As far as the disk allows."""
        with contextlib.suppress(OSError):
            remove_tree(self.target.disk, self.log.directory)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def topic_id(self) -> UUID | None:
        return self.log.topic_id

    def lag(self, current: PartitionLog) -> int:
        """Offsets that it is behind; negative if the log was truncated."""
        return current.log_end_offset - self.log.log_end_offset

    # -- copying -------------------------------------------------------------------------------------------------------

    def truncation_target(self, current: PartitionLog) -> int | None:
        """Where the copy has to end because the log was truncated; None: it continues. Below the log start: it
        restarts."""
        if self._copied_from > current.log_start_offset:
            return current.log_start_offset - 1  # a crash, or a leader with a lower log start, moved the start back
        was_emptied = current.times_emptied != self._times_emptied
        if self.log.size_bytes and (was_emptied or self.log.complete_from.offset > current.complete_from.offset):
            return current.log_start_offset - 1  # records that compaction removed from the copy may be in the log again
        end = agreed_end(self.log, current)
        if end < current.log_start_offset and self.log.log_end_offset != current.log_start_offset:
            return min(end, current.log_start_offset - 1)
        return end if end < self.log.log_end_offset else None

    def drop(self, end: int, log_start_offset: int) -> None:
        """Truncate to `end`, or restart at the log start if that is higher. Blocks. Raises StorageError.

        The copy's records are deleted, not kept as evidence.
        """
        self._reached = ("", -1, 0)
        if end < log_start_offset:
            self._copied_from = log_start_offset
            self.log.truncate_fully_and_start_at(log_start_offset, keep_evidence=False)
        else:
            self.log.truncate_to(end, keep_evidence=False)

    def next_range(self, current: PartitionLog) -> CopyRange | None:
        """What to copy next; None if it has everything that the log has."""
        offset, segments = self.log.log_end_offset, current.segments
        if offset >= current.log_end_offset or not segments:
            return None
        number = current.segment_number(offset)
        if number + 1 < len(segments) and offset >= segments[number].next_offset:
            number += 1
        segment = segments[number]
        path, reached, position = self._reached
        if path == segment.path and reached == offset:
            near = position
        else:
            near = segment.index.floor(offset - segment.base_offset) if segment.index is not None else 0
        is_last = number + 1 == len(segments)
        next_base = current.log_end_offset if is_last else segments[number + 1].base_offset
        return CopyRange(segment.path, near, segment.size_bytes, next_base, current.epochs.entries)

    def copy(self, copy_range: CopyRange, now_ms: int) -> int:
        """Copy a chunk of complete batches. Returns the number of bytes. Blocks.

        Raises OSError if the log's file cannot be read, StorageError if the copy cannot be written, PeerError if the
        bytes read are no batch that continues the copy: the log was truncated, or the disk returns wrong data.
        """
        disk = self.source.disk
        fd = disk.open_read(copy_range.path)
        try:
            position = copy_range.near
            if self._reached != (copy_range.path, self.log.log_end_offset, position):
                position = self._position(fd, copy_range)
            left = copy_range.end - position
            content = disk.pread(fd, min(left, CHUNK_BYTES), position) if left > 0 else b""
            if content:
                size = peek_header(content).size_bytes
                if size > len(content):
                    content = disk.pread(fd, min(left, size), position)
        finally:
            disk.close(fd)
        if not content:
            self._pass_gap(copy_range.next_base, now_ms)
            return 0
        copied = self._append(memoryview(content), copy_range.epochs, now_ms)
        self._reached = (copy_range.path, self.log.log_end_offset, position + copied)
        return copied

    def _position(self, fd: int, copy_range: CopyRange) -> int:
        disk, offset = self.source.disk, self.log.log_end_offset
        batches = headers_from(lambda at, size: disk.pread(fd, size, at), copy_range.near, copy_range.end)
        return next((at for at, header in batches if header.last_offset >= offset), copy_range.end)

    def _append(self, records: memoryview, epochs: tuple[tuple[int, int], ...], now_ms: int) -> int:
        size = peek_header(records).size_bytes
        if size > self.log.config.segment_bytes:  # the batch was written before segment.bytes was lowered
            self.log.config = replace(self.log.config, segment_bytes=size)
        info = self.log.append_as_follower(records, now_ms=now_ms, epoch_starts=epochs)
        if not info.size_bytes:
            raise PeerError(ErrorCode.CORRUPT_MESSAGE, "incomplete batch")
        return info.size_bytes

    def _pass_gap(self, next_base: int, now_ms: int) -> None:
        """Compaction left no batch before the next segment. A copy that is still empty keeps its segment: with another
        one the log would start there after a restart."""
        if next_base <= self.log.log_end_offset:
            return
        if self.log.size_bytes:
            raise_bound(self.target.disk, self.log.directory, next_base)
        self.log.log_end_offset = next_base
        self.log.roll(now_ms)

    def start_at(self, offset: int, now_ms: int) -> None:
        """An empty log with a directory: the name of its segment holds the offset where it continues. Blocks."""
        self.log.last_flush_ms = now_ms
        self.log.truncate_fully_and_start_at(offset, keep_evidence=False)
        if not self.log.segments:
            try:
                self.log.start_segment(offset, now_ms)
            except OSError as error:
                raise StorageError.of(f"starting a copy of {self.topic_partition}", error) from error

    def flush(self, now_ms: int) -> None:
        """Flush the copied records. Blocks. Raises StorageError."""
        work = self.log.flush_work(now_ms)
        if work is not None:
            work.run()

    def follow_offsets(self, current: PartitionLog) -> None:
        """Follow the log's start, high watermark and completeness bound, up to the end of the copy."""
        self._times_emptied = current.times_emptied
        self.log.complete_from = current.complete_from
        self.log.advance_high_watermark(current.high_watermark)
        if self.log.log_start_offset < current.log_start_offset <= self.log.high_watermark:
            self.log.advance_log_start(current.log_start_offset)

    # -- the step ------------------------------------------------------------------------------------------------------

    def append_rest(self, current: PartitionLog, now_ms: int) -> bool:
        """Append the missing records if they are few and in memory. Returns whether none is missing. Raises
        PeerError."""
        if self.truncation_target(current) is not None:
            return False
        if self.log.log_end_offset < current.log_end_offset:
            end = current.log_end_offset
            found = current.read(self.log.log_end_offset, REST_BYTES, end_offset_exclusive=end)
            try:
                if not found.resident or not found.records:
                    return False
                self._append(found.records, current.epochs.entries, now_ms)
            finally:
                found.close()
        return self.log.log_end_offset == current.log_end_offset

    def replace(self, current: PartitionLog, config: LogConfig) -> tuple[PartitionLog, RemovedPartition | None]:
        """Become the log, once `append_rest` has returned True. Returns the directory to delete. Two renames, which
        `sync_renames` makes durable. Raises StorageError with nothing changed.

        State that is not in the batches is copied from the log: epochs without a batch, and the producers' current
        state.
        """
        log, where = self.log, self.topic_partition
        assert log.log_end_offset == current.log_end_offset, "all of it is copied"
        is_written = log.is_written
        removed = None
        if current.is_written:
            unique = unique_of_future(log.directory.rpartition("/")[2]) if is_written else None
            removed = self.source.rename_for_removal(current.directory, where, DELETE_SUFFIX, unique=unique)
        try:
            if is_written:
                self.target.disk.rename(log.directory, self.target.partition_path(where))
        except OSError as error:
            if removed is not None:
                with contextlib.suppress(OSError):
                    self.source.disk.rename(removed.path, current.directory)
            raise StorageError.of(f"renaming {log.directory}", error) from error
        log.release(log.segments)
        _rename_paths(log, self.target.partition_path(where))
        log.files, log.config = self.target.files, config
        has_unrecoverable_entries = log.epochs.has_unrecoverable_entries
        log.epochs = EpochCache(current.epochs.entries)
        log.epochs.changed, log.epochs.has_unrecoverable_entries = is_written, has_unrecoverable_entries
        snapshot_offset = log.producers.snapshot_offset
        log.producers = current.producers
        log.producers.snapshot_offset = snapshot_offset
        log.log_start_offset = current.log_start_offset
        log.complete_from = current.complete_from
        log.advance_high_watermark(current.high_watermark)
        self._hand_over(current, removed)
        return log, removed

    def _hand_over(self, current: PartitionLog, removed: RemovedPartition | None) -> None:
        where = self.topic_partition
        self.source.remove_open_log(where)
        cleaned = self.source.offsets.cleaned.get(where)
        self.source.offsets.forget(where)
        if cleaned is not None:
            self.target.offsets.cleaned[where] = cleaned
        self.target.future_logs.pop(where, None)
        self.target.add_open_log(self.log)
        if removed is not None:
            # Readers that open by name find the files here until they are deleted.
            _rename_paths(current, removed.path)
        current.close(clean=False)
        current.offline = StorageError(f"{where} has moved to {self.target.path}")

    def sync_renames(self) -> None:
        """Make both renames durable, in their order. Blocks. Raises OSError."""
        self.source.disk.fsync_dir(self.source.path)
        self.target.disk.fsync_dir(self.target.path)

    def abandon(self) -> RemovedPartition | None:
        """Cancel the copy. Returns the directory to delete. Raises StorageError."""
        self.target.future_logs.pop(self.topic_partition, None)
        self.target.offsets.forget(self.topic_partition)
        was_written = self.log.is_written
        self.log.close(clean=False)
        if not was_written:
            self._remove()  # files of an attempt to start
            return None
        return self.target.rename_for_removal(self.log.directory, self.topic_partition, DELETE_SUFFIX)


def _rename_paths(log: PartitionLog, directory: str) -> None:
    for segment in log.segments:
        segment.path = f"{directory}/{segment.path.rpartition('/')[2]}"
    log.directory = directory
