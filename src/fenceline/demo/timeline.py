"""The timeline of the demo: events with their times.

Owns the events and their clock: seconds since the start of the timeline. Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fenceline.demo.report import Event


class Timeline:
    """`clock` returns monotonic seconds; `wall` returns seconds since 1970, for timestamps of other components."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._start_s = clock()
        self._start_wall_s = wall()
        self.events: list[Event] = []

    def now_s(self) -> float:
        return self._clock() - self._start_s

    def at_wall_s(self, at_s: float) -> float:
        """Convert seconds since 1970 to seconds of the timeline."""
        return max(0.0, at_s - self._start_wall_s)

    def add(self, text: str, at_s: float | None = None) -> float:
        """Add an event, by default at the current time. Returns its time."""
        event = Event(self.now_s() if at_s is None else at_s, text)
        self.events.append(event)
        return event.at_s
