"""How late the event loop is: whatever runs on it for long delays every client of the node.

Owns a timer and its lateness. Only a node with a metrics endpoint has it; at rest it costs ten short wake-ups a second.
A pause shorter than the interval is seen with the probability of their ratio, and shortened by what of it was over
before the timer was due: `fenceline.event.loop.sample.ms` makes it finer for a measurement.

A pause has two causes, which the two gauges tell apart: the thread works (its CPU time between two ticks), or it waits,
for the disk or for a core of the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

from fenceline.node.metric_families import Durations, gauges

_SETTLING_S: Final = 1.0


class LoopDelays:
    """Belongs to the event loop; `collect` may be called by any thread."""

    def __init__(self, interval_ms: int) -> None:
        self.delays = Durations()
        self.longest_s = 0.0
        self.longest_work_s = 0.0
        """CPU seconds of the loop's thread between two ticks that were late: at most what the tick was late by."""
        self._interval_s = interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._cpu_s = 0.0

    def start(self) -> None:
        """The end of a start, which holds the loop up once more, is not measured."""
        self._timer = asyncio.get_running_loop().call_later(_SETTLING_S, self._begin)

    def _begin(self) -> None:
        self._cpu_s = time.thread_time()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        assert self._timer is not None, "it calls"
        # Not `loop.time()`: uvloop's is that of the beginning of its iteration.
        late_s, cpu_s = max(time.monotonic() - self._timer.when(), 0.0), time.thread_time()
        self.observe(late_s, cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(time.monotonic() + self._interval_s, self._tick)

    def observe(self, late_s: float, work_s: float) -> None:
        """A tick that was late, and the CPU seconds since the one before."""
        self.delays.observe(late_s)
        self.longest_s = max(self.longest_s, late_s)
        self.longest_work_s = max(self.longest_work_s, min(late_s, work_s))

    def collect(self) -> Iterator[Any]:
        yield self.delays.family("fenceline_event_loop_delay_seconds", "How late timers of the event loop were")
        yield from gauges(
            ("fenceline_event_loop_longest_delay_seconds", "Longest delay since the start", self.longest_s),
            (
                "fenceline_event_loop_longest_work_seconds",
                "Longest delay in which the loop's thread worked, since the start",
                self.longest_work_s,
            ),
        )
