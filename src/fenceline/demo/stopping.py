"""Ctrl-C, SIGTERM and a closed terminal: one clean stop, at any point of the demo.

Owns the handlers of these signals while the demo runs. The first signal becomes a `KeyboardInterrupt`; later ones have
no effect, because the stop is in progress and bounded in time. Processes are started under `held()`, so that a signal
never falls between the start of a process and the assignment of its handle.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Use as a context manager, in the main thread (elsewhere it does nothing)."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_requested = False
        self._is_held = False

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            # Ignored signals stay ignored, as `nohup` expects.
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            self._before = {number: how for number, how in self._before.items() if how != signal.SIG_IGN}
            self.install()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, how in self._before.items():
            signal.signal(number, how)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals until the end of the block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_requested:
            raise KeyboardInterrupt

    def install(self) -> None:
        """Set the handlers; call it again after a library has replaced them."""
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_requested:
            return
        self._is_requested = True
        print("\nStopping ...", flush=True)
        if not self._is_held:
            raise KeyboardInterrupt
