"""Seeds of the controller of one voter: some in every run, and all that ever found a bug."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play

STORY = "controller"


@pytest.mark.parametrize("first", range(0, 20, 10))
@pytest.mark.long
def test_seeds(first: int) -> None:
    struck: set[str] = set()
    for seed in range(first, first + 10):
        outcome = play(seed, STORY)
        assert outcome.failure is None, outcome.report()
        assert outcome.committed > 3
        struck |= outcome.struck.keys()
    assert len(struck) > 4
