"""The clock of a node on virtual time: it may run fast or slow, be wrong, and jump."""

from __future__ import annotations

from typing import Final

from fenceline.testing.simulation.scheduler import Scheduler

WALL_START_MS: Final = 1_700_000_000_000


class NodeClock:
    """The `Clock` of a node. The monotonic clock never goes back; the wall clock can be set."""

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, base_s: float = 0.0, skew_ms: int = 0) -> None:
        """`rate` applies to both clocks, `base_s` to the monotonic clock, `skew_ms` to the wall clock."""
        self._scheduler = scheduler
        self.rate = rate
        self.base_s = base_s
        self._wall_ms = WALL_START_MS + skew_ms

    def now_ms(self) -> int:
        return self._wall_ms + int(self._scheduler.now_s * self.rate * 1000)

    def monotonic_ms(self) -> int:
        return int((self.base_s + self._scheduler.now_s * self.rate) * 1000)

    def jump(self, by_ms: int) -> None:
        """Set the wall clock."""
        self._wall_ms += by_ms
