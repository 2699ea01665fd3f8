"""What the standard library gives to simulated code: virtual time, random numbers of the seed.

Owns the replacements of `time`, `random`, `uuid`, `secrets`, `os.urandom` and `datetime.now` while a seed runs, so that
an application needs no change. `fenceline.client` does not depend on them: it has `client.core.surroundings`.

A name that a module has imported (`from time import time`) is replaced in modules of the application only: those
outside of the standard library, installed packages and Fenceline.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import random
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from threading import get_ident
from types import ModuleType
from typing import Any, Final, NoReturn

from fenceline.testing.simulation.clock import WALL_START_MS, NodeClock
from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.scheduler import SimulationError
from fenceline.testing.simulation.world import World

_INSTALLED: Final = tuple(
    {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_FENCELINE: Final = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
_NS: Final = 1_000_000_000


class _ReadAs(type):
    """A class that is taken for the one that it replaces."""

    replaced: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.replaced)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.replaced)


@contextlib.contextmanager
def simulated_standard_library(world: World) -> Iterator[None]:
    """The replacements, for code of this world."""
    replaced = _replacements(world)
    undo: list[tuple[Any, str, Any]] = []
    state = random.getstate()
    try:
        for (owner, name), new in replaced.items():
            undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, new)
        by_original = {id(old): getattr(owner, name) for owner, name, old in undo if callable(old)}
        for module in _application_modules():
            for name, value in list(vars(module).items()):
                if id(value) in by_original:
                    undo.append((module, name, value))
                    setattr(module, name, by_original[id(value)])
        random.seed(f"{world.seed}/application")
        yield
    finally:
        for owner, name, old in reversed(undo):
            setattr(owner, name, old)
        random.setstate(state)


def _application_modules() -> list[ModuleType]:
    return _modules_among(len(sys.modules))


@lru_cache(maxsize=1)
def _modules_among(number_of_modules: int) -> list[ModuleType]:
    """Found once: to look at each module, a forked process would have to copy the memory of all."""
    files = [(module, getattr(module, "__file__", None)) for module in list(sys.modules.values())]
    return [module for module, file in files if file is not None and _is_of_application(file)]


def _is_of_application(file: str) -> bool:
    return not os.path.realpath(file).startswith((*_INSTALLED, _FENCELINE))


def _replacements(world: World) -> dict[tuple[Any, str], Any]:
    """By owner and name."""
    scheduler = world.scheduler
    drawn = world.rng_of(world.seed, "entropy")
    thread = get_ident()

    def is_simulated() -> bool:
        """Other threads of the process keep the real functions."""
        return get_ident() == thread

    def wall_s() -> float:
        if not is_simulated():
            return _real_time()
        own: NodeClock | None = getattr(asyncio._get_running_loop(), "clock", None)
        return own.now_ms() / 1000 if own is not None else WALL_START_MS / 1000 + scheduler.now_s

    def monotonic_s() -> float:
        if not is_simulated():
            return _real_monotonic()
        loop = asyncio._get_running_loop()
        return loop.time() if loop is not None else scheduler.now_s

    def sleep(seconds: float) -> None:
        if not is_simulated():
            _real_sleep(seconds)
        elif isinstance(asyncio._get_running_loop(), SimLoop):
            _blocking_sleep(seconds)

    def urandom(size: int) -> bytes:
        return drawn.randbytes(size) if is_simulated() else _real_urandom(size)

    class SeededRandom(Random):
        """`random.Random()` without a seed gets one that the seed of the story determines."""

        def __init__(self, x: Any = None) -> None:
            super().__init__(drawn.getrandbits(64) if x is None else x)

    return {
        (time, "time"): wall_s,
        (time, "time_ns"): lambda: int(wall_s() * _NS),
        (time, "monotonic"): monotonic_s,
        (time, "monotonic_ns"): lambda: int(monotonic_s() * _NS),
        (time, "perf_counter"): monotonic_s,
        (time, "perf_counter_ns"): lambda: int(monotonic_s() * _NS),
        (time, "sleep"): sleep,
        (os, "urandom"): urandom,
        (random, "_urandom"): urandom,
        (random, "Random"): SeededRandom,
        (uuid, "uuid1"): lambda node=None, clock_seq=None: uuid.UUID(bytes=urandom(16), version=1),
        (uuid, "uuid4"): lambda: uuid.UUID(bytes=urandom(16), version=4),
        **_datetimes(wall_s),
    }


def _blocking_sleep(seconds: float) -> NoReturn:
    raise SimulationError(
        f"time.sleep({seconds:g}) on the event loop blocks every task of the application: await asyncio.sleep instead"
    )


def _datetimes(wall_s: Any) -> dict[tuple[Any, str], Any]:
    class SimulatedDatetime(datetime.datetime, metaclass=_ReadAs):
        replaced = datetime.datetime

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return _real_datetime.fromtimestamp(wall_s(), tz if tz is not None else None)

        @classmethod
        def utcnow(cls) -> datetime.datetime:  # type: ignore[override]
            return _real_datetime.fromtimestamp(wall_s(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> datetime.datetime:  # type: ignore[override]
            return _real_datetime.fromtimestamp(wall_s())

    class SimulatedDate(datetime.date, metaclass=_ReadAs):
        replaced = datetime.date

        @classmethod
        def today(cls) -> datetime.date:  # type: ignore[override]
            return _real_date.fromtimestamp(wall_s())

    return {(datetime, "datetime"): SimulatedDatetime, (datetime, "date"): SimulatedDate}


_real_time: Final = time.time
_real_monotonic: Final = time.monotonic
_real_sleep: Final = time.sleep
_real_urandom: Final = os.urandom
_real_datetime: Final = datetime.datetime
_real_date: Final = datetime.date


def note_application_modules() -> None:
    """Find out once which modules belong to the application: copies of this process know it then."""
    _application_modules()
