"""One seed of a story, from the branch of a formed cluster to the verdict.

Owns the outcome and its report. Never raises for an error of the application or of the nodes.
"""

from __future__ import annotations

import os
import shlex
import time
import traceback
from dataclasses import dataclass
from typing import Final

from fenceline.testing.applications.application import SimulatedApplication
from fenceline.testing.applications.application_logs import captured_logs
from fenceline.testing.applications.cluster import SimulatedCluster
from fenceline.testing.applications.fault_injection import FaultInjection
from fenceline.testing.applications.fault_plan import PlannedFault, plan
from fenceline.testing.applications.standard_library import simulated_standard_library
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.story import Story
from fenceline.testing.applications.story_world import StoryWorld
from fenceline.testing.applications.timeline import StoryLine, StoryTimeline, numbered
from fenceline.testing.simulation.scheduler import (
    Livelock,
    NothingLeft,
    SimulationError,
    quiet_generators,
)
from fenceline.testing.simulation.world import LogSink, World

COMMAND: Final = "python -m fenceline.testing.applications"
_OWN: Final = ("fenceline/testing/simulation/", "fenceline/testing/applications/", "/asyncio/")
_real_time_s: Final = time.process_time


@dataclass(frozen=True, slots=True)
class StoryJob:
    """A seed, and which of its faults are injected (None: all)."""

    seed: int
    faults: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class StoryOutcome:
    """The result of a seed. `failure` is None if it passed."""

    story: str
    file: str
    job: StoryJob
    failure: str | None
    cause: str
    """The type and the place of the failure: two failures with the same cause are the same mistake."""
    details: str
    """The traceback."""
    lines: tuple[StoryLine, ...]
    injected: tuple[int, ...]
    """Numbers of the faults that met something."""
    digest: str
    virtual_s: float
    steps: int
    cpu_s: float

    @property
    def command(self) -> str:
        """What tells the same story again."""
        file = os.path.relpath(self.file) if self.file else "FILE"
        kept = self.job.faults
        faults = "" if kept is None else f" --faults {','.join(map(str, sorted(kept))) or 'none'}"
        return f"{COMMAND} {shlex.quote(f'{file}::{self.story}')} --seed {self.job.seed}{faults}"

    def report(self) -> str:
        """The failure, the story, and how to tell it again."""
        ending = f"failed: {self.failure}" if self.failure is not None else "passed"
        lines = [f"seed {self.job.seed} of the story {self.story} {ending}", "", *numbered(self.lines), ""]
        if self.details:
            lines += [self.details.rstrip(), ""]
        lines.append(f"again: {self.command}")
        return "\n".join(lines)


def planned(story: Story, seed: int) -> tuple[PlannedFault, ...]:
    """All faults of a seed."""
    return plan(World.rng_of(seed, "plan"), story.faults, story.seconds)


def tell(cluster: SimulatedCluster, story: Story, job: StoryJob) -> StoryOutcome:
    """Continue from the formed cluster, which cannot be used again."""
    began_s = _real_time_s()
    world = cluster.world
    steps, virtual_s = world.scheduler.steps, world.scheduler.now_s
    cluster.branch(job.seed)
    timeline = StoryTimeline(cluster)
    applications: list[SimulatedApplication] = []
    stores: list[SimulatedStore] = []
    injection = FaultInjection(cluster, timeline, applications, stores)
    view = StoryWorld(cluster, timeline, injection, applications, stores, story.seconds)
    test = SimulatedApplication(cluster, timeline, "the test", story.tell, (view,), {}, is_supervised=False)
    error: BaseException | None = None
    with LogSink(world), captured_logs(timeline), simulated_standard_library(world), quiet_generators():
        try:
            _run(cluster, story, job, test, injection, timeline)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as found:
            error = found
        for application in applications:
            application.close()
        error = error or test.failure or next((each.broken for each in applications if each.broken is not None), None)
        failure, cause, details = _described(error)
        if error is not None:
            timeline.add(f"failed: {failure}")
    outcome = StoryOutcome(
        story=story.name,
        file=story.file,
        job=job,
        failure=failure,
        cause=cause,
        details=details,
        lines=tuple(timeline.lines),
        injected=tuple(injection.injected),
        digest=world.trace.digest,
        virtual_s=world.scheduler.now_s - virtual_s,
        steps=world.scheduler.steps - steps,
        cpu_s=_real_time_s() - began_s,
    )
    test.close()
    return outcome


def _run(
    cluster: SimulatedCluster,
    story: Story,
    job: StoryJob,
    test: SimulatedApplication,
    injection: FaultInjection,
    timeline: StoryTimeline,
) -> None:
    scheduler = cluster.world.scheduler
    timeline.watch()
    faults = planned(story, job.seed)
    injection.schedule([each for each in faults if job.faults is None or each.number in job.faults])
    test.on_finished = lambda: scheduler.fail(_StoryEnded())
    test.start()
    try:
        scheduler.run(until_s=scheduler.now_s + story.limit_s)
    except _StoryEnded:
        return
    raise SimulationError(
        f"the story did not end within {story.limit_s:g} virtual s. Give its waits a limit, or raise limit_s"
    )


class _StoryEnded(Exception):
    """Ends the run of the scheduler."""


def _described(error: BaseException | None) -> tuple[str | None, str, str]:
    """(failure, cause, details)."""
    if error is None:
        return None, "", ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own(frame.filename)]
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].name}" if frames else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, AssertionError) and not str(error) and frames:
        text = f"AssertionError: {frames[-1].line}"
    if isinstance(error, Livelock | NothingLeft | SimulationError) and error.__cause__ is not None:
        chain = "".join(traceback.format_exception(error.__cause__))
        return text, f"{type(error).__name__} {type(error.__cause__).__name__}", chain
    details = "".join(traceback.format_list(frames)) if frames else "".join(traceback.format_exception(error))
    return text, f"{type(error).__name__} {place}", details


def _is_own(filename: str) -> bool:
    return any(part in filename.replace(os.sep, "/") for part in _OWN)
