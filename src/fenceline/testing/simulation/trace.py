"""What happened, as lines and as one number: the running hash of all lines.

Owns the text of an event and its order. Two runs with the same hash were the same run; a line that depends on memory
addresses, hash seeds or the machine's clock would break that, so lines are made of drawn and computed values only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_HASHED_AT_ONCE: Final = 256


class Trace:
    """`sink` hears each line; the last `keep` lines are kept for the report of a failure."""

    def __init__(self, *, keep: int = 200, sink: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=keep)
        self._sink = sink
        self._now_s = -1.0
        self._told_s = ""
        self.count = 0

    def add(self, now_s: float, who: str, what: str) -> None:
        """`who` did or met `what` at `now_s`."""
        if now_s != self._now_s:
            self._now_s = now_s
            self._told_s = f"{now_s:.6f}"
        line = f"{self._told_s} {who} {what}"
        self._unhashed.append(line)
        self.count += 1
        if len(self._unhashed) >= _HASHED_AT_ONCE:
            self._take_in()
        if self._sink is not None:
            self._sink(line)

    def _take_in(self) -> None:
        self._hash.update("\n".join([*self._unhashed, ""]).encode())
        self._lines.extend(self._unhashed)
        self._unhashed.clear()

    @property
    def last_lines(self) -> list[str]:
        self._take_in()
        return list(self._lines)

    @property
    def digest(self) -> str:
        """Of all lines so far, 32 hex digits."""
        self._take_in()
        return self._hash.hexdigest()
