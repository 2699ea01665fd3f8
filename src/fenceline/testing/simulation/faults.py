"""Faults of a simulated story: when they strike, on whom, and how they end.

Owns the schedule. Everything is drawn from one random source; each fault that can end the life of a process excuses
that in advance. `stop` ends all of them: the liveness phase begins with every machine up and every link whole.
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
"""Of the disk, from when a torn write is aimed at a node until it dies."""
_CHECKED_FROM: Final = 17
"""From this byte of a batch on, its checksum and what that covers."""
_FAILING: Final[tuple[Call, ...]] = ("open", "write", "fsync", "rename", "unlink", "truncate")
_ERRORS: Final = {"EIO": errno.EIO, "EMFILE": errno.EMFILE}


class Faults:
    """The faults of a world, from `start` until `stop`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._options = world.options
        self._rng: Random = world.rng("faults")
        self._spells: dict[tuple[int, str], Callable[[], None]] = {}
        """Running spells by node and kind, with what ends them."""
        self._returning: Process | None = None
        """Who loses power again and again."""
        self.struck: dict[str, int] = {}
        """How often each kind struck."""
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
            self._world.look_for_aim = Aim(self._world, self.strike).look

    def stop(self) -> None:
        """End every fault; machines that are down or frozen go on."""
        world = self._world
        world.faults_strike = False
        world.tell("no more faults")
        for end in list(self._spells.values()):
            end()
        world.network.heal()
        weather = world.network.weather
        weather.loss_chance = weather.duplicate_chance = weather.slow_chance = 0.0
        for process in world.processes.values():
            process.resume()

    def _again(self, period_s: float, fault: Callable[[], None], *, after_s: float = 0.0) -> None:
        def strike() -> None:
            if self._world.faults_strike:
                fault()
                self._again(period_s, fault)

        self._world.loop.call_later(after_s + self._world.lasting_s(self._rng.expovariate(1 / period_s)), strike)

    def _ended(self, process: Process) -> None:
        self._world.loop.call_later(0.01, self._supervise, process)

    def _supervise(self, process: Process) -> None:
        """Start what has ended, a while after it did."""
        if not process.is_up and process.must_run and not self._is_under(process, "down"):
            self._spell(process, "down", self._options.down_s * self._rng.uniform(0.2, 2), process.start)

    def _count(self, kind: Fault, process: Process | None = None, lasts_s: float = 0.0) -> None:
        """It strikes this process, or the network. To be called before it takes effect."""
        self.struck[kind.value] = self.struck.get(kind.value, 0) + 1
        self._world.coverage.fault(kind, process.node_id if process is not None else None, lasts_s)

    def _spell(self, process: Process, kind: str, lasts_s: float, end: Callable[[], None]) -> None:
        """Something that lasts. `end` runs once."""
        key = (process.node_id, kind)

        def over() -> None:
            if self._spells.pop(key, None) is not None:
                end()

        self._spells[key] = over
        self._world.loop.call_later(lasts_s, over)

    def _is_under(self, process: Process, kind: str) -> bool:
        return (process.node_id, kind) in self._spells

    def _standing_excuses(self, process: Process) -> set[str]:
        return {kind for kind in ("full disk", "failing disk") if self._is_under(process, kind)}

    def _someone(self) -> Process | None:
        up = [process for process in self._world.up() if not process.is_paused]
        return self._rng.choice(up) if up else None

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        process = self._someone()
        if process is not None:
            self._end(process, power_lost=self._rng.random() < self._options.power_chance)

    def _end(self, process: Process, *, power_lost: bool) -> None:
        if process.is_up:
            self._count(Fault.POWER_LOSS if power_lost else Fault.KILL, process, inf)
            process.kill(power_lost=power_lost)

    def _spoil(self, process: Process | None = None) -> None:
        """A process is killed, and finds a byte of a log changed when it starts again: one that was not safe on its
        disk, and that a checksum covers."""
        process = process or self._someone()
        if process is None or not process.is_up:
            return
        disk = process.disk
        logs = [(path, safe_bytes) for path, safe_bytes in disk.unsynced() if is_log_in_use(path)]
        if not logs:
            return
        path, safe_bytes = self._rng.choice(logs)
        self._count(Fault.WRONG_BYTES, process, inf)
        process.kill(power_lost=False)
        content = disk.peek(path) or b""
        position = self._rng.randrange(safe_bytes, len(content))
        for batch in iter_headers(content, allow_partial_tail=True):
            if batch.position <= position < batch.end_position:
                position = max(position, batch.position + _CHECKED_FROM)
        disk.flip(path, position)
        process.tell(f"byte {position} of {path} has changed")

    def _stop(self, process: Process | None = None) -> None:
        process = process or self._someone()
        if process is not None:
            self._count(Fault.STOP, process, inf)
            process.request_stop()

    def _pause(self, process: Process | None = None) -> None:
        process = process or self._someone()
        if process is not None and not self._is_under(process, "pause"):
            lasts_s = self._options.paused_s * self._rng.uniform(0.1, 2)
            self._count(Fault.PAUSE, process, lasts_s)
            process.pause()
            self._spell(process, "pause", lasts_s, process.resume)

    def _partition(self, one_way: bool | None = None) -> None:
        """Cut the nodes in two groups, or single links one way, for a while."""
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
        world.tell(f"cuts {cut}")
        for source, destination in cut:
            world.network.cut(source, destination)

        def end() -> None:
            world.tell(f"heals {cut}")
            for source, destination in cut:
                world.network.heal(source, destination)

        world.loop.call_later(lasts_s, end)

    def _drop(self, process: Process | None = None) -> None:
        process = process or self._someone()
        if process is not None:
            self._count(Fault.DROPPED_CONNECTIONS, process)
            self._world.network.drop_connections(process.node_id)

    def _slow_disk(self, process: Process | None = None) -> None:
        process = process or self._someone()
        if process is not None and not self._is_under(process, "slow disk"):
            self._count(Fault.SLOW_DISK, process, self._options.spell_s)
            process.tell("disk is slow")
            process.slowness = _SLOW

            def end() -> None:
                process.slowness = 1.0

            self._spell(process, "slow disk", self._options.spell_s, end)

    def _full(self, process: Process | None = None) -> None:
        """Room for a few bytes more, or for none."""
        process = process or self._someone()
        if process is not None and not self._is_under(process, "full disk"):
            self._count(Fault.FULL_DISK, process, self._options.spell_s)
            room = self._rng.choice((0, 0, 10, 200, 3000))
            process.tell(f"disk has room for {room} bytes")
            process.excuse("full disk")
            process.disk.capacity_bytes = process.disk.used_bytes + room

            def end() -> None:
                process.tell("disk has room")
                process.disk.capacity_bytes = None

            self._spell(process, "full disk", self._options.spell_s, end)

    def _fail(self, process: Process | None = None) -> None:
        """One kind of call fails for a while, perhaps only on one kind of file."""
        process = process or self._someone()
        if process is not None and not self._is_under(process, "failing disk"):
            self._count(Fault.FAILING_DISK, process, self._options.spell_s)
            call = self._rng.choice(_FAILING)
            suffix = self._rng.choice(("", ".log", ".part", ".checkpoint", "quorum-state.tmp"))
            name = self._rng.choice(("EIO", "EMFILE")) if call == "open" else "EIO"
            process.tell(f"disk answers {call} of *{suffix} with {name}")
            process.excuse("failing disk")
            capacity_bytes = process.disk.capacity_bytes
            process.disk.fail(call, suffix, _ERRORS[name])

            def end() -> None:
                process.tell("disk is well")
                process.disk.heal()
                if self._is_under(process, "full disk"):
                    process.disk.capacity_bytes = capacity_bytes
                if self._options.operate_s:
                    process.request_stop()  # as a node advises that took a partition offline

            self._spell(process, "failing disk", self._options.spell_s, end)

    def _flip(self) -> None:
        """Reads of one machine give wrong bits now and then, also to the next lives."""
        process = self._someone()
        if process is not None and not self._is_under(process, "wrong bits"):
            self._count(Fault.WRONG_BITS, process, self._options.spell_s)
            process.excuse("wrong bits")
            process.flip_chance = process.files.flip_chance = self._rng.choice((0.01, 0.3))

            def end() -> None:
                process.flip_chance = 0.0
                if process.is_up:
                    process.files.flip_chance = 0.0

            self._spell(process, "wrong bits", self._options.spell_s, end)

    def _jump(self, process: Process | None = None) -> None:
        process = process or self._rng.choice(list(self._world.processes.values()))
        by_ms = self._rng.choice((-1, 1)) * self._rng.choice((10, 1000, 86_400_000))
        self._count(Fault.CLOCK_JUMP, process)
        process.tell(f"wall clock jumps by {by_ms} ms")
        process.clock.jump(by_ms)

    def _lose_dir(self, process: Process | None = None) -> None:
        """One of several data directories fails, not the one with the metadata log; it is back after a restart."""
        directories = directories_of(self._options)[1:]
        process = process or self._someone()
        if not directories or process is None or self._is_under(process, Fault.DIRECTORY_LOST):
            return
        directory, lasts_s = self._rng.choice(directories), self._rng.uniform(0.3, 2.0)
        self._count(Fault.DIRECTORY_LOST, process, lasts_s)
        process.tell(f"loses {directory}")
        give_back = process.disk.lose(directory)

        def end() -> None:
            process.tell(f"has {directory} again")
            give_back()
            process.request_stop()

        self._spell(process, Fault.DIRECTORY_LOST, lasts_s, end)

    # -- of clusters with data -----------------------------------------------------------------------------------------

    def _lag(self) -> None:
        """Some machines hear others late for a while: on their data's streams, on the controllers', or on both."""
        rng, nodes = self._rng, sorted(self._world.processes)
        sources = [rng.choice(nodes)] if rng.random() < 0.7 else nodes
        destinations = [rng.choice(nodes)] if rng.random() < 0.6 else nodes
        ports = rng.choice(((DATA_PORT,), (DATA_PORT,), (QUORUM_PORT,), (DATA_PORT, QUORUM_PORT)))
        by_s, lasts_s = rng.uniform(0.05, 1.3), rng.uniform(0.3, 2.5)
        self._count(Fault.LAG, lasts_s=lasts_s)
        self._hears_late(sources, destinations, ports, by_s, lasts_s)

    def _return(self, process: Process | None = None) -> None:
        """A machine loses power and is back at once; what others tell the controllers, and it of the data, is late."""
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
        self._hears_late(others, [process.node_id], (DATA_PORT,), rng.uniform(0.2, 0.9), lasts_s)
        self._hears_late(others, others, (QUORUM_PORT,), rng.uniform(0.2, 0.9), lasts_s)
        process.kill(power_lost=True)
        if not self._is_under(process, "down"):
            self._spell(process, "down", 0.02, process.start)

    def _strand(self, stranded: Process | None = None) -> None:
        """One node is down for a moment; another goes on without it, and is cut off when the first comes back. Who can
        be elected then lacks what the other had: an unclean election, where these are allowed."""
        rng, world = self._rng, self._world
        nodes = sorted(world.processes)[1 if self._options.controllers == 1 else 0 :]
        behind, alone = (world.processes[node] for node in rng.sample(nodes, 2))
        if stranded is not None:
            alone = stranded
            behind = world.processes[rng.choice([node for node in nodes if node != alone.node_id])]
        if any(self._is_under(each, "stranded") for each in world.processes.values()) or not behind.is_up:
            return
        self._count(Fault.STRANDED, alone)
        behind.kill(power_lost=False)
        if not self._is_under(behind, "down"):
            self._spell(behind, "down", rng.uniform(0.2, 0.8), behind.start)
        if rng.random() < 0.5:
            behind.slowness = _SLOW
        others = [node for node in world.processes if node != alone.node_id]
        links = [link for node in others for link in ((node, alone.node_id), (alone.node_id, node))]

        def cut() -> None:
            if world.faults_strike:
                world.tell(f"cuts off {alone.node_id}")
                for link in links:
                    world.network.cut(*link)

        def end() -> None:
            world.tell(f"{alone.node_id} is back")
            behind.slowness = 1.0
            for link in links:
                world.network.heal(*link)

        world.loop.call_later(rng.uniform(0.05, 0.4), cut)
        lasts_s = rng.uniform(1.9, 2.9)
        world.coverage.lasts(Fault.STRANDED, alone.node_id, lasts_s)
        self._spell(alone, "stranded", lasts_s, end)

    # -- aimed ---------------------------------------------------------------------------------------------------------

    def strike(self, fault: Fault, process: Process) -> None:
        """This fault, at this process: now."""
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

    def _hears_late(
        self, sources: list[int], destinations: list[int], ports: tuple[int, ...], by_s: float, lasts_s: float
    ) -> None:
        world, ports_told = self._world, ", ".join(map(str, ports))
        links = [(a, b, port) for a in sources for b in destinations for port in ports if a != b]
        world.tell(f"{destinations} hear {sources} on {ports_told} {by_s:.3f} s late, for {lasts_s:.3f} s")
        for link in links:
            world.network.lag(*link, by_s)

        def end() -> None:
            for link in links:
                world.network.lag(*link, 0.0)

        world.loop.call_later(lasts_s, end)
