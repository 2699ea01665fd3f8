"""The shortest story with the same failure: as few faults as possible.

Owns the search. A fault is left out or injected as it was drawn, so each attempt can be replayed from its seed and
its fault numbers. Small sets are tried first, up to `_TRIED`; then faults are removed one after the other until each
is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import Final

from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome
from fenceline.testing.applications.story import Story

_TRIED: Final = 64
"""Sets of one size that are tried at most."""


def shortest(story: Story, failed: StoryOutcome, workers: int = 1, *, forks: bool | None = None) -> StoryOutcome:
    """The outcome of the smallest set of faults that was found; `failed` itself if none is smaller. Its failure has the
    same cause."""
    faults, seed = sorted(failed.injected), failed.job.seed
    for size in range(len(faults)):
        if comb(len(faults), size) > _TRIED:
            break
        sets = (StoryJob(seed, frozenset(kept)) for kept in combinations(faults, size))
        found = _first_failure(story, sets, failed.cause, workers, forks)
        if found is not None:
            return found
    else:
        return _same(story, StoryJob(seed, frozenset(faults)), failed, forks)
    return _one_after_another(story, _same(story, StoryJob(seed, frozenset(faults)), failed, forks), workers, forks)


def _same(story: Story, job: StoryJob, failed: StoryOutcome, forks: bool | None) -> StoryOutcome:
    """With the faults that met something, if that fails as well."""
    return _first_failure(story, iter([job]), failed.cause, 1, forks) or failed


def _one_after_another(story: Story, failed: StoryOutcome, workers: int, forks: bool | None) -> StoryOutcome:
    """Remove a fault while one can be removed."""
    while True:
        kept = frozenset(failed.injected)
        jobs = (StoryJob(failed.job.seed, kept - {number}) for number in sorted(kept))
        found = _first_failure(story, jobs, failed.cause, workers, forks)
        if found is None:
            return failed
        failed = found


def _first_failure(
    story: Story, jobs: Iterator[StoryJob], cause: str, workers: int, forks: bool | None
) -> StoryOutcome | None:
    found = outcomes(story, jobs, workers, forks=forks)
    try:
        return next((each for each in found if each.failure is not None and each.cause == cause), None)
    finally:
        found.close()
