"""Positions of the batches of one segment: from offsets to positions, from positions to sizes.

Owns the search from an index entry along the headers of batches. Reads through a given function, which may report that
the bytes are not available; never waits by itself, and never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fenceline.log.core.index import OffsetIndex
from fenceline.log.core.segment import Segment
from fenceline.records.batch import BATCH_OVERHEAD, BatchHeader, peek_header

PEEK_BYTES: Final = 8 << 10
EMPTY: Final = memoryview(b"")


class CorruptIndex(Exception):
    """An index entry does not point to the batch that it names: rebuild the index."""


class Extent(NamedTuple):
    """The readable part of one segment at the start of the read."""

    base_offset: int
    next_offset: int
    size_bytes: int
    last_batch_offset: int
    last_batch_position: int


Read = Callable[[int, int], "memoryview | bytes | bytearray"]


def headers_from(read: Read, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Headers of the batches from a boundary on, with their positions. `read(position, size)` may raise NotResident."""
    chunk: memoryview = EMPTY
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + BATCH_OVERHEAD > len(chunk):
            chunk, chunk_start, at = memoryview(read(position, min(PEEK_BYTES, end - position))), position, 0
        header = peek_header(chunk, at)
        yield position, header
        position += header.size_bytes


def find(read: Read, index: OffsetIndex, extent: Extent, offset: int) -> int:
    """Position of the first batch that ends at or after `offset`; the extent's end if there is none."""
    if offset >= extent.next_offset:
        return extent.size_bytes
    if offset == extent.last_batch_offset:
        return extent.last_batch_position
    before, indexed = index.around(offset - extent.base_offset)
    end = extent.size_bytes
    if 0 <= indexed < end:
        header = peek_header(memoryview(read(indexed, BATCH_OVERHEAD)))
        if header.base_offset <= offset <= header.last_offset:
            return indexed
        end = indexed
    for position, header in headers_from(read, before, end):
        if header.last_offset >= offset:
            if position == before and position > 0 and header.base_offset > offset:
                break
            return position
    else:
        if indexed < 0 or end == extent.size_bytes:
            return extent.size_bytes
        header = peek_header(memoryview(read(indexed, BATCH_OVERHEAD)))
        if header.base_offset > offset and header.last_offset >= offset:
            return indexed  # between two batches: compaction removed the offset
    raise CorruptIndex


def fit(read: Read, index: OffsetIndex, position: int, end: int, max_bytes: int, at_least_one: bool) -> int:
    """How many bytes of complete batches from `position` fit; always the complete first batch if `at_least_one`."""
    if end - position <= max_bytes:
        return end - position
    boundary = min(index.boundary_at_or_before(position + max_bytes), end)
    if boundary > position:
        return boundary - position
    size_bytes = 0
    for _, header in headers_from(read, position, end):
        if size_bytes + header.size_bytes > max_bytes:
            if size_bytes == 0 and at_least_one:
                return header.size_bytes
            break
        size_bytes += header.size_bytes
    return size_bytes


def extent_of(segment: Segment) -> Extent:
    return Extent(
        segment.base_offset,
        segment.next_offset,
        segment.size_bytes,
        segment.last_batch_offset,
        segment.last_batch_position,
    )
