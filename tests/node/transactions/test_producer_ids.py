"""Producer ids out of blocks: in order, the next block before the current one is used up, and no hurry after an error.

Rules: `controller.md C41`, `transactions.md X29`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fenceline.controller.requests import AllocateProducerIds, ProducerIdBlock
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.transactions.producer_ids import ProducerIds
from fenceline.testing.simulation.loop import run

SIZE = 10


class Controller:
    """Allocates blocks of ten, 100 ms after it was asked."""

    def __init__(self) -> None:
        self.asked: list[AllocateProducerIds] = []
        self.next_block = 0
        self.is_down = False
        self.ids = ProducerIds(4, lambda: 77, self.submit)  # type: ignore[arg-type]

    async def submit(self, request: AllocateProducerIds) -> ProducerIdBlock:
        self.asked.append(request)
        await asyncio.sleep(0.1)
        if self.is_down:
            raise PeerError(ErrorCode.NOT_CONTROLLER)
        self.next_block += SIZE
        return ProducerIdBlock(self.next_block - SIZE, SIZE)


def run_story(story: Callable[[Controller], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        controller = Controller()
        await story(controller)
        controller.ids.close()

    run(whole())


def test_ids_come_in_order_and_the_next_block_before_the_last_id() -> None:
    async def story(controller: Controller) -> None:
        ids = controller.ids
        assert ids.at_hand() is None
        await ids.wait_until_at_hand()
        assert controller.asked == [AllocateProducerIds(4, 77)]
        assert [ids.at_hand() for _ in range(9)] == list(range(9))
        assert len(controller.asked) == 1
        assert ids.at_hand() == 9
        await asyncio.sleep(0.2)
        assert len(controller.asked) == 2, "asked when nine of ten were used"
        assert [ids.at_hand() for _ in range(3)] == [10, 11, 12]

    run_story(story)


def test_many_that_wait_ask_once() -> None:
    async def story(controller: Controller) -> None:
        found = await asyncio.gather(*(controller.ids.next_id() for _ in range(25)))
        assert sorted(found) == list(range(25))
        assert len(controller.asked) <= 4

    run_story(story)


def test_controller_that_rejects_is_asked_again_after_a_pause() -> None:
    async def story(controller: Controller) -> None:
        controller.is_down = True
        waiting = asyncio.ensure_future(controller.ids.next_id())
        with pytest.raises(PeerError):
            await waiting
        assert [controller.ids.at_hand() for _ in range(50)] == [None] * 50
        assert len(controller.asked) == 1, "not at once"
        await asyncio.sleep(0.1)
        controller.is_down = False
        assert await controller.ids.next_id() == 0
        assert len(controller.asked) == 2

    run_story(story)


def test_nothing_is_asked_after_the_end() -> None:
    async def story(controller: Controller) -> None:
        controller.ids.close()
        assert controller.ids.at_hand() is None
        await asyncio.sleep(1)
        assert controller.asked == []

    run_story(story)
