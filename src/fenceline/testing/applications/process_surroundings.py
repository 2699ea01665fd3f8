"""What the client library and the standard library give to code of a simulated process: virtual time, drawn numbers.

Owns the surroundings of `fenceline.client` on a simulated loop. Never reads the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, TypeVar

from fenceline.client.core.surroundings import CURRENT, Surroundings
from fenceline.testing.simulation.loop import SimLoop

T = TypeVar("T")


def context_with(loop: SimLoop, wall_s: Callable[[], float], rng: Random) -> Context:
    """A context in which clients have the clock of this loop, this wall clock and these random numbers."""
    context = copy_context()
    context.run(CURRENT.set, Surroundings(wall_s, loop.time, rng))
    return context


async def running_with(loop: SimLoop, wall_s: Callable[[], float], rng: Random, work: Coroutine[Any, Any, T]) -> T:
    """Run the work as a task of this loop, in such a context."""
    return await loop.create_task(work, context=context_with(loop, wall_s, rng))
