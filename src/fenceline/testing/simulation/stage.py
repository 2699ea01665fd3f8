"""One seed from start to end: options, the safety phase, the liveness phase, the verdict.

Owns the two phases and the report of a failure. In the safety phase faults are injected and only safety is checked.
Then all faults end, and every client must make progress within a bound of virtual time.
"""

from __future__ import annotations

import gc
import shlex
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Protocol

from fenceline.testing.simulation import (
    brokers,
    brokers_members,
    controller_of_one,
    controllers,
    freezes_scenario,
    quorum_cluster,
    resting_scenario,
    rights_scenario,
    transactions_scenario,
)
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.faults import Faults
from fenceline.testing.simulation.options import Options, draw_faults
from fenceline.testing.simulation.pace import PROGRESS
from fenceline.testing.simulation.scheduler import SimulationError, quiet_generators
from fenceline.testing.simulation.world import LogSink, World


class Scenario(Protocol):
    """What is simulated: the nodes, the clients and the final checks."""

    name: str

    def build(self) -> None:
        """Create the machines and the clients, and start them."""
        ...

    def progress(self) -> int:
        """Requests completed by the slowest client."""
        ...

    def quiesce(self) -> bool:
        """Stop the clients. Returns whether none waits for a response and the cluster is idle."""
        ...

    def final(self) -> None:
        """The final checks, with every node up and no faults. Raises InvariantBroken."""
        ...


Maker = Callable[[World, Invariants], Scenario]
SCENARIOS: Final[dict[str, tuple[Maker, Callable[[Random], Options]]]] = {
    "brokers": (brokers.BrokersScenario, brokers.BrokersScenario.base_options),
    "freezes": (freezes_scenario.FreezesScenario, freezes_scenario.FreezesScenario.base_options),
    "operations": (brokers.OperationsScenario, brokers.OperationsScenario.base_options),
    "transactions": (
        transactions_scenario.TransactionsScenario,
        transactions_scenario.TransactionsScenario.base_options,
    ),
    "resting": (resting_scenario.RestingScenario, resting_scenario.RestingScenario.base_options),
    "rights": (rights_scenario.RightsScenario, rights_scenario.RightsScenario.base_options),
    "members": (brokers_members.MembersScenario, brokers_members.MembersScenario.base_options),
    "controller": (controller_of_one.ControllerScenario, controller_of_one.ControllerScenario.base_options),
    "controllers": (controllers.ControllersScenario, controllers.ControllersScenario.base_options),
    "quorum": (quorum_cluster.QuorumScenario, quorum_cluster.QuorumScenario.base_options),
}
"""By name: the constructor of the scenario, and its options before faults are drawn."""

ALL: Final = "all"
_SILENCES_MS: Final = (-1, 100, 200)
"""Off, or much shorter than the session timeouts of the scenarios."""
_TURNS: Final = ("quorum", "controllers", "quorum", "controller", "quorum")


def scenario_of(seed: int, scenario: str) -> str:
    """The scenario itself, or with `all` the one that this seed selects."""
    return _TURNS[seed % len(_TURNS)] if scenario == ALL else scenario


@dataclass(slots=True)
class SeedOutcome:
    """The result of a seed. `failure` is None if it passed."""

    seed: int
    scenario: str
    options: Options
    failure: str | None = None
    kind: str = ""
    digest: str = ""
    events: int = 0
    steps: int = 0
    changes: int = 0
    committed: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    struck: dict[str, int] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Options set on the command line."""
    triples: dict[Triple, int] = field(default_factory=dict)
    """The number of situations in which each was observed (`coverage`)."""

    def report(self) -> str:
        """What failed, and how to reproduce it."""
        lines = [
            f"seed {self.seed} of scenario {self.scenario} failed: {self.failure}",
            f"options: {self.options}",
            f"after {self.virtual_s:.3f} s, {self.events} events, {self.committed} committed batches; the last events:",
            *(f"  {line}" for line in self.last_lines),
            f"reproduce with: python -m fenceline.testing.simulation {self.scenario} --seed {self.seed} --trace"
            + "".join(f" --option {shlex.quote(f'{name}={value}')}" for name, value in self.overrides.items()),
        ]
        return "\n".join(lines)


def options_of(seed: int, scenario: str, overrides: Mapping[str, str] | None = None) -> Options:
    """The options that the seed draws, with those set on the command line."""
    make, base = SCENARIOS[scenario]
    rng = World.rng_of(seed, "options")
    drawn = draw_faults(rng, base(rng))
    adjust: Callable[[Random, Options], Options] | None = getattr(make, "adjust_options", None)
    if adjust is not None:
        drawn = adjust(rng, drawn)
    drawn = replace(
        drawn,
        silence_ms=World.rng_of(seed, "silence").choice(_SILENCES_MS),
        syncs_whole_disks=World.rng_of(seed, "flushes").random() < 0.15,
    )
    return drawn.with_text(overrides or {})


def play(
    seed: int,
    scenario: str = "controller",
    *,
    overrides: Mapping[str, str] | None = None,
    sink: Callable[[str], None] | None = None,
) -> SeedOutcome:
    """Run one seed of a scenario, or of `all`. Never raises for an error of the simulated code."""
    began = time.process_time()
    had_gc = gc.isenabled()
    gc.disable()  # the seed does not determine when cycles are collected and finalizers run
    try:
        with quiet_generators():
            outcome = _played(seed, scenario_of(seed, scenario), overrides or {}, sink)
    finally:  # the world has been freed: an earlier collection would traverse all of it
        if had_gc:
            gc.enable()
    outcome.cpu_s = time.process_time() - began
    return outcome


def _played(seed: int, scenario: str, overrides: Mapping[str, str], sink: Callable[[str], None] | None) -> SeedOutcome:
    options = options_of(seed, scenario, overrides)
    outcome = SeedOutcome(seed, scenario, options, overrides=overrides)
    world = World(seed, options, sink=sink)
    invariants = Invariants(world)
    subject: Scenario | None = None
    try:
        with LogSink(world):
            subject = SCENARIOS[scenario][0](world, invariants)
            _play(world, subject, invariants, outcome)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        outcome.failure = f"{type(error).__name__}: {error}"
        outcome.kind = type(error).__name__
        if not isinstance(error, AssertionError) or not str(error):
            outcome.failure += "\n" + "".join(traceback.format_exception(error))
    finally:
        with LogSink(world):
            world.close()
    outcome.digest = world.trace.digest
    outcome.triples = world.coverage.counts
    outcome.events = world.trace.count
    outcome.steps = world.scheduler.steps
    outcome.virtual_s = world.scheduler.now_s
    end: Callable[[], tuple[int, int]] | None = getattr(subject, "end", None)
    outcome.changes, outcome.committed = end() if end is not None else (invariants.changes, len(invariants.committed))
    outcome.last_lines = world.trace.last_lines if outcome.failure else []
    return outcome


def _play(world: World, scenario: Scenario, invariants: Invariants, outcome: SeedOutcome) -> None:
    scheduler, options = world.scheduler, world.options
    scheduler.watcher = invariants.check
    faults = Faults(world)
    outcome.struck = faults.struck
    world.log_event(f"seed {world.seed} story {scenario.name} {options}")  # part of the hash: the wording must stay
    scenario.build()
    faults.start()
    scheduler.run(until_s=options.safety_s)
    faults.stop()
    target = scenario.progress() + PROGRESS
    deadline_s = scheduler.now_s + options.liveness_s

    def is_well() -> bool:
        return scheduler.now_s >= deadline_s or scenario.progress() >= target

    scheduler.run(done=is_well)
    world.report_unseen_errors()
    if scenario.progress() < target:
        raise SimulationError(f"no progress within {options.liveness_s} s after the last fault")
    deadline_s = scheduler.now_s + options.liveness_s
    scheduler.run(done=lambda: scenario.quiesce() or scheduler.now_s >= deadline_s)
    if not scenario.quiesce():
        raise SimulationError(f"not idle within {options.liveness_s} s")
    scheduler.run(until_s=scheduler.now_s + 2)
    if not scenario.quiesce():
        # A node may still write by itself, for example receipts to the ledger.
        scheduler.run(done=lambda: scenario.quiesce() or scheduler.now_s >= deadline_s)
    world.report_unseen_errors()
    invariants.check_all()
    scenario.final()
    world.log_event("is well")
