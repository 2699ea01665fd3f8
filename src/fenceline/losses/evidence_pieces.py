"""The evidence of a receipt in pieces of bounded size, each found by the first offset that its reader lacks.

Owns which batches a piece has, and where the next one begins. Batches leave as they are stored, in ascending order of
their offsets; a batch that is damaged, or ends at or below the offset reached, is skipped. Never changes evidence.
Blocks on the disk: for a thread. All functions may raise OSError, FileNotFoundError if the evidence is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from errno import EIO
from typing import NamedTuple

from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import OFFSET_DIGITS
from fenceline.log.core.scan import CHUNK_BYTES, BadBatch, Found, scan_past_damage
from fenceline.losses.receipt import Receipt
from fenceline.records.batch import CRC_COVERS_FROM
from fenceline.records.crc import crc32c


class EvidencePlace(NamedTuple):
    """Where the batch begins that a reader needs next, and the lowest offset that it needs."""

    path: str
    position: int
    next_offset: int


class EvidenceRun(NamedTuple):
    """Adjacent batches of a file, whose checksums are right."""

    path: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocatedPiece:
    """`after`: the beginning of the next piece; None at the end of the evidence."""

    runs: tuple[EvidenceRun, ...]
    size_bytes: int
    after: EvidencePlace | None

    @property
    def memory_bytes(self) -> int:
        """What `load` takes at most."""
        return self.size_bytes + CHUNK_BYTES


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
    runs: list[EvidenceRun] = []
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
                if runs and size_bytes + header.size_bytes > max_bytes:
                    return LocatedPiece(tuple(runs), size_bytes, EvidencePlace(path, each.position, next_offset))
                if not _is_intact(disk, fd, each):
                    continue
                _append(runs, EvidenceRun(path, each.position, header.size_bytes))
                size_bytes += header.size_bytes
                next_offset = header.next_offset
        finally:
            disk.close(fd)
        position = 0
    return LocatedPiece(tuple(runs), size_bytes, None)


def load(disk: Disk, piece: LocatedPiece) -> bytearray:
    """The batches of a piece, one after the other. Evidence never changes: raises OSError if it has become shorter."""
    content = bytearray(piece.size_bytes)
    filled = 0
    for run in piece.runs:
        fd = disk.open_read(run.path)
        try:
            for chunk in _chunks(disk, fd, run.position, run.size_bytes):
                content[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
        finally:
            disk.close(fd)
    return content


def _append(runs: list[EvidenceRun], batch: EvidenceRun) -> None:
    if runs:
        path, position, size_bytes = runs[-1]
        if (path, position + size_bytes) == (batch.path, batch.position):
            runs[-1] = EvidenceRun(path, position, size_bytes + batch.size_bytes)
            return
    runs.append(batch)


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


def _chunks(disk: Disk, fd: int, position: int, size_bytes: int) -> Iterator[bytes]:
    """These bytes of a file. Raises OSError if it is shorter."""
    end = position + size_bytes
    while position < end:
        chunk = disk.pread(fd, min(CHUNK_BYTES, end - position), position)
        if not chunk:
            raise OSError(EIO, "the evidence has become shorter")
        yield chunk
        position += len(chunk)


def _is_intact(disk: Disk, fd: int, batch: Found) -> bool:
    """Whether the checksum of a batch is right. One that the scan has not in memory is read in chunks: its length may
    be damage."""
    header, content = batch.header, batch.content
    if len(content) == header.size_bytes:
        return crc32c(content[CRC_COVERS_FROM:]) == header.crc
    computed = 0
    start = batch.position + CRC_COVERS_FROM
    for chunk in _chunks(disk, fd, start, batch.position + header.size_bytes - start):
        computed = crc32c(chunk, computed)
    return computed == header.crc
