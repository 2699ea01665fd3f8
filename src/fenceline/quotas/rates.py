"""The rate of what was recorded in a sliding window, and a bucket of tokens.

Owns the arithmetic of Kafka's `Rate`, `SampledStat` and `TokenBucket`, so that a client is throttled for as long as by
Apache Kafka. Never knows what is counted.

Rules: security.md A58, A61.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Windows(NamedTuple):
    """`samples` (`quota.window.num`) of `sample_ms` each (`quota.window.size.seconds`)."""

    samples: int = 11
    sample_ms: int = 1_000


class WindowedRate:
    """What was recorded, per second of the window: at least all full samples but one count as its length."""

    __slots__ = ("_current", "_last_ms", "_starts_ms", "_sums", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._starts_ms: list[int] = []
        self._sums: list[float] = []
        self._last_ms: list[int] = []
        """When each sample was last added to."""
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        windows = self._windows
        if not self._starts_ms:
            self._begin(now_ms)
        if now_ms - self._starts_ms[self._current] >= windows.sample_ms:
            # One more than the window has: the oldest is partly outside of it.
            self._current = (self._current + 1) % (windows.samples + 1)
            if self._current >= len(self._starts_ms):
                self._begin(now_ms)
            else:
                self._reset(self._current, now_ms)
        self._sums[self._current] += value
        self._last_ms[self._current] = now_ms

    def _begin(self, start_ms: int) -> None:
        self._starts_ms.append(start_ms)
        self._sums.append(0.0)
        self._last_ms.append(start_ms)

    def _reset(self, sample: int, start_ms: int) -> None:
        self._starts_ms[sample] = self._last_ms[sample] = start_ms
        self._sums[sample] = 0.0

    def per_second(self, now_ms: int) -> float:
        total = self.total(now_ms)
        return total * 1_000 / self.window_ms(now_ms)

    def total(self, now_ms: int) -> float:
        """In the window."""
        windows = self._windows
        longest_ms = windows.samples * windows.sample_ms
        for sample, last_ms in enumerate(self._last_ms):
            if now_ms - last_ms >= longest_ms:
                self._reset(sample, now_ms)
        return sum(self._sums)

    def window_ms(self, now_ms: int) -> int:
        """The length of the window, after `total`."""
        windows = self._windows
        elapsed_ms = now_ms - min(self._starts_ms, default=now_ms)
        missing = windows.samples - 1 - elapsed_ms // windows.sample_ms
        if missing > 0:
            elapsed_ms += missing * windows.sample_ms
        return max(elapsed_ms, 1)

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """How long until the rate is down to the quota if nothing is recorded meanwhile; 0: it is not above."""
        rate = self.per_second(now_ms)
        return _throttle_time_ms((rate - quota) / quota * self.window_ms(now_ms)) if rate > quota else 0

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing that was recorded still counts."""
        longest_ms = self._windows.samples * self._windows.sample_ms
        return all(now_ms - last_ms >= longest_ms for last_ms in self._last_ms)


class TokenBucket:
    """Tokens that come back with time, up to those of a whole window. It may be overdrawn once, by as much as a request
    asks for."""

    __slots__ = ("_quota", "_since_ms", "_windows", "tokens")

    def __init__(self, windows: Windows, quota: float, now_ms: int) -> None:
        self._windows = windows
        self._quota = quota
        self._since_ms = now_ms
        self.tokens = self._most(quota)

    def _most(self, quota: float) -> float:
        return quota * self._windows.samples * self._windows.sample_ms / 1_000

    def refill(self, quota: float, now_ms: int) -> None:
        """Tokens of the time since the last call; `quota` has been in force meanwhile."""
        self._quota = quota
        self.tokens = min(self._most(quota), self.tokens + quota * (now_ms - self._since_ms) / 1_000)
        self._since_ms = now_ms

    def throttle_ms(self, quota: float) -> int:
        """How long until it is no longer overdrawn; after `refill`."""
        return _throttle_time_ms(-self.tokens / quota * 1_000) if self.tokens < 0 else 0

    def is_idle(self, now_ms: int) -> bool:
        """Whether it is full, like a new one."""
        return self.tokens + self._quota * (now_ms - self._since_ms) / 1_000 >= self._most(self._quota)


_HALF: Final = 0.5
LONGEST_MS: Final = 2**31 - 1
"""The longest throttle time that an answer can name: 24 days. Kafka's overflows."""


def _throttle_time_ms(value: float) -> int:
    """Rounded as Java rounds positive numbers."""
    return int(min(value, LONGEST_MS) + _HALF)
