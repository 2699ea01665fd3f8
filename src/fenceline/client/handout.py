"""Handing out what was fetched: as records, a limited number at a time, or as whole pieces.

Owns the pieces that are handed out in part. Positions move as records are handed out, so that a commit covers just what
the caller has; pieces of partitions that were given up or repositioned since they were fetched are dropped, those of
positions that are being validated wait. The memory of a piece is given back when it is decoded and handed out whole, or
dropped. Makes no requests.

Nothing that was read before a truncation is handed out once the client knows of it. So whether a piece still counts is
looked up last: records are handed out without a wait behind that look; pieces that are decoded elsewhere are lent, and
count as handed out only when `hand_out` finds, after decoding, that all of them still count.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from fenceline.client.fetched import ConsumerRecord, ConsumerRecords, Fetched, to_records
from fenceline.client.fetcher import Fetcher, Piece
from fenceline.client.offsets import CommittedOffset
from fenceline.client.positions import Positions
from fenceline.ids import TopicPartition

_LONG_BYTES: Final = 64 * 1024
"""Compressed, from which on decoding is a thread's work: the loop serves brokers meanwhile."""


class _Begun(NamedTuple):
    """A piece of which `records[:taken]` were handed out. records None: it was not decoded yet."""

    piece: Piece
    records: list[ConsumerRecord] | None
    taken: int


class Handout:
    """Takes from the fetcher on behalf of poll."""

    def __init__(self, fetcher: Fetcher, positions: Positions) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._begun: dict[TopicPartition, _Begun] = {}
        """One of a partition at most; more than one partition only while one of them is being validated."""
        self._lent: list[Piece] = []
        """What `take_pieces` gave: it counts as memory, and not as handed out, until `hand_out` or `take_back`."""
        self.next_offsets: dict[TopicPartition, CommittedOffset] = {}
        """Up to where the poll under way, or the last one, has handed out each partition that it moved."""

    def begin_poll(self) -> None:
        self.next_offsets = {}

    async def take_records(self, limit: int) -> ConsumerRecords:
        """At most `limit` records. Raises RecordsError for what can not be decoded, where the next call tries again."""
        self.take_back()
        found = ConsumerRecords(next_offsets=self.next_offsets)
        while len(found) < limit:
            begun = self._take_begun()
            if begun is None:
                taken = self._fetcher.take()
                if taken is None:
                    break
                begun = _Begun(taken, None, 0)
            piece, records, index = begun
            if records is None:
                if found and _takes_long(piece):
                    # Records that are to be handed out wait for nothing: a truncation could become known meanwhile.
                    self._begun[piece.tp] = begun
                    break
                self._begun[piece.tp] = _Begun(piece, await self._decoded(piece), 0)
                # What happened meanwhile may have made it useless.
                continue
            some = records[index : index + limit - len(found)]
            found += some
            index += len(some)
            if index == len(records):
                self._took_all(piece)
                self._fetcher.done([piece.fetched])
            else:
                self._begun[piece.tp] = _Begun(piece, records, index)
                last = some[-1]
                self._moved(piece, last.offset + 1, last.leader_epoch)
        return found

    async def _decoded(self, piece: Piece) -> list[ConsumerRecord]:
        """What can not be decoded, or is not waited for, is fetched again: nothing is skipped."""
        try:
            if _takes_long(piece):
                return await asyncio.to_thread(to_records, piece.fetched)
            return to_records(piece.fetched)
        except BaseException:
            self._fetcher.done([piece.fetched])
            if (state := self._positions.get(piece.tp)) is not None and state.serial == piece.serial:
                self._positions.rewind(piece.tp)
            raise

    def take_pieces(self, max_bytes: int) -> list[Fetched]:
        """Whole pieces until they hold `max_bytes`, undecoded; first the rest of one that `take_records` began.

        They are lent: `hand_out` or `take_back` ends that. Pieces without records count as handed out.
        """
        self.take_back()
        pieces: list[Fetched] = []
        size_bytes = 0
        while (begun := self._take_begun()) is not None:
            self._lent.append(begun.piece)
            pieces.append(_rest_of(begun))
        while size_bytes < max_bytes:
            taken = self._fetcher.take()
            if taken is None:
                break
            self._lent.append(taken)
            if taken.fetched.runs:
                pieces.append(taken.fetched)
                size_bytes += taken.fetched.size_bytes
        if not pieces:
            self.hand_out()
        return pieces

    def hand_out(self) -> bool:
        """What `take_pieces` gave last is decoded, and counts as handed out. False where a part of it does not count
        any more: then nothing is handed out, and what still counts is fetched again.
        """
        if not all(self._fetcher.still_counts(piece) for piece in self._lent):
            self.take_back()
            return False
        for piece in self._lent:
            self._took_all(piece)
        self._give_back()
        return True

    def take_back(self) -> None:
        """What `take_pieces` gave last was not handed out: it is fetched again where it still counts."""
        for piece in self._lent:
            state = self._positions.get(piece.tp)
            if state is not None and state.serial == piece.serial:
                self._positions.rewind(piece.tp)
        self._give_back()

    def _give_back(self) -> None:
        if self._lent:
            self._fetcher.done([piece.fetched for piece in self._lent])
            self._lent.clear()

    def _take_begun(self) -> _Begun | None:
        """One that may be gone on with now; those that are of no use any more are dropped."""
        for tp, begun in list(self._begun.items()):
            state = self._positions.get(tp)
            if state is None or state.serial != begun.piece.serial:
                del self._begun[tp]
                self._fetcher.done([begun.piece.fetched])
            elif self._fetcher.still_counts(begun.piece):
                return self._begun.pop(tp)
        return None

    def _took_all(self, piece: Piece) -> None:
        fetched = piece.fetched
        self._moved(piece, fetched.next_offset, fetched.last_epoch)

    def _moved(self, piece: Piece, offset: int, epoch: int) -> None:
        self._positions.consumed(piece.tp, offset, epoch, piece.fetched.epoch_starts)
        self.next_offsets[piece.tp] = CommittedOffset(offset, epoch)

    def forget_strangers(self) -> None:
        """Forget pieces that are partly handed out, of partitions that are not ours any more."""
        for tp in self._begun.keys() - set(self._positions):
            self._fetcher.done([self._begun.pop(tp).piece.fetched])


def _takes_long(piece: Piece) -> bool:
    return piece.fetched.is_compressed and piece.fetched.size_bytes >= _LONG_BYTES


def _rest_of(begun: _Begun) -> Fetched:
    piece, records, index = begun
    if records is None:
        return piece.fetched
    rest_from = records[index].offset
    runs = tuple(
        run._replace(start_offset=max(run.start_offset, rest_from))
        for run in piece.fetched.runs
        if run.end_offset_exclusive > rest_from
    )
    return piece.fetched._replace(runs=runs, start_offset=rest_from)
