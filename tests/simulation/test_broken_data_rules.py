"""Rules of replication that are broken on purpose: some seed sees each breach, or the invariants are worth nothing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest

from fenceline.testing.simulation.stage import play

from .broken_election_rules import NO_SEED, RULES

SEEDS = 1000
NEARBY = 60
"""Where a change of the code has moved the breach to another seed."""
_NO_VERDICT = ("AttributeError", "TypeError", "NameError", "KeyError", "Failed")
"""The patch itself is broken, not the rule; or the test has lasted too long."""


def first_that_sees(name: str, seeds: Iterable[int]) -> tuple[int, str]:
    """The seed and what it saw; -1 where none did."""
    for seed in seeds:
        outcome = play(seed, "brokers", overrides=RULES[name].options)
        assert outcome.kind not in _NO_VERDICT, outcome.report()
        if outcome.failure is not None:
            return seed, outcome.failure
    return -1, ""


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if rule.seed != NO_SEED))
def test_a_breach_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed of the table, or by one of the first."""
    RULES[name].breach(monkeypatch)
    seed, _ = first_that_sees(name, chain([RULES[name].seed], range(NEARBY)))
    assert seed >= 0


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_breach_is_seen_by_other_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[name].breach(monkeypatch)
    seed, _ = first_that_sees(name, range(NEARBY, SEEDS))
    assert seed >= 0
