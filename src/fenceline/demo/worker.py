"""Threads of the demo that can be stopped and that keep their errors.

Owns their lifecycle. The wait for a stopped worker is bounded: it is a daemon thread, and its cluster stops soon after.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from fenceline.testing.waiting import NOT_YET

_END_WITHIN_S: Final = 10.0


class Stopped(Exception):
    """Raised in a worker that was asked to stop."""


class Worker(ABC):
    """Start it, poll `error`, and stop it."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stop_wanted = threading.Event()
        self.error: BaseException | None = None
        """The error that ended its work."""

    def _run(self) -> None:
        try:
            self.work()
        except Stopped:
            return
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    @property
    def should_stop(self) -> bool:
        return self._stop_wanted.is_set()

    @abstractmethod
    def work(self) -> None:
        """The work of the thread; calls `pause` wherever it can be stopped."""

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped as soon as a stop is requested."""
        if self._stop_wanted.wait(seconds):
            raise Stopped

    def stop(self) -> None:
        """Request a stop and wait for it, for a bounded time."""
        self._stop_wanted.set()
        self._thread.join(_END_WITHIN_S)


class RepeatingWorker(Worker):
    """Calls `action` repeatedly, with a pause before each call. An error ends it; with `retries`, errors that a cluster
    raises during a failover do not.
    """

    def __init__(self, name: str, action: Callable[[], object], every_s: float, *, retries: bool = False) -> None:
        super().__init__(name)
        self._action = action
        self._every_s = every_s
        self._failures: tuple[type[Exception], ...] = NOT_YET if retries else ()

    def work(self) -> None:
        while True:
            self.pause(self._every_s)
            with contextlib.suppress(*self._failures):
                self._action()
