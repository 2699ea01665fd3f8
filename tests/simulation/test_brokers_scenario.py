"""Simulated clusters with data: what the scenario reaches, and that it runs the production code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.log.partition.partition_log import PartitionLog
from fenceline.node.api.fetch.fetching import FetchHandler
from fenceline.node.api.produce.producing import ProduceHandler
from fenceline.node.controller.broker_lifecycle import BrokerLifecycle
from fenceline.replica.follower import FollowerState
from fenceline.replica.leader import LeaderState
from fenceline.testing.simulation.stage import play

SEEDS = 12
NO_FAULTS = {
    **dict.fromkeys(("crash_s", "crash_calls", "stop_s", "pause_s", "partition_s", "drop_s", "slow_disk_s"), "0"),
    **dict.fromkeys(("full_s", "jump_s", "churn_s", "loss_chance", "unclean"), "0"),
}


@pytest.mark.long
def test_seeds() -> None:
    for seed in range(SEEDS):
        outcome = play(seed, "brokers")
        assert outcome.failure is None, outcome.report()


def test_a_cluster_without_faults() -> None:
    outcome = play(1, "brokers", overrides=NO_FAULTS)
    assert outcome.failure is None, outcome.report()
    assert outcome.struck == {}
    assert outcome.changes > 100
    assert outcome.committed > 20, "batches of producers"


def test_runs_cover_all_parts_of_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few seeds: reads, writes, in-sync sets that grow and shrink, divergence, recovery."""
    seen: dict[str, int] = {}

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: object, **named: object) -> object:
            found = original(*arguments, **named)
            if found is not None:
                seen[name] = seen.get(name, 0) + 1
            return found

        monkeypatch.setattr(owner, name, counted)

    wanted = (
        (ProduceHandler, "handle"),
        (FetchHandler, "handle"),
        (PartitionLog, "append_as_follower"),
        (LeaderState, "propose_expansion"),
        (LeaderState, "propose_shrink"),
        (LeaderState, "propose_recovered"),
        (FollowerState, "on_divergence"),
    )
    for owner, name in wanted:
        count(owner, name)
    for seed in range(60):
        outcome = play(seed, "brokers")
        assert outcome.failure is None, outcome.report()
        if all(name in seen for _, name in wanted):
            return
    pytest.fail(f"never seen: {[name for _, name in wanted if name not in seen]}")


def test_a_broker_that_is_named_as_leader_serves_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    listens: list[bool] = []
    unfence = BrokerLifecycle.unfence

    async def watched(self: BrokerLifecycle) -> None:
        sockets: Any = asyncio.get_running_loop()
        assert self._registration is not None
        open_ones = {port for node_id, port in sockets.sockets._sockets.listeners if node_id == self._node_id}
        listens.append(all(each.port in open_ones for each in self._registration.endpoints))
        await unfence(self)

    monkeypatch.setattr(BrokerLifecycle, "unfence", watched)
    outcome = play(1, "brokers", overrides=NO_FAULTS)
    assert outcome.failure is None, outcome.report()
    assert len(listens) >= 3
    assert all(listens)
