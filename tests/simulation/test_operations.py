"""The lists of operations and faults: each has a meaning, and what strikes is recorded under its name."""

from __future__ import annotations

from fenceline.testing.simulation.operations import FAULTS, OPERATIONS, Fault, Operation
from fenceline.testing.simulation.stage import play


def test_each_name_has_one_line_of_meaning() -> None:
    assert list(OPERATIONS) == list(Operation)
    assert list(FAULTS) == list(Fault)
    for meaning in (*OPERATIONS.values(), *FAULTS.values()):
        assert meaning
        assert "\n" not in meaning


def test_faults_are_counted_by_their_names() -> None:
    outcome = play(15, "brokers")
    assert outcome.struck
    assert set(outcome.struck) <= {str(each) for each in Fault}
