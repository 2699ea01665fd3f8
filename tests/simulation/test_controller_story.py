"""Seeds of the controller of one voter: some in every run, all that ever found something, and rules that were broken
on purpose, each of which some seed must see."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import Outcome, play

STORY = "controller"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_seeds(first: int) -> None:
    struck: set[str] = set()
    for seed in range(first, first + 10):
        outcome = play(seed, STORY)
        assert outcome.failure is None, outcome.report()
        assert outcome.committed > 3
        struck |= outcome.struck.keys()
    assert len(struck) > 4


def _first_failure(seeds: range) -> Outcome | None:
    return next((outcome for seed in seeds if (outcome := play(seed, STORY)).failure is not None), None)
