"""The memory that fetching ahead takes: answers of which something is kept, and what requests in flight may bring.

Owns the count against `queued.max.bytes`. What is cut out of an answer are views into its buffer, so the smallest piece
keeps all of it: an answer counts whole, and once, for as long as any piece of it is kept. Only what is larger than it
was asked to be goes beyond the limit: a batch above its request's share, which brokers give whole, and the headers of
an answer. Moves no data and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fenceline.client.fetched import Fetched

_WORTH_A_REQUEST: Final = 8
"""The part of the limit that must be free for one: many small ones cost more than a short wait for a large one."""
_AT_ONCE: Final = 2
"""No answer takes more than this part of the limit, so that one can be under way while another is handed out."""


class FetchMemory:
    """Of one reader. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._promised_bytes = 0
        self._answers: dict[int, list[int]] = {}
        """By the identity of the buffer: its size, and how many pieces of it are kept."""

    @property
    def taken_bytes(self) -> int:
        """Held, and promised to requests in flight."""
        return self._held_bytes + self._promised_bytes

    @property
    def has_room(self) -> bool:
        """For a request that is worth it."""
        taken_bytes = self.taken_bytes
        return not taken_bytes or self._limit_bytes - taken_bytes >= self._limit_bytes // _WORTH_A_REQUEST

    def promise(self, wished_bytes: int, sharers: int = 1) -> int:
        """How much a request may ask for, at least 1; it counts until `redeem`. `sharers`: requests that are to go out
        now, this one included."""
        share_bytes = (self._limit_bytes - self.taken_bytes) // sharers
        promised_bytes = max(1, min(wished_bytes, share_bytes, self._limit_bytes // _AT_ONCE))
        self._promised_bytes += promised_bytes
        return promised_bytes

    def redeem(self, promised_bytes: int) -> None:
        """The answer is there, or none will come; what is kept of it was given to `keep` before."""
        self._promised_bytes -= promised_bytes
        assert self._promised_bytes >= 0, "no more is redeemed than was promised"

    def keep(self, piece: Fetched) -> None:
        """`piece` stays for a while, and its answer with it."""
        if not piece.runs:
            return
        buffer = piece.runs[0].records.obj
        known = self._answers.setdefault(id(buffer), [memoryview(buffer).nbytes, 0])
        if not known[1]:
            self._held_bytes += known[0]
        known[1] += 1

    def let_go(self, pieces: Iterable[Fetched]) -> None:
        """Nobody needs these any more."""
        for piece in pieces:
            if not piece.runs:
                continue
            key = id(piece.runs[0].records.obj)
            known = self._answers[key]
            known[1] -= 1
            if not known[1]:
                del self._answers[key]
                self._held_bytes -= known[0]
