"""The handle of one running compaction, used to stop it before exclusive access to the log.

Owns the stop signal. The compaction itself belongs to `log_cleaner.py`.
"""

from __future__ import annotations

import asyncio


class Cleaning:
    """Event loop only; `is_stopped` may be read in any thread."""

    __slots__ = ("_ended", "_stop", "is_stopped")

    def __init__(self) -> None:
        self.is_stopped = False
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()

    async def stop(self) -> None:
        """Stop the compaction; returns once no thread uses the log."""
        self.ask_to_stop()
        await self._ended.wait()

    def ask_to_stop(self) -> None:
        self.is_stopped = True
        self._stop.set()

    def ended(self) -> None:
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the stop request."""
        if self.is_stopped or seconds <= 0:
            return
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
