"""Seeds of quorums of one to five voters with observers: some in every run, and all that ever found a bug (raft.md
Q50-Q56; snapshots.md N48-N53)."""

from __future__ import annotations

import re
from statistics import median

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


def test_without_requests_few_timers_fire() -> None:
    """A quorum that is called again and again before its deadlines would need many more callbacks."""
    calm = dict.fromkeys(_FAULTS, "0")
    outcome = play(1, STORY, overrides={**calm, "nodes": "3", "think_ms": "5000", "safety_s": "60"})
    assert outcome.failure is None, outcome.report()
    assert outcome.steps < 100 * outcome.virtual_s


_STATE = re.compile(r"(\S+) n(\d) epoch (\d+) leader (-?\d+) log \d+\.\.\d+ committed (\d+)$")
_LIFE = re.compile(r"(\S+) n(\d) (is killed|starts, life \d+)$")


def _failovers_ms(lines: list[str]) -> list[float]:
    """From the death of each leader to the first record that another node commits as the leader, while both others
    run."""
    found: list[float] = []
    running: set[str] = set()
    leader, epoch, committed = "", 0, 0
    died_s: float | None = None
    for line in lines:
        if life := _LIFE.match(line):
            at_s, node, event = float(life[1]), life[2], life[3]
            died_s = at_s if event == "is killed" and node == leader and len(running) == 3 else None
            (running.discard if event == "is killed" else running.add)(node)
        elif (state := _STATE.match(line)) and state[2] == state[4] and int(state[3]) >= epoch:
            if int(state[3]) > epoch and int(state[5]) <= committed:
                continue  # it leads, but has committed nothing yet
            if died_s is not None and state[2] != leader:
                found.append(1000 * (float(state[1]) - died_s))
                died_s = None
            leader, epoch, committed = state[2], int(state[3]), int(state[5])
    return found


def test_a_dead_leader_is_replaced_without_timeouts() -> None:
    """With Kafka's own timeouts, messages of up to 5 ms and flushes of up to 3: neither the fetch timeout (2 s) nor an
    election timeout (1 to 2 s) is waited for."""
    quick = {"nodes": "3", "crash_s": "8", "down_s": "1", "power_chance": "0", "max_delay_ms": "5", "max_job_ms": "3"}
    times: list[float] = []
    for seed in range(4):
        lines: list[str] = []
        overrides = {**dict.fromkeys(_FAULTS, "0"), **quick, "safety_s": "100", "think_ms": "200"}
        outcome = play(seed, STORY, overrides=overrides, sink=lines.append)
        assert outcome.failure is None, outcome.report()
        times += _failovers_ms(lines)
    assert len(times) > 10
    assert median(times) < 150, sorted(times)
    assert max(times) < 600, sorted(times)
