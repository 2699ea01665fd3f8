"""Scans the batches of a segment file in order. Owns the scan and its checks; changes nothing.

Used by recovery (every CRC), by look-ups (headers only) and to rebuild indexes. Reads in chunks, so a segment of any
size needs a bounded buffer. Blocks on the disk: not for the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fenceline.errors import FencelineError, PeerError
from fenceline.log.core.disk import Disk
from fenceline.records.batch import BATCH_OVERHEAD, LENGTH_PREFIX, BatchHeader, crc_is_valid, peek_header

CHUNK_BYTES: Final = 1 << 20
SEARCH_BYTES: Final = 16 << 20
"""How far after a bad place to search for a complete batch."""
MAGIC_POSITION: Final = 16
_HIGHEST_OFFSET: Final = (1 << 63) - 1


class BadBatch(FencelineError):
    """The bytes at `position` of the file are no valid batch. `torn`: the file ends within an unfinished write."""

    def __init__(self, position: int, reason: str, *, torn: bool) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.torn = torn


class Found(NamedTuple):
    """A batch in a file. `content` is the complete batch if requested, else its header only."""

    position: int
    header: BatchHeader
    content: memoryview


def scan(
    disk: Disk | ReadTwice,
    fd: int,
    start: int,
    end: int,
    *,
    next_offset: int,
    crc_from_offset: int | None,
    full_content: bool = False,
    highest_offset: int = _HIGHEST_OFFSET,
    has_gaps: bool = True,
) -> Iterator[Found]:
    """Batches between two positions of a segment; `start` must be a batch boundary.

    `next_offset` is the lowest offset that the first batch may have, and the only one if gaps are not allowed;
    `highest_offset` is the maximum of all: no checksum covers a batch's offset. Batches that end at or after
    `crc_from_offset` are read completely and their CRC is checked (None: no CRC at all). Control batches always include
    their records. Raises BadBatch, OSError.
    """
    position = start
    buffer = memoryview(b"")
    buffer_start = start
    while position < end:
        at = position - buffer_start
        if len(buffer) - at < min(BATCH_OVERHEAD, end - position):
            buffer, buffer_start, at = _fill(disk, fd, position, min(CHUNK_BYTES, end - position)), position, 0
        if len(buffer) - at < BATCH_OVERHEAD:
            raise BadBatch(position, f"{end - position} bytes are too few for a batch", torn=True)
        header = _header(buffer, at, position, end)
        is_due = next_offset <= header.base_offset if has_gaps else next_offset == header.base_offset
        if not is_due or header.last_offset_delta < 0 or header.last_offset > highest_offset:
            raise BadBatch(position, f"offset {header.base_offset} where {next_offset} is expected", torn=False)
        size = header.size_bytes
        check = crc_from_offset is not None and header.last_offset >= crc_from_offset
        if (check or full_content or header.is_control) and len(buffer) - at < size:
            buffer, buffer_start, at = (
                _fill(disk, fd, position, max(size, min(CHUNK_BYTES, end - position))),
                position,
                0,
            )
            if len(buffer) < size:
                raise BadBatch(position, f"the file ends within a batch of {size} bytes", torn=True)
            header = _header(buffer, at, position, end)
        content = buffer[at : at + size]
        if check and not crc_is_valid(buffer, header):
            raise BadBatch(position, f"the checksum of the batch at offset {header.base_offset} is wrong", torn=False)
        yield Found(position, header, content)
        next_offset = header.next_offset
        position += size


def scan_past_damage(
    disk: Disk, fd: int, end: int, *, crc_from_offset: int | None, full_content: bool = False, start: int = 0
) -> Iterator[Found | BadBatch]:
    """As `scan`, of the bytes from `start` to `end` of a file that may be damaged: yields each bad place, and continues
    at the next batch with a valid checksum if one is near. Raises OSError."""
    position: int | None = start
    while position is not None and position < end:
        try:
            yield from scan(
                disk, fd, position, end, next_offset=0, crc_from_offset=crc_from_offset, full_content=full_content
            )
            return
        except BadBatch as bad:
            yield bad
            position = next_complete_batch(disk, fd, bad.position, end)


class UnstableRead(Exception):
    """The disk returned other bytes on a second read."""


class ReadTwice:
    """The part of a disk that `scan` needs; reads everything twice. Raises UnstableRead."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        content = self._disk.pread(fd, size_bytes, position)
        if content != self._disk.pread(fd, size_bytes, position):
            raise UnstableRead
        return content


def find_complete_batch(content: memoryview) -> int | None:
    """Position of the first batch with a valid checksum, wherever it begins; None if there is none.

    Distinguishes damage from a torn write: no complete batch follows a torn one.
    """
    text = bytes(content)
    magic = text.find(2, MAGIC_POSITION)
    while magic >= 0:
        start = magic - MAGIC_POSITION
        size = int.from_bytes(text[start + 8 : start + LENGTH_PREFIX], "big", signed=True) + LENGTH_PREFIX
        if BATCH_OVERHEAD <= size <= len(text) - start:
            try:
                header = peek_header(content, start)
                if crc_is_valid(content, header):
                    return start
            except PeerError:
                pass
        magic = text.find(2, magic + 1)
    return None


def next_complete_batch(disk: Disk, fd: int, position: int, end: int) -> int | None:
    """Position of a batch with a valid checksum after a bad place and before `end`; the search is bounded.

    Raises OSError.
    """
    content = disk.pread(fd, min(SEARCH_BYTES, end - position - 1), position + 1)
    found = find_complete_batch(memoryview(content))
    return None if found is None else position + 1 + found


def _fill(disk: Disk | ReadTwice, fd: int, position: int, size_bytes: int) -> memoryview:
    content = disk.pread(fd, size_bytes, position)
    while len(content) < size_bytes:
        more = disk.pread(fd, size_bytes - len(content), position + len(content))
        if not more:
            break
        content += more
    return memoryview(content)


def _header(buffer: memoryview, at: int, position: int, end: int) -> BatchHeader:
    length = int.from_bytes(buffer[at + 8 : at + LENGTH_PREFIX], "big", signed=True)
    magic = buffer[at + MAGIC_POSITION]
    size = length + LENGTH_PREFIX
    if length == 0 and not any(buffer[at : at + BATCH_OVERHEAD]):
        raise BadBatch(position, "zeros instead of a batch", torn=True)
    if magic in (0, 1) and length > 0 and position + size <= end:
        raise BadBatch(position, f"message format v{magic}, which Kafka 4 does not support", torn=False)
    if magic != 2 or size < BATCH_OVERHEAD:
        raise BadBatch(position, f"no batch: length {length}, magic {magic}", torn=False)
    if position + size > end:
        raise BadBatch(position, f"the file ends within a batch of {size} bytes", torn=True)
    try:
        return peek_header(buffer, at)
    except PeerError as error:
        raise BadBatch(position, error.message, torn=False) from None
