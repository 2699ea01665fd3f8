"""Seeds of quorums of one to five voters with observers: some in every run, and all that ever found a bug."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.stage import play

STORY = "quorum"
_FAULTS = (
    *("crash_s", "crash_calls", "stop_s", "pause_s", "partition_s", "drop_s", "slow_disk_s", "full_s", "fail_s"),
    *("flip_s", "jump_s", "loss_chance", "duplicate_chance", "slow_chance", "admin_s", "drift", "skew_ms", "observers"),
)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_seeds(first: int) -> None:
    struck: set[str] = set()
    for seed in range(first, first + 8):
        outcome = play(seed, STORY)
        assert outcome.failure is None, outcome.report()
        assert outcome.committed > 3
        struck |= outcome.struck.keys()
    assert len(struck) > 4


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_voter_changes_cost_no_leader_its_majority(nodes: int) -> None:
    """Also if one voter remains and the leader is removed: the other must fetch the removal."""
    calm = dict.fromkeys(_FAULTS, "0")
    lines: list[str] = []
    overrides = {**calm, "nodes": str(nodes), "admin_s": "0.5", "safety_s": "40", "clients": "1", "think_ms": "500"}
    outcome = play(2, STORY, overrides={**overrides, "max_delay_ms": "2", "max_job_ms": "5"}, sink=lines.append)
    assert outcome.failure is None, outcome.report()
    assert any("Resigning as leader" in line for line in lines), "the leader was removed"
    assert not [line for line in lines if "No majority" in line]


@pytest.mark.parametrize("nodes", [3, 5])
def test_without_faults_the_leader_does_not_change(nodes: int) -> None:
    """The pre-vote and the timers do not disturb a healthy cluster."""
    calm = dict.fromkeys(_FAULTS, "0")
    lines: list[str] = []
    outcome = play(
        1,
        STORY,
        overrides={**calm, "nodes": str(nodes), "max_delay_ms": "2", "max_job_ms": "5", "think_ms": "100"},
        sink=lines.append,
    )
    assert outcome.failure is None, outcome.report()
    assert outcome.struck == {}
    epochs = {line.partition(" epoch ")[2].split()[0] for line in lines if " epoch " in line and " committed " in line}
    assert len(epochs) <= 3, "the first election, and the epoch before it"
