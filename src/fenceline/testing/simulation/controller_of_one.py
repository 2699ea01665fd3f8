"""Scenario: the controller of a single voter, its disk and its clients.

Owns the code of the node (the production `ControllerDriver`), the requests of clients, and their guarantees: an
acknowledged change survives every crash, and a rejected one has no effect. Requests are small JSON texts; the wire
protocol is not tested here.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import (
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    NewPartitions,
    RegisterBroker,
    RegisterController,
    Request,
    TopicReference,
    TopicToCreate,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.disk import Disk, replace_file
from fenceline.metadata.features import LATEST_METADATA_VERSION, SUPPORTED
from fenceline.metadata.image import ConfigResource, ConfigResourceType, Endpoint, MetadataImage
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.metadata.batches import snapshot_batches
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.roles import Leader, Role, leader_of
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.log_reader import StoredBatches
from fenceline.testing.simulation.loop import SimExecutor
from fenceline.testing.simulation.network import SimulatedTimeout
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.world import DATA_DIR, NodeState, Process, StoredBatch, World

CLUSTER_ID: Final = base64.urlsafe_b64encode(bytes(15) + b"\1").decode().rstrip("=")
_ENDPOINTS: Final = (Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0),)
_HEARTBEAT_S: Final = 2.0
_REQUEST_TIMEOUT_S: Final = 5.0
_NOT_ACTIVE: Final = -3
"""Returned before anything is decided: another node leads."""
_RETRY_S: Final = 0.03


def directory_id(node_id: int) -> UUID:
    """The directory id that the format command would generate."""
    return UUID(int=0xFE << 100 | node_id << 8 | 1)


def format_voters(disk: Disk, voters: Sequence[Voter]) -> None:
    """The metadata directory of a new cluster: the snapshot 0-0 that names the voters."""
    directory = f"{DATA_DIR}/{DIRECTORY_NAME}"
    disk.mkdir(directory)
    batches = snapshot_batches(
        [],
        metadata_version=LATEST_METADATA_VERSION,
        epoch=0,
        now_ms=0,
        last_log_timestamp_ms=0,
        kraft_version=1,
        voters=voters,
    )
    replace_file(disk, f"{directory}/{SnapshotId(0, 0).file_name}", b"".join(batches))
    disk.fsync_dir(DATA_DIR)


def node_config(options: Options, node_id: int, more: Mapping[str, str] | None = None) -> NodeConfig:
    """The server.properties of a simulated node."""
    return NodeConfig.load(
        None,
        {
            "node.id": str(node_id),
            "log.dirs": DATA_DIR,
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "metadata.log.max.record.bytes.between.snapshots": str(options.snapshot_bytes),
            "metadata.log.max.snapshot.interval.ms": str(options.snapshot_interval_ms),
            "metadata.max.retention.bytes": str(options.retention_bytes),
            "metadata.log.segment.ms": str(options.segment_ms),
            "metadata.max.idle.interval.ms": str(options.idle_ms),
            "fenceline.broker.fencing.grace.ms": "-1",
            "fenceline.silence.timeout.ms": str(options.silence_ms),
            **(more or {}),
        },
        {},
    )


class DriverView:
    """A `NodeView` of a `ControllerDriver`."""

    def __init__(self, driver: ControllerDriver, disk: SimDisk) -> None:
        self._driver = driver
        self._quorum = driver.quorum
        self._log = driver.log
        self._disk = disk
        self._batches = StoredBatches(disk)
        self._voters: tuple[tuple[int, str], ...] = ()
        self._voters_of: tuple[Voter, ...] = ()
        self._last_checked: tuple[object, ...] = ()
        self._role: Role | None = None
        """The last durable role."""
        self._in_touch = False

    @property
    def has_failed(self) -> bool:
        return self._driver.has_failed

    def has_changed(self) -> bool:
        """Whether the observable state has changed. No other node has heard of an election that is not durable yet; all
        else that the node reports and holds is checked. A thread that truncates the log is between two states of it."""
        quorum, log = self._quorum, self._log
        if log.is_changing:
            return False
        if not self._driver.driver.is_persisting:
            self._role = quorum.role
            self._in_touch = quorum.in_touch
        elif self._role is None:
            return False
        checked = (
            self._role,
            self._in_touch,
            quorum.high_watermark,
            log.start_offset,
            log.end_offset,
            len(log.snapshots),
            self._driver.image.offset,
        )
        if checked == self._last_checked:
            return False
        self._last_checked = checked
        return True

    def state(self) -> NodeState:
        driver, quorum, log = self._driver, self._quorum, self._log
        role, in_touch = self._role, self._in_touch
        if role is None or not driver.driver.is_persisting:
            role, in_touch = quorum.role, quorum.in_touch
        voters = quorum.voters
        if voters is not self._voters_of:
            self._voters_of = voters
            self._voters = tuple(sorted((voter.voter_id, str(voter.voter_directory_id)) for voter in voters))
        return NodeState(
            role.epoch,
            leader_of(role),
            isinstance(role, Leader),
            driver.high_watermark,
            log.start_offset,
            log.end_offset,
            tuple(log.snapshots),
            self._voters,
            driver.image.offset,
            in_touch,
        )

    def batches(self, start: int, end: int) -> list[StoredBatch]:
        return self._batches.between(self._driver.log.partition_log.segments, start, end)

    def image(self) -> MetadataImage | None:
        return self._driver.image

    def append(self, value: bytes) -> None:
        """Append a foreign record, if this node leads. Raises PeerError."""
        self._driver.driver.append(build_batch([(0, None, value, ())]), self._driver.epoch)

    @property
    def log_directory(self) -> str:
        return self._driver.log.directory

    def read_snapshot(self, end_offset: int, epoch: int) -> bytes | None:
        path = f"{self._driver.log.directory}/{SnapshotId(end_offset, epoch).file_name}"
        return self._disk.peek(path)


class ControllerScenario:
    """The node and its clients: a `stage.Scenario`."""

    name = "controller"

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._config = node_config(world.options, 1)
        self._driver: ControllerDriver | None = None
        self._clients: list[SingleControllerClient] = []

    @staticmethod
    def base_options(rng: Random) -> Options:
        return Options()

    def build(self) -> None:
        process = self._world.add(1, self._body)
        voter = Voter(1, directory_id(1), (VoterEndpoint("CONTROLLER", "localhost", 9093),), KRaftVersionFeature(0, 1))
        format_voters(process.disk, (voter,))
        process.start()
        for number in range(self._world.options.clients):
            client = SingleControllerClient(self._world, number)
            self._clients.append(client)
            self._world.loop.create_task(client.live())

    async def _body(self, process: Process) -> None:
        driver = ControllerDriver(
            config=self._config,
            disk=process.files,
            directory=DATA_DIR,
            cluster_id=CLUSTER_ID,
            node_id=1,
            directory_id=directory_id(1),
            clock=process.clock,
            rng=self._world.rng(f"controller life {process.life}"),
            trouble=StorageTrouble(process.clock),
            executor=SimExecutor(1),
        )
        await driver.start()
        process.view = DriverView(driver, process.disk)
        self._driver = driver
        process.serve(lambda source, frame: serve_client(driver, frame))
        broker = asyncio.create_task(_live_as_broker(driver, process))
        failed = driver.failed()
        stopping = asyncio.create_task(process.stopping.wait())
        await asyncio.wait((failed, stopping, broker), return_when=asyncio.FIRST_COMPLETED)
        for task in (broker, stopping):
            task.cancel()
        if failed.done():
            failed.result()
        failed.cancel()  # a failure while it stops is logged by the driver, as in `controller_node.run_until`
        await driver.stop()

    def progress(self) -> int:
        """Requests completed by the slowest client."""
        return min(client.done for client in self._clients)

    def quiesce(self) -> bool:
        for client in self._clients:
            client.must_rest = True
        return not any(client.is_waiting for client in self._clients)

    def final(self) -> None:
        """Acknowledged changes are in the image of the controller. The node runs and no request is in progress."""
        assert self._driver is not None, "the node has started"
        image = self._driver.image
        for client in self._clients:
            client.compare(image)


async def _live_as_broker(driver: ControllerDriver, process: Process) -> None:
    """Registration and heartbeats of the broker in the same process."""
    incarnation_id = UUID(int=process.life)
    epoch = -1
    while True:
        try:
            if epoch < 0:
                await driver.submit(RegisterController(1, incarnation_id, _ENDPOINTS, SUPPORTED))
                answer = await driver.submit(
                    RegisterBroker(
                        1,
                        CLUSTER_ID,
                        incarnation_id,
                        _ENDPOINTS,
                        SUPPORTED,
                        log_dirs=(directory_id(1),),
                        previous_broker_epoch=-1,
                    )
                )
                epoch = answer.broker_epoch
            await driver.submit(BrokerHeartbeat(1, epoch, driver.image.offset))
        except PeerError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                return
            await asyncio.sleep(0.1)
            continue
        await asyncio.sleep(_HEARTBEAT_S)


async def serve_client(driver: ControllerDriver, frame: bytes) -> bytes:
    """The response to a request of a `SingleControllerClient`."""
    asked = json.loads(frame)
    if not driver.is_active and driver.quorum.leader_id != driver.node_id:
        return json.dumps({"code": _NOT_ACTIVE, "leader": driver.quorum.leader_id}).encode()
    try:
        answer = await driver.submit(_request(asked))
    except PeerError as error:
        return json.dumps({"code": int(error.code)}).encode()
    items = answer.resources if asked["op"] == "config" else answer.topics
    return json.dumps({"code": int(items[0].outcome.code)}).encode()


def _request(asked: dict[str, Any]) -> Request:
    topic = asked["topic"]
    match asked["op"]:
        case "create":
            return CreateTopics((TopicToCreate(topic, asked["partitions"], 1),))
        case "delete":
            return DeleteTopics((TopicReference(topic),))
        case "grow":
            return CreatePartitions((NewPartitions(topic, asked["partitions"]),))
        case _:
            change = ConfigChange("retention.ms", ConfigOperation.SET, str(asked["value"]))
            return IncrementalAlterConfigs(((ConfigResource(ConfigResourceType.TOPIC, topic), (change,)),))


class SingleControllerClient:
    """Creates, extends, configures and deletes topics of its own, one request at a time, and remembers the responses.

    The state of a topic is None if it must not exist, else (partitions, retention.ms or ""); a set contains all
    possible states after requests without a response."""

    def __init__(self, world: World, number: int, nodes: Sequence[int] = (1,)) -> None:
        self.done = 0
        self.must_rest = False
        self.is_waiting = False
        self._world = world
        self._number = number
        self._rng = world.rng(f"client {number}")
        self._nodes = nodes
        self._asks = nodes[0]
        self._misses = 0
        """Consecutive requests to nodes that were not active."""
        self._topics: dict[str, set[tuple[int, str] | None]] = {}
        self._in_doubt: set[str] = set()

    async def live(self) -> None:
        while not self.must_rest:
            self.is_waiting = True
            await self._one()
            self.is_waiting = False
            await asyncio.sleep(self._rng.random() * self._world.options.think_ms / 500 + 0.0001)

    async def _one(self) -> None:
        rng = self._rng
        topic = f"c{self._number}-{rng.randrange(6)}"
        op = rng.choice(("create", "create", "delete", "grow", "config"))
        asked: dict[str, Any] = {"op": op, "topic": topic}
        before = self._topics.get(topic, {None})
        match op:
            case "create" | "grow":
                asked["partitions"] = rng.randint(1, 5)
            case "config":
                asked["value"] = rng.randint(1, 1_000_000)
        # A duplicate of an older request may still be in flight and change the topic again.
        tries_twice = self._world.network.conditions.duplicate_chance > 0
        try:
            frame = json.dumps(asked).encode()
            answer = json.loads(
                await self._world.network.request(-1 - self._number, self._asks, frame, timeout_s=_REQUEST_TIMEOUT_S)
            )
        except ConnectionRefusedError:
            self._asks = rng.choice(self._nodes)
            await asyncio.sleep(0.05)
            if not tries_twice:
                return
            answer = {"code": -2}
        except (ConnectionError, SimulatedTimeout):
            self._asks = rng.choice(self._nodes)
            answer = {"code": -2}
        code = answer["code"]
        self._world.trace.add(self._world.scheduler.now_s, f"c{self._number}", f"asked {asked}: {code}")
        if code in (_NOT_ACTIVE, ErrorCode.NOT_CONTROLLER):
            leader = answer.get("leader", -1)
            self._asks = leader if leader in self._nodes else rng.choice(self._nodes)
            self._misses += 1
        else:
            self._misses = 0
        if code == _NOT_ACTIVE and not tries_twice:
            await asyncio.sleep(min(_RETRY_S * 1.5**self._misses, 2.0))
            return
        if code in (-2, _NOT_ACTIVE) or tries_twice:
            # Unknown, or known for one of two: the request may be executed now, later, or never.
            self._in_doubt.add(topic)
            self.done += code in (0, 3, 36, 37)
            return
        if topic in self._in_doubt:
            self.done += 1
            return
        expected = {_after(asked, state) for state in before}
        codes = {wanted for wanted, _ in expected}
        if code == ErrorCode.NOT_CONTROLLER or code == ErrorCode.KAFKA_STORAGE_ERROR:
            if code == ErrorCode.NOT_CONTROLLER:
                self._in_doubt.add(topic)  # the node stopped, perhaps after the decision
            await asyncio.sleep(0.05)
            return
        if code == ErrorCode.INVALID_REPLICATION_FACTOR:
            return  # no broker is active at the moment
        if code not in codes:
            raise InvariantBroken(f"client {self._number}: {asked} on {before} returned {ErrorCode(code).name}")
        self._topics[topic] = {state for wanted, state in expected if wanted == code}
        self.done += 1

    def compare(self, image: MetadataImage) -> None:
        for topic, possible in self._topics.items():
            if topic in self._in_doubt:
                continue
            found = image.topics_by_name.get(topic)
            retention = image.config(ConfigResourceType.TOPIC, topic).get("retention.ms", "")
            state = None if found is None else (len(found.partitions), retention)
            if state not in possible:
                raise InvariantBroken(f"topic {topic} is {state}, but its client expects {possible}")


def _after(asked: dict[str, Any], state: tuple[int, str] | None) -> tuple[int, tuple[int, str] | None]:
    """(error code, state afterwards) of a request."""
    match asked["op"]:
        case "create":
            return (0, (asked["partitions"], "")) if state is None else (int(ErrorCode.TOPIC_ALREADY_EXISTS), state)
        case "delete":
            return (0, None) if state is not None else (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None)
        case "grow":
            if state is None:
                return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
            wanted = asked["partitions"]
            return (0, (wanted, state[1])) if wanted > state[0] else (int(ErrorCode.INVALID_PARTITIONS), state)
        case _:
            if state is None:
                return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
            return 0, (state[0], str(asked["value"]))
