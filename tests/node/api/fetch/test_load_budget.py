"""The memory for cold reads, shared by all connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fenceline.node.api.fetch import load_budget
from fenceline.node.api.fetch.load_budget import Lease, LoadBudget

Story = Callable[[LoadBudget], Awaitable[None]]


def run_story(story: Story, limit_bytes: int = 100) -> None:
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


def test_the_total_is_bounded_and_requests_are_granted_in_order() -> None:
    async def story(budget: LoadBudget) -> None:
        first, second = await budget.acquire(60), await budget.acquire(40)
        large, small = await waits(budget, 90), await waits(budget, 1)
        assert budget.used_bytes == 100
        second.release()
        await turns()
        assert not small.done(), "a small request does not overtake forever"
        first.release()
        assert (await large).size_bytes == 90
        assert (await small).size_bytes == 1
        assert budget.used_bytes == 91

    run_story(story)


def test_a_request_larger_than_the_budget_is_granted_alone() -> None:
    async def story(budget: LoadBudget) -> None:
        huge = await budget.acquire(1000)
        other = await waits(budget, 1)
        huge.release()
        (await other).release()
        assert budget.used_bytes == 0

    run_story(story)


def test_releasing_twice_returns_the_bytes_once() -> None:
    async def story(budget: LoadBudget) -> None:
        lease = await budget.acquire(70)
        lease.release()
        lease.release()
        assert budget.used_bytes == 0

    run_story(story)


@pytest.mark.parametrize("granted_first", [False, True])
def test_a_cancelled_request_does_not_block_others(granted_first: bool) -> None:
    async def story(budget: LoadBudget) -> None:
        lease = await budget.acquire(100)
        gone, behind = await waits(budget, 100), await waits(budget, 50)
        if granted_first:
            lease.release()  # granted, but its task has not run yet
        gone.cancel()
        if not granted_first:
            await turns()
            assert budget.waiting_count == 1
            lease.release()
        assert (await behind).size_bytes == 50
        assert budget.used_bytes == 50

    run_story(story)


def test_a_client_that_does_not_read_is_disconnected_when_others_wait() -> None:
    async def story(budget: LoadBudget) -> None:
        dropped: list[str] = []
        old, fresh = await budget.acquire(50), await budget.acquire(50)
        old.sending(lambda: dropped.append("old"))
        fresh.sending(lambda: dropped.append("fresh"))
        assert old.sending_since_s is not None
        old.sending_since_s -= load_budget.STALL_S
        budget._drop_stalled()
        assert not dropped, "no request waits"
        waiting = await waits(budget, 10)
        budget._drop_stalled()
        assert dropped == ["old"]
        old.release()
        await waiting

    run_story(story)
