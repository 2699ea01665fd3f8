"""Scenario: a cluster with data: three brokers, some of them controllers, with producers, consumers and an
administrator.

Owns the setup of the cluster, and when it has converged: every partition has a leader, every replica is in sync and
equal. The nodes are complete production nodes (`brokers_node`); `profiles` draws the options, `data_checks` has the
invariants checked after every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType, ModuleType
from typing import Any, Final

from fenceline.config.node import NodeConfig
from fenceline.log.core import flush
from fenceline.log.partition import saving
from fenceline.metadata.features import LATEST_METADATA_VERSION, fresh_levels
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import Role
from fenceline.testing.simulation import background_work
from fenceline.testing.simulation.brokers_admin import SimulatedAdmin
from fenceline.testing.simulation.brokers_clients import SimulatedClient, SimulatedConsumer, SimulatedProducer
from fenceline.testing.simulation.brokers_groups import SimulatedGroup
from fenceline.testing.simulation.brokers_node import SimBroker, config_of, directories_of, format_node
from fenceline.testing.simulation.brokers_operator import Operator
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.clean_marks import CleanMarks
from fenceline.testing.simulation.coverage import CoveredState
from fenceline.testing.simulation.coverage_states import DOWN, states_of
from fenceline.testing.simulation.data_checks import DataChecks
from fenceline.testing.simulation.disk_checks import verify_finds_a_changed_byte, verify_finds_nothing
from fenceline.testing.simulation.effects import Effects
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.pace import PROGRESS, LoadCycle
from fenceline.testing.simulation.profiles import draw, draw_operations
from fenceline.testing.simulation.sockets import Sockets
from fenceline.testing.simulation.world import Process, World

_NODES: Final = (1, 2, 3)
_CALLS_OF_A_CUT: Final = 40
_STOP_S: Final = 60.0


class BrokersScenario:
    """The nodes and the clients: a `stage.Scenario`."""

    name = "brokers"
    more_config: Mapping[str, str] = MappingProxyType({})
    """Properties of the nodes besides those of all scenarios."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._sockets = Sockets(world)
        self.checks = DataChecks(marks_records=world.options.operate_s > 0)
        self._marks = CleanMarks()
        self._controllers = tuple(range(1, world.options.controllers + 1))
        self._configs: dict[int, NodeConfig] = {}
        self._brokers: dict[int, SimBroker] = {}
        """By node, its current process."""
        self._quorums: dict[int, Quorum] = {}
        """By node, the quorum of its current process, once it exists."""
        self._roles: dict[int, Role] = {}
        """By node, the quorum role at the last check."""
        self._clients: list[SimulatedClient] = []
        self._cut_crashes = world.rng("crashes in cuts")
        self._is_quiet = False
        """Whether planned crashes were cancelled."""
        self._constants: list[tuple[dict[str, Any], str, int]] = []
        """Constants that were changed: module, name, and the value before."""

    @staticmethod
    def base_options(rng: Random) -> Options:
        return Options(nodes=len(_NODES))

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """See `profiles`."""
        return draw(rng, drawn)

    def replace_constant(self, module: ModuleType, name: str, value: int) -> None:
        """Until the end of the seed."""
        self._constants.append((vars(module), name, vars(module)[name]))
        vars(module)[name] = value

    def build(self) -> None:
        world, options = self._world, self._world.options
        if options.syncs_whole_disks:
            for module in (flush, saving):
                self.replace_constant(module, "TOGETHER_FROM", 1)
            self.replace_constant(flush, "_AT_ONCE", 2)
        world.scheduler.watcher = self.check_step
        world.on_end.append(self.checks.life_ended)
        world.on_end.append(self._marks.life_ended)
        world.coverage.sample = self._sample
        world.coverage.has_ended = Effects(self.checks, world.processes, self._brokers).has_ended
        self.checks.on_change = lambda process, topic: world.coverage.changed(process.node_id, topic)
        if options.crash_s:
            self.checks.on_cut = self._crash_in_cut
        for node_id in _NODES:
            self._configs[node_id] = config_of(options, node_id, self._controllers, self.more_config)
            format_node(
                world.add(node_id, self._body).disk,
                node_id,
                self._controllers,
                levels=self.feature_levels(),
                directories=directories_of(options),
            )
        for process in world.processes.values():
            process.start()
        for number, kind in enumerate(self.clients()):
            client = kind(world, self._sockets, self.checks, number, _NODES)
            self._clients.append(client)
            world.loop.create_task(client.live())

    def feature_levels(self) -> Mapping[str, int]:
        """What formatting finalizes; nothing: what a node without a bootstrap file has."""
        return fresh_levels(LATEST_METADATA_VERSION) if self._world.options.elr else {}

    def clients(self) -> list[type[SimulatedClient]]:
        """The first of them creates the topics."""
        return [SimulatedAdmin, SimulatedProducer, SimulatedConsumer, SimulatedProducer, SimulatedConsumer]

    def _crash_in_cut(self, process: Process, directory: str) -> None:
        """Truncations are short and rare: some of them are hit by a crash at one of their disk calls, or in the first
        write after them."""
        if not self._world.faults_active:
            return
        drawn = self._cut_crashes.random()
        if drawn < 0.2:
            process.files.crash_after(self._cut_crashes.randrange(_CALLS_OF_A_CUT))
        elif drawn < 0.4:
            process.files.crash_in_append(directory)

    def _sample(self, node_id: int | None, topic: str | None) -> set[CoveredState]:
        nodes = self._world.processes
        found: set[CoveredState] = set()
        for each in nodes.values() if node_id is None else (nodes[node_id],):
            broker = self._brokers.get(each.node_id)
            found |= states_of(broker, topic) if each.is_up and broker is not None else {DOWN}
        return found

    def check_step(self, process: Process) -> None:
        """Called after each step of a process."""
        self.checks.check(process)
        node_id = process.node_id
        quorum = self._quorums.get(node_id)
        if quorum is None:
            broker = self._brokers.get(node_id)
            if broker is None or not broker.has_metadata:
                return
            quorum = self._quorums[node_id] = broker.controller.quorum
        role = quorum.role
        if role is not self._roles.get(node_id):
            self._roles[node_id] = role
            self._world.coverage.changed(node_id)
        if self._world.check_aim is not None:
            self._world.check_aim(process)

    async def _body(self, process: Process) -> None:
        broker = SimBroker(process, self._configs[process.node_id], self._sockets)
        self._brokers[process.node_id] = broker
        self._quorums.pop(process.node_id, None)
        self.checks.life_started(process, broker)
        self._marks.life_started(process, broker)
        self._watch_files(broker)
        await broker.live()

    def _watch_files(self, broker: SimBroker) -> None:
        """Record background work of the node as operations."""
        coverage, files = self._world.coverage, broker.process.files

        def record(operation: Operation | None, path: str) -> None:
            if operation is not None:
                coverage.operation(operation, background_work.topic_at(path))

        files.on_create = lambda path: record(background_work.begun_by_creating(path), path)
        files.on_rename = lambda target: record(background_work.begun_by_renaming(target), target)
        files.on_read = lambda path: (
            None if broker.has_metadata else record(background_work.begun_by_opening(path), path)
        )

    def progress(self) -> int:
        """Requests completed by the slowest client."""
        return min(client.done for client in self._clients)

    def quiesce(self) -> bool:
        """No client waits, all nodes run, and all replicas are equal."""
        if not self._is_quiet:
            self._is_quiet = True
            for process in self._world.up():
                process.files.cancel_crash()
        for client in self._clients:
            client.must_rest = True
        return (
            not any(client.is_waiting for client in self._clients)
            and all(process.is_up or not process.must_run for process in self._world.processes.values())
            and self.checks.has_converged()
        )

    def final(self) -> None:
        self.checks.final()

    def end(self) -> tuple[int, int]:
        """Release everything; (replica changes checked, batches committed)."""
        for module, name, value in reversed(self._constants):
            module[name] = value
        counts = self.checks.changes, self.checks.committed_batches()
        self.checks.forget()
        self._sockets.forget()
        self._clients.clear()
        self._brokers.clear()
        self._quorums.clear()
        return counts


class OperationsScenario(BrokersScenario):
    """The same cluster with an operator who uses every API: a `stage.Scenario`."""

    name = "operations"

    def build(self) -> None:
        """All clients except the operator send and pause at the same times."""
        world = self._world
        if world.options.quiet_s:
            world.load_cycle = LoadCycle(world.rng("tide"), world.options.load_s, world.options.quiet_s)
        super().build()

    def progress(self) -> int:
        """Called when the faults have ended: from then on each client must complete some requests, and then stops."""
        if not self._world.options.quiet_s:
            return super().progress()
        for client in self._clients:
            if client.request_limit < 0:
                client.request_limit = client.done + PROGRESS
        return min(client.done - client.request_limit for client in self._clients)

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """See `profiles`."""
        return draw_operations(rng, drawn)

    def final(self) -> None:
        """Also stop all nodes cleanly, and check their disks with the tools that operators have."""
        super().final()
        world = self._world
        self._logs_can_be_compacted()
        for process in world.processes.values():
            process.must_run = False
            process.request_stop()
        world.scheduler.run(until_s=world.scheduler.now_s + _STOP_S, done=lambda: not any(world.up()))
        if any(world.up()):
            raise InvariantBroken(f"{[each.name for each in world.up()]} did not stop within {_STOP_S} s")
        disks = {process.name: process.disk for process in world.processes.values()}
        directories = [f"/{name}{path}" for name in disks for path in directories_of(world.options)]
        verify_finds_nothing(disks, directories)
        verify_finds_a_changed_byte(disks, directories, world.rng("changed byte"))
        self.checks.ledger_is_complete(disks.values())

    def _logs_can_be_compacted(self) -> None:
        """The cleaner may give up a log only because of damage or failed disk calls. Raises InvariantBroken."""
        options = self._world.options
        if options.fail_s or options.flip_s or options.lose_dir_s:
            return
        for node_id, broker in sorted(self._brokers.items()):
            for where, (_, reason) in broker.cleaner.uncleanable.items():
                raise InvariantBroken(f"n{node_id} {where} is no longer compacted: {reason} (compaction)")

    def clients(self) -> list[type[SimulatedClient]]:
        """See `BrokersScenario`."""
        return [
            Operator,
            SimulatedProducer,
            SimulatedConsumer,
            SimulatedProducer,
            SimulatedConsumer,
            *[SimulatedGroup] * self._world.options.groups,
        ]
