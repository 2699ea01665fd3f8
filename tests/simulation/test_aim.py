"""Faults that wait for a state of a node: they are injected in it, and a run without them is unchanged."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.aim import Aim
from fenceline.testing.simulation.faults import Faults
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.search import CALM
from fenceline.testing.simulation.stage import play
from fenceline.testing.simulation.world import World

_MOVES = {
    **CALM,
    "safety_s": "6",
    "calm_s": "1",
    "quiet_s": "0",
    "log_dirs": "2",
    "partitions": "2",
    "max_job_ms": "20",
    "operate_s": "0.1",
    "operations": "move directory,reassign",
}


def test_a_fault_is_injected_in_the_aimed_state() -> None:
    met = {}
    for aim in ({}, {"aim": "log moving", "aim_faults": "kill,pause", "aim_s": "0.5"}):
        outcome = play(5, "operations", overrides=_MOVES | aim)
        assert outcome.failure is None
        met[bool(aim)] = {each.fault for each in outcome.triples if (each.component, each.state) == ("log", "moving")}
    assert met == {False: set(), True: {Fault.KILL, Fault.PAUSE}}


@pytest.mark.parametrize("options", [{"aim": "log"}, {"aim": "log moving", "aim_faults": "rain"}])
def test_an_invalid_aim_is_rejected(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"unpack|rain"):
        Aim(World(1, Options().with_text(options)), lambda fault, process: None)


def test_every_fault_of_clusters_can_be_aimed() -> None:
    """Clusters with data have no wrong bits."""
    world = World(1, Options(nodes=2))
    faults = Faults(world)
    others = set(Fault) - {
        Fault.KILL,
        Fault.POWER_LOSS,
        Fault.TORN_WRITE,
        Fault.PARTITION,
        Fault.ONE_WAY_PARTITION,
        Fault.LAG,
        Fault.WRONG_BITS,
    }
    assert set(faults._aimed) == others
