"""Seeds in which each decision about a broker's partitions takes a step for each partition, with faults in between.

Otherwise the few partitions of a simulated cluster would always be one step (`controller/partition_visits.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller.partition_visits import PartitionVisits
from fenceline.controller.state import ControllerState
from fenceline.testing.simulation.stage import play


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One element for each step that was not the last one."""
    taken: list[object] = []
    original = PartitionVisits.next

    def counted(self: PartitionVisits, *arguments: Any) -> Any:
        some, more = original(self, *arguments)
        if more:
            taken.append(arguments[0])
        return some, more

    monkeypatch.setattr(PartitionVisits, "next", counted)
    monkeypatch.setattr(ControllerState, "visits_in_a_step", 1)
    return taken


def _play(seeds: range, story: str) -> None:
    for seed in seeds:
        outcome = play(seed, story)
        assert outcome.failure is None, outcome.report()


def test_a_seed(steps: list[object]) -> None:
    _play(range(2), "brokers")
    assert len(set(steps)) >= 2


@pytest.mark.long
@pytest.mark.parametrize("story", ["brokers", "controllers"])
def test_seeds(story: str, steps: list[object]) -> None:
    _play(range(2, 12), story)
    assert len(set(steps)) >= 3
