"""Transactional clients in simulated clusters, and the seeds that found a bug."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play


@pytest.mark.parametrize(
    "seed",
    [
        1,
        34,  # an abort that the log rejected was tried again at once, for as long as it was rejected
        78,  # a coordinator whose clock was behind did not time a transaction out
    ],
)
def test_transactions_are_atomic(seed: int) -> None:
    outcome = play(seed, "transactions")
    assert outcome.failure is None, outcome.report()


def test_the_same_seed_is_the_same_run() -> None:
    assert play(3, "transactions").digest == play(3, "transactions").digest
