"""Counts what a truncation removes, from the headers of the batches before they are removed: records, transactions.

Owns the scan of bytes that are about to leave a log, damaged ones too. Changes nothing; the losses package classifies
the loss. Blocks on the disk: for a thread, or at start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.errors import PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.scan import BadBatch, next_complete_batch, scan
from fenceline.records.batch import BATCH_OVERHEAD, BatchHeader, peek_header
from fenceline.records.errors import RecordsError
from fenceline.records.markers import EndMarker, read_end_marker

_MAX_OFFSETS: Final = 1 << 31
"""Of one batch; a higher value is damage."""


MOST_TRANSACTIONS: Final = 100
"""Listed for one truncation; older ones are counted."""


class LostPiece(NamedTuple):
    """Bytes [start, end) of a segment file."""

    path: str
    start: int
    end: int


class CutTransaction(NamedTuple):
    """What a truncation removes of one transaction. `start_offset` to `end_offset_exclusive`: its batches; equal if
    only its end marker is removed."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    end_offset_exclusive: int
    records: int
    first_sequence: int
    """Above 0: the producer has written records of this epoch to the partition before, and they stay."""
    newest_ms: int
    """The highest timestamp of its records; -1 if only its end marker is removed."""
    commit: bool | None
    """The outcome in its end marker, if that is removed too."""


@dataclass(frozen=True, slots=True)
class LostBatches:
    """Offsets [start, end), records and bytes of the batches of a range."""

    start_offset: int
    end_offset_exclusive: int
    records: int
    size_bytes: int
    leader_epochs: tuple[int, ...]
    """Each once, in log order."""
    only_unanswered: bool = False
    """Each batch is a control batch, or ends at one of the given offsets."""
    unreadable_bytes: int = 0
    """Bytes that are no batch."""
    newest_ms: int = -1
    """The highest timestamp; -1 if none is known."""
    transactions: tuple[CutTransaction, ...] = ()
    """The newest, in the order of their offsets."""
    transaction_count: int = 0
    """All of them."""


class _Transactions:
    """Gathers the transactions of the batches of a range, in log order."""

    def __init__(self) -> None:
        self._count = 0
        self._ended: deque[CutTransaction] = deque(maxlen=MOST_TRANSACTIONS)
        self._open: dict[int, CutTransaction] = {}
        """By producer id."""

    def add(self, header: BatchHeader, marker: EndMarker | None) -> None:
        if not header.is_transactional:
            return
        known = self._open.get(header.producer_id)
        if not header.is_control:
            if known is not None and known.producer_epoch != header.producer_epoch:
                self._end(known)  # its marker is not in the range, or cannot be read
                known = None
            self._open[header.producer_id] = (
                CutTransaction(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_offset,
                    header.next_offset,
                    header.record_count,
                    header.base_sequence,
                    header.max_timestamp,
                    None,
                )
                if known is None
                else known._replace(
                    end_offset_exclusive=header.next_offset,
                    records=known.records + header.record_count,
                    newest_ms=max(known.newest_ms, header.max_timestamp),
                )
            )
        elif marker is not None:
            self._open.pop(header.producer_id, None)
            if known is None:
                at = header.base_offset
                known = CutTransaction(header.producer_id, header.producer_epoch, at, at, 0, -1, -1, None)
            self._end(known._replace(commit=marker.commit))

    def _end(self, transaction: CutTransaction) -> None:
        self._count += 1
        self._ended.append(transaction)

    def newest(self) -> tuple[CutTransaction, ...]:
        found = sorted((*self._ended, *self._open.values()), key=lambda each: each.start_offset)
        return tuple(found[-MOST_TRANSACTIONS:])

    @property
    def count(self) -> int:
        return self._count + len(self._open)


def count_lost(
    disk: Disk,
    pieces: Sequence[LostPiece],
    *,
    start_offset: int,
    unanswered_ends: frozenset[int] = frozenset(),
) -> LostBatches:
    """Count the batches of these pieces, oldest first, from `start_offset` on. Raises OSError.

    Records below `start_offset` are not counted: they were deleted before.
    """
    first = end = newest_ms = -1
    records = size_bytes = unreadable = 0
    epochs: list[int] = []
    only_unanswered = True
    transactions = _Transactions()
    next_offset = 0
    for piece in pieces:
        read_bytes = 0
        for header, marker in _batches(disk, piece, next_offset, start_offset):
            read_bytes += header.size_bytes
            next_offset = header.next_offset
            if header.next_offset <= start_offset:
                continue
            if first < 0:
                first = max(header.base_offset, start_offset)
            end = header.next_offset
            records += max(0, header.record_count - max(0, start_offset - header.base_offset))
            size_bytes += header.size_bytes
            newest_ms = max(newest_ms, header.max_timestamp)
            if not epochs or epochs[-1] != header.leader_epoch:
                epochs.append(header.leader_epoch)
            only_unanswered &= header.is_control or header.next_offset in unanswered_ends
            transactions.add(header, marker)
        unreadable += piece.end - piece.start - read_bytes
    if first < 0:
        return LostBatches(start_offset, start_offset, 0, 0, (), False, max(0, unreadable))
    unreadable = max(0, unreadable)
    return LostBatches(
        first,
        end,
        records,
        size_bytes,
        tuple(epochs),
        only_unanswered,
        unreadable,
        newest_ms,
        transactions.newest(),
        transactions.count,
    )


def _batches(
    disk: Disk, piece: LostPiece, next_offset: int, start_offset: int
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """Headers of a piece, and end markers; damage is skipped, a batch with a torn end counts by its header."""
    fd = disk.open_read(piece.path)
    try:
        position = piece.start
        while position < piece.end:
            try:
                for found in scan(disk, fd, position, piece.end, next_offset=next_offset, crc_from_offset=None):
                    yield found.header, _end_marker(found.header, found.content)
                    next_offset = found.header.next_offset
                return
            except BadBatch as bad:
                position = bad.position
            header = _header_of_damaged(disk.pread(fd, BATCH_OVERHEAD, position), max(next_offset, start_offset))
            if header is not None:
                yield header._replace(size_bytes=min(header.size_bytes, piece.end - position)), None
                next_offset = header.next_offset
                position += header.size_bytes
                continue
            next_position = next_complete_batch(disk, fd, position, piece.end)
            if next_position is None:
                return
            position = next_position
            next_offset = 0
    finally:
        disk.close(fd)


def _end_marker(header: BatchHeader, content: memoryview) -> EndMarker | None:
    if not header.is_control or not header.is_transactional:
        return None
    try:
        return read_end_marker(header, content)
    except RecordsError:
        return None


def _header_of_damaged(content: bytes, next_offset: int) -> BatchHeader | None:
    """The header of a damaged batch, if it is plausible."""
    if len(content) < BATCH_OVERHEAD:
        return None
    try:
        header = peek_header(memoryview(content))
    except PeerError:
        return None
    is_likely = (
        header.size_bytes >= BATCH_OVERHEAD
        and header.base_offset >= next_offset
        and 0 <= header.last_offset_delta < _MAX_OFFSETS
        and 0 <= header.record_count <= header.last_offset_delta + 1
        and header.base_offset - next_offset < _MAX_OFFSETS
    )
    return header if is_likely else None
