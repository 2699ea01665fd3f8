"""A broker in a simulated cluster: the complete production node, on a simulated disk, clock and network.

Owns what the node gets from outside: configuration, formatted directory, executors, connections. Everything inside is
`fenceline.node.broker.Broker` with its listeners, handlers, codecs, logs and metadata quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from fenceline.config.broker import SILENCE_TIMEOUT
from fenceline.config.node import NodeConfig
from fenceline.ids import encode_uuid
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.file_names import BOOTSTRAP_FILE
from fenceline.log.core.meta_properties import META_FILE
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.records import FeatureLevelRecord
from fenceline.node.broker import Broker
from fenceline.node.metadata.batches import snapshot_batches
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.testing.simulation.controller_of_one import CLUSTER_ID, directory_id, format_voters
from fenceline.testing.simulation.loop import SimExecutor
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.sockets import Sockets, machine_of
from fenceline.testing.simulation.world import DATA_DIR, Process

DATA_PORT: Final = 9092
QUORUM_PORT: Final = 9093
_TIMES: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "400",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "400",
    "replica.fetch.backoff.ms": "300",
    "replica.socket.timeout.ms": "3000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}
"""Shorter than Kafka's defaults, so that each occurs in a run of ten seconds."""
_QUIET_TIMES: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "800",
    "replica.lag.time.max.ms": "2500",
    "replica.fetch.wait.max.ms": "500",
}
"""For runs that are twice as long because their clients pause."""

_SHORT_METADATA_LOG: Final[Mapping[str, str]] = {
    "metadata.max.retention.bytes": "1",
    "metadata.log.segment.ms": "100",
    "metadata.start.offset.lag.time.max.ms": "100",
    "internal.metadata.delete.delay.millis": "100",
}
"""For a metadata log that begins at the newest snapshot but one."""


def voter_of(node_id: int) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", machine_of(node_id), QUORUM_PORT)
    return Voter(node_id, directory_id(node_id), (endpoint,), KRaftVersionFeature(0, 1))


def directories_of(options: Options) -> list[str]:
    """The data directories of each node; the first has the metadata log."""
    return [DATA_DIR, *(f"{DATA_DIR}{number}" for number in range(2, options.log_dirs + 1))]


def config_of(
    options: Options, node_id: int, controllers: Iterable[int], more: Mapping[str, str] = MappingProxyType({})
) -> NodeConfig:
    """The server.properties of one node, with those of `more`."""
    controllers, machine = tuple(controllers), machine_of(node_id)
    listeners = f"PLAINTEXT://{machine}:{DATA_PORT}"
    roles = "broker"
    if node_id in controllers:
        listeners += f",CONTROLLER://{machine}:{QUORUM_PORT}"
        roles = "broker,controller"
    return NodeConfig.load(
        None,
        {
            "node.id": str(node_id),
            "process.roles": roles,
            "log.dirs": ",".join(directories_of(options)),
            "listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(
                f"{machine_of(each)}:{QUORUM_PORT}" for each in controllers
            ),
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            "log.retention.ms": "-1",
            "log.message.timestamp.after.max.ms": str(2**62),
            "producer.id.expiration.ms": "1000000000",
            "log.roll.ms": str(options.segment_ms),
            "metadata.log.max.record.bytes.between.snapshots": str(options.snapshot_bytes),
            "metadata.log.max.snapshot.interval.ms": str(options.snapshot_interval_ms),
            "log.flush.offset.checkpoint.interval.ms": str(options.checkpoint_ms),
            "replica.high.watermark.checkpoint.interval.ms": str(max(options.checkpoint_ms, 5000)),
            "log.flush.scheduler.interval.ms": str(options.flush_ms),
            "log.retention.check.interval.ms": str(options.tidy_ms),
            **_TIMES,
            **(_cleanup_config(options) if options.operate_s or options.compaction else {}),
            **(_SHORT_METADATA_LOG if options.forget_metadata else {}),
            **(_QUIET_TIMES if options.quiet_s else {}),
            **({"broker.session.timeout.ms": str(options.session_ms)} if options.session_ms else {}),
            SILENCE_TIMEOUT: str(options.silence_ms),
            **more,
        },
        {},
    )


def _cleanup_config(options: Options) -> dict[str, str]:
    """Compaction, retention and group coordinators, on the time scale of a run."""
    return {
        "log.cleaner.backoff.ms": str(options.tidy_ms),
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.segment.delete.delay.ms": str(options.tidy_ms // 2),
        "offsets.topic.num.partitions": "2",
        "offsets.retention.minutes": str(2**31 - 1),
        "group.initial.rebalance.delay.ms": "0",
    }


def format_node(
    disk: Disk,
    node_id: int,
    controllers: Iterable[int],
    *,
    levels: Mapping[str, int],
    directories: Iterable[str] = (DATA_DIR,),
) -> None:
    """What `fenceline format` writes. `levels`: of the features, nothing if empty."""
    if levels:
        batches = snapshot_batches(
            [FeatureLevelRecord(name, level) for name, level in levels.items()],
            metadata_version=levels[METADATA_VERSION],
            epoch=0,
            now_ms=0,
            last_log_timestamp_ms=0,
        )
        replace_file(disk, f"{DATA_DIR}/{BOOTSTRAP_FILE}", b"".join(batches))
    controllers = tuple(controllers)
    if node_id in controllers:
        format_voters(disk, [voter_of(each) for each in controllers])
    for number, directory in enumerate(directories):
        own_id = encode_uuid(UUID(int=directory_id(node_id).int + number))
        meta = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={node_id}\ndirectory.id={own_id}\n"
        disk.mkdir(directory)
        replace_file(disk, f"{directory}/{META_FILE}", meta.encode())


class SimBroker(Broker):
    """One process of a node."""

    def __init__(self, process: Process, config: NodeConfig, sockets: Sockets) -> None:
        super().__init__(
            config,
            clock=process.clock,
            rng=process.world.rng(f"{process.name} life {process.life}"),
            disk=process.files,
            disk_threads=SimExecutor(4),
            metadata_threads=SimExecutor(2),
        )
        assert process.loop is not None, "the process runs"
        process.loop.sockets = sockets.of(process.node_id)
        self.process = process

    @property
    def has_metadata(self) -> bool:
        """Whether its image and its partitions can be read."""
        return "controller" in self._started

    @property
    def has_joined(self) -> bool:
        """Whether its logs are recovered and its coordinators load."""
        return "maintenance" in self._started

    async def live(self) -> None:
        """Run from start to stop, like `fenceline start`. Raises the error that ends the node."""
        stopping = self.process.stopping
        starting = asyncio.ensure_future(self.start())
        asked = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        failure: BaseException | None = None
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
        else:
            failure = starting.exception()
            if failure is None:
                self.process.log_event("serves")
                try:
                    await self.run_until(stopping)
                except Exception as error:
                    failure = error
        await self.stop()
        if failure is not None:
            raise failure
