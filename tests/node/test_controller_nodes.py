"""Controllers in one process, on real sockets: leadership, forwarded requests, rejected requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import BrokerHeartbeat, CreateTopics, RegisterBroker, TopicToCreate
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import encode_uuid
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import Endpoint
from fenceline.node.controller_node import ControllerNode
from fenceline.node.logs import redirect
from fenceline.node.metadata.format import format_directory, parse_initial_controllers
from fenceline.node.net.peer_connection import PeerConnection, PeerConnectionLost, open_peer
from fenceline.testing.apache_kafka import free_port
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_header, parse_response_header
from fenceline.wire.principal import ANONYMOUS, encode_principal

CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"
OTHER_CLUSTER = "AAAAAAAAQACAAAAAAAAAAQ"
SOMEBODY = encode_principal(ANONYMOUS)
WAIT_S = 30.0

pytestmark = pytest.mark.timeout(180)


async def eventually(look: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    async with asyncio.timeout(wait_s):
        while not (found := look()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found


class Three:
    """Three controllers; each can be stopped and started."""

    def __init__(self, root: Path, clusters: tuple[str, ...] = (CLUSTER,) * 3) -> None:
        ports = [free_port() for _ in clusters]
        ids = [encode_uuid(UUID(int=1000 + number)) for number in range(3)]
        named = ",".join(f"{number}@127.0.0.1:{ports[number - 1]}:{ids[number - 1]}" for number in (1, 2, 3))
        self.configs = [
            NodeConfig.load(
                None,
                {
                    "node.id": str(number),
                    "process.roles": "controller",
                    "listeners": f"CONTROLLER://127.0.0.1:{ports[number - 1]}",
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
                    "log.dirs": str(root / str(number)),
                    "broker.session.timeout.ms": "600000",  # the fake brokers send no heartbeats
                },
                {},
            )
            for number in (1, 2, 3)
        ]
        self.ports = ports
        for config, cluster_id in zip(self.configs, clusters, strict=True):
            voters = parse_initial_controllers(named, "CONTROLLER")
            format_directory(config.log_dirs, cluster_id=cluster_id, node_id=config.node_id, voters=voters)
        self.running: dict[int, ControllerNode] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            node = self.running[node_id] = ControllerNode(self.configs[node_id - 1])
            await node.start()

    async def stop(self, node_id: int) -> None:
        await self.running.pop(node_id).stop()

    async def leader(self) -> ControllerNode:
        found: ControllerNode = await eventually(
            lambda: next((node for node in self.running.values() if node.controller.is_active), None)
        )
        return found

    async def connect(self, node_id: int) -> PeerConnection:
        return await open_peer("127.0.0.1", self.ports[node_id - 1], client_id="test")


@asynccontextmanager
async def three(root: Path, *node_ids: int, clusters: tuple[str, ...] = (CLUSTER,) * 3) -> AsyncIterator[Three]:
    cluster = Three(root, clusters)
    try:
        await cluster.start(*(node_ids or (1, 2, 3)))
        yield cluster
    finally:
        await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.running)))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(whole())


async def join(node: ControllerNode) -> None:
    """Register and unfence a fake broker."""
    controller = node.controller
    request = RegisterBroker(
        7, CLUSTER, UUID(int=7), (Endpoint("PLAINTEXT", "127.0.0.1", 1, 0),), SUPPORTED, log_dirs=(UUID(int=500),)
    )
    answer = await controller.submit(request)
    await controller.submit(BrokerHeartbeat(7, answer.broker_epoch, controller.image.offset))


def test_every_controller_knows_all_controllers(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as cluster:
            await cluster.leader()
            for node in cluster.running.values():
                await eventually(lambda node=node: set(node.controller.image.controllers) == {1, 2, 3})
                assert node.controller.image.features["metadata.version"] > 0
            epochs = {node.controller.epoch for node in cluster.running.values()}
            assert len(epochs) == 1

    run(story)


def test_a_request_is_answered_through_any_controller(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as cluster:
            await join(await cluster.leader())
            for node_id, node in cluster.running.items():
                answer = await node.controller.submit(CreateTopics((TopicToCreate(f"t{node_id}", 1, 1),)))
                assert not answer.topics[0].outcome.failed
            for node in cluster.running.values():
                await eventually(lambda node=node: {"t1", "t2", "t3"} == set(node.controller.image.topics_by_name))

    run(story)


def test_pending_requests_fail_when_the_leader_resigns(tmp_path: Path) -> None:
    """Without a majority nothing is committed; on NOT_CONTROLLER a broker tries the next controller."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            leader = await cluster.leader()
            await join(leader)
            for node_id in [each for each in cluster.running if each != leader.node_id]:
                await cluster.stop(node_id)
            waiting = leader.controller.active.submit(CreateTopics((TopicToCreate("never", 1, 1),)))
            with pytest.raises(PeerError) as reported:
                await asyncio.wait_for(waiting, WAIT_S)
            assert reported.value.code is ErrorCode.NOT_CONTROLLER
            assert not leader.controller.is_active, "check-quorum (Q34)"
            assert "never" not in leader.controller.image.topics_by_name

    run(story)


def test_stopping_leader_is_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as cluster:
            old = await cluster.leader()
            await join(old)
            await old.controller.submit(CreateTopics((TopicToCreate("kept", 1, 1),)))
            epoch = old.controller.epoch
            await cluster.stop(old.node_id)
            new = await cluster.leader()
            assert new.controller.epoch > epoch
            assert "kept" in new.controller.image.topics_by_name
            await cluster.start(old.node_id)
            back = cluster.running[old.node_id].controller
            await eventually(lambda: "kept" in back.image.topics_by_name)
            assert back.quorum.leader_id == new.node_id

    run(story)


def test_node_of_another_cluster_is_rejected_and_reported(tmp_path: Path) -> None:
    """Q13: error 104; the report tells the operator what to check."""
    lines: list[tuple[str, dict[str, Any]]] = []
    before = redirect(lambda level, room, event, fields: lines.append((event, fields)))

    async def story() -> None:
        async with three(tmp_path, clusters=(CLUSTER, CLUSTER, OTHER_CLUSTER)) as cluster:
            leader = await cluster.leader()
            assert leader.node_id in (1, 2)
            reported = await eventually(
                lambda: next((fields for event, fields in lines if "INCONSISTENT_CLUSTER_ID" in event), None)
            )
            assert "another cluster" in reported["advice"]
            assert cluster.running[3].controller.image.topics_by_name is not None

    try:
        run(story)
    finally:
        redirect(before)


def test_only_the_active_controller_accepts_envelopes(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as cluster:
            leader = await cluster.leader()
            await join(leader)
            fields = {"topics": [{"name": "wrapped", "num_partitions": 1, "replication_factor": 1}], "timeout": 1000}
            inner = encode_request_header(ApiKey.CREATE_TOPICS, 7, 5, "c") + write_request(
                ApiKey.CREATE_TOPICS, 7, fields
            )
            envelope = {"request_data": inner, "request_principal": SOMEBODY, "client_host_address": bytes(4)}
            for node_id in (1, 2, 3):
                connection = await cluster.connect(node_id)
                answer = await connection.call(ApiKey.ENVELOPE, 0, envelope, 10)
                if node_id == leader.node_id:
                    assert answer.error_code is ErrorCode.NONE
                    assert b"wrapped" in bytes(answer.response_data)
                else:
                    assert answer.error_code is ErrorCode.NOT_CONTROLLER
                envelope_of_vote = {**envelope, "request_data": encode_request_header(ApiKey.VOTE, 2, 5, "c")}
                answer = await connection.call(ApiKey.ENVELOPE, 0, envelope_of_vote, 10)
                assert answer.error_code in (ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER)
                connection.close()

    run(story)


def test_removed_leader_answers_the_removal_request(tmp_path: Path) -> None:
    """It leads until its removal is committed (Q42), and still sends the answer afterwards."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            leader = await cluster.leader()
            fields = {"voter_id": leader.node_id, "voter_directory_id": UUID(int=1000 + leader.node_id - 1)}
            inner = encode_request_header(ApiKey.REMOVE_RAFT_VOTER, 0, 5, "c") + write_request(
                ApiKey.REMOVE_RAFT_VOTER, 0, fields
            )
            envelope = {"request_data": inner, "request_principal": SOMEBODY, "client_host_address": bytes(4)}
            connection = await cluster.connect(leader.node_id)
            answer = await connection.call(ApiKey.ENVELOPE, 0, envelope, 20)
            assert answer.error_code is ErrorCode.NONE
            data = memoryview(answer.response_data)
            _, position = parse_response_header(ApiKey.REMOVE_RAFT_VOTER, 0, data)
            inside = read_response(ApiKey.REMOVE_RAFT_VOTER, 0, data[position:])
            assert inside.error_code is ErrorCode.NONE
            connection.close()
            await eventually(lambda: not leader.controller.is_active)
            assert (await cluster.leader()).node_id != leader.node_id

    run(story)


def test_describe_cluster_by_endpoint_type(tmp_path: Path) -> None:
    """KIP-919: DescribeCluster lists the voters and the leader; for the broker endpoint type it is rejected."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            leader = await cluster.leader()
            await eventually(lambda: set(leader.controller.image.controllers) == {1, 2, 3})
            connection = await cluster.connect(leader.node_id)
            answer = await connection.call(ApiKey.DESCRIBE_CLUSTER, 1, {"endpoint_type": 2}, 10)
            assert answer.controller_id == leader.node_id
            assert {(each.broker_id, each.port) for each in answer.brokers} == set(enumerate(cluster.ports, 1))
            answer = await connection.call(ApiKey.DESCRIBE_CLUSTER, 1, {"endpoint_type": 1}, 10)
            assert answer.error_code is ErrorCode.MISMATCHED_ENDPOINT_TYPE
            with pytest.raises(PeerConnectionLost):
                await connection.call(ApiKey.LIST_OFFSETS, 5, {}, 10)

    run(story)


def test_node_of_a_cluster_requires_a_formatted_directory(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Three(tmp_path / "formatted")
        config = NodeConfig.load(
            None, {**cluster.configs[0].raw, "log.dirs": str(tmp_path / "new"), "broker.id": "1"}, {}
        )
        node = ControllerNode(config)
        try:
            with pytest.raises(OperatorError) as refused:
                await node.start()
            assert "fenceline format" in refused.value.advice
        finally:
            await node.stop()

    run(story)
