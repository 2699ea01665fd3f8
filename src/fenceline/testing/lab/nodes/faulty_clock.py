"""A wall clock that is off by as much as the laboratory wants."""

from __future__ import annotations

import time


class SteppedClock:
    """As `SystemClock`; the monotonic clock is not affected."""

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
