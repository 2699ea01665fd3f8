"""Requests and calls that become due together do not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from fenceline.node.turns import DEFERRED_IN_A_TURN, LIMIT_MS, Turns


class Scene:
    """Calls that take one millisecond each."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.called: list[int] = []
        self.turns = Turns(asyncio.get_running_loop(), lambda: self.now_ms)

    def work(self, number: int) -> None:
        self.called.append(number)
        self.now_ms += 1


def in_scene(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(Scene())

    asyncio.run(run())


def test_calls_have_their_turn_in_order_and_others_in_between() -> None:
    async def story(scene: Scene) -> None:
        for number in range(2 * LIMIT_MS + 1):
            scene.turns.postpone(partial(scene.work, number))
        seen = []
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(len(scene.called))
        assert scene.called == list(range(2 * LIMIT_MS + 1))
        assert seen == [LIMIT_MS, 2 * LIMIT_MS, 2 * LIMIT_MS + 1]

    in_scene(story)


def test_a_turn_is_over_at_its_limit_after_it_was_marked() -> None:
    async def story(scene: Scene) -> None:
        turns = scene.turns
        assert not turns.is_over(), "it may just have begun, and is marked"
        scene.now_ms += LIMIT_MS - 1
        assert not turns.is_over()
        scene.now_ms += 1
        assert turns.is_over()
        assert turns.is_over()
        await asyncio.sleep(0)
        assert not turns.is_over(), "the next one"

    in_scene(story)


def test_turns_that_are_not_over_do_not_add_up() -> None:
    async def story(scene: Scene) -> None:
        for _ in range(10 * LIMIT_MS):
            assert not scene.turns.is_over()
            scene.now_ms += 1
            await asyncio.sleep(0)

    in_scene(story)


def test_requests_of_a_turn_that_calls_have_used_up_wait() -> None:
    async def story(scene: Scene) -> None:
        for number in range(LIMIT_MS + 1):
            scene.turns.postpone(partial(scene.work, number))
        await asyncio.sleep(0)
        assert len(scene.called) == LIMIT_MS
        assert scene.turns.is_over()

    in_scene(story)


def test_requests_wait_if_the_last_call_has_used_up_the_turn() -> None:
    """Two large requests, one that had waited and one of another socket, were one turn."""

    async def story(scene: Scene) -> None:
        for number in range(LIMIT_MS):
            scene.turns.postpone(partial(scene.work, number))
        await asyncio.sleep(0)
        assert len(scene.called) == LIMIT_MS
        assert scene.turns.is_over()
        await asyncio.sleep(0)
        assert not scene.turns.is_over()

    in_scene(story)


def test_a_call_that_fails_does_not_stop_the_others() -> None:
    async def story(scene: Scene) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        scene.turns.postpone(lambda: scene.called.append(1 // 0))
        scene.turns.postpone(partial(scene.work, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert scene.called == [2]

    in_scene(story)


def test_a_call_that_postpones_itself_does_not_keep_the_turn() -> None:
    async def story(scene: Scene) -> None:
        def again() -> None:
            scene.called.append(0)
            if len(scene.called) < 3:
                scene.turns.postpone(again)

        scene.turns.postpone(again)
        for expected in (1, 2, 3):
            await asyncio.sleep(0)
            assert len(scene.called) == expected

    in_scene(story)


def test_of_what_is_deferred_each_turn_has_a_few() -> None:
    async def story(scene: Scene) -> None:
        count = 2 * DEFERRED_IN_A_TURN + 1
        for number in range(count):
            scene.turns.defer(partial(scene.work, number))
        seen = []
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(len(scene.called))
        assert seen == [DEFERRED_IN_A_TURN, 2 * DEFERRED_IN_A_TURN, count]
        scene.turns.defer(partial(scene.work, count))
        await asyncio.sleep(0)
        assert scene.called == list(range(count + 1))

    in_scene(story)


def test_a_deferred_call_that_fails_does_not_stop_the_others() -> None:
    async def story(scene: Scene) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        scene.turns.defer(lambda: scene.called.append(1 // 0))
        scene.turns.defer(partial(scene.work, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert scene.called == [2]

    in_scene(story)
