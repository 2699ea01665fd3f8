"""Seeds of controllers of several voters: some in every run, and all that ever found a bug."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play

STORY = "controllers"


@pytest.mark.parametrize("first", range(0, 16, 8))
@pytest.mark.long
def test_seeds(first: int) -> None:
    """Found by seeds: a full disk under a vote, a tail that a killed process left, wrong bits in records."""
    struck: set[str] = set()
    for seed in range(first, first + 8):
        outcome = play(seed, STORY)
        assert outcome.failure is None, outcome.report()
        struck |= outcome.struck.keys()
    assert len(struck) > 4
