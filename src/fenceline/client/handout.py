"""Handing out what was fetched: as records, a limited number at a time, or as whole pieces.

Owns the piece that is handed out in part. Positions move as records are handed out, so that a commit covers just what
the caller has; pieces of partitions that were given up or repositioned since they were fetched are dropped. Pure.
"""

from __future__ import annotations

from fenceline.client.fetched import ConsumerRecord, Fetched, to_records
from fenceline.client.fetcher import Fetcher, Piece
from fenceline.client.positions import Positions


class Handout:
    """Takes from the fetcher on behalf of poll."""

    def __init__(self, fetcher: Fetcher, positions: Positions) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._held: tuple[Piece, list[ConsumerRecord], int] | None = None

    def take_records(self, limit: int) -> list[ConsumerRecord]:
        """At most `limit` records."""
        found: list[ConsumerRecord] = []
        while len(found) < limit:
            if self._held is None:
                piece = self._fetcher.take()
                if piece is None:
                    break
                self._held = piece, to_records(piece.fetched), 0
            piece, records, index = self._held
            state = self._positions.get(piece.tp)
            if state is None or state.serial != piece.serial:
                self._held = None
                continue
            taken = records[index : index + limit - len(found)]
            found += taken
            index += len(taken)
            if index == len(records):
                self._held = None
                self._took_all(piece)
            else:
                self._held = piece, records, index
                starts = piece.fetched.epoch_starts
                self._positions.consumed(piece.tp, taken[-1].offset + 1, taken[-1].leader_epoch, starts)
        return found

    def take_pieces(self, max_bytes: int) -> list[Fetched]:
        """Whole pieces until they hold `max_bytes`, undecoded; first the rest of one that `take_records` began."""
        pieces: list[Fetched] = []
        size_bytes = 0
        if self._held is not None:
            piece, records, index = self._held
            self._held = None
            state = self._positions.get(piece.tp)
            if state is not None and state.serial == piece.serial:
                # A poll for records took the first part of this piece: hand out the rest.
                rest_from = records[index].offset
                runs = tuple(
                    run._replace(start_offset=max(run.start_offset, rest_from))
                    for run in piece.fetched.runs
                    if run.end_offset_exclusive > rest_from
                )
                pieces.append(piece.fetched._replace(runs=runs, start_offset=rest_from))
                self._took_all(piece)
        while size_bytes < max_bytes:
            taken = self._fetcher.take()
            if taken is None:
                break
            self._took_all(taken)
            if taken.fetched.runs:
                pieces.append(taken.fetched)
                size_bytes += taken.fetched.size_bytes
        return pieces

    def _took_all(self, piece: Piece) -> None:
        fetched = piece.fetched
        self._positions.consumed(piece.tp, fetched.next_offset, fetched.last_epoch, fetched.epoch_starts)

    def forget_strangers(self) -> None:
        """Forget a piece that is partly handed out, when its partition is not ours any more."""
        if self._held is not None and self._held[0].tp not in self._positions:
            self._held = None
