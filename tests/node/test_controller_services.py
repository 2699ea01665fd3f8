"""Requests of brokers and controllers to a controller here and to Apache Kafka 4.3.1's: equal answers, field by field.

Both are asked over the controller listener. Fields that must differ are removed: generated ids and times, and offsets
of the log. Deliberate differences are covered by the controller's own tests.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.config.node import NodeConfig
from fenceline.metadata.features import SUPPORTED
from fenceline.node.controller_node import ControllerNode
from fenceline.node.metadata.format import format_directory, parse_initial_controllers
from fenceline.node.net.peer_connection import PeerConnection, PeerConnectionLost, open_peer
from fenceline.testing.apache_kafka import free_port
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_header, parse_response_header
from fenceline.wire.principal import ANONYMOUS, encode_principal
from tests.controller.two_controllers import There
from tests.node.test_controller_nodes import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

NODE_ID: Final = 100
"""Of both."""
BROKER: Final = 7
WAIT_S: Final = 60
DIRECTORIES: Final = (UUID(int=500), UUID(int=501))
UNASSIGNED: Final = UUID(int=1)
FEATURES: Final = [
    {"name": name, "min_supported_version": levels.minimum, "max_supported_version": levels.maximum}
    for name, levels in SUPPORTED.items()
]
LISTENER: Final = {"name": "CONTROLLER", "host": "h", "port": 1, "security_protocol": 0}


class Side:
    """One of the two controllers, with the ids it assigned, and a connection to it."""

    def __init__(self, port: int, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.known: dict[str, Any] = {}
        self._port = port
        self._connection: PeerConnection | None = None

    async def connect(self) -> PeerConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await open_peer("127.0.0.1", self._port, client_id="test")
        return self._connection

    async def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        """The answer, or a string if the connection is closed instead."""
        try:
            return await (await self.connect()).call(key, version, fields, WAIT_S)
        except PeerConnectionLost:
            return "closed"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


Case = Callable[[Side], tuple[ApiKey, int, dict[str, Any]]]


def _registration(broker: int, **more: Any) -> Case:
    fields = {
        "broker_id": broker,
        "incarnation_id": UUID(int=broker),
        "listeners": [{**LISTENER, "name": "PLAINTEXT"}],
        "features": FEATURES,
        "log_dirs": DIRECTORIES if broker == BROKER else (UUID(int=600 + broker),),
        "previous_broker_epoch": -1,
    }
    return lambda side: (ApiKey.BROKER_REGISTRATION, 4, {"cluster_id": side.cluster_id, **fields, **more})


def _controller(number: int, **more: Any) -> Case:
    fields = {"controller_id": number, "incarnation_id": UUID(int=number), "listeners": [LISTENER]}
    return lambda side: (ApiKey.CONTROLLER_REGISTRATION, 0, {**fields, "features": FEATURES, **more})


def _heartbeat(**more: Any) -> Case:
    return lambda side: (
        ApiKey.BROKER_HEARTBEAT,
        2,
        {"broker_id": BROKER, "broker_epoch": side.known["epoch"], "current_metadata_offset": 1 << 60, **more},
    )


def _assign(directory: UUID, *indexes: int, topic: UUID | None = None, **more: Any) -> Case:
    def case(side: Side) -> tuple[ApiKey, int, dict[str, Any]]:
        held = {"topic_id": topic or side.known["topic"], "partitions": [{"partition_index": i} for i in indexes]}
        wanted = {"id_": directory, "topics": [held]}
        fields = {"broker_id": BROKER, "broker_epoch": side.known["epoch"], "directories": [wanted]}
        return ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, {**fields, **more}

    return case


def _alter(version: int, isr: tuple[int, ...], *, topic: UUID | None = None, **more: Any) -> Case:
    """Of partitions 0 and 9."""

    def case(side: Side) -> tuple[ApiKey, int, dict[str, Any]]:
        change = {
            "leader_epoch": 0,
            "partition_epoch": 0,
            "new_isr": isr,
            "new_isr_with_epochs": [{"broker_id": member, "broker_epoch": side.known["epoch"]} for member in isr],
            **more,
        }
        partitions = [{"partition_index": index, **change} for index in (0, 9)]
        topics = [{"topic_id": topic or side.known["topic"], "partitions": partitions}]
        epoch = more.get("broker_epoch", side.known["epoch"])
        return ApiKey.ALTER_PARTITION, version, {"broker_id": BROKER, "broker_epoch": epoch, "topics": topics}

    return case


def _inside(key: ApiKey, version: int, fields: dict[str, Any]) -> bytes:
    return encode_request_header(key, version, 5, "client") + write_request(key, version, fields)


def _envelope(
    data: bytes, principal: bytes | None = encode_principal(ANONYMOUS), address: bytes = bytes((127, 0, 0, 1))
) -> Case:
    fields = {"request_data": data, "request_principal": principal, "client_host_address": address}
    return lambda side: (ApiKey.ENVELOPE, 0, fields)


ELECTION: Final = _inside(
    ApiKey.ELECT_LEADERS,
    2,
    {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0, 9]}], "timeout": 10_000},
)
START: Final = struct.Struct(">hhi")
NOT_SPOKEN: Final = {
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
}
"""Of controllers' APIs; see `docs/skipped.md`."""
QUORUM: Final = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
ACL: Final = {
    "resource_type": 2,
    "resource_name": "rain",
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER: Final = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}

CASES: Final[dict[str, Case]] = {
    "a controller registers": _controller(50),
    "a controller registers again": _controller(50),
    "a controller without features": _controller(51, features=[]),
    "a broker of another cluster": _registration(8, cluster_id="another"),
    "a broker with no directory": _registration(8, log_dirs=()),
    "a broker without features": _registration(8, features=[]),
    "another incarnation of a live broker": _registration(BROKER, incarnation_id=UUID(int=99)),
    "a heartbeat": _heartbeat(),
    "a heartbeat of another epoch": _heartbeat(broker_epoch=1),
    "a heartbeat of a stranger": _heartbeat(broker_id=99),
    "producer ids for another epoch": lambda side: (
        ApiKey.ALLOCATE_PRODUCER_IDS,
        0,
        {"broker_id": BROKER, "broker_epoch": 1},
    ),
    "unregistering a stranger": lambda side: (ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 99}),
    "a directory": _assign(DIRECTORIES[0], 0, 9),
    "a directory of a topic that is not there": _assign(DIRECTORIES[0], 0, topic=UUID(int=404)),
    "no directory any more": _assign(UNASSIGNED, 1),
    "a directory by another epoch": _assign(DIRECTORIES[0], 0, broker_epoch=1),
    **{
        f"{what}, version {version}": case
        for version in (2, 3)
        for what, case in {
            "an ISR of a partition that has changed": _alter(version, (BROKER,)),
            "an ISR of a later leader epoch": _alter(version, (BROKER,), leader_epoch=1),
            "an empty ISR": _alter(version, (), partition_epoch=1),
            "an ISR as it is": _alter(version, (BROKER,), partition_epoch=1),
            "an ISR of others": _alter(version, (99,), partition_epoch=1),
            "an ISR by another epoch": _alter(version, (BROKER,), broker_epoch=1),
            "an ISR of a topic that is not there": _alter(version, (BROKER,), topic=UUID(int=404)),
            "an ISR of a topic without an id": _alter(version, (BROKER,), topic=UUID(int=0)),
            "a recovered partition that recovers": _alter(
                version, (BROKER,), partition_epoch=1, leader_recovery_state=1
            ),
        }.items()
    },
    "an envelope": _envelope(ELECTION),
    "an envelope of nobody": _envelope(ELECTION, b""),
    "an envelope of null": _envelope(ELECTION, None),
    "an envelope of a later principal": _envelope(ELECTION, START.pack(9, 0, 0)),
    "an envelope of half a principal": _envelope(ELECTION, encode_principal(ANONYMOUS)[:-3]),
    "an envelope from IPv6": _envelope(ELECTION, address=bytes(16)),
    "an envelope from nowhere": _envelope(ELECTION, address=b""),
    "an envelope from half an address": _envelope(ELECTION, address=b"abc"),
    "an empty envelope": _envelope(b""),
    "an envelope with half a header": _envelope(ELECTION[:5]),
    "an envelope with half a request": _envelope(ELECTION[:-6]),
    "an envelope with a vote": _envelope(encode_request_header(ApiKey.VOTE, 2, 5, "client")),
    "an envelope in an envelope": _envelope(_inside(ApiKey.ENVELOPE, 0, _envelope(ELECTION)(Side(0, ""))[2])),
    "an envelope with what only brokers answer": _envelope(START.pack(ApiKey.LIST_OFFSETS, 5, 5) + b"\x00\x00"),
    "an envelope with what nobody knows": _envelope(START.pack(999, 0, 5) + b"\x00\x00"),
    "an envelope of a later version": _envelope(START.pack(ApiKey.CREATE_TOPICS, 99, 5) + b"\x00\x01c\x00"),
    "an envelope of a version long gone": _envelope(START.pack(ApiKey.CREATE_TOPICS, 0, 5) + b"\x00\x01c" + bytes(5)),
    "an envelope with a stranger to unregister": _envelope(_inside(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 99})),
    "a quorum in an envelope": _envelope(_inside(ApiKey.DESCRIBE_QUORUM, 2, QUORUM)),
    **{
        f"a quorum, version {version}": (lambda side, version=version: (ApiKey.DESCRIBE_QUORUM, version, QUORUM))  # type: ignore[misc]
        for version in (0, 1, 2)
    },
    "ACLs without an authorizer": lambda side: (ApiKey.DESCRIBE_ACLS, 3, ACL_FILTER),
    "new ACLs without an authorizer": lambda side: (ApiKey.CREATE_ACLS, 3, {"creations": [ACL]}),
    "fewer ACLs without an authorizer": lambda side: (ApiKey.DELETE_ACLS, 3, {"filters": [ACL_FILTER]}),
    "an unknown operation": lambda side: (ApiKey.CREATE_ACLS, 3, {"creations": [{**ACL, "operation": 0}]}),
    "new ACLs in an envelope": _envelope(_inside(ApiKey.CREATE_ACLS, 3, {"creations": [ACL]})),
    "an unknown operation in an envelope": _envelope(
        _inside(ApiKey.CREATE_ACLS, 3, {"creations": [{**ACL, "operation": 0}]})
    ),
    "ACLs in an envelope": _envelope(_inside(ApiKey.DESCRIBE_ACLS, 3, ACL_FILTER)),
    "unregistering": lambda side: (ApiKey.UNREGISTER_BROKER, 0, {"broker_id": BROKER}),
}
"""In this order; each finds what the ones before left."""

_OF_ITS_OWN: Final = (
    (re.compile(r"UUID\('(?!00000000-0000-0000-0000-0000000)[^']*'\)"), "an id"),
    (re.compile(r"(timestamp)=\d+"), r"\1=a time"),
    (re.compile(r"(high_watermark|log_end_offset|broker_epoch)=\d+"), r"\1=an offset"),
    (re.compile(r"port=\d+"), "a port"),
    (re.compile(r"host='[^']*'"), "a host"),
)


def _plain(case: tuple[ApiKey, int, dict[str, Any]], answer: Any) -> str:
    """The answer including the one inside its envelope, without generated values."""
    text = repr(answer)
    if case[0] is ApiKey.ENVELOPE and answer.response_data is not None:
        header = memoryview(case[2]["request_data"])
        key, version, _ = START.unpack_from(header)
        data = memoryview(answer.response_data)
        correlation_id, position = parse_response_header(key, version, data)
        text = f"{answer.error_code!r} {correlation_id} {read_response(ApiKey(key), version, data[position:])!r}"
    for pattern, instead in _OF_ITS_OWN:
        text = pattern.sub(instead, text)
    return text


async def _prepare(side: Side) -> None:
    """Broker 7 leads both partitions of a topic."""
    registered = await side.ask(*_registration(BROKER)(side))
    side.known["epoch"] = registered.broker_epoch
    assert not (await side.ask(*_heartbeat()(side))).is_fenced
    topic = {"name": "t", "num_partitions": 2, "replication_factor": 1}
    created = await side.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
    side.known["topic"] = created.topics[0].topic_id


def test_answers_equal_those_of_kafka(tmp_path: Path) -> None:
    port = free_port()
    config = NodeConfig.load(
        None,
        {
            "node.id": str(NODE_ID),
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
            "log.dirs": str(tmp_path / "data"),
            "broker.session.timeout.ms": "3600000",
        },
        {},
    )
    voters = parse_initial_controllers(f"{NODE_ID}@127.0.0.1:{port}:AAAAAAAAQACAAAAAAAAAAQ", "CONTROLLER")
    cluster_id = "AAAAAAAAQACAAAAAAAAAAA"
    format_directory(config.log_dirs, cluster_id=cluster_id, node_id=NODE_ID, voters=voters)

    async def story(kafkas_port: int) -> None:
        node = ControllerNode(config)
        sides = (Side(port, cluster_id), Side(kafkas_port, ""))
        try:
            await node.start()
            await eventually(lambda: NODE_ID in node.controller.image.controllers)
            described = await sides[1].ask(ApiKey.DESCRIBE_CLUSTER, 2, {"endpoint_type": 2})
            sides[1].cluster_id = described.cluster_id
            await _compare(sides)
        finally:
            for side in sides:
                side.close()
            await node.stop()

    with There() as there:
        asyncio.run(story(there.port))


async def _compare(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await _prepare(side)
    ours, kafkas = [dict((await side.connect()).versions) for side in sides]
    assert set(ours) < set(kafkas)
    assert {key: kafkas[key] for key in ours} == ours, "since_4_0.md K4"
    assert {ApiKey(key) for key in set(kafkas) - set(ours)} == NOT_SPOKEN
    different = []
    for name, make in CASES.items():
        cases = [make(side) for side in sides]
        here, there = [_plain(case, await side.ask(*case)) for case, side in zip(cases, sides, strict=True)]
        if here != there:
            different.append(f"{name}\n  here   {here}\n  there  {there}")
    assert not different, "\n".join(different)
