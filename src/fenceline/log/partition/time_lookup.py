"""Look-ups of offsets by time. All of them may wait for the disk and must run in a thread.

Owns which record matches a timestamp (`list_offsets.md L20`, `L22`, `L23`). Never reads past the given segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError
from fenceline.log.core.scan import BadBatch, scan
from fenceline.log.core.segment import Segment
from fenceline.records.decode import decode_batch


class FoundOffset(NamedTuple):
    """Result of a look-up by time; `leader_epoch` is the batch's, -1 if none (`list_offsets.md L20`, `L22`)."""

    offset: int
    timestamp: int
    leader_epoch: int


def find_by_timestamp(
    disk: Disk, segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> FoundOffset | None:
    """First record at or after `timestamp_ms` within the offsets (L22, L23). Raises StorageError."""
    for segment in segments:
        if segment.next_offset <= start_offset or not segment.size_bytes:
            continue
        if segment.base_offset >= end_offset:
            return None
        try:
            if segment.largest_timestamp_ms() < timestamp_ms:
                continue
            index, time_index = segment.indexes()
            relative = max(time_index.floor(timestamp_ms), start_offset - segment.base_offset)
            found = _first_record(disk, segment, index.floor(relative), timestamp_ms, start_offset)
        except OSError as error:
            raise StorageError.of(f"searching {segment.path}", error) from error
        except BadBatch as error:
            raise StorageError(f"{segment.path} is corrupt at byte {error.position}: {error.reason}") from None
        if found is not None:
            return found if found.offset < end_offset else None
    return None


def _first_record(
    disk: Disk, segment: Segment, position: int, timestamp_ms: int, start_offset: int
) -> FoundOffset | None:
    fd = disk.open_read(segment.path)
    try:
        batches = scan(disk, fd, position, segment.size_bytes, next_offset=segment.base_offset, crc_from_offset=None)
        for found in batches:
            header = found.header
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            content = memoryview(disk.pread(fd, header.size_bytes, found.position))
            for record in decode_batch(content, header._replace(position=0)):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return FoundOffset(record.offset, record.timestamp, header.leader_epoch)
    finally:
        disk.close(fd)
    return None


def find_max_timestamp(disk: Disk, segments: Sequence[Segment], start_offset: int) -> FoundOffset | None:
    """First record with the largest timestamp (L20); None if no record has one. Raises StorageError."""
    best: Segment | None = None
    for segment in segments:
        try:
            if segment.size_bytes and segment.next_offset > start_offset:
                segment.largest_timestamp_ms()
                if segment.max_timestamp_ms >= 0 and (best is None or segment.max_timestamp_ms > best.max_timestamp_ms):
                    best = segment
        except OSError as error:
            raise StorageError.of(f"searching {segment.path}", error) from error
    if best is None:
        return None
    return find_by_timestamp(disk, [best], best.max_timestamp_ms, start_offset, best.next_offset)
