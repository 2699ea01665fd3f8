"""Bugs from Kafka's history: each is a broken rule with a seed, and the documentation lists them."""

from __future__ import annotations

import re

from tests.simulation.kafka_history import HISTORY, OTHERS, found, table
from tests.simulation.rules_table import DOCUMENT, NO_SEED

WANTED = 40


def test_enough_issues_are_found_again() -> None:
    assert len(HISTORY) >= WANTED
    assert all(re.fullmatch(r"KAFKA-\d+", issue) for issue in HISTORY)
    assert list(HISTORY) == sorted(HISTORY, key=lambda issue: int(issue.split("-")[1]))


def test_each_issue_has_a_rule_of_its_own_and_a_seed() -> None:
    """`test_broken_rules` and `test_broken_data_rules` play them."""
    rules = [rule for rule, _ in (*HISTORY.values(), *OTHERS.values())]
    assert len(set(rules)) == len(rules)
    assert [rule for rule in rules if found(rule).seed == NO_SEED] == []


def test_the_documentation_has_the_table() -> None:
    assert table() in DOCUMENT.read_text()
