"""A task that sleeps until a signal from any thread wakes it: the parts that finish receipts in the background.

Owns the start, the end and the wake-up. Never decides what there is to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fenceline.node.signal import Signal


class WokenTask:
    """`work` runs until `stop`; it waits for `wakeup`, and clears it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self.wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, signal: Signal[[]]) -> None:
        """Awake at first. The signal may come from any thread; after the loop is closed it has no effect."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.wakeup.set)

        signal.listen(wake)
        self._task = asyncio.ensure_future(self._work())
        self.wakeup.set()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
