"""Disk reads give way to urgent requests, but never starve."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from fenceline.node.api.fetch.load_pace import ADAPT_INTERVAL_S, SHORT_NS, URGENT_S, CoreWaits, LoadPace, core_waits
from fenceline.testing.simulation.loop import run

FLOOR = 1_000_000
ANSWER = 100_000


class _Node:
    """What the pace observes: urgent requests, and how the system counts waits for a core."""

    def __init__(self) -> None:
        self.urgent_requests = 0
        self.is_busy = False
        self.wait_ns: int | None = 0
        self._waited_ns = self._turns = 0
        self.pace = LoadPace(FLOOR, lambda: self.urgent_requests, core_waits=self._core_waits)

    def _core_waits(self) -> CoreWaits | None:
        if self.wait_ns is None:
            return None
        self._turns += 100
        self._waited_ns += 100 * self.wait_ns
        return CoreWaits(self._waited_ns, self._turns)

    async def serve(self) -> None:
        """Producers, while `is_busy`."""
        self.is_busy = True
        while self.is_busy:
            self.urgent_requests += 1
            await asyncio.sleep(URGENT_S / 3)

    async def byte_rate_of(self, answers: int) -> float:
        began_s = asyncio.get_running_loop().time()
        for _ in range(answers):
            await self.pace.turn(ANSWER)
        return answers * ANSWER / (asyncio.get_running_loop().time() - began_s)


def run_story(story: Callable[[_Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story(_Node())

    run(whole())


def test_reads_are_not_limited_without_urgent_requests() -> None:
    async def story(node: _Node) -> None:
        began_s = asyncio.get_running_loop().time()
        for _ in range(1000):
            await node.pace.turn(ANSWER)
        assert asyncio.get_running_loop().time() == began_s
        assert node.pace.rate() == math.inf
        assert node.pace.held_s == 0

    run_story(story)


@pytest.mark.parametrize("wait_ns", [SHORT_NS + 1, None], ids=["cores are short", "waits are not counted"])
def test_reads_get_the_floor_rate_beside_urgent_requests(wait_ns: int | None) -> None:
    """No more, and never less."""

    async def story(node: _Node) -> None:
        node.wait_ns = wait_ns
        serving = asyncio.ensure_future(node.serve())
        await asyncio.sleep(0)
        assert await node.byte_rate_of(100) == pytest.approx(FLOOR, rel=0.05)
        assert node.pace.rate() == FLOOR
        assert node.pace.held_s == pytest.approx(100 * ANSWER / FLOOR, rel=0.05)
        node.is_busy = False
        await serving

    run_story(story)


def test_all_readers_share_one_rate_in_order() -> None:
    async def story(node: _Node) -> None:
        node.wait_ns = None
        serving = asyncio.ensure_future(node.serve())
        await asyncio.sleep(0)
        order: list[int] = []

        async def read(number: int) -> None:
            await node.pace.turn(ANSWER)
            order.append(number)

        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(read(number) for number in range(50)))
        assert order == list(range(50))
        assert 50 * ANSWER / (asyncio.get_running_loop().time() - began_s) == pytest.approx(FLOOR, rel=0.05)
        node.is_busy = False
        await serving

    run_story(story)


def test_the_rate_grows_while_cores_are_free() -> None:
    async def story(node: _Node) -> None:
        serving = asyncio.ensure_future(node.serve())
        await asyncio.sleep(0)
        slow = await node.byte_rate_of(10)
        await node.byte_rate_of(200)
        assert await node.byte_rate_of(200) > 10 * slow
        node.wait_ns = 2 * SHORT_NS
        before = node.pace.rate()
        await asyncio.sleep(ADAPT_INTERVAL_S)
        assert node.pace.rate() == before / 2
        for _ in range(20):
            await asyncio.sleep(ADAPT_INTERVAL_S)
            node.pace.rate()
        assert node.pace.rate() == FLOOR
        node.is_busy = False
        await serving

    run_story(story)


def test_the_limit_ends_with_the_urgent_requests_also_for_waiting_readers() -> None:
    async def story(node: _Node) -> None:
        node.wait_ns = None
        node.urgent_requests += 1
        await node.pace.turn(60 * FLOOR)
        began_s = asyncio.get_running_loop().time()
        await node.pace.turn(ANSWER)
        assert asyncio.get_running_loop().time() - began_s <= URGENT_S + ADAPT_INTERVAL_S
        serving = asyncio.ensure_future(node.serve())
        await asyncio.sleep(0)
        assert node.pace.rate() == FLOOR, "the next urgent period starts at the floor"
        assert await node.byte_rate_of(100) == pytest.approx(FLOOR, rel=0.05), "the debt of the last period is dropped"
        node.is_busy = False
        await serving

    run_story(story)


def test_a_cancelled_reader_does_not_block_others() -> None:
    async def story(node: _Node) -> None:
        node.wait_ns = None
        serving = asyncio.ensure_future(node.serve())
        await asyncio.sleep(0)
        await node.pace.turn(ANSWER)
        gone, behind = (asyncio.ensure_future(node.pace.turn(ANSWER)) for _ in range(2))
        await asyncio.sleep(ANSWER / FLOOR / 2)
        gone.cancel()
        began_s = asyncio.get_running_loop().time()
        await behind
        assert asyncio.get_running_loop().time() - began_s <= ANSWER / FLOOR
        assert gone.cancelled()
        node.is_busy = False
        await serving

    run_story(story)


def test_a_floor_of_zero_disables_the_limit() -> None:
    async def story(node: _Node) -> None:
        pace = LoadPace(0, lambda: node.urgent_requests)
        node.urgent_requests += 1
        assert pace.rate() == math.inf
        assert pace.has_urgent_requests(), "urgency is still reported"
        await asyncio.sleep(URGENT_S)
        assert not pace.has_urgent_requests()

    run_story(story)


def test_linux_reports_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = core_waits()
    assert counted is None or counted.turns >= 0
    monkeypatch.setattr("builtins.open", _refused)
    assert core_waits() is None


def _refused(*_: object, **__: object) -> None:
    raise FileNotFoundError
