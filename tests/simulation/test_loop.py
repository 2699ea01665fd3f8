"""The virtual loop: time, order, processes that pause and end, jobs, and unsupported calls."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import pytest

from fenceline.testing.simulation.loop import SimExecutor, SimLoop, run
from fenceline.testing.simulation.scheduler import (
    Livelock,
    NothingLeft,
    ProcessEnded,
    Scheduler,
    SimulationError,
)


def test_time_passes_only_by_timers() -> None:
    async def scenario() -> list[float]:
        now = asyncio.get_running_loop().time
        seen = [now()]
        await asyncio.sleep(3600)
        seen.append(now())
        await asyncio.gather(asyncio.sleep(5), asyncio.sleep(2))
        seen.append(now())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        seen.append(now())
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(4))
        seen.append(now())
        return seen

    began = time.process_time()
    assert run(scenario()) == [0, 3600, 3605, 3615, 3619]
    assert time.process_time() - began < 60, "an hour of virtual time takes no real time"


def test_callbacks_run_in_the_order_they_were_given() -> None:
    async def scenario() -> list[int]:
        loop, seen = asyncio.get_running_loop(), []
        for number in range(5):
            loop.call_soon(seen.append, number)
        loop.call_soon(seen.append, 99).cancel()
        loop.call_later(1, seen.append, 6)
        loop.call_later(0.5, seen.append, 5)
        loop.call_later(0.7, seen.append, 99).cancel()
        await asyncio.sleep(2)
        return seen

    assert run(scenario()) == [0, 1, 2, 3, 4, 5, 6]


def test_timers_of_one_instant_are_shuffled_by_the_seed() -> None:
    def order(rng: Random | None) -> list[int]:
        seen: list[int] = []
        scheduler = Scheduler(rng)
        loop = SimLoop(scheduler)
        for number in range(20):
            loop.call_later(1, seen.append, number)
        scheduler.run()
        return seen

    assert order(None) == list(range(20))
    assert order(Random(1)) != list(range(20))
    assert order(Random(1)) == order(Random(1))
    assert sorted(order(Random(2))) == list(range(20))


def test_a_loop_without_pending_work_is_reported() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeft):
        run(scenario())


def test_an_endless_loop_at_one_instant_is_reported() -> None:
    async def scenario() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"1001 callbacks at 0\.0"):
        run(scenario(), scheduler=Scheduler(max_steps_at_once=1000))


def test_an_error_that_a_node_would_only_log_ends_the_simulation() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        run(scenario())


def test_a_paused_process_catches_up_and_others_continue() -> None:
    scheduler = Scheduler()
    paused, other = SimLoop(scheduler, "paused"), SimLoop(scheduler, "other")
    seen: list[tuple[str, float]] = []

    def beat(loop: SimLoop) -> None:
        seen.append((loop.name, scheduler.now_s))

    for second in (1, 2, 3):
        paused.call_later(second, beat, paused)
        other.call_later(second, beat, other)
    other.call_later(0.5, paused.pause)
    other.call_later(2.5, paused.resume)
    scheduler.run()
    assert [when for name, when in seen if name == "other"] == [1, 2, 3]
    assert [when for name, when in seen if name == "paused"] == [2.5, 2.5, 3]


def test_a_killed_process_runs_no_more_code() -> None:
    scheduler = Scheduler()
    victim, killer = SimLoop(scheduler, "victim"), SimLoop(scheduler, "killer")
    seen: list[str] = []
    answer: asyncio.Future[None] = victim.create_future()

    async def life() -> None:
        try:
            await answer
            seen.append("woke up")
        finally:
            seen.append("finally")

    victim.create_task(life())
    victim.run_in_executor(None, seen.append, "before")
    victim.call_later(2, seen.append, "timer")
    victim.call_later(1.5, lambda: victim.run_in_executor(None, seen.append, "job"))
    killer.call_later(1, victim.kill)
    killer.call_later(2, answer.set_result, None)
    scheduler.run()
    assert seen == ["before"], "not even a finally runs"
    with pytest.raises(SimulationError, match="has ended"):
        victim.create_task(life())
    victim.close_tasks()


def test_a_process_may_be_killed_by_its_own_callback() -> None:
    scheduler = Scheduler()
    loop = SimLoop(scheduler, "n1")
    seen: list[int] = []

    async def life() -> None:
        seen.append(1)
        loop.kill()
        raise ProcessEnded

    loop.create_task(life())
    loop.call_soon(seen.append, 2)
    scheduler.run()
    assert seen == [1]
    loop.close_tasks()


def test_jobs_overlap_with_the_loop_and_deliver_their_result_later() -> None:
    times = iter([(1.0, 2.0), (0.1, 0.0), (0.5, 0.0)])
    loop = SimLoop(Scheduler(), job_times=lambda: next(times))
    seen: list[tuple[Any, float]] = []

    async def scenario() -> None:
        one = SimExecutor(1)
        first = loop.run_in_executor(one, lambda: seen.append(("first runs", loop.time())))
        second = loop.run_in_executor(one, lambda: seen.append(("second runs", loop.time())))
        free = loop.run_in_executor(None, lambda: seen.append(("other thread", loop.time())))
        await free
        await second
        seen.append(("second known", loop.time()))
        await first
        seen.append(("first known", loop.time()))

    loop.run_until_complete(scenario())
    assert seen == [
        ("other thread", 0.5),
        ("first runs", 1.0),
        ("second runs", pytest.approx(1.0)),
        ("second known", pytest.approx(3.0)),
        ("first known", pytest.approx(3.0)),
    ], "jobs of one thread complete in order"


def test_a_job_has_no_loop_and_its_error_is_delivered() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="no running event loop"):
            await loop.run_in_executor(None, asyncio.get_running_loop)
        assert asyncio.get_running_loop() is loop

    run(scenario())


def test_a_clock_that_runs_fast() -> None:
    scheduler = Scheduler()
    loop = SimLoop(scheduler, rate=2.0, base_s=100.0)

    async def scenario() -> tuple[float, float]:
        await asyncio.sleep(10)
        return loop.time(), scheduler.now_s

    assert loop.run_until_complete(scenario()) == (110.0, 5.0)


def test_the_network_of_the_machine_is_unreachable() -> None:
    async def scenario() -> None:
        with pytest.raises(SimulationError, match="no sockets"):
            await asyncio.open_connection("127.0.0.1", 9092)
        with pytest.raises(SimulationError, match="no sockets"):
            await asyncio.get_running_loop().getaddrinfo("localhost", 1)

    run(scenario())


def test_cancelled_timers_are_removed() -> None:
    scheduler = Scheduler()
    loop = SimLoop(scheduler)
    for _ in range(10_000):
        loop.call_later(3600, print).cancel()
    assert len(scheduler._timers) < 5000
    scheduler.run()


def test_the_watcher_is_called_after_callbacks_that_may_change_a_process() -> None:
    """Not after the timer of a sleep or the end of a job: these only schedule the coroutine."""
    looks: list[float] = []
    scheduler = Scheduler()
    scheduler.watcher = lambda owner: looks.append(scheduler.now_s)
    loop = SimLoop(scheduler, "p", owner="p", job_times=lambda: (1.0, 1.0))
    ran: list[float] = []

    async def scenario() -> None:
        await asyncio.sleep(1)
        await asyncio.get_running_loop().run_in_executor(SimExecutor(), lambda: ran.append(scheduler.now_s))

    loop.create_task(scenario())
    scheduler.run()
    loop.close()
    assert ran == [2.0]
    assert looks == [0.0, 1.0, 2.0, 3.0], "at the start, after the sleep, in the job, and after it"


def test_an_unretrieved_error_is_reported_even_if_the_task_is_referenced() -> None:
    """asyncio reports it when the task is collected; a follower hung forever meanwhile."""
    scheduler = Scheduler()
    loop = SimLoop(scheduler, "p")

    async def fail() -> None:
        raise ValueError("of our own")

    async def scenario() -> None:
        held.append(loop.create_task(fail()))
        with pytest.raises(ValueError, match="of our own"):
            await loop.create_task(fail())

    held: list[asyncio.Task[None]] = []
    loop.create_task(scenario())
    scheduler.run()
    loop.report_unseen_errors()
    with pytest.raises(SimulationError, match="was not awaited: ValueError"):
        scheduler.check()
    loop.close()
