"""Random operations on a compacted log, compared with a plain model (`compaction_story.py`)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.compaction_story import Story


@pytest.mark.parametrize("seed", range(60))
def test_a_compacted_log_keeps_offsets_epochs_and_the_last_value_of_each_key(seed: int) -> None:
    Story(Random(seed)).live(80)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_random_operations(rng: Random, steps: int) -> None:
    Story(rng).live(steps)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", range(1000, 5000, 500))
def test_long_random_operations(start: int) -> None:
    for seed in range(start, start + 500):
        Story(Random(seed)).live(200)
