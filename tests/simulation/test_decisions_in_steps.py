"""Seeds in which each decision about a broker's partitions takes a step for each partition, with faults in between.

Otherwise the few partitions of a simulated cluster would always be one step (`controller/partition_visits.py`), and no
step would be decided while the one before is replicated (`node/controller/active_controller.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller.partition_visits import PartitionVisits
from fenceline.controller.state import ControllerState
from fenceline.metadata.image import MetadataImage
from fenceline.node.controller import group_commit
from fenceline.testing.simulation import partition_checks
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
    monkeypatch.setattr(group_commit, "_ENOUGH_RECORDS", 2)
    return taken


def _must_have_left(broker_id: int, image: MetadataImage) -> bool:
    """A broker that is shut down leaves its sets in steps, and is fenced with the last one."""
    broker = image.brokers.get(broker_id)
    is_leaving = broker is not None and broker.in_controlled_shutdown and not broker.fenced
    return not image.is_active(broker_id) and not is_leaving


def _play(seeds: range, story: str) -> None:
    for seed in seeds:
        outcome = play(seed, story)
        assert outcome.failure is None, outcome.report()


def test_a_seed(steps: list[object]) -> None:
    _play(range(2), "brokers")
    assert len(set(steps)) >= 2


@pytest.mark.long
@pytest.mark.parametrize("story", ["brokers", "controllers", "operations"])
def test_seeds(story: str, steps: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    if story == "operations":
        monkeypatch.setattr(partition_checks, "must_have_left", _must_have_left)
    _play(range(2, 12), story)
    assert len(set(steps)) >= 3
