"""Deliberately broken rules of replication: some seed must detect each breach, or the invariants are worthless."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.simulation.broken_silence_rules import NO_SEED, RULES
from tests.simulation.rules_table import DOCUMENT, NO_VERDICT, SEEDS, first_that_detects, played, table

# If the breach has moved, a minute's worth of seeds is searched; on a busy machine that takes several.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NEARBY = 60
"""Where a change of the code has moved the breach to another seed."""


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if rule.seed != NO_SEED))
def test_a_breach_is_detected(name: str) -> None:
    """By the seed of the table, or by one of the first."""
    for seed in chain([RULES[name].seed], range(NEARBY)):
        outcome = played(name, seed)
        assert outcome.kind not in NO_VERDICT, outcome.report()
        if outcome.failure is not None:
            return
    pytest.fail(f"{name}: neither seed {RULES[name].seed} nor one of the first {NEARBY} notices")


def test_the_documentation_has_the_table() -> None:
    """The table is the one that `rules_table` writes."""
    assert table() in DOCUMENT.read_text()


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_breach_is_detected_by_other_seeds(name: str) -> None:
    seed, _ = first_that_detects(name, range(NEARBY, SEEDS))
    assert seed != NO_SEED
