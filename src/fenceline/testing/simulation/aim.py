"""Faults that wait for a state of a node and are injected in it, for states that last for a few milliseconds.

Owns the moment: when, in the state that `Options.aim` names, an operation is in progress that a fault has not met there
in this run. Checks the states of a node after each of its steps; without an aim, states are sampled only when an
observed change occurs. Which faults exist, and what they do, is defined in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable

from fenceline.testing.simulation.coverage import CoveredState, Triple
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.simulation.world import Process, World


class Aim:
    """The aimed faults of one world."""

    def __init__(self, world: World, inject: Callable[[Fault, Process], None]) -> None:
        """Raises ValueError if the options name no state or an unknown fault."""
        options = world.options
        component, label = options.aim.split(" ")
        self._state = CoveredState(component, label)
        self._faults = [Fault(each) for each in options.aim_faults.split(",") if each]
        self._world = world
        self._inject = inject
        self._rng = world.rng("aim")
        self._due_s = options.calm_s
        self._seen: dict[int, frozenset[CoveredState]] = {}
        """By node."""

    def check(self, process: Process) -> None:
        """After a step of this process."""
        world, node_id = self._world, process.node_id
        now_s = world.scheduler.now_s
        coverage = world.coverage
        seen = frozenset(coverage.sample(node_id, None))
        before = self._seen.get(node_id)
        if seen != before:
            self._seen[node_id] = seen
            if before is None or not seen <= before:
                coverage.changed(node_id)
        if self._state not in seen or now_s < self._due_s or not world.faults_active or not process.is_up:
            return
        if process.is_paused:
            return
        operations = coverage.meeting(self._state, node_id)
        new = [fault for fault in self._faults if any(self._is_new(each, fault) for each in operations)]
        if new:
            self._due_s = now_s + world.options.aim_s * self._rng.uniform(0.2, 1.8)
            fault = self._rng.choice(new)
            world.log_event(f"aims a {fault.value} at {process.name}")
            self._inject(fault, process)

    def _is_new(self, operation: str, fault: Fault) -> bool:
        return Triple(*self._state, operation, fault.value) not in self._world.coverage.counts
