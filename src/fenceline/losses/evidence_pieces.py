"""The evidence of a receipt in pieces of bounded size, each found by the first offset that its reader lacks.

Owns which batches a piece has, and where the next one begins. Batches leave as they are stored, in ascending order of
their offsets; a batch that is damaged, or ends at or below the offset reached, is skipped. Never changes evidence.
Blocks on the disk: for a thread. All functions may raise OSError, FileNotFoundError if the evidence is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import OFFSET_DIGITS
from fenceline.log.core.scan import CHUNK_BYTES, BadBatch, scan_past_damage
from fenceline.losses.receipt import Receipt
from fenceline.records.batch import BATCH_OVERHEAD
from fenceline.records.crc import crc32c

_CRC_AT: Final = slice(17, 21)
_CHECKED_FROM: Final = 21


class EvidencePlace(NamedTuple):
    """Where the batch begins that a reader needs next, and the lowest offset that it needs."""

    path: str
    position: int
    next_offset: int


class EvidenceBatch(NamedTuple):
    """A batch of a file, whose checksum is right."""

    path: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocatedPiece:
    """`after`: the beginning of the next piece; None at the end of the evidence."""

    batches: tuple[EvidenceBatch, ...]
    size_bytes: int
    after: EvidencePlace | None

    @property
    def memory_bytes(self) -> int:
        """What `load` takes at most."""
        return self.size_bytes + max((batch.size_bytes for batch in self.batches), default=0)


def ordered(paths: Sequence[str]) -> list[str]:
    """By the base offset in their names; a part of a segment has that of the segment."""
    return sorted(paths, key=_name)


def locate(
    disk: Disk, receipt: Receipt, from_offset: int, max_bytes: int, start: EvidencePlace | None = None
) -> LocatedPiece:
    """Find the batches of the loss from an offset on, as many as fit, at least one if there is one.

    `start`: the `after` of the piece before. Takes no more memory than a scan: a length may be damage.
    """
    paths = ordered(receipt.evidence)
    if start is not None and start.path in paths:
        number, position, next_offset = paths.index(start.path), start.position, start.next_offset
    else:
        next_offset = max(from_offset, receipt.start_offset)
        number, position = _first_with(paths, next_offset), 0
    found: list[EvidenceBatch] = []
    size_bytes = 0
    for path in paths[number:]:
        known = disk.stat(path)
        if known is None:
            raise FileNotFoundError(2, "the evidence does not exist", path)
        fd = disk.open_read(path)
        try:
            for each in scan_past_damage(disk, fd, known.size_bytes, crc_from_offset=None, start=position):
                if isinstance(each, BadBatch):
                    continue
                header = each.header
                if header.next_offset <= next_offset or header.base_offset >= receipt.end_offset_exclusive:
                    continue
                if found and size_bytes + header.size_bytes > max_bytes:
                    return LocatedPiece(tuple(found), size_bytes, EvidencePlace(path, each.position, next_offset))
                if not _is_intact(disk, fd, each.position, header.size_bytes):
                    continue
                found.append(EvidenceBatch(path, each.position, header.size_bytes))
                size_bytes += header.size_bytes
                next_offset = header.next_offset
        finally:
            disk.close(fd)
        position = 0
    return LocatedPiece(tuple(found), size_bytes, None)


def load(disk: Disk, piece: LocatedPiece) -> bytearray:
    """The batches of a piece, one after the other."""
    content = bytearray()
    path, fd = "", -1
    try:
        for batch in piece.batches:
            if batch.path != path:
                if fd >= 0:
                    disk.close(fd)
                    fd = -1
                path, fd = batch.path, disk.open_read(batch.path)
            stored = _read(disk, fd, batch.position, batch.size_bytes)
            if len(stored) == batch.size_bytes:
                content += stored
    finally:
        if fd >= 0:
            disk.close(fd)
    return content


def _first_with(paths: Sequence[str], offset: int) -> int:
    """The first file that may have the offset, by the base offsets in their names."""
    bases = [_base_offset(path) for path in paths]
    reached = max((base for base in bases if base <= offset), default=-1)
    return bases.index(reached) if reached in bases else 0


def _base_offset(path: str) -> int:
    """-1 if the name has none."""
    digits = _name(path)[:OFFSET_DIGITS]
    return int(digits) if digits.isdigit() else -1


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _read(disk: Disk, fd: int, position: int, size_bytes: int) -> bytes:
    """Less at the end of the file."""
    content = disk.pread(fd, size_bytes, position)
    while len(content) < size_bytes:
        more = disk.pread(fd, size_bytes - len(content), position + len(content))
        if not more:
            break
        content += more
    return content


def _is_intact(disk: Disk, fd: int, position: int, size_bytes: int) -> bool:
    """Whether the checksum of a batch is right, read in chunks."""
    head = _read(disk, fd, position, BATCH_OVERHEAD)
    computed, at = crc32c(head[_CHECKED_FROM:]), len(head)
    while at < size_bytes:
        chunk = disk.pread(fd, min(CHUNK_BYTES, size_bytes - at), position + at)
        if not chunk:
            return False
        computed = crc32c(chunk, computed)
        at += len(chunk)
    return computed == int.from_bytes(head[_CRC_AT], "big")
