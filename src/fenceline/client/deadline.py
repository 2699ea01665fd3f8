"""The time that a call has, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
import math
import random


def backoff_ms(attempt: int, base_ms: int, max_ms: int) -> float:
    """Exponential, with a fifth of jitter so that clients do not march in step; attempt counts from 1."""
    return float(min(base_ms * 2 ** min(attempt - 1, 16), max_ms)) * random.uniform(0.8, 1.2)


class Deadline:
    """When a call's time is over. `trouble` keeps the last reason for a retry, for the final TimedOut.

    `longest_pause_ms`: between attempts, for a call whose time is short beside `retry.backoff.*`.
    """

    def __init__(self, timeout_ms: float, *, longest_pause_ms: float = math.inf) -> None:
        self.timeout_ms = timeout_ms
        self.longest_pause_ms = longest_pause_ms
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_ms / 1000
        self.trouble: BaseException | None = None
        self.attempt = 0

    @property
    def left_ms(self) -> float:
        return max(0.0, (self._end_s - self._loop.time()) * 1000)

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._end_s
