"""The memory of fetched data: responses of which pieces are held, and reservations of requests in flight.

Owns the count against `queued.max.bytes`. A piece is a view of its response's buffer, so even the smallest keeps all of
it in memory: a response counts in full, once, while any piece of it is held. The limit is exceeded only by a batch that
is larger than its request, which brokers return whole, and by the headers of responses. Moves no data, never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fenceline.client.core.fetched import Fetched

_MIN_REQUEST_FRACTION: Final = 8
"""A request needs this fraction (1/n) of the limit: many small requests cost more than a short wait."""
_MAX_REQUEST_FRACTION: Final = 2
"""A request gets at most this fraction (1/n) of the limit, so that one is in flight while another is decoded."""


class FetchMemory:
    """The memory of one consumer or range reader. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._reserved_bytes = 0
        self._responses: dict[int, list[int]] = {}
        """By the identity of the buffer: its size, and how many pieces of it are held."""

    @property
    def used_bytes(self) -> int:
        """Held, or reserved by requests in flight."""
        return self._held_bytes + self._reserved_bytes

    @property
    def has_room(self) -> bool:
        """Whether enough is free for a request."""
        used_bytes = self.used_bytes
        return not used_bytes or self._limit_bytes - used_bytes >= self._limit_bytes // _MIN_REQUEST_FRACTION

    def reserve(self, requested_bytes: int, sharers: int = 1) -> int:
        """Reserve memory for a request until `release_reservation`; returns its maximum response size, at least 1.

        `sharers`: how many requests share the free memory, including this one.
        """
        share_bytes = (self._limit_bytes - self.used_bytes) // sharers
        reserved_bytes = max(1, min(requested_bytes, share_bytes, self._limit_bytes // _MAX_REQUEST_FRACTION))
        self._reserved_bytes += reserved_bytes
        return reserved_bytes

    def release_reservation(self, reserved_bytes: int) -> None:
        """End a reservation: the response has arrived, and `hold` was called for its pieces, or the request failed."""
        self._reserved_bytes -= reserved_bytes
        assert self._reserved_bytes >= 0, "no more is released than was reserved"

    def hold(self, piece: Fetched) -> None:
        """Count `piece`, and with it its response, as held."""
        if not piece.runs:
            return
        buffer = piece.runs[0].records.obj
        known = self._responses.setdefault(id(buffer), [memoryview(buffer).nbytes, 0])
        if not known[1]:
            self._held_bytes += known[0]
        known[1] += 1

    def release(self, pieces: Iterable[Fetched]) -> None:
        """Release pieces that are no longer held."""
        for piece in pieces:
            if not piece.runs:
                continue
            key = id(piece.runs[0].records.obj)
            known = self._responses[key]
            known[1] -= 1
            if not known[1]:
                del self._responses[key]
                self._held_bytes -= known[0]
