"""The time axis of the story, and what is told along it by whoever sees something happen.

Owns the moments and their clock: seconds since the narration began. Safe for threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fenceline.demo.story import Moment


class Narration:
    """`clock` gives monotonic seconds, `wall` seconds since 1970, for what others have dated."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began_s = clock()
        self._began_wall_s = wall()
        self.moments: list[Moment] = []

    def now_s(self) -> float:
        return self._clock() - self._began_s

    def at_wall_s(self, at_s: float) -> float:
        """When something was that the machine's clock dates."""
        return max(0.0, at_s - self._began_wall_s)

    def tell(self, text: str, at_s: float | None = None) -> float:
        """Add a moment, of now unless it was at another time; when it was."""
        moment = Moment(self.now_s() if at_s is None else at_s, text)
        self.moments.append(moment)
        return moment.at_s
