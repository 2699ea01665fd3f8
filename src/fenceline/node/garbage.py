"""Garbage collection of a node: no pause that grows with what the node holds.

Owns the process's garbage collector from the end of the start on. Python finds cycles of objects that refer to each
other by walking all objects, again and again, and nothing else runs meanwhile: a node with some million offsets,
members or partitions would stand still for half a second. So what has survived a walk that took long is set aside, and
is not walked again (`gc.freeze`); objects without cycles are freed all the same, as soon as the last reference goes.
The price is that a cycle of such old objects is never found: what a node drops after a while (connections, groups,
partitions, logs) must not be one. `tests/node/test_garbage.py` looks for them. Freeing many objects is a pause as well:
`free_in_parts`.

A large dict whose keys are tuples must not have plain numbers, strings or None as values. Python takes a dict that has
nothing to be walked out of the collector's sight, and each new key brings it back as a young object: it is walked whole
with the next 700 objects. A dict with objects as values becomes old, and is set aside.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_OLDEST_GENERATION: Final = 2
LONG_S: Final = 0.0005
_THRESHOLDS: Final = (700, 5, 0)
"""The oldest generation is walked after some 5,000 new objects, which takes half a millisecond. Python's own values, 10
and 10, make it 85,000 and 20 ms."""


_FREED_AT_ONCE: Final = 500


class SurvivorsSetAside:
    """A callback of the garbage collector. Not the time on the wall counts: on a busy machine every walk is long."""

    def __init__(
        self, *, now_s: Callable[[], float] = time.thread_time, freeze: Callable[[], None] = gc.freeze
    ) -> None:
        self._now_s = now_s
        self._freeze = freeze
        self._began_s = 0.0

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] < _OLDEST_GENERATION:
            return
        if phase == "start":
            self._began_s = self._now_s()
        elif self._now_s() - self._began_s >= LONG_S:
            self._freeze()


def begin_service() -> None:
    """At the end of a start: imported modules and the replayed image are permanent."""
    gc.collect()
    gc.freeze()
    # The oldest generation is walked when it has grown by a quarter of what the last walk left: that is nothing now.
    gc.collect()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(SurvivorsSetAside())


def free_in_parts(objects: list[Any]) -> None:
    """Take over the last references to these objects, and drop them part by part in the next turns of the loop. To free
    the 50,000 segments of a log at once takes it 70 ms."""
    if len(objects) > _FREED_AT_ONCE:
        del objects[-_FREED_AT_ONCE:]
        asyncio.get_running_loop().call_soon(free_in_parts, objects)
