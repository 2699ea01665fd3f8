"""Returns fetched data to `poll`: as records, a limited number at a time, or as complete pieces.

Owns the pieces that were returned in part. Positions advance as records are returned, so that a commit covers exactly
the records that the caller has. Pieces of partitions that were revoked or repositioned since the fetch are dropped;
pieces of positions in validation wait. The memory of a piece is released when all of it was decoded and returned, or
when it is dropped. Sends no requests.

No record that was fetched before a truncation is returned once the client knows of the truncation (decision 019). So
the validity of a piece is checked last: records are returned without waiting after that check; pieces that the caller
decodes are lent, and count as returned only if `mark_returned` finds after decoding that all of them are still valid.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from fenceline.client.consumer.fetcher import FetchedPiece, Fetcher
from fenceline.client.consumer.positions import Positions
from fenceline.client.core.fetched import ConsumerRecord, ConsumerRecords, Fetched, to_records
from fenceline.client.core.offsets import CommittedOffset
from fenceline.ids import TopicPartition

_LONG_BYTES: Final = 64 * 1024
"""Compressed pieces of at least this size are decoded in a thread, so that the loop is not blocked."""


class _Partial(NamedTuple):
    """A piece of which `records[:taken]` were returned. records None: not decoded yet."""

    piece: FetchedPiece
    records: list[ConsumerRecord] | None
    taken: int


class FetchBuffer:
    """The pieces between the fetcher and `poll`."""

    def __init__(self, fetcher: Fetcher, positions: Positions) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._partial: dict[TopicPartition, _Partial] = {}
        """At most one per partition; several partitions only while one of them is in validation."""
        self._lent: list[FetchedPiece] = []
        """The result of `next_pieces`: held in memory, but not yet returned, until `mark_returned` or `put_back`."""
        self.next_offsets: dict[TopicPartition, CommittedOffset] = {}
        """The next offset of each partition that the current or last poll advanced."""

    def begin_poll(self) -> None:
        self.next_offsets = {}

    async def next_records(self, limit: int) -> ConsumerRecords:
        """At most `limit` records. Raises RecordsError for records that cannot be decoded; the next call retries."""
        self.put_back()
        found = ConsumerRecords(next_offsets=self.next_offsets)
        while len(found) < limit:
            partial = self._next_partial()
            if partial is None:
                taken = self._fetcher.next_piece()
                if taken is None:
                    break
                partial = _Partial(taken, None, 0)
            piece, records, index = partial
            if records is None:
                if found and _is_slow_to_decode(piece):
                    # Return the decoded records first: while waiting, a truncation could become known.
                    self._partial[piece.tp] = partial
                    break
                self._partial[piece.tp] = _Partial(piece, await self._decoded(piece), 0)
                # It may have become invalid meanwhile.
                continue
            some = records[index : index + limit - len(found)]
            found += some
            index += len(some)
            if index == len(records):
                self._advance_past(piece)
                self._fetcher.release([piece.fetched])
            else:
                self._partial[piece.tp] = _Partial(piece, records, index)
                last = some[-1]
                self._advance(piece, last.offset + 1, last.leader_epoch)
        return found

    async def _decoded(self, piece: FetchedPiece) -> list[ConsumerRecord]:
        """If decoding fails or is cancelled, the piece is fetched again: nothing is skipped."""
        try:
            if _is_slow_to_decode(piece):
                return await asyncio.to_thread(to_records, piece.fetched)
            return to_records(piece.fetched)
        except BaseException:
            self._fetcher.release([piece.fetched])
            if (state := self._positions.get(piece.tp)) is not None and state.serial == piece.serial:
                self._positions.rewind(piece.tp)
            raise

    def next_pieces(self, max_bytes: int) -> list[Fetched]:
        """Pieces of at least `max_bytes` in total if available, not decoded; first the rest of pieces returned in part.

        They are lent until `mark_returned` or `put_back`. Pieces without records count as returned.
        """
        self.put_back()
        pieces: list[Fetched] = []
        size_bytes = 0
        while (partial := self._next_partial()) is not None:
            self._lent.append(partial.piece)
            pieces.append(_remaining(partial))
        while size_bytes < max_bytes:
            taken = self._fetcher.next_piece()
            if taken is None:
                break
            self._lent.append(taken)
            if taken.fetched.runs:
                pieces.append(taken.fetched)
                size_bytes += taken.fetched.size_bytes
        if not pieces:
            self.mark_returned()
        return pieces

    def mark_returned(self) -> bool:
        """The lent pieces are decoded: count them as returned. False if one of them is no longer valid: then none
        counts as returned, and the valid ones are fetched again.
        """
        if not all(self._fetcher.is_valid(piece) for piece in self._lent):
            self.put_back()
            return False
        for piece in self._lent:
            self._advance_past(piece)
        self._release_lent()
        return True

    def put_back(self) -> None:
        """The lent pieces were not returned: fetch the valid ones again."""
        for piece in self._lent:
            state = self._positions.get(piece.tp)
            if state is not None and state.serial == piece.serial:
                self._positions.rewind(piece.tp)
        self._release_lent()

    def _release_lent(self) -> None:
        if self._lent:
            self._fetcher.release([piece.fetched for piece in self._lent])
            self._lent.clear()

    def _next_partial(self) -> _Partial | None:
        """A piece returned in part that is valid now; pieces that became invalid are dropped."""
        for tp, partial in list(self._partial.items()):
            state = self._positions.get(tp)
            if state is None or state.serial != partial.piece.serial:
                del self._partial[tp]
                self._fetcher.release([partial.piece.fetched])
            elif self._fetcher.is_valid(partial.piece):
                return self._partial.pop(tp)
        return None

    def _advance_past(self, piece: FetchedPiece) -> None:
        fetched = piece.fetched
        self._advance(piece, fetched.next_offset, fetched.last_epoch)

    def _advance(self, piece: FetchedPiece, offset: int, epoch: int) -> None:
        self._positions.consumed(piece.tp, offset, epoch, piece.fetched.epoch_starts)
        self.next_offsets[piece.tp] = CommittedOffset(offset, epoch)

    def drop_unassigned(self) -> None:
        """Drop the pieces of partitions that are no longer assigned."""
        for tp in self._partial.keys() - set(self._positions):
            self._fetcher.release([self._partial.pop(tp).piece.fetched])


def _is_slow_to_decode(piece: FetchedPiece) -> bool:
    return piece.fetched.is_compressed and piece.fetched.size_bytes >= _LONG_BYTES


def _remaining(partial: _Partial) -> Fetched:
    piece, records, index = partial
    if records is None:
        return piece.fetched
    rest_from = records[index].offset
    runs = tuple(
        run._replace(start_offset=max(run.start_offset, rest_from))
        for run in piece.fetched.runs
        if run.end_offset_exclusive > rest_from
    )
    return piece.fetched._replace(runs=runs, start_offset=rest_from)
