"""Rules that are broken on purpose: some seed sees each breach, or the invariants are worth nothing."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play

from .broken_rules import RULES

SEEDS = 300


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_breach_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES[name]
    rule.breach(monkeypatch)
    assert any(play(seed, rule.story).failure is not None for seed in range(SEEDS))
