"""When the answer of a leader counts as overdue (`node.replication.silent_brokers`), on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fenceline.node.replication.silent_brokers import AnswerTimer, SilentBrokers
from fenceline.testing.simulation.loop import SimLoop, run
from fenceline.testing.simulation.scheduler import Scheduler

LEADER = 2
SILENCE_MS = 300
WAIT_MS = 500
DUE_S = (WAIT_MS + SILENCE_MS) / 1000
AGAIN_S = 0.03
SOON_S = 0.001


class Scene:
    """One leader: `reports` are the calls, with the time of each."""

    def __init__(self, silence_ms: int = SILENCE_MS) -> None:
        self.received_bytes = 0
        self.reports: list[tuple[float, tuple[int, ...]]] = []
        self.silent = SilentBrokers(silence_ms, self._changed)
        self.timer: AnswerTimer = self.silent.watch(LEADER, lambda: self.received_bytes)

    def _changed(self, ids: object) -> None:
        assert isinstance(ids, tuple)
        self.reports.append((round(asyncio.get_running_loop().time(), 3), ids))


def play(story: Callable[[Scene], Awaitable[None]], *, silence_ms: int = SILENCE_MS) -> None:
    async def whole() -> None:
        scene = Scene(silence_ms)
        await story(scene)
        scene.timer.close()

    run(whole())


def test_overdue_answer_is_reported_once_and_withdrawn_when_it_arrives() -> None:
    async def story(scene: Scene) -> None:
        scene.timer.expect(WAIT_MS)
        await asyncio.sleep(DUE_S + AGAIN_S - SOON_S)
        assert scene.reports == []
        await asyncio.sleep(10)
        assert scene.reports == [(round(DUE_S + AGAIN_S, 3), (LEADER,))]
        scene.timer.answered()
        assert scene.reports[1:] == [(round(DUE_S + AGAIN_S + 10 - SOON_S, 3), ())]

    play(story)


def test_answers_in_time_report_nothing() -> None:
    async def story(scene: Scene) -> None:
        for _ in range(20):
            scene.timer.expect(WAIT_MS)
            await asyncio.sleep(DUE_S + AGAIN_S / 2)
            scene.timer.answered()
        await asyncio.sleep(10)
        assert scene.reports == [], "nothing is expected any more"

    play(story)


def test_reconnecting_does_not_give_the_leader_more_time() -> None:
    """A link whose fetch is interrupted again and again waits for the same leader all the while."""

    async def story(scene: Scene) -> None:
        scene.timer.expect(WAIT_MS)
        for _ in range(20):
            await asyncio.sleep(0.1)
            scene.timer.expect(0)
        assert [ids for _, ids in scene.reports] == [(LEADER,)]

    play(story)


def test_large_answer_is_not_overdue_while_it_arrives() -> None:
    async def story(scene: Scene) -> None:
        scene.timer.expect(WAIT_MS)
        for _ in range(40):
            await asyncio.sleep(0.1)
            scene.received_bytes += 1000
        assert scene.reports == []
        await asyncio.sleep(1)
        assert [ids for _, ids in scene.reports] == [(LEADER,)], "it has stopped to arrive"

    play(story)


def test_process_that_did_not_run_itself_reports_no_leader() -> None:
    """It finds its timer late, and the answer in its socket."""
    scheduler = Scheduler()
    process, outside = SimLoop(scheduler, "process"), SimLoop(scheduler, "outside")
    scenes: list[Scene] = []

    async def story() -> None:
        scene = Scene()
        scenes.append(scene)
        scene.timer.expect(WAIT_MS)
        await asyncio.sleep(6.0)
        scene.timer.answered()

    process.create_task(story())
    outside.call_later(0.1, process.pause)
    outside.call_later(5.9, process.resume)
    scheduler.run()
    assert scenes[0].reports == []


def test_two_silent_leaders_are_reported_together() -> None:
    async def story(scene: Scene) -> None:
        other = scene.silent.watch(3, lambda: 0)
        scene.timer.expect(WAIT_MS)
        other.expect(WAIT_MS)
        await asyncio.sleep(2)
        other.close()
        assert [ids for _, ids in scene.reports] == [(LEADER,), (LEADER, 3), (LEADER,)]

    play(story)


def test_without_a_timeout_no_leader_is_silent() -> None:
    async def story(scene: Scene) -> None:
        scene.timer.expect(WAIT_MS)
        await asyncio.sleep(100)
        assert scene.reports == []

    play(story, silence_ms=-1)
