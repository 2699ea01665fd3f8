"""Calls that become due together, and may be many: some in each turn of the event loop.

Owns their order, which is that of `add`. One record can wake the consumers of a thousand connections: to answer them
all in one turn would hold up everything else for as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

IN_A_TURN: Final = 100
"""Answers to consumers take some 40 us each."""


class SlicedCalls:
    """Belongs to the event loop."""

    __slots__ = ("_calls", "_is_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_due = False

    def add(self, call: Callable[[], None]) -> None:
        """Call it in the next turn, or in a later one if others are waiting."""
        self._calls.append(call)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        calls = self._calls
        try:
            for _ in range(min(len(calls), IN_A_TURN)):
                calls.popleft()()
        finally:
            self._is_due = bool(calls)
            if calls:
                self._loop.call_soon(self._run)
