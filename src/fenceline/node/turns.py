"""How long requests are served before the event loop looks at its timers and at other work again.

Owns two queues of calls: those that wait for the next turn of the loop, and those that are not urgent. Must never
change the order in a queue.

The loop serves every socket that has data, a thousand or more, before it looks at a timer: without a limit, heartbeats,
elections and other clients would wait for all of these requests. One record can wake the consumers of a thousand
connections, which is the same; and so are thousands of clients that end together. When a turn began cannot be asked
for, so a turn that may be long is marked, by a call that the loop makes at the beginning of the next one. Short turns,
which are nearly all, cost one look at the clock for each request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

LIMIT_MS: Final = 4
"""A turn has at most two or three times as much, and one request more: it is marked when it may have lasted for so
long, and the calls that wait have as much for themselves."""
DEFERRED_IN_A_TURN: Final = 10
"""A producer that writes every 2 ms must keep up while thousands of calls are made: they take 0.5 ms of a turn."""


class Turns:
    """Belongs to the event loop."""

    __slots__ = ("_calls", "_deferred", "_is_deferring", "_is_marked", "_loop", "_now_ms", "_until_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int]) -> None:
        """`now_ms`: a monotonic clock, in milliseconds."""
        self._loop = loop
        self._now_ms = now_ms
        self._calls: deque[Callable[[], None]] = deque()
        self._until_ms = 0
        self._is_marked = False
        """Whether `_begin` will be called, so that this turn has not ended since."""
        self._deferred: deque[Callable[[], None]] = deque()
        self._is_deferring = False
        """Whether `_make_deferred` will be called."""

    def is_over(self) -> bool:
        """Whether the next request should be left to a later turn (`postpone`)."""
        now_ms = self._now_ms()
        if now_ms < self._until_ms:
            return False
        if self._is_marked:
            return True
        self._mark(now_ms + LIMIT_MS)
        return False

    def postpone(self, call: Callable[[], None]) -> None:
        """Call it in the next turn, or in a later one if many wait."""
        self._calls.append(call)
        if not self._is_marked:
            self._mark(self._now_ms() + LIMIT_MS)

    def defer(self, call: Callable[[], None]) -> None:
        """Call it in the next turn or later, a few in each turn: for work that is not urgent, such as closing a
        connection."""
        self._deferred.append(call)
        if not self._is_deferring:
            self._make_deferred_soon()

    def _make_deferred_soon(self) -> None:
        self._is_deferring = bool(self._deferred)
        if self._is_deferring:
            self._loop.call_soon(self._make_deferred)

    def _make_deferred(self) -> None:
        calls = self._deferred
        try:
            for _ in range(min(len(calls), DEFERRED_IN_A_TURN)):
                calls.popleft()()
        finally:
            self._make_deferred_soon()

    def _mark(self, until_ms: int) -> None:
        self._until_ms = until_ms
        self._is_marked = True
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_marked = False
        now_ms = self._now_ms
        until_ms = self._until_ms = now_ms() + LIMIT_MS
        calls = self._calls
        try:
            for _ in range(len(calls)):
                calls.popleft()()
                if now_ms() >= until_ms:
                    break
        finally:
            # If the calls took all the time, what the sockets have is left to the next turn.
            if (calls or now_ms() >= until_ms) and not self._is_marked:
                self._mark(until_ms)
