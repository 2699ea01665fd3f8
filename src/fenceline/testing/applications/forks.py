"""Runs seeds of a story: in copies of a process in which clusters have formed.

Owns these copies (`fork`), their pipes and their end. A cluster forms before the first seed; then a seed costs what
happens after that. A copy runs up to `SEEDS_OF_A_COPY` seeds one after the other, each in a cluster of its own: to run
the first one it has to copy a third of its memory, for the others much less. A seed that fails after another one is run
again in a copy of its own, so that what an application keeps in globals cannot pass for a failure that the seed causes.

Where a process cannot be forked, each seed forms its own cluster: the same outcome and the same hash.

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
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO, Final, NamedTuple

from fenceline.testing.applications.cluster import ClusterSetup, SimulatedCluster
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome, tell
from fenceline.testing.applications.standard_library import note_application_modules
from fenceline.testing.applications.story import Story
from fenceline.testing.simulation.world import LogSink

SEEDS_OF_A_COPY: Final = 24
FIRST_SEEDS_OF_A_COPY: Final = 8
"""The first copies run fewer: a cluster forms for each, and a test may have few seeds."""
_FEW: Final = 96
"""Seeds until copies run more of them."""
LIMIT_S: Final = 60.0
_SHOWS_STACK: Final = signal.SIGUSR1
_WRITES_STACK_S: Final = 1.0
_LAST_SEEDS_OF_A_COPY: Final = 3
"""Towards the end the copies run fewer, so that they end at the same time; not fewer than these."""
_AHEAD: Final = 64
"""Outcomes that may wait for that of an earlier seed."""
_LENGTH_BYTES: Final = 4
_real_time_s: Final = time.monotonic


def can_fork() -> bool:
    """Whether a copy of this process can be made safely: a lock that another thread holds stays locked in the copy."""
    return hasattr(os, "fork") and threading.active_count() == 1


def outcomes(
    story: Story,
    jobs: Iterable[StoryJob],
    workers: int = 1,
    *,
    forks: bool | None = None,
    sink: Callable[[str], None] | None = None,
) -> Generator[StoryOutcome, None, None]:
    """The outcome of each job, in order. `forks`: None if possible. Closing the generator ends the copies.

    `sink` receives every event of a seed, as text; then nothing is forked.
    """
    if sink is None and (can_fork() if forks is None else forks):
        copies = _Copies(story, jobs, max(1, workers))
        try:
            yield from copies.outcomes()
        finally:
            copies.close()
        return
    for job in jobs:
        with _no_collections():
            cluster = formed(story.setup, sink)
            try:
                outcome = tell(cluster, story, job)
            finally:
                with LogSink(cluster.world):
                    cluster.close()
        yield outcome


def formed(setup: ClusterSetup, sink: Callable[[str], None] | None = None) -> SimulatedCluster:
    """A cluster from which one seed can continue."""
    cluster = SimulatedCluster(setup, sink=sink)
    with LogSink(cluster.world):
        cluster.form()
    return cluster


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


class _NumberedJob(NamedTuple):
    """`number`: its place among the jobs."""

    number: int
    job: StoryJob


@dataclass(slots=True)
class _Copy:
    """A process that runs some jobs."""

    jobs: Sequence[_NumberedJob]
    pid: int
    ends_s: float
    is_late: bool = False
    received: bytearray = field(default_factory=bytearray)

    def outcomes(self) -> list[StoryOutcome]:
        """Those that it has written completely, each behind its length."""
        found: list[StoryOutcome] = []
        position = 0
        while position + _LENGTH_BYTES <= len(self.received):
            start = position + _LENGTH_BYTES
            position = start + int.from_bytes(self.received[position:start], "big")
            if position > len(self.received):
                break
            found.append(pickle.loads(self.received[start:position]))
        return found


class _Copies:
    """The copies of this process that run the jobs of one story."""

    def __init__(self, story: Story, jobs: Iterable[StoryJob], workers: int) -> None:
        self._story = story
        self._waiting = (_NumberedJob(*each) for each in enumerate(jobs))
        self._next: deque[_NumberedJob] = deque()
        """The next ones of `_waiting`: fewer than the workers could take at once means that the end is near."""
        self._again: deque[_NumberedJob] = deque()
        """Jobs of copies that did not get to them."""
        self._workers = workers
        self._running: dict[int, _Copy] = {}
        """By the file descriptor of its pipe."""
        self._done: dict[int, StoryOutcome] = {}
        self._following = self._given = 0
        self._clusters: list[SimulatedCluster] = []
        self._collects = gc.isenabled()
        gc.disable()
        self._stack: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._selector = selectors.DefaultSelector()
        faulthandler.register(_SHOWS_STACK, file=self._stack)

    def close(self) -> None:
        """End all copies."""
        for reader, copy in self._running.items():
            os.close(reader)
            with suppress(ProcessLookupError):
                os.kill(copy.pid, signal.SIGKILL)
            os.waitpid(copy.pid, 0)
        self._running.clear()
        self._selector.close()
        faulthandler.unregister(_SHOWS_STACK)
        self._stack.close()
        gc.unfreeze()
        for cluster in self._clusters:
            with LogSink(cluster.world):
                cluster.close()
        if self._collects:
            gc.enable()

    # -- giving jobs ---------------------------------------------------------------------------------------------------

    def outcomes(self) -> Iterator[StoryOutcome]:
        """In the order of the jobs."""
        self._give()
        while self._running or self._done:
            while self._following in self._done:
                self._following += 1
                yield self._confirmed(self._done.pop(self._following - 1))
            self._give()
            if self._running:
                self._receive()

    def _give(self) -> None:
        """Start copies while a worker is free."""
        while len(self._running) < self._workers and self._given - self._following < _AHEAD * self._workers:
            jobs = [self._again.popleft()] if self._again else self._take()
            if not jobs:
                return
            self._given = max(self._given, jobs[-1].number + 1)
            self._form(len(jobs))
            reader, copy = self._start(jobs)
            self._running[reader] = copy
            self._selector.register(reader, selectors.EVENT_READ)

    def _take(self) -> list[_NumberedJob]:
        """The next jobs of a copy."""
        self._next.extend(islice(self._waiting, SEEDS_OF_A_COPY * self._workers - len(self._next)))
        most = SEEDS_OF_A_COPY if self._given >= _FEW else FIRST_SEEDS_OF_A_COPY
        count = max(_LAST_SEEDS_OF_A_COPY, min(most, len(self._next) // self._workers))
        return [self._next.popleft() for _ in range(min(count, len(self._next)))]

    def _form(self, count: int) -> None:
        """Have clusters for so many jobs of a copy."""
        if len(self._clusters) >= count:
            return
        gc.unfreeze()
        if not self._clusters and count > 1:
            _warm_up(self._story)
        while len(self._clusters) < count:
            self._clusters.append(formed(self._story.setup))
        note_application_modules()
        gc.collect()
        gc.freeze()

    def _start(self, jobs: Sequence[_NumberedJob]) -> tuple[int, _Copy]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writer)
            return reader, _Copy(jobs, pid, _real_time_s() + LIMIT_S)
        code = 1
        try:
            os.close(reader)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with os.fdopen(writer, "wb", buffering=0) as pipe:
                for (_, job), cluster in zip(jobs, self._clusters, strict=False):
                    content = pickle.dumps(tell(cluster, self._story, job), protocol=pickle.HIGHEST_PROTOCOL)
                    pipe.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(code)

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        for key, _ in self._selector.select(timeout=1.0):
            reader = int(key.fd)
            copy = self._running[reader]
            piece = os.read(reader, 1 << 16)
            copy.received += piece
            if not piece:
                self._selector.unregister(reader)
                os.close(reader)
                del self._running[reader]
                self._ended(copy)
        now_s = _real_time_s()
        for copy in self._running.values():
            if now_s > copy.ends_s:
                with suppress(ProcessLookupError):
                    os.kill(copy.pid, signal.SIGKILL if copy.is_late else _SHOWS_STACK)
                copy.is_late, copy.ends_s = True, now_s + _WRITES_STACK_S

    def _ended(self, copy: _Copy) -> None:
        _, status = os.waitpid(copy.pid, 0)
        found = copy.outcomes()
        for (number, _), outcome in zip(copy.jobs, found, strict=False):
            self._done[number] = outcome
        if len(found) < len(copy.jobs):
            culprit = copy.jobs[len(found)]
            self._done[culprit.number] = self._killed(copy, culprit.job, os.waitstatus_to_exitcode(status))
            self._again.extend(copy.jobs[len(found) + 1 :])

    def _killed(self, copy: _Copy, job: StoryJob, code: int) -> StoryOutcome:
        failure, details = f"its process ended with status {code}", ""
        if copy.is_late:
            failure = f"it did not end within {LIMIT_S:.0f} s of real time: code that never awaits?"
            self._stack.seek(0)
            details = self._stack.read().decode(errors="replace")
            self._stack.seek(0)
            self._stack.truncate()
        return StoryOutcome(
            story=self._story.name,
            file=self._story.file,
            job=job,
            failure=failure,
            cause=failure,
            details=details,
            lines=(),
            injected=(),
            digest="",
            virtual_s=0.0,
            steps=0,
            cpu_s=0.0,
        )

    def _confirmed(self, outcome: StoryOutcome) -> StoryOutcome:
        """A failure, as it is without other seeds before it."""
        if outcome.failure is None or not outcome.digest:
            return outcome
        reader, copy = self._start([_NumberedJob(0, outcome.job)])
        with os.fdopen(reader, "rb") as pipe:
            copy.received += pipe.read()
        os.waitpid(copy.pid, 0)
        alone = copy.outcomes()
        if alone and alone[0].failure is None:
            hint = "but only after other seeds in the same process: the application keeps something in globals"
            return replace(alone[0], failure=f"{outcome.failure} ({hint})", cause=outcome.cause, lines=outcome.lines)
        return alone[0] if alone else outcome


def _warm_up(story: Story) -> None:
    """Tell a story that is not counted, so that copies of this process find modules loaded and codecs compiled."""
    cluster = formed(story.setup)
    tell(cluster, story, StoryJob(0))
    with LogSink(cluster.world):
        cluster.close()
