"""Limits the rate of records from the disk while latency-sensitive requests are served.

Owns the rate and the order of the fetches that wait for their turn. Never reads or sends; has no timer of its own.

A consumer that is far behind fetches as fast as it can, and that costs CPU time: in this process, in the consumer, and
in the kernel between them. On a machine with few cores, producers that wait for a single record pay for it. So:

- No limit while there has been no urgent request (a produce request, a waiting fetch that was woken) for `URGENT_S`.
- Otherwise one rate for all such consumers together. Linux counts how long this thread waited for a core each time it
  was runnable: the rate is halved while the average exceeds `SHORT_NS`, and grows slowly otherwise. It never falls
  below a floor, so that consumers that are behind catch up.
- The floor, on a system without these counters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

URGENT_S: Final = 0.1
"""For how long requests count as urgent after the last urgent request."""
ADAPT_INTERVAL_S: Final = 0.05
"""How often the rate is adapted while there are urgent requests."""
SHORT_NS: Final = 10_000
"""Cores are short when the thread waits longer than this for one, on average."""
GROWTH: Final = 1.1
LARGEST_RATE: Final = 8e9
ANSWER_BYTES: Final = 4 << 20
"""Maximum bytes of records from the disk in one response while the rate is limited: then others have their turn."""
_BURST_S: Final = 0.002


class CoreWaits(NamedTuple):
    """How long this thread has waited for cores since it started, and how often it was scheduled."""

    waited_ns: int
    turns: int


def core_waits() -> CoreWaits | None:
    """Of the calling thread; None if the system has no such counters."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as counts:
            _, waited_ns, turns = counts.read(100).split()
    except (OSError, ValueError):
        return None
    return CoreWaits(int(waited_ns), int(turns))


class LoadPace:
    """`urgent_requests`: a counter that grows with every urgent request. All methods run on the event loop."""

    def __init__(
        self,
        floor_byte_rate: int,
        urgent_requests: Callable[[], int],
        *,
        core_waits: Callable[[], CoreWaits | None] = core_waits,
    ) -> None:
        """`floor_byte_rate`: bytes per second; 0 disables the limit."""
        self._floor = float(floor_byte_rate) or math.inf
        self._urgent_requests = urgent_requests
        self._core_waits = core_waits
        self._urgent_requests_seen = urgent_requests()
        self._urgent_until_s = 0.0
        self._rate = math.inf
        self._waits_seen: CoreWaits | None = None
        self._adapt_at_s = 0.0
        self._free_at_s = 0.0
        self._turns = asyncio.Lock()
        self.held_s = 0.0
        """Total seconds that fetches were delayed."""

    def has_urgent_requests(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        urgent_requests = self._urgent_requests()
        if urgent_requests != self._urgent_requests_seen:
            self._urgent_requests_seen = urgent_requests
            self._urgent_until_s = now_s + URGENT_S
        return now_s < self._urgent_until_s

    def rate(self) -> float:
        """Bytes per second that may be sent now; infinite without a limit."""
        now_s = asyncio.get_running_loop().time()
        if not self.has_urgent_requests():
            self._rate = math.inf
        elif self._rate == math.inf:
            self._rate = self._floor
            self._schedule_adapt(now_s)
        elif now_s >= self._adapt_at_s:
            self._adapt(now_s)
        return self._rate

    async def turn(self, size_bytes: int) -> None:
        """Wait until this many bytes may be sent, first come, first served. Cancel it to stop waiting."""
        async with self._turns:
            loop = asyncio.get_running_loop()
            since_s = loop.time()
            # The rate may change or the limit may end during the wait; then the debt of earlier fetches is dropped.
            while (rate := self.rate()) < math.inf and (wait_s := self._free_at_s - loop.time()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(wait_s, ADAPT_INTERVAL_S))
            now_s = loop.time()
            self.held_s += now_s - since_s
            # The next fetch waits for the bytes of this one.
            self._free_at_s = now_s if rate == math.inf else max(self._free_at_s, now_s - _BURST_S) + size_bytes / rate

    def _schedule_adapt(self, now_s: float) -> None:
        self._waits_seen = self._core_waits()
        self._adapt_at_s = now_s + ADAPT_INTERVAL_S

    def _adapt(self, now_s: float) -> None:
        before = self._waits_seen
        self._schedule_adapt(now_s)
        now = self._waits_seen
        if before is None or now is None or now.waited_ns - before.waited_ns > SHORT_NS * (now.turns - before.turns):
            self._rate = max(self._floor, self._rate / 2)
        else:
            self._rate = min(LARGEST_RATE, self._rate * GROWTH)
