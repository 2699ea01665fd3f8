"""What an application takes from the standard library: virtual time, and random numbers of the seed."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import secrets
import threading
import time
import uuid
from datetime import datetime as imported_datetime
from time import monotonic as imported_monotonic

from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld
from tests.testing.applications.test_application import passes, told


def test_time_is_virtual() -> None:
    async def story(world: StoryWorld) -> None:
        before = time.time(), time.monotonic(), imported_monotonic(), time.perf_counter()
        day = datetime.datetime.now(datetime.UTC)
        assert abs(day.timestamp() - before[0]) < 0.01
        await asyncio.sleep(200)
        after = time.time(), time.monotonic(), imported_monotonic(), time.perf_counter()
        assert all(199 < late - early < 201 for early, late in zip(before, after, strict=True))
        assert (imported_datetime.now(datetime.UTC) - day).total_seconds() > 199
        assert isinstance(day, datetime.datetime)
        assert isinstance(day, datetime.date)

    passes(story)
    assert isinstance(datetime.datetime.now(datetime.UTC), imported_datetime), "the real ones are back"
    assert time.time() > 1_750_000_000


def test_random_numbers_are_those_of_the_seed() -> None:
    async def story(world: StoryWorld) -> None:
        drawn = (
            random.random(),
            random.Random().random(),
            uuid.uuid4(),
            uuid.uuid1(),
            os.urandom(8).hex(),
            secrets.token_hex(4),
            random.SystemRandom().random(),
        )
        world.note(str(drawn))

    subject = simulated(faults=())(story)
    found = [each.lines[0].text for each in outcomes(subject, [StoryJob(1), StoryJob(2)])]
    again = [each.lines[0].text for each in outcomes(subject, [StoryJob(1), StoryJob(2)], forks=False)]
    assert found == again
    assert found[0] != found[1]


def test_other_threads_keep_the_real_time() -> None:
    seen: list[float] = []

    async def story(world: StoryWorld) -> None:
        thread = threading.Thread(target=lambda: seen.extend((time.time(), time.monotonic())))
        thread.start()
        thread.join()

    subject = simulated(faults=())(story)
    before = time.time(), time.monotonic()
    assert next(outcomes(subject, [StoryJob(1)], forks=False)).failure is None
    assert all(early <= now for early, now in zip(before, seen, strict=True))


def test_a_blocking_sleep_is_refused_with_advice() -> None:
    async def story(world: StoryWorld) -> None:
        time.sleep(1)  # noqa: ASYNC251 - the mistake

    assert "await asyncio.sleep instead" in str(told(story).failure)


def test_a_blocking_sleep_in_a_thread_is_none() -> None:
    async def story(world: StoryWorld) -> None:
        await asyncio.to_thread(time.sleep, 1)

    passes(story)
