"""Groups of the production client in simulated clusters, and the seeds that found a bug."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play


@pytest.mark.parametrize(
    "seed",
    [
        1,
        24,  # an explicit commit overtook an earlier automatic one, which then overwrote it
    ],
)
def test_a_group_keeps_its_committed_offsets(seed: int) -> None:
    outcome = play(seed, "members")
    assert outcome.failure is None, outcome.report()


def test_the_same_seed_is_the_same_run() -> None:
    """Also for a client that draws random numbers."""
    assert play(3, "members").digest == play(3, "members").digest
