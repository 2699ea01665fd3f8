"""The node's clock, injected so that tests and simulations can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """A clock that never goes back, milliseconds since an arbitrary point."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
