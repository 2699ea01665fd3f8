"""The trace of a run: lines, and the running hash of all lines.

Owns the text of an event and its order. Two runs with the same hash were identical. A line must not depend on memory
addresses, hash seeds or the machine's clock, so lines consist of drawn and computed values only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_HASHED_AT_ONCE: Final = 256


class Trace:
    """`sink` receives each line; the last `keep` lines are kept for the report of a failure."""

    def __init__(self, *, keep: int = 200, sink: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=keep)
        self._sink = sink
        self._now_s = -1.0
        self._now_text = ""
        self.count = 0

    def add(self, now_s: float, who: str, what: str) -> None:
        """Add an event `what` of `who` at `now_s`."""
        if now_s != self._now_s:
            self._now_s = now_s
            self._now_text = f"{now_s:.6f}"
        line = f"{self._now_text} {who} {what}"
        self._unhashed.append(line)
        self.count += 1
        if len(self._unhashed) >= _HASHED_AT_ONCE:
            self._flush()
        if self._sink is not None:
            self._sink(line)

    def _flush(self) -> None:
        self._hash.update("\n".join([*self._unhashed, ""]).encode())
        self._lines.extend(self._unhashed)
        self._unhashed.clear()

    @property
    def last_lines(self) -> list[str]:
        self._flush()
        return list(self._lines)

    @property
    def digest(self) -> str:
        """The hash of all lines so far, 32 hex digits."""
        self._flush()
        return self._hash.hexdigest()
