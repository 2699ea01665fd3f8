"""Scenario: leaders and controllers freeze, or are cut off, and are replaced long before their sessions expire.

Owns the draws, and the check that a broker is fenced for its silence only if it was silent. The cluster and its clients
are those of `brokers`, with their checks: whatever the fencing was worth, no acknowledged record is lost by it.
Sessions are longer than a run, so a broker that is fenced and has not ended was fenced for its silence.

Rules: `fenceline.controller.silence`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from fenceline.node.controller.active_controller import ActiveController
from fenceline.testing.simulation.brokers import BrokersScenario
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.options import Options, sometimes
from fenceline.testing.simulation.world import Process, World

_SESSION_MS: Final = 60_000
_LINGERS_S: Final = 0.3
"""A broker that runs again, or is reached again, may still be fenced by a decision under way."""


class FreezesScenario(BrokersScenario):
    """See the module: a `stage.Scenario`."""

    name = "freezes"

    def __init__(self, world: World, invariants: Invariants) -> None:
        super().__init__(world, invariants)
        self._silent_counts: dict[int, tuple[ActiveController, int]] = {}
        """By node: its controller, and the brokers that it has fenced for their silence."""
        self._stopped_s: dict[int, float] = {}
        """By node: when it was last seen paused or down."""
        self._apart_s: dict[frozenset[int], float] = {}
        """By two nodes: when they were last seen cut off from each other, in one direction or both."""
        self.alarms = 0
        """Brokers fenced for their silence."""

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """Half of the seeds have nothing that delays messages or work: there, each alarm must be true."""
        options = replace(
            drawn,
            safety_s=8.0,
            controllers=rng.choice((1, 3, 3)),
            topics=1,
            partitions=rng.choice((1, 2, 3)),
            replicas=3,
            unclean=False,
            elr=rng.random() < 0.6,
            session_ms=_SESSION_MS,
            pause_s=round(rng.uniform(0.5, 1.5), 3),
            paused_s=round(rng.uniform(0.7, 2.0), 3),
            partition_s=sometimes(rng, 0.4, 1, 3),
            crash_s=sometimes(rng, 0.3, 1, 4),
            crash_calls=0,
            power_chance=rng.choice((0.0, 0.5)),
            jump_s=sometimes(rng, 0.5, 0.3, 2),
            swap_s=sometimes(rng, 0.3, 0.5, 2),
            lag_s=sometimes(rng, 0.4, 0.5, 3),
            slow_disk_s=sometimes(rng, 0.3, 1, 4),
            think_ms=rng.choice((10.0, 30.0)),
            max_job_ms=rng.choice((0.1, 5.0)),
            max_delay_ms=rng.choice((0.5, 2.0, 10.0)),
            stop_s=0.0,
            full_s=0.0,
            fail_s=0.0,
            flip_s=0.0,
        )
        if rng.random() < 0.5:
            return options
        return replace(options, lag_s=0.0, slow_disk_s=0.0, slow_chance=0.0, loss_chance=0.0, duplicate_chance=0.0)

    def check_step(self, process: Process) -> None:
        super().check_step(process)
        self._watch_troubles()
        broker = self._brokers.get(process.node_id)
        if broker is None or not broker.has_metadata or not process.is_up:
            return
        active = broker.controller.active
        known, count = self._silent_counts.get(process.node_id, (active, 0))
        self._silent_counts[process.node_id] = active, active.silent_count
        if active.silent_count > (count if known is active else 0):
            self.alarms += 1
            self._check_alarm(process, active.last_silent_id)

    def _watch_troubles(self) -> None:
        world = self._world
        now_s, network = world.scheduler.now_s, world.network
        for node_id, process in world.processes.items():
            if process.is_paused or not process.is_up:
                self._stopped_s[node_id] = now_s
            for other in world.processes:
                if other != node_id and network.is_cut(node_id, other):
                    self._apart_s[frozenset((node_id, other))] = now_s

    def _check_alarm(self, process: Process, silent_id: int) -> None:
        """Raises InvariantBroken if the fenced broker was running, and this controller could reach it, all the time."""
        world, options = self._world, self._world.options
        now_s = world.scheduler.now_s
        world.log_event(f"{process.name} fences n{silent_id} for its silence")
        never_s = float("-inf")
        apart_s = self._apart_s.get(frozenset((silent_id, process.node_id)), never_s)
        since_s = now_s - max(apart_s, self._stopped_s.get(silent_id, never_s))
        may_be_late = options.lag_s or options.slow_disk_s or options.slow_chance or options.loss_chance
        if not may_be_late and since_s > _LINGERS_S:
            raise InvariantBroken(
                f"n{silent_id} was fenced for its silence, but was running and reachable for {since_s:.3f} s"
            )
