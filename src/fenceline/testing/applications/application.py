"""An application in the simulated world: a process on a machine of its own that can be killed, stopped and paused.

Owns the lives of one application: each begins with its main coroutine and no memory of the last one. Like a service
manager, it starts the application again when it ended with an error, when it was killed, and when it was asked to stop;
one that returns by itself has done its work. An AssertionError in it ends the story.

What survives a life: a `SimulatedStore`, and what the operating system keeps (nothing else is offered). Arguments are
copied for each life, so that no object carries memory over.
"""

from __future__ import annotations

import asyncio
import copy
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fenceline.testing.applications.cluster import SimulatedCluster
from fenceline.testing.applications.process_surroundings import context_with
from fenceline.testing.applications.timeline import StoryTimeline
from fenceline.testing.applications.watched_sockets import WatchedSockets
from fenceline.testing.simulation.clock import NodeClock
from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.scheduler import RUNNING, ProcessEnded, SimulationError

Main = Callable[..., Coroutine[Any, Any, object]]

_RESTARTS_AFTER_S: Final = 0.1
_STOPS_WITHIN_S: Final = 10.0
"""Then a stopping application is killed, as service managers do."""
_SHOWN_OF_AN_ERROR: Final = 160
_ENDED_AT_MOST: Final = 100


class ApplicationLoop(SimLoop):
    """The loop of one life. Signal handlers are kept, for a stop."""

    handlers: dict[int, Callable[[], object]]

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:  # type: ignore[override]
        return self.handlers.pop(sig, None) is not None

    def close_tasks(self) -> None:
        """See `SimLoop`. A `finally` or `async with` of an application awaits while it ends, perhaps several times;
        `close` would leave its inner coroutines behind."""
        for task in self._tasks:
            coroutine = task.get_coro()
            for _ in range(_ENDED_AT_MOST):
                try:
                    coroutine.throw(ProcessEnded())
                except BaseException:
                    break
        super().close_tasks()


class SimulatedApplication:
    """See the module. Created with `StoryWorld.start`."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        timeline: StoryTimeline,
        name: str,
        main: Main,
        args: tuple[Any, ...],
        options: dict[str, Any],
        *,
        is_supervised: bool = True,
    ) -> None:
        self.name = name
        self.life = 0
        self.restarts_after_s = _RESTARTS_AFTER_S
        """Of the next restart; those after it take the usual time."""
        self.client_id = cluster.next_client_id()
        self.sockets = WatchedSockets(cluster.sockets, self.client_id)
        self.on_finished: Callable[[], None] | None = None
        """Called when its main coroutine has ended."""
        self.failure: BaseException | None = None
        """The error with which it ended, if it is not started again after one."""
        self.broken: BaseException | None = None
        """A failed assertion in it."""
        self._cluster = cluster
        self._world = cluster.world
        self._timeline = timeline
        self._main, self._args, self._options = main, args, options
        self._is_supervised = is_supervised
        self._loop: ApplicationLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_stopping = False
        self._has_returned = False
        # Without a base, loop times are exact: with one, a timer can come a rounding error too early for its deadline.
        self._clock = NodeClock(self._world.scheduler)

    def __repr__(self) -> str:
        return f"<SimulatedApplication {self.name}>"

    def __deepcopy__(self, memo: object) -> SimulatedApplication:
        return self

    @property
    def is_running(self) -> bool:
        return self._loop is not None and self._loop.state == RUNNING

    @property
    def has_finished(self) -> bool:
        """Whether its main coroutine returned by itself."""
        return self._has_returned

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life, unless it runs."""
        if self._loop is not None:
            return
        self.life += 1
        self._is_stopping = False
        clock = self._clock
        loop = self._loop = ApplicationLoop(self._world.scheduler, self.name)
        loop.handlers = {}
        loop.sockets = self.sockets
        loop.clock = clock  # type: ignore[attr-defined]
        loop.set_exception_handler(self._unhandled)
        rng = self._world.rng_of(self._world.seed, f"clients of {self.name}, life {self.life}")
        context = context_with(loop, lambda: clock.now_ms() / 1000, rng)
        loop.call_soon(self._begin, loop, context=context)
        if self.life > 1:
            self._note(f"starts again, life {self.life}")

    def _begin(self, loop: ApplicationLoop) -> None:
        args, options = self._args, self._options
        if self._is_supervised:
            args, options = copy.deepcopy((args, options))
        self._task = loop.create_task(_without_exit(self._main, args, options), name=self.name)
        self._task.add_done_callback(self._main_ended)

    def _main_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self._end()
        if self.on_finished is not None:
            self.on_finished()
        if not self._is_supervised:
            self.failure = error
        elif isinstance(error, AssertionError):
            self._note(f"fails an assertion: {_shown(error)}")
            self._break(error)
        elif self._is_stopping or task.cancelled():
            self._note("has stopped")
            self._start_later()
        elif error is not None:
            self._note(f"ends with {_shown(error)}")
            self._start_later()
        else:
            self._has_returned = True
            self._note("ends")

    def _end(self) -> None:
        loop, self._loop, self._task = self._loop, None, None
        if loop is not None:
            loop.report_unseen_errors()
            loop.kill()
            self._world.ended_loops.append(loop)
            self._world.network.process_ended(self.client_id)

    def _start_later(self) -> None:
        if self._is_supervised:
            self._world.loop.call_later(self.restarts_after_s, self.start)
            self.restarts_after_s = _RESTARTS_AFTER_S

    def kill(self) -> None:
        """End at once: no `finally` runs, what it had in memory is gone."""
        if self._loop is not None:
            self._end()
            self._start_later()

    def stop(self) -> None:
        """SIGTERM: its signal handler runs, or its main coroutine is cancelled; it is killed if it does not end."""
        loop, life = self._loop, self.life
        if loop is None or self._is_stopping:
            return
        self._is_stopping = True
        handler = loop.handlers.get(signal.SIGTERM) or loop.handlers.get(signal.SIGINT)
        loop.call_soon(handler if handler is not None else self._cancel)

        def insist() -> None:
            if self.life == life and self._loop is loop:
                self._note(f"did not stop within {_STOPS_WITHIN_S:.0f} s and is killed")
                self.kill()

        self._world.loop.call_later(_STOPS_WITHIN_S, insist)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """SIGSTOP."""
        if self._loop is not None:
            self._loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self._loop is not None:
            self._loop.resume()

    def jump_clock(self, by_ms: int) -> None:
        """The wall clock is set; the monotonic one continues."""
        self._clock.jump(by_ms)

    def close(self) -> None:
        """End without a restart."""
        self._is_supervised = False
        self._end()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that asyncio would only log."""
        error = context.get("exception")
        if isinstance(error, AssertionError | SimulationError):
            self._break(error)
        else:
            self._note(f"logs an unhandled error: {_shown(error) if error is not None else context.get('message')}")

    def _break(self, error: BaseException) -> None:
        """End the story."""
        self.broken = self.broken or error
        self._world.scheduler.fail(error)

    def _note(self, what: str) -> None:
        self._timeline.add(f"{self.name} {what}")


class ApplicationExit(Exception):
    """An application called sys.exit with an error."""


async def _without_exit(main: Main, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """SystemExit would end the simulation."""
    try:
        await main(*args, **options)
    except SystemExit as exited:
        if exited.code not in (None, 0):
            raise ApplicationExit(f"exit status {exited.code}") from None


def _shown(error: BaseException) -> str:
    text = " ".join(str(error).split())
    cut = f"{text[:_SHOWN_OF_AN_ERROR]} ..." if len(text) > _SHOWN_OF_AN_ERROR else text
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__
