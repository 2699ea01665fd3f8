"""The timeout of a call, the backoff between its attempts, and a wait that ends."""

from __future__ import annotations

import asyncio
import contextlib
import math

from fenceline.client.core.surroundings import surroundings


def backoff_ms(attempt: int, base_ms: int, max_ms: int) -> float:
    """Exponential backoff with 20 % jitter, so that clients do not retry at the same time. `attempt` starts at 1."""
    return float(min(base_ms * 2 ** min(attempt - 1, 16), max_ms)) * surroundings().rng.uniform(0.8, 1.2)


async def wait_at_most(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until `event` is set, at most `timeout_s` (None: without a limit)."""
    if timeout_s is None or event.is_set():
        await event.wait()
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


class Deadline:
    """When a call times out. `last_error` is the error of the last attempt, for the message of the final TimedOut.

    `longest_pause_ms`: the longest pause between attempts, for a call with a shorter timeout than `retry.backoff.*`.
    """

    def __init__(self, timeout_ms: float, *, longest_pause_ms: float = math.inf) -> None:
        self.timeout_ms = timeout_ms
        self.longest_pause_ms = longest_pause_ms
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_ms / 1000
        self.last_error: BaseException | None = None
        self.attempt = 0

    @property
    def left_ms(self) -> float:
        return max(0.0, (self._end_s - self._loop.time()) * 1000)

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._end_s
