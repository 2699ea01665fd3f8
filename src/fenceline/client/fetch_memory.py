"""The memory of fetched data: responses of which pieces are held, and reservations of requests in flight.

Owns the count against `queued.max.bytes`. A piece is a view of its response's buffer, so even the smallest keeps all of
it in memory: a response counts in full, once, while any piece of it is held. The limit is exceeded only by a batch that
is larger than its request, which brokers return whole, and by the headers of responses. Moves no data, never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fenceline.client.fetched import Fetched

_WORTH_A_REQUEST: Final = 8
"""A request needs this fraction (1/n) of the limit: many small requests cost more than a short wait."""
_AT_ONCE: Final = 2
"""A request gets at most this fraction (1/n) of the limit, so that one is in flight while another is decoded."""


class FetchMemory:
    """The memory of one consumer or range reader. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._promised_bytes = 0
        self._answers: dict[int, list[int]] = {}
        """By the identity of the buffer: its size, and how many pieces of it are held."""

    @property
    def taken_bytes(self) -> int:
        """Held, or reserved by requests in flight."""
        return self._held_bytes + self._promised_bytes

    @property
    def has_room(self) -> bool:
        """Whether enough is free for a request."""
        taken_bytes = self.taken_bytes
        return not taken_bytes or self._limit_bytes - taken_bytes >= self._limit_bytes // _WORTH_A_REQUEST

    def promise(self, wished_bytes: int, sharers: int = 1) -> int:
        """Reserve memory for a request until `redeem`; returns its maximum response size, at least 1. `sharers`: how
        many requests share the free memory, including this one."""
        share_bytes = (self._limit_bytes - self.taken_bytes) // sharers
        promised_bytes = max(1, min(wished_bytes, share_bytes, self._limit_bytes // _AT_ONCE))
        self._promised_bytes += promised_bytes
        return promised_bytes

    def redeem(self, promised_bytes: int) -> None:
        """End a reservation: the response has arrived, and `keep` was called for its pieces, or the request failed."""
        self._promised_bytes -= promised_bytes
        assert self._promised_bytes >= 0, "no more is released than was reserved"

    def keep(self, piece: Fetched) -> None:
        """Count `piece`, and with it its response, as held."""
        if not piece.runs:
            return
        buffer = piece.runs[0].records.obj
        known = self._answers.setdefault(id(buffer), [memoryview(buffer).nbytes, 0])
        if not known[1]:
            self._held_bytes += known[0]
        known[1] += 1

    def let_go(self, pieces: Iterable[Fetched]) -> None:
        """Release pieces that are no longer held."""
        for piece in pieces:
            if not piece.runs:
                continue
            key = id(piece.runs[0].records.obj)
            known = self._answers[key]
            known[1] -= 1
            if not known[1]:
                del self._answers[key]
                self._held_bytes -= known[0]
