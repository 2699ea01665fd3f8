"""The simulated world: machines with disks and clocks, the processes on them, and the network between them.

Owns which processes run, and the random sources: each purpose has its own, derived from the seed and a name, so that an
additional draw in one place changes nothing elsewhere. Knows nothing of what the processes do: it is given a `Body`,
which exposes through a `SimulatedNodeView` what the checks need.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from fenceline.errors import OperatorError, PeerError
from fenceline.metadata.image import MetadataImage
from fenceline.node import logs
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.clock import NodeClock
from fenceline.testing.simulation.coverage import Coverage
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.network import CallbackHandler, Handler, Network, NetworkConditions
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.pace import LoadCycle
from fenceline.testing.simulation.scheduler import RUNNING, Scheduler, SimulationError
from fenceline.testing.simulation.trace import Trace

DATA_DIR: Final = "/data"


class NodeState(NamedTuple):
    """The state that is checked after every step. `leader_id` is -1 if no leader is known."""

    epoch: int
    leader_id: int
    is_leader: bool
    high_watermark: int
    """0 while it is unknown."""
    log_start: int
    log_end: int
    snapshots: tuple[tuple[int, int], ...]
    """(end offset, epoch), oldest first."""
    voters: tuple[tuple[int, str], ...]
    """(id, directory id), sorted."""
    image_offset: int
    """The offset of the newest published image; -1 if there is none."""
    in_touch: bool = False
    """Whether it is in contact with its leader, and refuses votes to others."""


class StoredBatch(NamedTuple):
    """A batch of a node's log. `content` must be equal on all nodes."""

    base_offset: int
    next_offset: int
    epoch: int
    content: bytes


class SimulatedNodeView(Protocol):
    """What the checks see of a running node."""

    @property
    def has_failed(self) -> bool:
        """Whether the node gave up: its last decisions took no effect, and no other node receives them."""
        ...

    def has_changed(self) -> bool:
        """Whether its state may have changed since the last call."""
        ...

    def state(self) -> NodeState: ...
    def batches(self, start: int, end: int) -> Sequence[StoredBatch]:
        """The batches of the log that begin in [start, end)."""
        ...

    def image(self) -> MetadataImage | None: ...
    @property
    def log_directory(self) -> str: ...
    def read_snapshot(self, end_offset: int, epoch: int) -> bytes | None:
        """The bytes of a complete snapshot, None if it was deleted meanwhile."""
        ...


Body = Callable[["Process"], Coroutine[Any, Any, None]]
"""The code of a process from its start to its clean end. Raises OperatorError, PeerError or OSError if it cannot
continue: that needs an excuse (a fault of its disk since its start); any other error ends the simulation."""


class Process:
    """One machine and its process. `life` counts starts."""

    def __init__(self, world: World, node_id: int, body: Body) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"n{node_id}"
        self.rng = world.rng(self.name)
        options = world.options
        self.clock = NodeClock(
            world.scheduler,
            rate=1 + options.drift * self.rng.uniform(-1, 1),
            base_s=self.rng.uniform(0, 1e6),
            skew_ms=self.rng.randint(-options.skew_ms, options.skew_ms),
        )
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.disk.rng = world.rng(f"{self.name} disk")
        self.life = 0
        self.loop: SimLoop | None = None
        self.view: SimulatedNodeView | None = None
        self.excuses: set[str] = set()
        """Faults that this process has met and that may end it."""
        self.slowness = 1.0
        self.flip_chance = 0.0
        self.must_run = True
        """Whether the supervisor restarts the process when it has ended."""
        self._body = body
        self._life_disk: LifeDisk | None = None
        self.stopping: asyncio.Event

    # -- what the body uses --------------------------------------------------------------------------------------------

    @property
    def files(self) -> LifeDisk:
        """The disk as this process sees it."""
        assert self._life_disk is not None, "the process runs"
        return self._life_disk

    def serve(self, handler: Handler) -> None:
        assert self.loop is not None, "the process runs"
        self.world.network.serve(self.node_id, self.loop, handler)

    def serve_callbacks(self, handler: CallbackHandler) -> None:
        assert self.loop is not None, "the process runs"
        self.world.network.serve_callbacks(self.node_id, self.loop, handler)

    def log_event(self, what: str) -> None:
        self.world.trace.add(self.world.scheduler.now_s, self.name, what)

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    @property
    def is_paused(self) -> bool:
        return self.loop is not None and self.loop.state != RUNNING

    def start(self) -> None:
        if self.loop is not None:
            return
        self.life += 1
        self.log_event(f"starts, life {self.life}")
        world = self.world
        world.coverage.starts(self.node_id)
        world.network.machine_is_back(self.node_id)
        loop = self.loop = SimLoop(
            world.scheduler,
            self.name,
            job_times=self._job_times,
            rate=self.clock.rate,
            base_s=self.clock.base_s,
            owner=self,
        )
        disk = self._life_disk = LifeDisk(self.disk, self.rng, log_event=self.log_event, end_process=self._end_in_call)
        disk.flip_chance = self.flip_chance
        self.excuses = {"wrong bits"} if self.flip_chance else set()
        self.excuses |= world.standing_excuses(self)
        if world.faults_active and world.options.crash_calls and self.rng.random() < 0.5:
            disk.crash_after(self.rng.randrange(world.options.crash_calls))
        loop.call_soon(self._begin, loop)

    def _begin(self, loop: SimLoop) -> None:
        self.stopping = asyncio.Event()
        loop.create_task(self._live(loop), name="main")

    async def _live(self, loop: SimLoop) -> None:
        try:
            await self._body(self)
        except (OperatorError, PeerError, OSError) as error:
            excuse = ", ".join(sorted(self.excuses))
            self.log_event(f"gives up ({excuse or 'no excuse'}): {error}")
            if not self.excuses:
                failure = SimulationError(f"{self.name} gave up without a fault of its disk: {error}")
                failure.__cause__ = error
                self.world.scheduler.fail(failure)
            self._ended(power_lost=False)
            return
        except Exception as error:
            self.world.scheduler.fail(error)
            raise
        loop.report_unseen_errors()
        self.log_event("has stopped")
        self._ended(power_lost=False)

    def _job_times(self) -> tuple[float, float]:
        longest_s = self.world.options.max_job_ms / 1000 * self.slowness
        return self.rng.random() * longest_s, self.rng.random() * longest_s / 4

    def kill(self, *, power_lost: bool) -> None:
        """End at once: no callback, no `finally`, no job runs. Without power the disk loses unsynced data."""
        if self.loop is None:
            return
        self.log_event("loses power" if power_lost else "is killed")
        self._ended(power_lost=power_lost)

    def _end_in_call(self) -> None:
        self.world.coverage.fault(Fault.TORN_WRITE, self.node_id, inf)
        chance = self.world.options.power_chance
        self.kill(power_lost=chance >= 1 or self.rng.random() < chance)

    def _ended(self, *, power_lost: bool) -> None:
        loop, disk = self.loop, self._life_disk
        assert loop is not None, "a process ends only once"
        assert disk is not None, "it had a disk"
        loop.kill()
        self.world.ended_loops.append(loop)
        self.loop = self.view = self._life_disk = None
        self.world.process_ended(self)
        self.world.network.process_ended(self.node_id, power_lost=power_lost)
        if power_lost:
            disk.forget()
            self.disk.crash()
        else:
            disk.end()

    def request_stop(self) -> None:
        """SIGTERM: the body ends when it can."""
        if self.loop is not None and hasattr(self, "stopping"):
            self.log_event("is asked to stop")
            self.loop.call_soon(self.stopping.set)

    def pause(self) -> None:
        if self.loop is not None:
            self.log_event("is paused")
            self.loop.pause()

    def resume(self) -> None:
        if self.loop is not None and self.is_paused:
            self.log_event("goes on")
            self.loop.resume()

    def excuse(self, reason: str) -> None:
        """A fault begins that may end this process."""
        self.excuses.add(reason)


class World:
    """See the module."""

    def __init__(self, seed: int, options: Options, *, sink: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.options = options
        self.trace = Trace(sink=sink)
        self.scheduler = Scheduler(self.rng("order") if options.shuffle else None)
        self.loop = SimLoop(self.scheduler, "world")
        self.network = Network(
            self.scheduler,
            self.rng("network"),
            self.trace,
            NetworkConditions(
                min_delay_s=min(0.0001, options.max_delay_ms / 2000),
                max_delay_s=options.max_delay_ms / 1000,
                slow_chance=options.slow_chance,
                slow_delay_s=options.slow_delay_s,
                loss_chance=options.loss_chance,
                duplicate_chance=options.duplicate_chance,
            ),
        )
        self.coverage = Coverage(lambda: self.scheduler.now_s)
        self.processes: dict[int, Process] = {}
        self.faults_active = True
        self.load_cycle: LoadCycle | None = None
        """When all clients pause; None: never at the same time."""
        self.ended_loops: list[SimLoop] = []
        self.on_end: list[Callable[[Process], None]] = []
        self.standing_excuses: Callable[[Process], set[str]] = lambda process: set()
        self.check_aim: Callable[[Process], None] | None = None
        """Called after each step of a process if faults aim at a state."""

    def rng(self, name: str) -> Random:
        """The random source for one purpose."""
        return self.rng_of(self.seed, name)

    @staticmethod
    def rng_of(seed: int, name: str) -> Random:
        return Random(f"{seed}/{name}")

    def lasting_s(self, busy_s: float) -> float:
        """Seconds from now that correspond to `busy_s` under load."""
        return busy_s if self.load_cycle is None else self.load_cycle.lasting_s(self.scheduler.now_s, busy_s)

    def add(self, node_id: int, body: Body) -> Process:
        process = self.processes[node_id] = Process(self, node_id, body)
        process.disk.mkdir(DATA_DIR)
        return process

    def up(self) -> Iterator[Process]:
        return (process for process in self.processes.values() if process.is_up)

    def log_event(self, what: str) -> None:
        self.trace.add(self.scheduler.now_s, "world", what)

    def report_unseen_errors(self) -> None:
        """Report errors of tasks of the running processes. Raises the first one."""
        for process in self.up():
            if process.loop is not None:
                process.loop.report_unseen_errors()
        self.scheduler.check()

    def process_ended(self, process: Process) -> None:
        for listener in self.on_end:
            listener(process)

    def close(self) -> None:
        """Release everything, in order. Nothing references the world then, so that it is freed without a cycle
        collection."""
        for process in self.processes.values():
            if process.loop is not None:
                process.loop.kill()
                self.ended_loops.append(process.loop)
        self.loop.kill()
        for loop in [*self.ended_loops, self.loop]:
            loop.close_tasks()
        self.ended_loops.clear()
        self.coverage.forget()
        self.check_aim = None
        self.scheduler.forget()
        self.network.forget_all()
        self.processes.clear()
        self.on_end.clear()


class LogSink:
    """Writes the log lines of the nodes to the trace while a simulation runs, instead of the terminal."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        self._before = logs.redirect(self._add)

    def __exit__(self, *_: object) -> None:
        logs.redirect(self._before)

    def _add(self, level: str, room: str, event: str, fields: dict[str, Any]) -> None:
        try:
            loop: object = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        values = " ".join(f"{name}={value}" for name, value in fields.items() if name not in ("exc_info", "advice"))
        who = loop.name if isinstance(loop, SimLoop) else "thread"
        self._world.trace.add(self._world.scheduler.now_s, who, f"logs {level} {room}: {event} {values}")
        if "exc_info" in fields:
            failure = sys.exc_info()[1] if fields["exc_info"] is True else fields["exc_info"]
            error = SimulationError(f"{who} logs an internal error: {event}: {failure!r}")
            error.__cause__ = failure
            self._world.scheduler.fail(error)
