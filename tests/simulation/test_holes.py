"""Voters whose metadata log has a hole before complete batches, in clusters (gaps.md G24, `docs/decisions/010`)."""

from __future__ import annotations

import pytest

from fenceline.node.metadata import promised_end
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.script import _Play
from fenceline.testing.simulation.stage import play
from fenceline.testing.simulation.world import Process

POWER = {
    "crash_s": "1.0",
    "power_chance": "1.0",
    "crash_calls": "12",
    "nodes": "3",
    "observers": "0",
    "admin_s": "0",
    "think_ms": "5",
}


def test_a_voter_that_loses_power_in_its_first_flush_starts_again() -> None:
    """As brokers' seed 872: a hole before complete batches, another power failure in the next start, and finally the
    voter has all its records again."""
    reported: list[str] = []
    outcome = play(358, "quorum", overrides=POWER, sink=reported.append)
    assert outcome.failure is None, outcome.report()
    cut = [at for at, line in enumerate(reported) if "truncating the metadata log before a damaged range" in line]
    again = [at for at, line in enumerate(reported) if "again has all records that this node had acknowledged" in line]
    assert cut
    assert again
    assert cut[0] < again[-1]


def _play_an_election_with_lost_acknowledged_records() -> None:
    """One of three voters lags. Leader and follower commit; the follower's disk loses a range of acknowledged records,
    and the leader is down for a while."""
    play = _Play("controllers", {"nodes": "3"}, 1)
    try:
        list(play.execute("settle", []))
        processes = play._world.processes
        _, leader = play._leader()
        behind, damaged = (process for process in processes.values() if process.node_id != leader)
        behind.kill(power_lost=False)
        list(play.execute("run", ["20"]))
        before = len(play._invariants.committed)
        damaged.kill(power_lost=False)
        processes[leader].kill(power_lost=False)
        play._last = [damaged]
        list(play.execute("tear", ["last"]))
        _start(damaged, behind)
        list(play.execute("run", ["30"]))
        assert play._leader()[1] != behind.node_id, "it lacks committed records"
        assert len(play._invariants.committed) == before
        processes[leader].start()
        assert next(iter(play.execute("settle", []))).endswith("3 of 3 follow or lead, clients are served")
        list(play.execute("run", ["10"]))
        assert damaged.disk.peek("/data/__cluster_metadata-0/promised-end") is None
    finally:
        play.close()


def _start(*processes: Process) -> None:
    for process in processes:
        process.start()


def test_no_voter_leads_without_records_that_a_damaged_voter_acknowledged() -> None:
    _play_an_election_with_lost_acknowledged_records()


def test_without_the_promised_end_a_voter_leads_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promised_end, "write", lambda disk, directory, end: None)
    with pytest.raises((InvariantBroken, AssertionError)):
        _play_an_election_with_lost_acknowledged_records()
