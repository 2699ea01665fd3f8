"""One seed from beginning to end: options, the safety phase, the liveness phase, the verdict.

Owns the two phases and the report of a failure. In the safety phase faults strike and only safety counts; then all of
them end, and the subject must make progress within a bound of virtual time.
"""

from __future__ import annotations

import gc
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from fenceline.testing.simulation import brokers, brokers_members, controller_of_one, controllers, quorum_cluster
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.faults import Faults
from fenceline.testing.simulation.options import Options, draw_faults
from fenceline.testing.simulation.pace import PROGRESS
from fenceline.testing.simulation.scheduler import ProcessEnded, SimulationError
from fenceline.testing.simulation.world import LogSink, World


class Story(Protocol):
    """What is simulated."""

    name: str

    def build(self) -> None:
        """Make the machines and the clients, and start them."""
        ...

    def progress(self) -> int:
        """Something that grows as long as the slowest client is served."""
        ...

    def rest(self) -> bool:
        """Clients ask no more; whether none waits for an answer."""
        ...

    def final(self) -> None:
        """The last look, with every node up and no faults. Raises InvariantBroken."""
        ...


Maker = Callable[[World, Invariants], Story]
STORIES: Final[dict[str, tuple[Maker, Callable[[Random], Options]]]] = {
    "brokers": (brokers.Story, brokers.Story.base_options),
    "operations": (brokers.OperatedStory, brokers.OperatedStory.base_options),
    "members": (brokers_members.MembersStory, brokers_members.MembersStory.base_options),
    "controller": (controller_of_one.Story, controller_of_one.Story.base_options),
    "controllers": (controllers.Story, controllers.Story.base_options),
    "quorum": (quorum_cluster.Story, quorum_cluster.Story.base_options),
}
"""By name: what makes the story, and its options before faults are drawn."""

ALL: Final = "all"
_TURNS: Final = ("quorum", "controllers", "quorum", "controller", "quorum")


def story_of(seed: int, story: str) -> str:
    """The story itself, or the one whose turn it is with this seed."""
    return _TURNS[seed % len(_TURNS)] if story == ALL else story


@dataclass(slots=True)
class Outcome:
    """What became of a seed. `failure` is None where all went well."""

    seed: int
    story: str
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
    """Options that were set by hand."""
    triples: dict[Triple, int] = field(default_factory=dict)
    """In how many situations each was met (`coverage`)."""

    def report(self) -> str:
        """For a person: what broke, and how to see it again."""
        lines = [
            f"seed {self.seed} of story {self.story} failed: {self.failure}",
            f"options: {self.options}",
            f"after {self.virtual_s:.3f} s, {self.events} events, {self.committed} committed batches; the last ones:",
            *(f"  {line}" for line in self.last_lines),
            f"again: python -m fenceline.testing.simulation {self.story} --seed {self.seed} --trace"
            + "".join(f" --option {shlex.quote(f'{name}={value}')}" for name, value in self.overrides.items()),
        ]
        return "\n".join(lines)


def options_of(seed: int, story: str, overrides: Mapping[str, str] | None = None) -> Options:
    """What the seed draws, and what is set by hand."""
    make, base = STORIES[story]
    rng = World.rng_of(seed, "options")
    drawn = draw_faults(rng, base(rng))
    settle: Callable[[Random, Options], Options] | None = getattr(make, "settle", None)
    if settle is not None:
        drawn = settle(rng, drawn)
    return drawn.with_text(overrides or {})


def play(
    seed: int,
    story: str = "controller",
    *,
    overrides: Mapping[str, str] | None = None,
    sink: Callable[[str], None] | None = None,
) -> Outcome:
    """Play one seed of a story, or of `all` in turn. Never raises for what the simulated code does."""
    began = time.process_time()
    had_gc = gc.isenabled()
    gc.disable()  # when cycles are collected, and their finalizers run, is not the seed's to say
    try:
        with _quiet_generators():
            outcome = _played(seed, story_of(seed, story), overrides or {}, sink)
    finally:  # the world has gone: a collector that came sooner would look through all of it
        if had_gc:
            gc.enable()
    outcome.cpu_s = time.process_time() - began
    return outcome


@contextmanager
def _quiet_generators() -> Iterator[None]:
    """A generator that a process left unfinished meets `ProcessEnded` in its `finally`, which Python would print."""
    hook = sys.unraisablehook

    def unless_ended(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, ProcessEnded):
            hook(unraisable)

    sys.unraisablehook = unless_ended
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _played(seed: int, story: str, overrides: Mapping[str, str], sink: Callable[[str], None] | None) -> Outcome:
    options = options_of(seed, story, overrides)
    outcome = Outcome(seed, story, options, overrides=overrides)
    world = World(seed, options, sink=sink)
    invariants = Invariants(world)
    told: Story | None = None
    try:
        with LogSink(world):
            told = STORIES[story][0](world, invariants)
            _play(world, told, invariants, outcome)
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
    end: Callable[[], tuple[int, int]] | None = getattr(told, "end", None)
    outcome.changes, outcome.committed = end() if end is not None else (invariants.changes, len(invariants.committed))
    outcome.last_lines = world.trace.last_lines if outcome.failure else []
    return outcome


def _play(world: World, story: Story, invariants: Invariants, outcome: Outcome) -> None:
    scheduler, options = world.scheduler, world.options
    scheduler.watcher = invariants.look
    faults = Faults(world)
    outcome.struck = faults.struck
    world.tell(f"seed {world.seed} story {story.name} {options}")
    story.build()
    faults.start()
    scheduler.run(until_s=options.safety_s)
    faults.stop()
    target = story.progress() + PROGRESS
    deadline_s = scheduler.now_s + options.liveness_s

    def is_well() -> bool:
        return scheduler.now_s >= deadline_s or story.progress() >= target

    scheduler.run(done=is_well)
    if story.progress() < target:
        raise SimulationError(f"no progress within {options.liveness_s} s after the last fault")
    deadline_s = scheduler.now_s + options.liveness_s
    scheduler.run(done=lambda: story.rest() or scheduler.now_s >= deadline_s)
    if not story.rest():
        raise SimulationError(f"not at rest within {options.liveness_s} s")
    scheduler.run(until_s=scheduler.now_s + 2)
    if not story.rest():
        # A node had something to write by itself, as receipts to the ledger.
        scheduler.run(done=lambda: story.rest() or scheduler.now_s >= deadline_s)
    invariants.whole()
    story.final()
    world.tell("is well")
