"""The clocks and the random numbers of a client: those of the machine, or others that a simulation provides.

Owns what a client takes from outside besides its connections. Everything in `fenceline.client` reads the time and draws
here (or from `loop.time()`), so that a client on a simulated loop depends on nothing else. A client takes its
surroundings once, when it is created; tasks inherit those of the task that created them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, MutableSequence, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")


class RandomNumbers(Protocol):
    """What clients draw; `random.Random` and the module `random` have it."""

    def randbytes(self, n: int) -> bytes: ...
    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[T]) -> T: ...
    def shuffle(self, x: MutableSequence[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Times in seconds: `wall_s` since 1970, `monotonic_s` since an arbitrary moment."""

    wall_s: Callable[[], float]
    monotonic_s: Callable[[], float]
    rng: RandomNumbers

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.wall_s() * 1000)


MACHINE: Final = Surroundings(time.time, time.monotonic, random)
"""The real ones. Python reseeds the module `random` after a fork, so that two processes do not draw the same."""

CURRENT: Final[ContextVar[Surroundings]] = ContextVar("fenceline_client_surroundings", default=MACHINE)
"""A simulation sets it in the context of a process before the first client is created there."""


def surroundings() -> Surroundings:
    """Those of the current task or thread."""
    return CURRENT.get()
