"""How fast records from the disk may leave while somebody else is in a hurry.

Owns the rate, and the order of the fetches that wait for their turn. Never reads, never sends, has no timer of its own.

A reader that is far behind asks for as much as it can get, and what it gets costs cores: here, in its own process, and
in the kernel between both. Where cores are few, a producer that waits for one record pays for it. So:

- Nobody in a hurry (no produce request, no waiting fetch that was woken, for `HURRY_S`): no limit.
- Else one rate for all such readers together. How long this thread waited for a core each time it had something to do
  says whether cores are short (Linux counts it): the rate is halved while that is over `SHORT_NS`, and grows slowly
  otherwise. It never falls below a floor, so that who is behind catches up.
- A system that does not count: the floor.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

HURRY_S: Final = 0.1
"""For how long somebody is taken to be in a hurry after a sign of it."""
LOOK_S: Final = 0.05
"""How often the rate is looked at while somebody is."""
SHORT_NS: Final = 10_000
"""Cores are short when a thread waits for one longer than this, on average."""
GROWTH: Final = 1.1
LARGEST_RATE: Final = 8e9
ANSWER_BYTES: Final = 1 << 20
"""What one answer holds of records from the disk while there is a limit: then others have their turn."""
_BURST_S: Final = 0.002


class CoreWaits(NamedTuple):
    """What this thread waited for cores since it began, and how often it was given one."""

    waited_ns: int
    turns: int


def core_waits() -> CoreWaits | None:
    """Of the calling thread; None where the system does not count."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as counts:
            _, waited_ns, turns = counts.read(100).split()
    except (OSError, ValueError):
        return None
    return CoreWaits(int(waited_ns), int(turns))


class LoadPace:
    """Belongs to the loop. `latency_sensitive_signals`: a count that grows with every sign of somebody in a hurry."""

    def __init__(
        self,
        floor_byte_rate: int,
        latency_sensitive_signals: Callable[[], int],
        *,
        core_waits: Callable[[], CoreWaits | None] = core_waits,
    ) -> None:
        """`floor_byte_rate`: bytes a second, 0 never limits anybody."""
        self._floor = float(floor_byte_rate) or math.inf
        self._hurries = latency_sensitive_signals
        self._core_waits = core_waits
        self._hurries_seen = latency_sensitive_signals()
        self._hurry_until_s = 0.0
        self._rate = math.inf
        self._waits_seen: CoreWaits | None = None
        self._look_at_s = 0.0
        self._free_at_s = 0.0
        self._turns = asyncio.Lock()
        self.held_s = 0.0
        """Seconds that fetches were held back, all together."""

    def has_latency_sensitive_clients(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        latency_sensitive_signals = self._hurries()
        if latency_sensitive_signals != self._hurries_seen:
            self._hurries_seen = latency_sensitive_signals
            self._hurry_until_s = now_s + HURRY_S
        return now_s < self._hurry_until_s

    def rate(self) -> float:
        """Bytes a second that may leave now; infinite without a limit."""
        now_s = asyncio.get_running_loop().time()
        if not self.has_latency_sensitive_clients():
            self._rate = math.inf
        elif self._rate == math.inf:
            self._rate = self._floor
            self._look_again(now_s)
        elif now_s >= self._look_at_s:
            self._adapt(now_s)
        return self._rate

    async def turn(self, size_bytes: int) -> None:
        """Wait until this many bytes may leave, first come, first served. Cancel it to stop waiting."""
        async with self._turns:
            loop = asyncio.get_running_loop()
            since_s = loop.time()
            # The rate may change while one waits, or end; what was taken before is forgiven then.
            while (rate := self.rate()) < math.inf and (wait_s := self._free_at_s - loop.time()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(wait_s, LOOK_S))
            now_s = loop.time()
            self.held_s += now_s - since_s
            # What one takes is waited for by who comes next.
            self._free_at_s = now_s if rate == math.inf else max(self._free_at_s, now_s - _BURST_S) + size_bytes / rate

    def _look_again(self, now_s: float) -> None:
        self._waits_seen = self._core_waits()
        self._look_at_s = now_s + LOOK_S

    def _adapt(self, now_s: float) -> None:
        before = self._waits_seen
        self._look_again(now_s)
        now = self._waits_seen
        if before is None or now is None or now.waited_ns - before.waited_ns > SHORT_NS * (now.turns - before.turns):
            self._rate = max(self._floor, self._rate / 2)
        else:
            self._rate = min(LARGEST_RATE, self._rate * GROWTH)
