"""The shortest story: as few faults as the failure needs, and it can be replayed."""

from __future__ import annotations

import asyncio

import pytest

from fenceline.testing.applications.fault_plan import FaultKind
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome
from fenceline.testing.applications.shrinking import shortest
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld


async def counting(store: SimulatedStore) -> None:
    lives = int((await store.get("lives")) or b"0") + 1
    await store.write({"lives": b"%d" % lives})
    await asyncio.Event().wait()


@simulated(faults=(FaultKind.APPLICATION_KILLED, FaultKind.BROKER_CLOCK, FaultKind.STORE_ANSWER_LOST), seconds=8)
async def at_most_two_lives(world: StoryWorld) -> None:
    store = world.store("lives")
    world.start("counter", counting, store)
    await world.quiet()
    assert int(store.content["lives"]) <= 2, "a third life"


def first_failure() -> StoryOutcome:
    """A seed with more faults than the two that its failure needs."""
    failures = (each for each in outcomes(at_most_two_lives, map(StoryJob, range(500))) if each.failure is not None)
    return next(each for each in failures if len(each.injected) > 2)


@pytest.fixture(scope="module")
def told() -> StoryOutcome:
    """The shortest story of a failure."""
    return shortest(at_most_two_lives, first_failure())


def test_the_shortest_story_has_only_the_faults_that_its_failure_needs(told: StoryOutcome) -> None:
    assert len(told.injected) == 2
    assert str(told.failure).startswith("AssertionError: a third life")
    assert sum("is killed" in line.text for line in told.lines) == 2
    assert f"--faults {','.join(map(str, sorted(told.injected)))}" in told.command


def test_it_is_told_again_exactly(told: StoryOutcome) -> None:
    again = next(outcomes(at_most_two_lives, [told.job], forks=False))
    assert (again.digest, again.lines) == (told.digest, told.lines)


def test_each_of_its_faults_is_needed(told: StoryOutcome) -> None:
    fewer = [StoryJob(told.job.seed, frozenset(told.injected) - {number}) for number in told.injected]
    assert [each.failure for each in outcomes(at_most_two_lives, fewer)] == [None] * len(fewer)
