"""Faults that wait for a state of a node and strike in it, for states that last for a few milliseconds.

Owns when they strike: where a fault meets, in the state that `Options.aim` names, an operation in progress that it has
not met there in this story. Looks at the states of a node after each of its steps, where an ordinary story looks when
something changes that it sees anyway. Which faults there are, and what they do, is `faults`' work.
"""

from __future__ import annotations

from collections.abc import Callable

from fenceline.testing.simulation.coverage import State, Triple
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.simulation.world import Process, World


class Aim:
    """Of one world."""

    def __init__(self, world: World, strike: Callable[[Fault, Process], None]) -> None:
        """Raises ValueError where the options name no state or another fault."""
        options = world.options
        room, label = options.aim.split(" ")
        self._state = State(room, label)
        self._faults = [Fault(each) for each in options.aim_faults.split(",") if each]
        self._world = world
        self._strike = strike
        self._rng = world.rng("aim")
        self._due_s = options.calm_s
        self._seen: dict[int, frozenset[State]] = {}
        """By node."""

    def look(self, process: Process) -> None:
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
        if self._state not in seen or now_s < self._due_s or not world.faults_strike or not process.is_up:
            return
        if process.is_paused:
            return
        operations = coverage.meeting(self._state, node_id)
        new = [fault for fault in self._faults if any(self._is_new(each, fault) for each in operations)]
        if new:
            self._due_s = now_s + world.options.aim_s * self._rng.uniform(0.2, 1.8)
            fault = self._rng.choice(new)
            world.tell(f"aims a {fault.value} at {process.name}")
            self._strike(fault, process)

    def _is_new(self, operation: str, fault: Fault) -> bool:
        return Triple(*self._state, operation, fault.value) not in self._world.coverage.counts
