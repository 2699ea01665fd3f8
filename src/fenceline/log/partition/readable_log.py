"""Look-ups in one log: batches by offset, offsets by time, aborted transactions by offset.

Owns the choice of the segment, and a cache of where recent reads ended. Never waits for the disk on the loop: data
outside the page cache is returned as a read that a thread loads (`reading.py`); look-ups by time are for threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import StorageError
from fenceline.log.core.index import AbortedTransaction, aborted_between
from fenceline.log.core.segment import Segment
from fenceline.log.partition import reading, time_lookup
from fenceline.log.partition.reading import LogRead, NotResident, Request
from fenceline.log.partition.state import LogState
from fenceline.log.partition.time_lookup import FoundOffset

HINTS_KEPT: Final = 8


class ReadableLog(LogState):
    """See `partition_log.PartitionLog`, the only subclass that is instantiated."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset_exclusive: int,
        at_least_one: bool = True,
        to_send: bool = False,
    ) -> LogRead:
        """Complete batches starting with the one that contains `offset`, up to `end_offset_exclusive`.

        At most `max_bytes`, but always the first batch if `at_least_one`. `to_send`: only the read's `payload` is used,
        and may be a `FileSlice`. Raises PeerError(OFFSET_OUT_OF_RANGE) outside of log start..log end (E11),
        StorageError.
        """
        log_end = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end:
            raise PeerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self.topic_partition} is out of range {self.log_start_offset}..{log_end}",
            )
        end = min(end_offset_exclusive, log_end)
        if offset >= end:
            return LogRead(offset)
        segments = self.segments
        number = self.segment_number(offset)
        while True:
            segment = segments[number]
            if number + 1 == len(segments) or (segment.size_bytes and offset < segment.next_offset):
                hint = self.hints.get(offset)
                position = hint[1] if hint is not None and hint[0] is segment else -1
                try:
                    at_once = self.batches_at(segment, offset, end, max_bytes, at_least_one, position)
                    if at_once is not None:
                        content, position = at_once
                        if (
                            end == segment.next_offset
                            and position + len(content) == segment.size_bytes
                            and segment is segments[-1]
                        ):
                            self._hint(end, segment, segment.size_bytes)
                        records = content if type(content) is memoryview else memoryview(content)
                        return LogRead(offset, records, position=position, segment_base_offset=segment.base_offset)
                    request = Request(offset, end, max_bytes, at_least_one, position, to_send)
                    try:
                        records, stored, position, reaches_end, size, was_loaded = reading.read_now(
                            self.files, segment, request
                        )
                    except NotResident:
                        base_offset, later_segments = segment.base_offset, segments[number + 1 :]
                        pending = reading.loader(self.files, segment, request, later_segments)
                        return LogRead(offset, position=position, segment_base_offset=base_offset, loader=pending)
                except OSError as error:
                    raise StorageError.of(f"reading {segment.path}", error) from error
                if size or position < segment.size_bytes or number + 1 == len(segments):
                    break
                # Compaction removed the offsets between here and the next segment.
                segment.next_offset = min(segment.next_offset, offset)
            number += 1
            if segments[number].base_offset >= end:
                return LogRead(offset)
        if reaches_end and end == segment.next_offset and segment is segments[-1]:
            self._hint(end, segment, position + size)
        return LogRead(
            offset,
            records,
            position=position,
            segment_base_offset=segment.base_offset,
            payload=stored,
            was_loaded=was_loaded,
        )

    def read_newest(self, offset: int, max_bytes: int) -> bytes | bytearray | None:
        """As `newest`, at the position where a read ended or the last batch begins; the next read continues there.
        Raises StorageError."""
        hint = self.hints.get(offset)
        position = hint[1] if hint is not None and hint[0] is self.segments[-1] else -1
        try:
            found = self.newest(offset, max_bytes, position)
        except OSError as error:
            raise StorageError.of(f"reading {self.segments[-1].path}", error) from error
        if found is not None:
            segment = self.segments[-1]
            self._hint(segment.next_offset, segment, segment.size_bytes)
        return found

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        hints = self.hints
        if len(hints) >= HINTS_KEPT and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def readable_bytes(self, offset: int, end_offset_exclusive: int) -> int:
        """Approximate bytes that a read between two offsets would return; exact at the log end, never a disk access."""
        end = min(end_offset_exclusive, self.log_end_offset)
        if offset < self.log_start_offset or offset >= end:
            return 0
        low, high = self.segment_number(offset), self.segment_number(end)
        total = self._estimate(self.segments[high], end) - self._estimate(self.segments[low], offset)
        total += sum(segment.size_bytes for segment in self.segments[low:high])
        return max(1, total)

    def _estimate(self, segment: Segment, offset: int) -> int:
        if offset >= segment.next_offset:
            return segment.size_bytes
        if offset == segment.last_batch_offset:
            return segment.last_batch_position
        hint = self.hints.get(offset)
        if hint is not None and hint[0] is segment:
            return hint[1]
        return segment.index.floor(offset - segment.base_offset) if segment.index is not None else 0

    def offset_for_timestamp(self, timestamp_ms: int, *, end_offset_exclusive: int | None = None) -> FoundOffset | None:
        """First record at or after a timestamp, below the given end (L22, L23). For a thread. Raises StorageError."""
        end = self.log_end_offset if end_offset_exclusive is None else min(end_offset_exclusive, self.log_end_offset)
        return time_lookup.find_by_timestamp(self.disk, tuple(self.segments), timestamp_ms, self.log_start_offset, end)

    def offset_of_max_timestamp(self, *, end_offset_exclusive: int | None = None) -> FoundOffset | None:
        """The record with the largest timestamp; None if there is none below the end (L20). For a thread."""
        end = self.log_end_offset if end_offset_exclusive is None else min(end_offset_exclusive, self.log_end_offset)
        found = time_lookup.find_max_timestamp(self.disk, tuple(self.segments), self.log_start_offset)
        return found if found is not None and found.offset < end else None

    def segments_from(self, offset: int) -> list[Segment]:
        """The segment of an offset and those after it."""
        return self.segments[self.segment_number(offset) :] if self.segments else []

    def aborted_transactions(self, offset: int, end_offset_exclusive: int) -> list[AbortedTransaction]:
        """Aborted transactions that a read_committed consumer of these offsets needs. Raises StorageError."""
        try:
            return aborted_in(self.segments_from(offset), offset, end_offset_exclusive)
        except OSError as error:
            raise StorageError.of(f"reading the aborted transactions of {self.topic_partition}", error) from error


def aborted_in(segments: Iterable[Segment], offset: int, end_offset_exclusive: int) -> list[AbortedTransaction]:
    """Aborted transactions of these offsets; `segments` begin with that of `offset` (X42). Reads what is not in memory.
    Raises OSError."""
    found: list[AbortedTransaction] = []
    for segment in segments:
        entries, is_complete = aborted_between(segment.aborted_transactions(), offset, end_offset_exclusive)
        found += entries
        if is_complete:
            break
    return found


def is_aborted_in_memory(segments: Iterable[Segment], end_offset_exclusive: int) -> bool:
    """Whether `aborted_in` would not read from the disk."""
    for segment in segments:
        if segment.aborted is None:
            return False
        if segment.aborted and segment.aborted[-1].last_stable_offset >= end_offset_exclusive:
            break
    return True
