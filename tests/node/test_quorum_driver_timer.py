"""The timer of a quorum's driver, on a loop that returns a handle without a time, as uvloop does for timers that are
due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.node.quorum.test_driver import Node


def test_a_timer_that_is_due_when_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was suspended between reading the clock and setting the timer."""
    set_at: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()

        def call_at(at_s: float, callback: Callable[[], object]) -> asyncio.Handle:
            set_at.append(at_s)
            return loop.call_soon(callback)

        monkeypatch.setattr(loop, "call_at", call_at)
        node = Node()
        node.start()
        await node.work()
        for _ in range(2):
            node.driver.call(lambda quorum, now: [])
        assert node.errors == []
        node.driver.end()

    asyncio.run(play())
    assert set_at
