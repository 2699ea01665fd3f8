"""The cluster of a simulated application: three production nodes that have formed, with topics and coordinators.

Owns what happens before the first seed: nodes start, topics and coordinators exist, every replica is in sync. It is the
same for every seed, so it is simulated once, and each seed continues from a copy of the process (`forks`). `branch`
gives every source of random numbers the seed: from there on, the seed determines everything.

Has no faults and no applications of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from fenceline.client.admin.async_admin import AsyncAdmin, NewTopic
from fenceline.client.producer.producer import AsyncProducer
from fenceline.config.node import NodeConfig
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.losses.folder import DUE, INTENDED
from fenceline.metadata.features import LATEST_METADATA_VERSION, fresh_levels
from fenceline.metadata.image import MetadataImage
from fenceline.testing.applications.process_surroundings import running_with
from fenceline.testing.simulation.brokers_node import DATA_PORT, SimBroker, config_of, format_node
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.scheduler import SimulationError
from fenceline.testing.simulation.sockets import Sockets, machine_of
from fenceline.testing.simulation.world import Process, World

NODES: Final = (1, 2, 3)
OFFSETS_TOPIC: Final = "__consumer_offsets"
UNCLEAN: Final[Mapping[str, str]] = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
"""Configs of a topic that can lose what it has acknowledged."""
_FORMED_WITHIN_S: Final = 30.0
_SETTLES_S: Final = 1.0
_FIRST_CLIENT: Final = -100
_NO_BACKGROUND_MS: Final = 600_000
_MORE: Final[Mapping[str, str]] = {
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "50",
    "replica.fetch.wait.max.ms": "800",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists when a story begins. It has three replicas and min.insync.replicas=2 unless `configs` says
    otherwise."""

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """What differs between clusters. `properties`: of server.properties, for all nodes."""

    topics: tuple[Topic, ...] = ()
    transactions: bool = False
    """Whether the transaction coordinator exists from the start."""
    unclean_commits: bool = False
    """Whether the topic with committed offsets can have an unclean leader."""
    properties: Mapping[str, str] = field(default_factory=dict)


class BranchingWorld(World):
    """A world whose random sources can be seeded again."""

    def __init__(self, options: Options, sink: Callable[[str], None] | None) -> None:
        """`sink` receives each line of the trace from `branch` on."""
        self._sources: list[tuple[str, Random]] = []
        self._is_branched = False

        def pass_on(line: str) -> None:
            if self._is_branched and sink is not None:
                sink(line)

        super().__init__(0, options, sink=None if sink is None else pass_on)

    def rng(self, name: str) -> Random:
        """See `World`."""
        source = super().rng(name)
        self._sources.append((name, source))
        return source

    def branch(self, seed: int, options: Options) -> None:
        """From now on the seed determines everything that is drawn."""
        self.seed, self.options, self._is_branched = seed, options, True
        for name, source in self._sources:
            source.seed(f"{seed}/{name}")
        conditions = self.network.conditions
        conditions.min_delay_s = min(0.0001, options.max_delay_ms / 2000)
        conditions.max_delay_s = options.max_delay_ms / 1000
        conditions.slow_chance, conditions.slow_delay_s = options.slow_chance, options.slow_delay_s
        self.log_event(f"seed {seed} {options}")


class SimulatedCluster:
    """See the module. Close it after use, unless the process ends."""

    def __init__(self, setup: ClusterSetup, *, sink: Callable[[str], None] | None = None) -> None:
        """`sink` receives every event of a seed, as text."""
        self.setup = setup
        self.world = BranchingWorld(
            Options(
                nodes=len(NODES),
                max_delay_ms=1.0,
                max_job_ms=1.0,
                checkpoint_ms=_NO_BACKGROUND_MS,
                flush_ms=_NO_BACKGROUND_MS,
                tidy_ms=_NO_BACKGROUND_MS,
            ),
            sink,
        )
        self.world.faults_active = False
        self.sockets = Sockets(self.world)
        self.brokers: dict[int, SimBroker] = {}
        """By node, its current process."""
        self._configs: dict[int, NodeConfig] = {}
        self._next_client = _FIRST_CLIENT
        for node_id in NODES:
            more = {**_MORE, **setup.properties}
            self._configs[node_id] = config_of(self.world.options, node_id, NODES, more)
            disk = self.world.add(node_id, self._body).disk
            format_node(disk, node_id, NODES, levels=fresh_levels(LATEST_METADATA_VERSION))
        self.world.loop.sockets = self.sockets.of(self.next_client_id())

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{machine_of(node_id)}:{DATA_PORT}" for node_id in NODES)

    def next_client_id(self) -> int:
        """The number of a further machine with a client."""
        self._next_client -= 1
        return self._next_client

    async def _body(self, process: Process) -> None:
        broker = SimBroker(process, self._configs[process.node_id], self.sockets)
        self.brokers[process.node_id] = broker
        await broker.live()

    # -- forming -------------------------------------------------------------------------------------------------------

    def form(self) -> None:
        """Run until the cluster is ready. Raises SimulationError if it does not get there."""
        world = self.world
        for process in world.processes.values():
            process.start()
        self._run_until_well("the nodes did not join")
        world.loop.run_until_complete(
            running_with(world.loop, lambda: world.scheduler.now_s, world.rng("formation"), self._create())
        )
        self._run_until_well("the replicas did not get in sync")
        world.scheduler.run(until_s=world.scheduler.now_s + _SETTLES_S)

    def _run_until_well(self, otherwise: str) -> None:
        scheduler = self.world.scheduler
        ends_s = scheduler.now_s + _FORMED_WITHIN_S
        scheduler.run(done=lambda: self.is_well() or scheduler.now_s >= ends_s)
        if not self.is_well():
            raise SimulationError(f"{otherwise} within {_FORMED_WITHIN_S} s")

    async def _create(self) -> None:
        replicas = len(NODES)
        topics = [
            NewTopic(each.name, each.partitions, replicas, configs={"min.insync.replicas": "2", **each.configs})
            for each in self.setup.topics
        ]
        async with AsyncAdmin(self.bootstrap_servers) as admin:
            if topics:
                await admin.create_topics(topics)
            await admin.list_group_offsets("formation")
            if self.setup.unclean_commits:
                await admin.alter_configs({("topic", OFFSETS_TOPIC): UNCLEAN})
        if self.setup.transactions:
            async with AsyncProducer(self.bootstrap_servers, transactional_id="formation") as producer:
                await producer.init_transactions()

    # -- state ---------------------------------------------------------------------------------------------------------

    def image(self) -> MetadataImage | None:
        """The newest metadata that a running node has."""
        images = [
            broker.image
            for node_id, broker in self.brokers.items()
            if self.world.processes[node_id].is_up and broker.has_metadata
        ]
        return max(images, key=lambda image: image.offset, default=None)

    def active_controller(self) -> int:
        """The node whose controller is active, -1 if none is known."""
        for node_id, broker in self.brokers.items():
            if self.world.processes[node_id].is_up and broker.has_metadata and broker.controller.is_active:
                return node_id
        return -1

    def is_well(self) -> bool:
        """Whether all nodes run and have joined, and every partition has a leader and all replicas in sync."""
        processes = self.world.processes
        if len(self.brokers) < len(NODES):
            return False
        if not all(processes[n].is_up and not processes[n].is_paused and b.has_joined for n, b in self.brokers.items()):
            return False
        image = self.image()
        if image is None or sum(1 for _ in image.alive_brokers()) < len(NODES):
            return False
        return all(
            partition.leader >= 0 and len(partition.isr) == len(partition.replicas)
            for topic in image.topics_by_name.values()
            for partition in topic.partitions
        )

    def has_delivered_receipts(self) -> bool:
        """Whether the ledger has every loss that a node knows."""
        pending = (DUE, INTENDED)
        return not any(
            name.endswith(pending)
            for process in self.world.processes.values()
            for folder in process.disk.folders()
            if folder.endswith(EVIDENCE_DIR)
            for name in process.disk.folder(folder) or ()
        )

    def branch(self, seed: int) -> None:
        """From now on the seed determines everything."""
        rng = World.rng_of(seed, "conditions")
        options = replace(
            self.world.options,
            max_delay_ms=rng.choice((0.5, 1.0, 5.0)),
            slow_chance=rng.choice((0.0, 0.0, 0.01)),
            max_job_ms=rng.choice((0.1, 1.0, 10.0)),
        )
        self.world.branch(seed, options)

    def close(self) -> None:
        self.world.close()
        self.sockets.forget()
        self.brokers.clear()
