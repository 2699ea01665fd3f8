"""Runs seeds from a test: `run_seeds(story, range(200))`.

Owns the error that a failing seed raises: the shortest story with that failure.
"""

from __future__ import annotations

from collections.abc import Iterable

from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome
from fenceline.testing.applications.shrinking import shortest
from fenceline.testing.applications.story import Story


def run_seeds(
    story: Story, seeds: Iterable[int], *, workers: int = 1, shrink: bool = True, forks: bool | None = None
) -> list[StoryOutcome]:
    """Run these seeds and return their outcomes. `forks`: see `forks.outcomes`.

    Raises AssertionError at the first seed that fails, with its shortest story and the command that tells it again.
    """
    passed: list[StoryOutcome] = []
    found = outcomes(story, map(StoryJob, seeds), workers, forks=forks)
    try:
        for outcome in found:
            if outcome.failure is not None:
                found.close()
                told = shortest(story, outcome, workers, forks=forks) if shrink else outcome
                raise AssertionError(told.report())
            passed.append(outcome)
    finally:
        found.close()
    return passed
