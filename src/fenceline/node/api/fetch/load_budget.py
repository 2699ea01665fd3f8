"""Memory for records that fetches read from the disk, shared by all connections.

Owns the number of bytes in use and the queue for free ones. Never reads anything. First come, first served: a fetch
takes all the memory that it may need at once, so that two fetches cannot deadlock with half of it each. A fetch that
needs more than the limit gets it when no other lease is held.

A peer that does not read its response keeps its lease. While others wait, the connection of the oldest response that
has been in transit for `STALL_S` is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

STALL_S: Final = 30.0


class Lease:
    """A share of the budget. Releasing it twice has no further effect."""

    __slots__ = ("_budget", "drop", "sending_since_s", "size_bytes")

    def __init__(self, budget: LoadBudget, size_bytes: int) -> None:
        self._budget: LoadBudget | None = budget
        self.size_bytes = size_bytes
        self.sending_since_s: float | None = None
        self.drop: Callable[[], None] | None = None

    def sending(self, drop: Callable[[], None]) -> None:
        """The response is being sent; `drop` closes its connection."""
        self.sending_since_s = asyncio.get_running_loop().time()
        self.drop = drop

    def release(self) -> None:
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._on_released(self)


class LoadBudget:
    """A budget of `limit_bytes`. All methods run on the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._leases: dict[Lease, None] = {}
        self._waiting: deque[tuple[int, asyncio.Future[Lease]]] = deque()
        self._stall_check: asyncio.TimerHandle | None = None
        self.used_bytes = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def acquire(self, size_bytes: int) -> Lease:
        """A lease, as soon as enough memory is free. Cancel it to stop waiting."""
        if not self._waiting and self._fits(size_bytes):
            return self._grant(size_bytes)
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[Lease] = loop.create_future()
        place = (size_bytes, granted)
        self._waiting.append(place)
        self._watch()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                granted.result().release()
            else:
                self._waiting.remove(place)
                self._grant_waiting()
            raise

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.limit_bytes or not self._leases

    def _grant(self, size_bytes: int) -> Lease:
        lease = Lease(self, size_bytes)
        self._leases[lease] = None
        self.used_bytes += size_bytes
        return lease

    def _on_released(self, lease: Lease) -> None:
        del self._leases[lease]
        self.used_bytes -= lease.size_bytes
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            size_bytes, granted = waiting[0]
            if granted.cancelled() or not self._fits(size_bytes):
                return  # a cancelled waiter removes itself, and then grants to those after it
            granted.set_result(self._grant(size_bytes))
            waiting.popleft()

    def _watch(self) -> None:
        if self._stall_check is None and self._waiting:
            self._stall_check = asyncio.get_running_loop().call_later(STALL_S / 10, self._drop_stalled)

    def _drop_stalled(self) -> None:
        self._stall_check = None
        if self._waiting:
            now_s = asyncio.get_running_loop().time()
            sending = (each for each in self._leases if each.sending_since_s is not None)
            oldest = next(sending, None)
            if oldest is not None and oldest.drop is not None and now_s - (oldest.sending_since_s or 0) >= STALL_S:
                oldest.drop()
        self._watch()
