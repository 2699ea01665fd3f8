"""Deliberately broken rules: some seed must detect each breach, or the invariants are worthless."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest

from fenceline.testing.simulation.stage import play
from tests.simulation.broken_rules import RULES

pytestmark = pytest.mark.long

SEEDS = 300
NEARBY = 60
"""Where a change of the code has moved the breach to another seed."""
_NO_VERDICT = ("AttributeError", "TypeError", "NameError", "KeyError", "Failed")
"""The patch itself is broken, not the rule; or the test has lasted too long."""


def _is_detected(name: str, seeds: Iterable[int]) -> bool:
    for seed in seeds:
        outcome = play(seed, RULES[name].scenario, overrides=RULES[name].options)
        assert outcome.kind not in _NO_VERDICT, outcome.report()
        if outcome.failure is not None:
            return True
    return False


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_breach_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed of the table, or by one of the first."""
    RULES[name].breach(monkeypatch)
    assert _is_detected(name, chain([RULES[name].seed], range(NEARBY)))


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_breach_is_detected_by_other_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[name].breach(monkeypatch)
    assert _is_detected(name, range(NEARBY, NEARBY + SEEDS))
