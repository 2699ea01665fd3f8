"""Virtual time and its events: one queue for all processes of a simulated world.

Owns the order of callbacks. Time stands still while callbacks run, and jumps to the next timer when none is left. Never
sleeps, never reads the machine's clock.

Order: callbacks of the same instant run first in, first out, as asyncio guarantees. Timers of the same instant run in
the order of their creation, or shuffled by the given random source: asyncio guarantees no order there, and neither do
two machines.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Final

RUNNING: Final = 0
PAUSED: Final = 1
ENDED: Final = 2

_WAKES_A_SLEEPER: Final = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""The callback of a timer of `asyncio.sleep`."""
_SWEEP_ABOVE: Final = 1000
"""Cancelled timers that may stay in the queue before they are removed."""


class SimulationError(Exception):
    """The simulated world cannot continue, or its code did what code on a loop must not do."""


class NothingLeft(SimulationError):
    """No callback or timer is left, and the awaited condition is false."""


class Livelock(SimulationError):
    """Callbacks create callbacks without end, and time does not advance."""


class ProcessEnded(BaseException):
    """Unwinds the stack of a killed process. Not an Exception: no code may catch it and continue."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of one process, as the scheduler sees it."""

    scheduler: Scheduler
    state: int
    """RUNNING, PAUSED or ENDED."""
    owner: object
    """The object that the scheduler's watcher checks after each callback; None: none."""

    def not_running(self, handle: SimHandle) -> None:
        """A callback became due while this process does not run."""
        raise NotImplementedError


class SimHandle(asyncio.TimerHandle):
    """A callback of one process, due now or at a time."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "is_inert", "process", "when_s")

    def __init__(
        self,
        process: ProcessLoop,
        callback: Callable[..., object] | None,
        args: tuple[Any, ...],
        context: contextvars.Context,
        when_s: float,
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self.when_s = when_s
        """In the time of the loop; below 0: no timer."""
        self.is_cancelled = False
        self.is_inert = callback is _WAKES_A_SLEEPER
        """It only schedules other callbacks: the state of the process is unchanged, and the watcher need not check
        it."""

    def __repr__(self) -> str:
        return f"<SimHandle {self.callback!r}{' cancelled' if self.is_cancelled else ''}>"

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback = None
            self.args = ()
            if self.when_s >= 0:
                self.process.scheduler.timer_cancelled()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class Scheduler:
    """See the module. `now_s` is virtual seconds since the world began."""

    def __init__(self, rng: Random | None = None, *, max_steps_at_once: int = 200_000) -> None:
        """With `rng`, timers of the same instant are shuffled."""
        self.now_s = 0.0
        self.steps = 0
        """The number of callbacks that ran."""
        self.watcher: Callable[[Any], None] | None = None
        """Called with the `owner` of the loop, if it has one, after each of its callbacks that may have changed it."""
        self._tie = rng.random if rng is not None else None
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, float, int, SimHandle]] = []
        self._sequence = 0
        self._cancelled_timers = 0
        self._max_steps_at_once = max_steps_at_once
        self._failure: BaseException | None = None
        self._is_running = False

    # -- for loops -----------------------------------------------------------------------------------------------------

    def soon(self, handle: SimHandle) -> None:
        self._ready.append(handle)

    def at(self, when_s: float, handle: SimHandle) -> None:
        """`when_s` in the scheduler's time; the past means now."""
        self._sequence += 1
        tie = self._tie() if self._tie is not None else 0.0
        heappush(self._timers, (when_s if when_s > self.now_s else self.now_s, tie, self._sequence, handle))

    def timer_cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _SWEEP_ABOVE and 2 * self._cancelled_timers > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if not entry[3].is_cancelled]
            heapify(self._timers)
            self._cancelled_timers = 0

    def forget(self) -> None:
        """Nothing runs any more."""
        self.watcher = None
        self._ready.clear()
        self._timers.clear()

    def fail(self, error: BaseException) -> None:
        """End the run with this error; only the first one is kept."""
        if self._failure is None:
            self._failure = error

    def check(self) -> None:
        """Raises the error given to `fail`."""
        if self._failure is not None:
            raise self._failure

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, *, until_s: float = float("inf"), done: Callable[[], bool] | None = None) -> None:
        """Run until `done()` or until the time is reached, whichever comes first. `done` is called when nothing is due.

        Raises NothingLeft if `done` is given and nothing can make it true any more, Livelock, and the error that a
        callback or the exception handler of a loop reports."""
        if self._is_running:
            raise SimulationError("a simulation cannot be run from inside itself")
        before = asyncio._get_running_loop()
        self._is_running = True
        try:
            self._run(until_s, done)
        finally:
            self._is_running = False
            asyncio._set_running_loop(before)

    def _run(self, until_s: float, done: Callable[[], bool] | None) -> None:
        ready, timers = self._ready, self._timers
        enter = asyncio._set_running_loop
        current: ProcessLoop | None = None
        at_once = 0
        if self._failure is not None:
            raise self._failure
        while True:
            if not ready:
                if done is not None and done():
                    return
                if not timers:
                    if done is not None:
                        raise NothingLeft("nothing is left to run")
                    return
                when_s = timers[0][0]
                if when_s > until_s:
                    self.now_s = until_s
                    return
                if when_s > self.now_s:
                    self.now_s = when_s
                    at_once = 0
                while timers and timers[0][0] <= when_s:
                    handle = heappop(timers)[3]
                    if handle.is_cancelled:
                        self._cancelled_timers -= 1
                    else:
                        handle.when_s = -1.0
                        ready.append(handle)
                continue
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            process = handle.process
            if process.state:
                process.not_running(handle)
                continue
            if process is not current:
                enter(process)
                current = process
            self.steps += 1
            at_once += 1
            if at_once > self._max_steps_at_once:
                raise Livelock(f"{at_once} callbacks at {self.now_s:.6f} s, the last one is {callback!r}")
            try:
                handle.context.run(callback, *handle.args)
            except ProcessEnded:
                current = None
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                process.call_exception_handler({"message": f"exception in {callback!r}", "exception": error})
            if process.owner is not None and self.watcher is not None and not handle.is_inert:
                self.watcher(process.owner)
            if self._failure is not None:
                raise self._failure


@contextmanager
def quiet_generators() -> Iterator[None]:
    """An unfinished generator of a process gets `ProcessEnded` in its `finally`, which Python would print."""
    hook = sys.unraisablehook

    def unless_ended(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, ProcessEnded):
            hook(unraisable)

    sys.unraisablehook = unless_ended
    try:
        yield
    finally:
        sys.unraisablehook = hook
