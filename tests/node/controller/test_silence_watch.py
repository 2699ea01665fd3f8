"""Probes of brokers that their followers miss (`node.controller.silence_watch`), on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import FenceSilentBroker, SilentBroker
from fenceline.controller.silence import SilenceReports
from fenceline.metadata.image import BrokerImage
from fenceline.node.controller.silence_watch import SilenceWatch
from fenceline.testing.simulation.loop import SimLoop, run
from fenceline.testing.simulation.scheduler import Scheduler

EPOCH = 5
LEADER = SilentBroker(1, EPOCH)
SILENCE_S = 0.3


def broker(broker_id: int) -> BrokerImage:
    return BrokerImage(broker_id, EPOCH, UUID(int=broker_id), (), {}, None, False, False, ())


class Scene:
    """An active controller on node 9. Broker 1 leads, 2 and 3 follow it in sync."""

    def __init__(self, *, own_id: int = 9) -> None:
        self.node_id, self.own_broker_epoch = own_id, EPOCH
        self.reports = SilenceReports(9_000)
        brokers = {each: broker(each) for each in (1, 2, 3, own_id)}
        self.state: Any = SimpleNamespace(
            image=SimpleNamespace(brokers=brokers),
            silence=self.reports,
            index=SimpleNamespace(followers_of=lambda broker_id: iter((2, 3) if broker_id == 1 else ())),
        )
        self.fenced: list[tuple[float, FenceSilentBroker]] = []
        self.silent_for_s = 0.0
        self.probes = 0
        self.answer: Callable[[], Awaitable[bool]] = asyncio.Event().wait  # type: ignore[assignment]
        self.watch = SilenceWatch(
            self,  # type: ignore[arg-type]
            self.state,
            SimpleNamespace(monotonic_ms=self.now_ms),
            silence_ms=round(1000 * SILENCE_S),
            answers=self._ask,
            silent_for_s=lambda node_id: self.silent_for_s,
        )

    @staticmethod
    def now_ms() -> int:
        return round(1000 * asyncio.get_running_loop().time())

    async def _ask(self, known: BrokerImage) -> bool:
        self.probes += 1
        return await self.answer()

    def submit(self, request: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        self.fenced.append((round(loop.time(), 3), request))
        self.reports.fenced(LEADER, self.now_ms())
        answer: asyncio.Future[Any] = loop.create_future()
        answer.set_result(None)
        return answer

    def report(self, *followers: int) -> None:
        for each in followers:
            self.reports.report(each, (LEADER,), self.now_ms())
        self.watch.check()


def play(story: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        scene = Scene(**options)
        await story(scene)
        scene.watch.end()

    run(whole())


def test_broker_that_does_not_answer_is_fenced() -> None:
    """After this controller has waited for it itself."""

    async def story(scene: Scene) -> None:
        scene.report(2)
        await asyncio.sleep(0.1)
        assert scene.probes == 0, "one of two followers is no majority"
        scene.report(3)
        await asyncio.sleep(5)
        assert scene.fenced == [(0.1 + SILENCE_S, FenceSilentBroker(1, EPOCH, 100))]

    play(story)


@pytest.mark.parametrize("after_s", [0.0, SILENCE_S - 0.01])
def test_any_answer_shows_that_the_broker_lives(after_s: float) -> None:
    """Only its followers cannot reach it, or it is slow: it keeps its session."""

    async def story(scene: Scene) -> None:
        async def answer() -> bool:
            await asyncio.sleep(after_s)
            return True

        scene.answer = answer
        scene.report(2, 3)
        await asyncio.sleep(1)
        assert scene.probes >= 2, "it is asked again while its followers miss it"
        assert scene.fenced == []

    play(story)


def test_host_that_cannot_be_reached_is_asked_again_before_it_is_fenced() -> None:
    async def story(scene: Scene) -> None:
        async def answer() -> bool:
            return False

        scene.answer = answer
        scene.report(2, 3)
        await asyncio.sleep(1)
        ((at_s, _),) = scene.fenced
        assert at_s >= SILENCE_S
        assert scene.probes > 2

    play(story)


def test_time_that_the_quorum_has_waited_counts() -> None:
    """The new leader has missed the old one since before its term."""

    async def story(scene: Scene) -> None:
        scene.silent_for_s = 0.29
        scene.report(2, 3)
        await asyncio.sleep(1)
        ((at_s, _),) = scene.fenced
        assert at_s == pytest.approx(0.05)

    play(story)


def test_controller_that_did_not_run_waits_again() -> None:
    """It was paused while it waited; the answer is in its socket."""
    scheduler = Scheduler()
    process, outside = SimLoop(scheduler, "controller"), SimLoop(scheduler, "outside")
    scenes: list[Scene] = []

    async def story() -> None:
        scene = Scene()
        scenes.append(scene)

        async def answer() -> bool:
            await asyncio.sleep(5.0)
            return True

        scene.answer = answer
        scene.report(2, 3)
        await asyncio.sleep(6)
        scene.watch.end()

    process.create_task(story())
    outside.call_later(0.1, process.pause)
    outside.call_later(4.9, process.resume)
    scheduler.run()
    assert scenes[0].fenced == []


def test_probing_ends_with_the_reports_and_with_the_term() -> None:
    async def story(scene: Scene) -> None:
        scene.report(2, 3)
        await asyncio.sleep(0.1)
        scene.reports.report(3, (), scene.now_ms())
        await asyncio.sleep(1)
        assert scene.probes == 1
        scene.reports.clear()
        scene.report(2, 3)
        scene.watch.end()
        await asyncio.sleep(1)
        assert len(scene.fenced) == 1, "the probe under way had waited long enough; the controller decides"

    play(story)


def test_broker_of_this_process_is_never_probed() -> None:
    async def story(scene: Scene) -> None:
        scene.report(2, 3)
        await asyncio.sleep(1)
        assert scene.probes == 0

    play(story, own_id=1)
