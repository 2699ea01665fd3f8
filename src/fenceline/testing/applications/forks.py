"""Runs seeds of a story: each in a copy of a process in which the cluster has formed.

Owns these copies (`fork`), their pipes and their end. The cluster forms once; then a seed costs what happens after that.
Where a process cannot be forked, each seed forms its own cluster: slower, with the same outcome and the same hash.

A copy that does not end within `LIMIT_S` of real time is killed: code that never awaits cannot be ended otherwise.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Final

from fenceline.testing.applications.cluster import ClusterSetup, SimulatedCluster
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome, tell
from fenceline.testing.applications.standard_library import note_application_modules
from fenceline.testing.applications.story import Story
from fenceline.testing.simulation.world import LogSink

LIMIT_S: Final = 60.0
_AHEAD: Final = 64
"""Outcomes that may wait for that of an earlier seed."""
_real_time_s: Final = time.monotonic


def can_fork() -> bool:
    """Whether a copy of this process can be made safely: a lock that another thread holds stays locked in the copy."""
    return hasattr(os, "fork") and threading.active_count() == 1


def outcomes(
    story: Story, jobs: Iterable[StoryJob], workers: int = 1, *, forks: bool | None = None
) -> Generator[StoryOutcome, None, None]:
    """The outcome of each job, in order. `forks`: None if possible. Closing the generator ends the copies."""
    if can_fork() if forks is None else forks:
        yield from _forked(story, jobs, max(1, workers))
        return
    for job in jobs:
        with _no_collections():
            cluster = formed(story.setup)
            try:
                outcome = tell(cluster, story, job)
            finally:
                with LogSink(cluster.world):
                    cluster.close()
        yield outcome


def formed(setup: ClusterSetup) -> SimulatedCluster:
    """A cluster from which one seed can continue."""
    cluster = SimulatedCluster(setup)
    with LogSink(cluster.world):
        cluster.form()
    return cluster


def _warm_up(story: Story) -> None:
    """Tell a story that is not counted, so that copies of this process find modules loaded and codecs compiled."""
    cluster = formed(story.setup)
    tell(cluster, story, StoryJob(0))
    with LogSink(cluster.world):
        cluster.close()


@contextmanager
def _no_collections() -> Iterator[None]:
    """The seed does not determine when cycles are collected and finalizers run."""
    had = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if had:
            gc.enable()


@dataclass(slots=True)
class _Copy:
    """A process that runs one job."""

    number: int
    job: StoryJob
    pid: int
    stack: IO[bytes]
    """Where it writes its stack if it runs for too long."""
    ends_s: float
    received: bytearray = field(default_factory=bytearray)


def _forked(story: Story, jobs: Iterable[StoryJob], workers: int) -> Generator[StoryOutcome, None, None]:
    with _no_collections():
        _warm_up(story)
        cluster = formed(story.setup)
        note_application_modules()
        gc.collect()
        gc.freeze()
        copies: dict[int, _Copy] = {}
        done: dict[int, StoryOutcome] = {}
        waiting = enumerate(jobs)
        given, following, is_exhausted = 0, 0, False
        try:
            with selectors.DefaultSelector() as selector:
                while True:
                    while not is_exhausted and len(copies) < workers and given - following < _AHEAD:
                        number, job = next(waiting, (-1, StoryJob(0)))
                        if number < 0:
                            is_exhausted = True
                            break
                        reader, copy = _start(cluster, story, number, job)
                        copies[reader] = copy
                        selector.register(reader, selectors.EVENT_READ)
                        given += 1
                    while following in done:
                        yield done.pop(following)
                        following += 1
                    if not copies:
                        if is_exhausted and not done:
                            return
                        continue
                    for reader in _readable(selector, copies):
                        copy = copies[reader]
                        piece = os.read(reader, 1 << 16)
                        copy.received += piece
                        if not piece:
                            selector.unregister(reader)
                            os.close(reader)
                            del copies[reader]
                            done[copy.number] = _ended(story, copy)
        finally:
            for reader, copy in copies.items():
                os.close(reader)
                with suppress(ProcessLookupError):
                    os.kill(copy.pid, signal.SIGKILL)
                os.waitpid(copy.pid, 0)
            gc.unfreeze()
            with LogSink(cluster.world):
                cluster.close()


def _readable(selector: selectors.BaseSelector, copies: dict[int, _Copy]) -> list[int]:
    """Pipes with something to read; kills copies that take too long."""
    found = [int(key.fd) for key, _ in selector.select(timeout=1.0)]
    now_s = _real_time_s()
    for copy in copies.values():
        if now_s > copy.ends_s:
            with suppress(ProcessLookupError):
                os.kill(copy.pid, signal.SIGKILL)
    return found


def _start(cluster: SimulatedCluster, story: Story, number: int, job: StoryJob) -> tuple[int, _Copy]:
    reader, writer = os.pipe()
    stack = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the copy has ended
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, _Copy(number, job, pid, stack, _real_time_s() + LIMIT_S)
    code = 1
    try:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.dump_traceback_later(LIMIT_S - 2, file=stack)
        content = pickle.dumps(tell(cluster, story, job), protocol=pickle.HIGHEST_PROTOCOL)
        sys.stdout.flush()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(content)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _ended(story: Story, copy: _Copy) -> StoryOutcome:
    _, status = os.waitpid(copy.pid, 0)
    with copy.stack:
        if status == 0:
            outcome: StoryOutcome = pickle.loads(bytes(copy.received))
            return outcome
        copy.stack.seek(0)
        stack = copy.stack.read().decode(errors="replace")
    failure = f"its process ended with status {os.waitstatus_to_exitcode(status)}"
    if stack:
        failure = f"it did not end within {LIMIT_S:.0f} s of real time: code that never awaits?"
    return StoryOutcome(
        story=story.name,
        file=story.file,
        job=copy.job,
        failure=failure,
        cause=failure,
        details=stack,
        lines=(),
        injected=(),
        digest="",
        virtual_s=0.0,
        steps=0,
        cpu_s=0.0,
    )
