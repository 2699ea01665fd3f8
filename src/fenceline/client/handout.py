"""Handing out what was fetched: as records, a limited number at a time, or as whole pieces.

Owns the pieces that are handed out in part. Positions move as records are handed out, so that a commit covers just what
the caller has; pieces of partitions that were given up or repositioned since they were fetched are dropped, those of
positions that are being validated wait. The memory of a piece is given back when it is decoded and handed out whole, or
dropped. Makes no requests.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from fenceline.client.fetched import ConsumerRecord, Fetched, to_records
from fenceline.client.fetcher import Fetcher, Piece
from fenceline.client.positions import Position, Positions
from fenceline.ids import TopicPartition

_LONG_BYTES: Final = 64 * 1024
"""Compressed, from which on decoding is a thread's work: the loop serves brokers meanwhile."""


class _Begun(NamedTuple):
    """A piece of which `records[:taken]` were handed out."""

    piece: Piece
    records: list[ConsumerRecord]
    taken: int


class Handout:
    """Takes from the fetcher on behalf of poll."""

    def __init__(self, fetcher: Fetcher, positions: Positions) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._begun: dict[TopicPartition, _Begun] = {}
        """One of a partition at most; more than one partition only while one of them is being validated."""
        self._last_taken: dict[TopicPartition, tuple[int, Position]] = {}
        """By the last `take_pieces`: serial, and the position before it."""
        self._lent: list[Fetched] = []
        """What it gave: it counts as memory until it is given back."""

    async def take_records(self, limit: int) -> list[ConsumerRecord]:
        """At most `limit` records. Raises RecordsError for what can not be decoded, where the next call tries again."""
        self.give_back()
        found: list[ConsumerRecord] = []
        while len(found) < limit:
            begun = self._take_begun()
            if begun is None:
                piece = self._fetcher.take()
                if piece is None:
                    break
                self._begun[piece.tp] = _Begun(piece, await self._decoded(piece), 0)
                # What happened meanwhile may have made it useless.
                continue
            piece, records, index = begun
            taken = records[index : index + limit - len(found)]
            found += taken
            index += len(taken)
            if index == len(records):
                self._took_all(piece)
                self._last_taken.clear()
                self._fetcher.done([piece.fetched])
            else:
                self._begun[piece.tp] = _Begun(piece, records, index)
                starts = piece.fetched.epoch_starts
                self._positions.consumed(piece.tp, taken[-1].offset + 1, taken[-1].leader_epoch, starts)
        return found

    async def _decoded(self, piece: Piece) -> list[ConsumerRecord]:
        """What can not be decoded, or is not waited for, is fetched again: nothing is skipped."""
        try:
            if piece.fetched.is_compressed and piece.fetched.size_bytes >= _LONG_BYTES:
                return await asyncio.to_thread(to_records, piece.fetched)
            return to_records(piece.fetched)
        except BaseException:
            self._fetcher.done([piece.fetched])
            if (state := self._positions.get(piece.tp)) is not None and state.serial == piece.serial:
                self._positions.rewind(piece.tp)
            raise

    def take_pieces(self, max_bytes: int) -> list[Fetched]:
        """Whole pieces until they hold `max_bytes`, undecoded; first the rest of one that `take_records` began.

        They count as memory until `give_back`, or until more is taken.
        """
        self.give_back()
        pieces: list[Fetched] = []
        size_bytes = 0
        self._last_taken.clear()
        while (begun := self._take_begun()) is not None:
            piece, records, index = begun
            rest_from = records[index].offset
            runs = tuple(
                run._replace(start_offset=max(run.start_offset, rest_from))
                for run in piece.fetched.runs
                if run.end_offset_exclusive > rest_from
            )
            pieces.append(piece.fetched._replace(runs=runs, start_offset=rest_from))
            self._lent.append(piece.fetched)
            self._took_all(piece)
        while size_bytes < max_bytes:
            taken = self._fetcher.take()
            if taken is None:
                break
            self._took_all(taken)
            self._lent.append(taken.fetched)
            if taken.fetched.runs:
                pieces.append(taken.fetched)
                size_bytes += taken.fetched.size_bytes
        return pieces

    def give_back(self) -> None:
        """What `take_pieces` gave last is decoded."""
        if self._lent:
            self._fetcher.done(self._lent)
            self._lent.clear()

    def _take_begun(self) -> _Begun | None:
        """One that may be gone on with now; those that are of no use any more are dropped."""
        for tp, begun in list(self._begun.items()):
            state = self._positions.get(tp)
            if state is None or state.serial != begun.piece.serial:
                del self._begun[tp]
                self._fetcher.done([begun.piece.fetched])
            elif state.is_readable:
                return self._begun.pop(tp)
        return None

    def take_back_pieces(self) -> None:
        """What `take_pieces` gave last could not be decoded: it is fetched again, and was not handed out."""
        for tp, (serial, position) in self._last_taken.items():
            state = self._positions.get(tp)
            if state is not None and state.serial == serial and state.position is not None:
                state.position = position
                self._positions.rewind(tp)
        self._last_taken.clear()

    def _took_all(self, piece: Piece) -> None:
        fetched = piece.fetched
        state = self._positions.get(piece.tp)
        if state is not None and state.position is not None:
            self._last_taken.setdefault(piece.tp, (piece.serial, state.position))
        self._positions.consumed(piece.tp, fetched.next_offset, fetched.last_epoch, fetched.epoch_starts)

    def forget_strangers(self) -> None:
        """Forget pieces that are partly handed out, of partitions that are not ours any more."""
        for tp in self._begun.keys() - set(self._positions):
            self._fetcher.done([self._begun.pop(tp).piece.fetched])
