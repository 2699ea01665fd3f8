"""Calls that become due together do not hold up the event loop."""

from __future__ import annotations

import asyncio
from functools import partial

from fenceline.node.sliced_calls import IN_A_TURN, SlicedCalls

MANY = 3 * IN_A_TURN + 7


def test_others_have_their_turn_between_slices_and_the_order_is_kept() -> None:
    async def run() -> tuple[list[int], list[int]]:
        loop = asyncio.get_running_loop()
        sliced, called, seen = SlicedCalls(loop), list[int](), list[int]()
        for number in range(MANY):
            sliced.add(partial(called.append, number))
        while len(called) < MANY:
            await asyncio.sleep(0)
            seen.append(len(called))
        return called, seen

    called, seen = asyncio.run(run())
    assert called == list(range(MANY))
    assert [each for each in seen if each] == [IN_A_TURN, 2 * IN_A_TURN, 3 * IN_A_TURN, MANY]


def test_a_call_that_fails_does_not_stop_the_others() -> None:
    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        sliced, called = SlicedCalls(loop), list[int]()
        sliced.add(lambda: called.append(1 // 0))
        sliced.add(partial(called.append, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return called

    assert asyncio.run(run()) == [2]


def test_calls_that_are_added_meanwhile_are_called() -> None:
    async def run() -> list[str]:
        sliced, called = SlicedCalls(asyncio.get_running_loop()), list[str]()

        def first() -> None:
            called.append("first")
            sliced.add(lambda: called.append("second"))

        sliced.add(first)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return called

    assert asyncio.run(run()) == ["first", "second"]
