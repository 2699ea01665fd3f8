"""What the demo does beside its main thread: threads that are stopped, and whose errors are not lost.

Owns their life. A worker that is still busy when it is to stop is not waited for long: it is a daemon, and the cluster
that it talks to ends soon after.
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
    """Start it, look at `error` now and then, and stop it."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stop_wanted = threading.Event()
        self.error: BaseException | None = None
        """What has ended its work."""

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
    def is_to_stop(self) -> bool:
        return self._stop_wanted.is_set()

    @abstractmethod
    def work(self) -> None:
        """All that it does; calls `pause` where it may be stopped."""

    def pause(self, seconds: float) -> None:
        """Raises Stopped as soon as it is to stop."""
        if self._stop_wanted.wait(seconds):
            raise Stopped

    def stop(self) -> None:
        """Have it stop, and wait a while for it."""
        self._stop_wanted.set()
        self._thread.join(_END_WITHIN_S)


class Repeated(Worker):
    """Calls `look` again and again, after a pause. A look that fails ends it, or with `patient` is made again where the
    cluster may have failed it.
    """

    def __init__(self, name: str, look: Callable[[], object], every_s: float, *, patient: bool = False) -> None:
        super().__init__(name)
        self._look = look
        self._every_s = every_s
        self._failures: tuple[type[Exception], ...] = NOT_YET if patient else ()

    def work(self) -> None:
        while True:
            self.pause(self._every_s)
            with contextlib.suppress(*self._failures):
                self._look()
