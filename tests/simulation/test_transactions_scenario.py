"""Transactional clients in simulated clusters."""

from __future__ import annotations

from fenceline.testing.simulation.stage import play


def test_transactions_are_atomic() -> None:
    outcome = play(1, "transactions")
    assert outcome.failure is None, outcome.report()


def test_the_same_seed_is_the_same_run() -> None:
    assert play(3, "transactions").digest == play(3, "transactions").digest
