"""The lives of a simulated application: killed, stopped, paused, started again; what its memory and its store keep."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fenceline.testing.applications.application import SimulatedApplication
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld


def told(tell: Callable[[StoryWorld], Coroutine[Any, Any, None]]) -> StoryOutcome:
    """The outcome without faults."""
    return next(outcomes(simulated(faults=())(tell), [StoryJob(1)]))


def passes(tell: Callable[[StoryWorld], Coroutine[Any, Any, None]]) -> StoryOutcome:
    outcome = told(tell)
    assert outcome.failure is None, outcome.report()
    return outcome


async def worker(store: SimulatedStore, memory: list[str], life: str) -> None:
    """Writes its memory, and at its end that it ended."""
    memory.append(life)
    try:
        await store.write({life: ",".join(memory).encode()})
        await asyncio.Event().wait()
    finally:
        await store.write({"finally": b""})


async def running_worker(world: StoryWorld) -> tuple[SimulatedApplication, SimulatedStore]:
    store = world.store("s")
    application = world.start("worker", worker, store, [], "x")
    await world.until(lambda: len(store.writes) == 1)
    return application, store


def test_a_killed_application_starts_again_without_memory_and_without_its_finally() -> None:
    async def story(world: StoryWorld) -> None:
        application, store = await running_worker(world)
        application.kill()
        await world.until(lambda: len(store.writes) == 2)
        assert application.life == 2
        assert store.content == {"x": b"x"}, "its list is new, and no finally has run"

    passes(story)


def test_a_stopped_application_runs_its_finally_and_starts_again() -> None:
    async def story(world: StoryWorld) -> None:
        application, store = await running_worker(world)
        application.stop()
        await world.until(lambda: application.life == 2)
        assert "finally" in store.content

    assert any("has stopped" in line.text for line in passes(story).lines)


def test_a_signal_handler_gets_the_stop() -> None:
    async def polite(store: SimulatedStore) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        await store.write({"goodbye": b""})

    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        application = world.start("polite", polite, store)
        await asyncio.sleep(0.1)
        application.stop()
        await world.until(lambda: "goodbye" in store.content)

    passes(story)


def test_an_application_that_does_not_stop_is_killed() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def story(world: StoryWorld) -> None:
        application = world.start("stubborn", stubborn)
        await asyncio.sleep(0.1)
        application.stop()
        await world.until(lambda: application.life == 2)
        assert world.now_s > 10

    passes(story)


def test_a_paused_application_does_nothing_and_continues_late() -> None:
    async def ticking(store: SimulatedStore) -> None:
        for tick in range(100):
            await store.write({f"{tick}": b""})
            await asyncio.sleep(0.1)

    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        application = world.start("ticking", ticking, store)
        await asyncio.sleep(0.55)
        application.pause()
        await asyncio.sleep(0.1)
        before = len(store.writes)
        await asyncio.sleep(2)
        assert len(store.writes) == before
        application.resume()
        await world.until(lambda: len(store.writes) > before)

    passes(story)


def test_an_application_that_fails_starts_again_and_the_story_tells_why() -> None:
    async def failing(store: SimulatedStore) -> None:
        if await store.get("tried") is None:
            await store.write({"tried": b""})
            raise ValueError("not yet")

    async def story(world: StoryWorld) -> None:
        application = world.start("failing", failing, world.store("s"))
        await world.until(lambda: application.has_finished)
        assert application.life == 2

    assert [line.text for line in passes(story).lines] == [
        "failing ends with ValueError: not yet",
        "failing starts again, life 2",
        "failing ends",
    ]


def test_an_application_that_exits_starts_again_unless_its_status_is_0() -> None:
    async def exiting(store: SimulatedStore) -> None:
        lives = len(store.writes)
        await store.write({f"{lives}": b""})
        sys.exit(3 if lives == 0 else 0)

    async def story(world: StoryWorld) -> None:
        application = world.start("exiting", exiting, world.store("s"))
        await world.until(lambda: application.has_finished)
        assert application.life == 2

    assert passes(story).lines[0].text == "exiting ends with ApplicationExit: exit status 3"


def test_each_application_has_a_name_of_its_own() -> None:
    async def story(world: StoryWorld) -> None:
        world.start("one", asyncio.sleep, 1)
        world.start("one", asyncio.sleep, 1)

    assert "has an application one already" in str(told(story).failure)


@pytest.mark.parametrize("in_a_task", [False, True])
def test_a_failed_assertion_of_an_application_ends_the_story(in_a_task: bool) -> None:
    async def check() -> None:
        raise AssertionError("an order without a customer")

    async def checking() -> None:
        if in_a_task:
            task = asyncio.ensure_future(check())
            await asyncio.sleep(0.1)
            del task
            await asyncio.sleep(60)
        await check()

    async def story(world: StoryWorld) -> None:
        world.start("checking", checking)
        await asyncio.sleep(20)

    assert told(story).failure == "AssertionError: an order without a customer"


def test_another_host_than_a_broker_is_refused_with_advice() -> None:
    async def dialling() -> None:
        await asyncio.open_connection("db.example", 5432)

    async def story(world: StoryWorld) -> None:
        world.start("dialling", dialling)
        await asyncio.sleep(1)

    assert "reaches brokers only, not db.example:5432" in str(told(story).failure)


def test_a_story_that_never_ends_fails() -> None:
    async def story(world: StoryWorld) -> None:
        await asyncio.Event().wait()

    outcome = next(outcomes(simulated(faults=(), limit_s=5)(story), [StoryJob(1)]))
    assert "did not end within 5 virtual s" in str(outcome.failure)
