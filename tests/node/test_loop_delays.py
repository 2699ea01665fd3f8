"""How late the event loop is."""

from __future__ import annotations

import asyncio
import threading

from fenceline.node.loop_delays import LoopDelays


def _values(delays: LoopDelays) -> dict[str, float]:
    return {sample.name: sample.value for family in delays.collect() for sample in family.samples if not sample.labels}


def test_a_blocked_loop_is_measured() -> None:
    async def block() -> LoopDelays:
        delays = LoopDelays(1)
        delays.start()
        while not delays.delays.count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        threading.Event().wait(0.3)
        before = delays.delays.count
        while delays.delays.count == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        delays.stop()
        return delays

    found = _values(asyncio.run(block()))
    assert found["fenceline_event_loop_longest_delay_seconds"] >= 0.29
    # It waited, and did nothing.
    assert found["fenceline_event_loop_longest_work_seconds"] < 0.29


def test_longest_delay_and_work_are_kept() -> None:
    delays = LoopDelays(100)
    delays.observe(0.5, 0.02)
    delays.observe(0.05, 0.2)
    delays.observe(0.0001, 0.1)
    found = _values(delays)
    assert found["fenceline_event_loop_longest_delay_seconds"] == 0.5
    assert found["fenceline_event_loop_longest_work_seconds"] == 0.05
    assert delays.delays.count == 3


def test_nothing_is_measured_after_stop() -> None:
    async def run() -> int:
        delays = LoopDelays(1)
        delays.start()
        delays.stop()
        before = delays.delays.count
        await asyncio.sleep(0.01)
        return delays.delays.count - before

    assert asyncio.run(run()) == 0
