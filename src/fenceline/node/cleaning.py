"""One compaction that is under way: who has to be alone with the log stops it and waits.

Owns the word to stop. What is stopped is `log_cleaner.py`'s.
"""

from __future__ import annotations

import asyncio


class Cleaning:
    """Belongs to the loop; `is_stopped` may be read in any thread."""

    __slots__ = ("_ended", "_stop", "is_stopped")

    def __init__(self) -> None:
        self.is_stopped = False
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()

    async def stop(self) -> None:
        """Returns once no thread is at the log any more."""
        self.ask_to_stop()
        await self._ended.wait()

    def ask_to_stop(self) -> None:
        self.is_stopped = True
        self._stop.set()

    def ended(self) -> None:
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until it is to stop."""
        if self.is_stopped or seconds <= 0:
            return
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
