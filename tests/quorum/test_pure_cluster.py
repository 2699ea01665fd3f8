"""Histories of clusters in which anything may fail, by seed (raft.md Q50-Q56; snapshots.md N48-N53)."""

from __future__ import annotations

import pytest

from tests.quorum.options import Options
from tests.quorum.pure_cluster import run_seed

pytestmark = pytest.mark.long

_SEEDS = 240
_BATCH = 40


@pytest.mark.parametrize("first", range(0, _SEEDS, _BATCH))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    committed = elections = 0
    for seed in range(first, first + _BATCH):
        cluster = run_seed(seed)
        committed += len(cluster.checker.committed)
        elections += len(cluster.checker.leaders)
    assert committed > 20 * _BATCH, "histories without commits show nothing"
    assert elections > 2 * _BATCH


def test_one_seed_gives_one_history() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.steps == second.steps
    assert first.checker.committed == second.checker.committed
    assert first.checker.leaders == second.checker.leaders


def test_the_seeds_cover_all_options() -> None:
    options = [Options.of(seed) for seed in range(_SEEDS)]
    assert {each.voters for each in options} == {1, 2, 3, 4, 5}
    assert {each.dynamic for each in options} == {each.snapshots for each in options} == {True, False}
