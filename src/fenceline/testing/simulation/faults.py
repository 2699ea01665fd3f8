"""The faults of a simulated run: when they are injected, into which processes, and how they end.

Owns the schedule. Everything is drawn from one random source. A fault that can end a process excuses that in advance.
`stop` ends all faults: the liveness phase begins with every machine up and every link healed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from math import inf
from random import Random
from typing import Final

from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import Call
from fenceline.testing.simulation.aim import Aim
from fenceline.testing.simulation.brokers_node import DATA_PORT, QUORUM_PORT, directories_of
from fenceline.testing.simulation.disk_checks import is_log_in_use
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.simulation.world import Process, World

_SLOW: Final = 100.0
_CALLS: Final = 3
"""Disk calls between the aimed injection of a torn write and the end of the process."""
_CHECKED_FROM: Final = 17
"""From this byte of a batch on, its checksum and the bytes that it covers."""
_FAILING: Final[tuple[Call, ...]] = ("open", "write", "fsync", "rename", "unlink", "truncate")
_ERRORS: Final = {"EIO": errno.EIO, "EMFILE": errno.EMFILE}


class Faults:
    """The faults of a world, from `start` until `stop`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._options = world.options
        self._rng: Random = world.rng("faults")
        self._periods: dict[tuple[int, str], Callable[[], None]] = {}
        """Running periods by node and kind, with the functions that end them."""
        self._returning: Process | None = None
        """The machine that loses power again and again."""
        self.struck: dict[str, int] = {}
        """The number of injections of each kind."""
        self._aimed: Mapping[Fault, Callable[[Process], None]] = {
            Fault.WRONG_BYTES: self._spoil,
            Fault.STOP: self._stop,
            Fault.PAUSE: self._pause,
            Fault.STRANDED: self._strand,
            Fault.DROPPED_CONNECTIONS: self._drop,
            Fault.QUICK_RETURN: self._return,
            Fault.SLOW_DISK: self._slow_disk,
            Fault.FULL_DISK: self._full,
            Fault.FAILING_DISK: self._fail,
            Fault.DIRECTORY_LOST: self._lose_dir,
            Fault.CLOCK_JUMP: self._jump,
        }
        world.standing_excuses = self._standing_excuses
        world.on_end.append(self._ended)

    def start(self) -> None:
        options = self._options
        for period_s, fault in (
            (options.crash_s, self._crash),
            (options.spoil_s, self._spoil),
            (options.stop_s, self._stop),
            (options.pause_s, self._pause),
            (options.partition_s, self._partition),
            (options.drop_s, self._drop),
            (options.slow_disk_s, self._slow_disk),
            (options.full_s, self._full),
            (options.fail_s, self._fail),
            (options.flip_s, self._flip),
            (options.jump_s, self._jump),
            (options.lose_dir_s, self._lose_dir),
            (options.lag_s, self._lag),
            (options.return_s, self._return),
            (options.strand_s, self._strand),
        ):
            if period_s > 0:
                self._again(period_s, fault, after_s=options.calm_s)
        if options.aim:
            self._world.check_aim = Aim(self._world, self.inject).check

    def stop(self) -> None:
        """End every fault; machines that are down or paused continue."""
        world = self._world
        world.faults_active = False
        world.log_event("no more faults")
        for end in list(self._periods.values()):
            end()
        world.network.heal()
        conditions = world.network.conditions
        conditions.loss_chance = conditions.duplicate_chance = conditions.slow_chance = 0.0
        for process in world.processes.values():
            process.resume()

    def _again(self, period_s: float, fault: Callable[[], None], *, after_s: float = 0.0) -> None:
        def inject() -> None:
            if self._world.faults_active:
                fault()
                self._again(period_s, fault)

        self._world.loop.call_later(after_s + self._world.lasting_s(self._rng.expovariate(1 / period_s)), inject)

    def _ended(self, process: Process) -> None:
        self._world.loop.call_later(0.01, self._supervise, process)

    def _supervise(self, process: Process) -> None:
        """Restart a process some time after it ended."""
        if not process.is_up and process.must_run and not self._has_fault(process, "down"):
            self._begin_period(process, "down", self._options.down_s * self._rng.uniform(0.2, 2), process.start)

    def _count(self, kind: Fault, process: Process | None = None, lasts_s: float = 0.0) -> None:
        """Count a fault of this process, or of the network. Call it before the fault takes effect."""
        self.struck[kind.value] = self.struck.get(kind.value, 0) + 1
        self._world.coverage.fault(kind, process.node_id if process is not None else None, lasts_s)

    def _begin_period(self, process: Process, kind: str, lasts_s: float, end: Callable[[], None]) -> None:
        """A fault that lasts. `end` runs once."""
        key = (process.node_id, kind)

        def over() -> None:
            if self._periods.pop(key, None) is not None:
                end()

        self._periods[key] = over
        self._world.loop.call_later(lasts_s, over)

    def _has_fault(self, process: Process, kind: str) -> bool:
        return (process.node_id, kind) in self._periods

    def _standing_excuses(self, process: Process) -> set[str]:
        return {kind for kind in ("full disk", "failing disk") if self._has_fault(process, kind)}

    def _random_process(self) -> Process | None:
        up = [process for process in self._world.up() if not process.is_paused]
        return self._rng.choice(up) if up else None

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        process = self._random_process()
        if process is not None:
            self._end(process, power_lost=self._rng.random() < self._options.power_chance)

    def _end(self, process: Process, *, power_lost: bool) -> None:
        if process.is_up:
            self._count(Fault.POWER_LOSS if power_lost else Fault.KILL, process, inf)
            process.kill(power_lost=power_lost)

    def _spoil(self, process: Process | None = None) -> None:
        """A process is killed, and finds a changed byte in a log when it restarts: an unsynced byte that a checksum
        covers."""
        process = process or self._random_process()
        if process is None or not process.is_up:
            return
        disk = process.disk
        logs = [(path, durable_bytes) for path, durable_bytes in disk.unsynced() if is_log_in_use(path)]
        if not logs:
            return
        path, durable_bytes = self._rng.choice(logs)
        self._count(Fault.WRONG_BYTES, process, inf)
        process.kill(power_lost=False)
        content = disk.peek(path) or b""
        position = self._rng.randrange(durable_bytes, len(content))
        for batch in iter_headers(content, allow_partial_tail=True):
            if batch.position <= position < batch.end_position:
                position = max(position, batch.position + _CHECKED_FROM)
        disk.flip(path, position)
        process.log_event(f"byte {position} of {path} has changed")

    def _stop(self, process: Process | None = None) -> None:
        process = process or self._random_process()
        if process is not None:
            self._count(Fault.STOP, process, inf)
            process.request_stop()

    def _pause(self, process: Process | None = None) -> None:
        process = process or self._random_process()
        if process is not None and not self._has_fault(process, "pause"):
            lasts_s = self._options.paused_s * self._rng.uniform(0.1, 2)
            self._count(Fault.PAUSE, process, lasts_s)
            process.pause()
            self._begin_period(process, "pause", lasts_s, process.resume)

    def _partition(self, one_way: bool | None = None) -> None:
        """Cut the nodes into two groups, or single links in one direction, for a while."""
        world, rng = self._world, self._rng
        nodes = sorted(world.processes)
        if one_way is None:
            one_way = rng.random() < self._options.one_way_chance
        if one_way:
            source = rng.choice(nodes)
            cut = [(source, other) for other in nodes if other != source and rng.random() < 0.7]
            if rng.random() < 0.5:
                cut = [(other, source) for source, other in cut]
        else:
            side = {node for node in nodes if rng.random() < 0.5}
            cut = [(a, b) for a in nodes for b in nodes if (a in side) != (b in side)]
        lasts_s = self._options.partition_s * rng.uniform(0.1, 1.5)
        self._count(Fault.ONE_WAY_PARTITION if one_way else Fault.PARTITION, lasts_s=lasts_s)
        world.log_event(f"cuts {cut}")
        for source, destination in cut:
            world.network.cut(source, destination)

        def end() -> None:
            world.log_event(f"heals {cut}")
            for source, destination in cut:
                world.network.heal(source, destination)

        world.loop.call_later(lasts_s, end)

    def _drop(self, process: Process | None = None) -> None:
        process = process or self._random_process()
        if process is not None:
            self._count(Fault.DROPPED_CONNECTIONS, process)
            self._world.network.drop_connections(process.node_id)

    def _slow_disk(self, process: Process | None = None) -> None:
        process = process or self._random_process()
        if process is not None and not self._has_fault(process, "slow disk"):
            self._count(Fault.SLOW_DISK, process, self._options.spell_s)
            process.log_event("disk is slow")
            process.slowness = _SLOW

            def end() -> None:
                process.slowness = 1.0

            self._begin_period(process, "slow disk", self._options.spell_s, end)

    def _full(self, process: Process | None = None) -> None:
        """Room for a few bytes, or for none."""
        process = process or self._random_process()
        if process is not None and not self._has_fault(process, "full disk"):
            self._count(Fault.FULL_DISK, process, self._options.spell_s)
            room = self._rng.choice((0, 0, 10, 200, 3000))
            process.log_event(f"disk has room for {room} bytes")
            process.excuse("full disk")
            process.disk.capacity_bytes = process.disk.used_bytes + room

            def end() -> None:
                process.log_event("disk has room")
                process.disk.capacity_bytes = None

            self._begin_period(process, "full disk", self._options.spell_s, end)

    def _fail(self, process: Process | None = None) -> None:
        """One kind of call fails for a while, perhaps only for one kind of file."""
        process = process or self._random_process()
        if process is not None and not self._has_fault(process, "failing disk"):
            self._count(Fault.FAILING_DISK, process, self._options.spell_s)
            call = self._rng.choice(_FAILING)
            suffix = self._rng.choice(("", ".log", ".part", ".checkpoint", "quorum-state.tmp"))
            name = self._rng.choice(("EIO", "EMFILE")) if call == "open" else "EIO"
            process.log_event(f"disk answers {call} of *{suffix} with {name}")
            process.excuse("failing disk")
            capacity_bytes = process.disk.capacity_bytes
            process.disk.fail(call, suffix, _ERRORS[name])

            def end() -> None:
                process.log_event("disk is well")
                process.disk.heal()
                if self._has_fault(process, "full disk"):
                    process.disk.capacity_bytes = capacity_bytes
                if self._options.operate_s:
                    process.request_stop()  # as a node with an offline partition advises

            self._begin_period(process, "failing disk", self._options.spell_s, end)

    def _flip(self) -> None:
        """Some reads of one machine return wrong bits, also after restarts."""
        process = self._random_process()
        if process is not None and not self._has_fault(process, "wrong bits"):
            self._count(Fault.WRONG_BITS, process, self._options.spell_s)
            process.excuse("wrong bits")
            process.flip_chance = process.files.flip_chance = self._rng.choice((0.01, 0.3))

            def end() -> None:
                process.flip_chance = 0.0
                if process.is_up:
                    process.files.flip_chance = 0.0

            self._begin_period(process, "wrong bits", self._options.spell_s, end)

    def _jump(self, process: Process | None = None) -> None:
        process = process or self._rng.choice(list(self._world.processes.values()))
        by_ms = self._rng.choice((-1, 1)) * self._rng.choice((10, 1000, 86_400_000))
        self._count(Fault.CLOCK_JUMP, process)
        process.log_event(f"wall clock jumps by {by_ms} ms")
        process.clock.jump(by_ms)

    def _lose_dir(self, process: Process | None = None) -> None:
        """One of several data directories fails, but not the one with the metadata log; it works again after a
        restart."""
        directories = directories_of(self._options)[1:]
        process = process or self._random_process()
        if not directories or process is None or self._has_fault(process, Fault.DIRECTORY_LOST):
            return
        directory, lasts_s = self._rng.choice(directories), self._rng.uniform(0.3, 2.0)
        self._count(Fault.DIRECTORY_LOST, process, lasts_s)
        process.log_event(f"loses {directory}")
        restore = process.disk.lose(directory)

        def end() -> None:
            process.log_event(f"has {directory} again")
            restore()
            process.request_stop()

        self._begin_period(process, Fault.DIRECTORY_LOST, lasts_s, end)

    # -- of clusters with data -----------------------------------------------------------------------------------------

    def _lag(self) -> None:
        """Some machines receive messages of others late for a while: data, quorum messages, or both."""
        rng, nodes = self._rng, sorted(self._world.processes)
        sources = [rng.choice(nodes)] if rng.random() < 0.7 else nodes
        destinations = [rng.choice(nodes)] if rng.random() < 0.6 else nodes
        ports = rng.choice(((DATA_PORT,), (DATA_PORT,), (QUORUM_PORT,), (DATA_PORT, QUORUM_PORT)))
        by_s, lasts_s = rng.uniform(0.05, 1.3), rng.uniform(0.3, 2.5)
        self._count(Fault.LAG, lasts_s=lasts_s)
        self._delay_messages(sources, destinations, ports, by_s, lasts_s)

    def _return(self, process: Process | None = None) -> None:
        """A machine loses power and is back at once; messages of the others to the controllers, and data to it, are
        late."""
        rng, world = self._rng, self._world
        nodes = sorted(world.processes)
        if process is None:
            if self._returning is None:
                self._returning = world.processes[rng.choice(nodes)]
            process = self._returning
        if not process.is_up or process.is_paused:
            return
        others = [node for node in nodes if node != process.node_id]
        lasts_s = rng.uniform(0.3, 1.2)
        self._count(Fault.QUICK_RETURN, process, lasts_s)
        self._delay_messages(others, [process.node_id], (DATA_PORT,), rng.uniform(0.2, 0.9), lasts_s)
        self._delay_messages(others, others, (QUORUM_PORT,), rng.uniform(0.2, 0.9), lasts_s)
        process.kill(power_lost=True)
        if not self._has_fault(process, "down"):
            self._begin_period(process, "down", 0.02, process.start)

    def _strand(self, stranded: Process | None = None) -> None:
        """One node is down for a moment; another continues alone, and is cut off when the first returns. The replicas
        that can be elected then lack what the other had: an unclean election, if these are enabled."""
        rng, world = self._rng, self._world
        nodes = sorted(world.processes)[1 if self._options.controllers == 1 else 0 :]
        behind, alone = (world.processes[node] for node in rng.sample(nodes, 2))
        if stranded is not None:
            alone = stranded
            behind = world.processes[rng.choice([node for node in nodes if node != alone.node_id])]
        if any(self._has_fault(each, "stranded") for each in world.processes.values()) or not behind.is_up:
            return
        self._count(Fault.STRANDED, alone)
        behind.kill(power_lost=False)
        if not self._has_fault(behind, "down"):
            self._begin_period(behind, "down", rng.uniform(0.2, 0.8), behind.start)
        if rng.random() < 0.5:
            behind.slowness = _SLOW
        others = [node for node in world.processes if node != alone.node_id]
        links = [link for node in others for link in ((node, alone.node_id), (alone.node_id, node))]

        def cut() -> None:
            if world.faults_active:
                world.log_event(f"cuts off {alone.node_id}")
                for link in links:
                    world.network.cut(*link)

        def end() -> None:
            world.log_event(f"{alone.node_id} is back")
            behind.slowness = 1.0
            for link in links:
                world.network.heal(*link)

        world.loop.call_later(rng.uniform(0.05, 0.4), cut)
        lasts_s = rng.uniform(1.9, 2.9)
        world.coverage.lasts(Fault.STRANDED, alone.node_id, lasts_s)
        self._begin_period(alone, "stranded", lasts_s, end)

    # -- aimed ---------------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault, process: Process) -> None:
        """Inject this fault into this process now."""
        match fault:
            case Fault.KILL | Fault.POWER_LOSS:
                self._end(process, power_lost=fault is Fault.POWER_LOSS)
            case Fault.TORN_WRITE:
                process.files.crash_after(self._rng.randrange(_CALLS))
            case Fault.PARTITION | Fault.ONE_WAY_PARTITION:
                self._partition(one_way=fault is Fault.ONE_WAY_PARTITION)
            case Fault.LAG:
                self._lag()
            case _:
                self._aimed[fault](process)

    def _delay_messages(
        self, sources: list[int], destinations: list[int], ports: tuple[int, ...], by_s: float, lasts_s: float
    ) -> None:
        world, port_list = self._world, ", ".join(map(str, ports))
        links = [(a, b, port) for a in sources for b in destinations for port in ports if a != b]
        world.log_event(f"{destinations} hear {sources} on {port_list} {by_s:.3f} s late, for {lasts_s:.3f} s")
        for link in links:
            world.network.lag(*link, by_s)

        def end() -> None:
            for link in links:
                world.network.lag(*link, 0.0)

        world.loop.call_later(lasts_s, end)
