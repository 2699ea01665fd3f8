"""Frozen leaders in simulated clusters: how soon they are replaced with default settings, and that alarms are true."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from fenceline.config.broker import BROKER_CONFIGS, OWN_CONFIGS, SILENCE_TIMEOUT
from fenceline.metadata.image import MetadataImage
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.freezes_scenario import FreezesScenario
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.stage import play
from fenceline.testing.simulation.world import LogSink, Process, World

SEEDS: Final = 8
REPLACED_S: Final = 1.5
BACK_S: Final = 30.0
_STEP_S: Final = 0.01
_DEFAULT_TIMES: Final = (
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
    "replica.lag.time.max.ms",
    "replica.fetch.wait.max.ms",
    "replica.fetch.backoff.ms",
    "replica.socket.timeout.ms",
)


class DefaultTimes(FreezesScenario):
    """With Kafka's defaults instead of the short times of a simulated cluster."""

    more_config = {name: str(BROKER_CONFIGS[name].default) for name in _DEFAULT_TIMES}  # noqa: RUF012


class Cluster:
    """Three nodes, which are brokers and controllers, with one topic of three replicas; `leader_of` for each partition
    as the active controller has it."""

    def __init__(self, seed: int, *, silence_ms: int | None = None) -> None:
        silence_ms = int(OWN_CONFIGS[SILENCE_TIMEOUT].default or "") if silence_ms is None else silence_ms
        self.world = World(
            seed, Options(nodes=3, controllers=3, partitions=6, replicas=3, silence_ms=silence_ms, think_ms=50.0)
        )
        invariants = Invariants(self.world)
        self._sink = LogSink(self.world)
        self._sink.__enter__()
        self.scenario = DefaultTimes(self.world, invariants)
        self.world.scheduler.watcher = invariants.check
        self.scenario.build()
        self.rng = self.world.rng("the test")
        self.until(self.is_complete, 30.0)
        self.run(self.rng.uniform(0.0, 3.0))

    def close(self) -> None:
        self.world.close()
        self._sink.__exit__()

    def run(self, seconds: float) -> None:
        self.world.scheduler.run(until_s=self.world.scheduler.now_s + seconds)

    def until(self, holds: Callable[[], bool], limit_s: float) -> float:
        """Virtual seconds until `holds()`; fails after the limit."""
        began_s = self.world.scheduler.now_s
        while not holds():
            assert self.world.scheduler.now_s - began_s < limit_s, f"not within {limit_s} s"
            self.run(_STEP_S)
        return self.world.scheduler.now_s - began_s

    def active(self, *, but: int = -1) -> int:
        """The node of the active controller that runs; -1 without one."""
        for node_id, broker in self.scenario._brokers.items():
            if node_id != but and broker.has_metadata and broker.controller.is_active:
                return node_id
        return -1

    def image(self, *, but: int = -1) -> MetadataImage | None:
        node_id = self.active(but=but)
        return None if node_id < 0 else self.scenario._brokers[node_id].controller.image

    def leaders(self, *, but: int = -1) -> list[int]:
        """The leaders of all partitions with the topic; empty without a controller."""
        image = self.image(but=but)
        topic = None if image is None else image.topics_by_name.get("t0")
        return [] if topic is None else [each.leader for each in topic.partitions]

    def is_complete(self) -> bool:
        image = self.image()
        topic = None if image is None else image.topics_by_name.get("t0")
        return topic is not None and all(len(each.isr) == 3 for each in topic.partitions)

    def process(self, node_id: int) -> Process:
        return self.world.processes[node_id]


def _victim(cluster: Cluster, *, is_active: bool) -> int:
    """A node that leads partitions and is, or is not, the active controller."""
    active = cluster.active()
    return active if is_active else next(each for each in cluster.leaders() if each != active)


def _strike(cluster: Cluster, node_id: int, how: str) -> None:
    if how == "frozen":
        cluster.process(node_id).pause()
        return
    for other in cluster.world.processes:
        if other != node_id:
            cluster.world.network.cut(node_id, other)
            cluster.world.network.cut(other, node_id)


def _is_replaced(cluster: Cluster, node_id: int) -> bool:
    leaders = cluster.leaders(but=node_id)
    return bool(leaders) and node_id not in leaders and -1 not in leaders


@pytest.mark.parametrize("is_active", [False, True], ids=["leader", "leader and controller"])
@pytest.mark.parametrize("how", ["frozen", "cut"])
def test_silent_leader_is_replaced_with_default_settings(how: str, is_active: bool) -> None:
    """Long before its session expires, which takes nine seconds, and it returns: it follows, and is in sync again."""
    for seed in range(SEEDS):
        cluster = Cluster(seed)
        try:
            victim = _victim(cluster, is_active=is_active)
            _strike(cluster, victim, how)
            took_s = cluster.until(partial(_is_replaced, cluster, victim), 60.0)
            assert took_s <= REPLACED_S, f"seed {seed}: {took_s} s"
            cluster.run(1.0)
            cluster.process(victim).resume()
            cluster.world.network.heal()
            cluster.until(cluster.is_complete, BACK_S)
        finally:
            cluster.close()


@pytest.mark.parametrize("how", ["frozen", "cut"])
def test_without_it_the_session_decides(how: str) -> None:
    """The test above can fail."""
    cluster = Cluster(1, silence_ms=-1)
    try:
        victim = _victim(cluster, is_active=False)
        _strike(cluster, victim, how)
        cluster.run(6.0)
        assert not _is_replaced(cluster, victim)
        cluster.until(lambda: _is_replaced(cluster, victim), 12.0)
    finally:
        cluster.close()


def test_frozen_follower_costs_no_election() -> None:
    """It reports no leader when it runs again, and is not reported: it is frozen for longer than a leader needs to be
    replaced, and for less than its session."""
    for seed in range(SEEDS):
        cluster = Cluster(seed)
        try:
            image = cluster.image()
            assert image is not None
            before = [each.leader_epoch for each in image.topics_by_name["t0"].partitions]
            follower = next(each for each in cluster.world.processes if each != cluster.active())
            led = [index for index, leader in enumerate(cluster.leaders()) if leader != follower]
            for _ in range(3):
                cluster.process(follower).pause()
                cluster.run(2.0)
                cluster.process(follower).resume()
                cluster.run(cluster.rng.uniform(0.1, 1.0))
            image = cluster.image()
            assert image is not None
            after = [each.leader_epoch for each in image.topics_by_name["t0"].partitions]
            assert [after[index] for index in led] == [before[index] for index in led], f"seed {seed}"
        finally:
            cluster.close()


@pytest.mark.parametrize("seed", range(10))
def test_seeds(seed: int) -> None:
    """Acknowledged records stay, whatever the alarms were worth."""
    outcome = play(seed, "freezes", overrides={"silence_ms": "100"})
    assert outcome.failure is None, outcome.report()


def test_the_same_seed_is_the_same_run() -> None:
    assert play(2, "freezes").digest == play(2, "freezes").digest
