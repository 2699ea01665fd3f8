"""The memory of cold reads, of all connections together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fenceline.node import load_budget
from fenceline.node.load_budget import Lease, LoadBudget

Story = Callable[[LoadBudget], Awaitable[None]]


def told(story: Story, limit_bytes: int = 100) -> None:
    async def run() -> None:
        await story(LoadBudget(limit_bytes))

    asyncio.run(run())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def waits(budget: LoadBudget, size_bytes: int) -> asyncio.Task[Lease]:
    task = asyncio.ensure_future(budget.acquire(size_bytes))
    await turns()
    assert not task.done()
    return task


def test_the_sum_is_bounded_and_who_came_first_is_served_first() -> None:
    async def story(budget: LoadBudget) -> None:
        first, second = await budget.acquire(60), await budget.acquire(40)
        large, small = await waits(budget, 90), await waits(budget, 1)
        assert budget.used_bytes == 100
        second.release()
        await turns()
        assert not small.done(), "a small one does not overtake for ever"
        first.release()
        assert (await large).size_bytes == 90
        assert (await small).size_bytes == 1
        assert budget.used_bytes == 91

    told(story)


def test_one_that_is_larger_than_all_gets_it_alone() -> None:
    async def story(budget: LoadBudget) -> None:
        huge = await budget.acquire(1000)
        other = await waits(budget, 1)
        huge.release()
        (await other).release()
        assert budget.used_bytes == 0

    told(story)


def test_nothing_is_given_back_twice() -> None:
    async def story(budget: LoadBudget) -> None:
        lease = await budget.acquire(70)
        lease.release()
        lease.release()
        assert budget.used_bytes == 0

    told(story)


@pytest.mark.parametrize("granted_first", [False, True])
def test_who_goes_away_holds_nobody_up(granted_first: bool) -> None:
    async def story(budget: LoadBudget) -> None:
        lease = await budget.acquire(100)
        gone, behind = await waits(budget, 100), await waits(budget, 50)
        if granted_first:
            lease.release()  # it is granted, and has not heard of it yet
        gone.cancel()
        if not granted_first:
            await turns()
            assert budget.waiting_count == 1
            lease.release()
        assert (await behind).size_bytes == 50
        assert budget.used_bytes == 50

    told(story)


def test_a_peer_that_does_not_read_loses_its_connection_when_others_wait() -> None:
    async def story(budget: LoadBudget) -> None:
        dropped: list[str] = []
        old, fresh = await budget.acquire(50), await budget.acquire(50)
        old.sending(lambda: dropped.append("old"))
        fresh.sending(lambda: dropped.append("fresh"))
        assert old.sending_since_s is not None
        old.sending_since_s -= load_budget.STALL_S
        budget._drop_stalled()
        assert not dropped, "nobody waits"
        waiting = await waits(budget, 10)
        budget._drop_stalled()
        assert dropped == ["old"]
        old.release()
        await waiting

    told(story)
