"""New seeds for a given time: stops at the first that fails."""

from __future__ import annotations

import os
import time
from itertools import count

import pytest

from fenceline.testing.simulation.stage import SCENARIOS, play


@pytest.mark.soak
@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_new_seeds(scenario: str) -> None:
    """Starts at another seed each day; FENCELINE_SOAK_S sets the duration, 600 s by default."""
    ends_at_s = time.monotonic() + float(os.environ.get("FENCELINE_SOAK_S", "600"))
    for seed in count(int(time.time()) // 86400 * 1_000_000):
        outcome = play(seed, scenario)
        assert outcome.failure is None, outcome.report()
        if time.monotonic() > ends_at_s:
            return
