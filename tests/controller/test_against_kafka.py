"""The same requests to this controller and to a running Apache Kafka 4.3.1: codes and messages must be equal."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from fenceline.controller.partition_requests import ElectLeaders
from fenceline.controller.requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FeatureUpdate,
    IncrementalAlterConfigs,
    NewPartitions,
    RequestOutcome,
    TopicReference,
    TopicToCreate,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from fenceline.errors import PeerError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.image import ConfigResource, ConfigResourceType
from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.wire import entities, frame
from fenceline.wire.apis import ApiKey
from tests.controller.helpers import Cluster
from tests.support.recorded import Answer, as_recorded

Items = list[tuple[Any, int, str | None]]
"""Each item with its code and message."""


class Kafka:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        body = entities.write_request(key, version, fields)
        self._socket.sendall(b"".join(frame.encode_request_frame(key, version, 1, "test", body)))
        (size,) = struct.unpack(">i", self._take(4))
        content = memoryview(self._take(size))
        _, position = frame.parse_response_header(key, version, content)
        return entities.read_response(key, version, content[position:])

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            chunk = self._socket.recv(size - len(taken))
            assert chunk, "Kafka closed the connection"
            taken += chunk
        return taken

    def close(self) -> None:
        self._socket.close()


class Case(NamedTuple):
    """One request in both forms."""

    here: Callable[[Cluster], Items]
    there: Callable[[Kafka], Items]
    name: str


def _flattened(item: Any, outcome: RequestOutcome) -> tuple[Any, int, str | None]:
    return item, int(outcome.code), outcome.message


def _or_error(items: list[Any], ask: Callable[[], Items]) -> Items:
    """Kafka returns a failure of the whole request for each item."""
    try:
        return ask()
    except PeerError as error:
        return [(item, int(error.code), error.message) for item in items]


def create(*topics: TopicToCreate, validate_only: bool = False) -> Case:
    def here(cluster: Cluster) -> Items:
        return _or_error(
            [topic.name for topic in topics],
            lambda: [_flattened(t.name, t.outcome) for t in cluster.ask(CreateTopics(topics, validate_only)).topics],
        )

    def there(kafka: Kafka) -> Items:
        wanted = [
            {
                "name": topic.name,
                "num_partitions": topic.num_partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [{"partition_index": i, "broker_ids": list(b)} for i, b in topic.assignments],
                "configs": [{"name": name, "value": value} for name, value in topic.configs],
            }
            for topic in topics
        ]
        answer = kafka.ask(
            ApiKey.CREATE_TOPICS, 7, {"topics": wanted, "timeout": 30_000, "validate_only": validate_only}
        )
        return [(topic.name, int(topic.error_code), topic.error_message) for topic in answer.topics]

    return Case(here, there, f"create {[topic.name[:9] for topic in topics]}")


def delete(*topics: TopicReference) -> Case:
    def here(cluster: Cluster) -> Items:
        return [_flattened((t.name, t.id), t.outcome) for t in cluster.ask(DeleteTopics(topics)).topics]

    def there(kafka: Kafka) -> Items:
        wanted = [{"name": name, "topic_id": None if topic_id == ZERO_UUID else topic_id} for name, topic_id in topics]
        answer = kafka.ask(ApiKey.DELETE_TOPICS, 6, {"topics": wanted, "timeout": 30_000})
        return [
            ((topic.name, topic.topic_id or ZERO_UUID), int(topic.error_code), topic.error_message)
            for topic in answer.responses
        ]

    return Case(here, there, f"delete {topics}")


def grow(*topics: NewPartitions) -> Case:
    def here(cluster: Cluster) -> Items:
        return [_flattened(topic.name, topic.outcome) for topic in cluster.ask(CreatePartitions(topics)).topics]

    def there(kafka: Kafka) -> Items:
        wanted = [
            {
                "name": topic.name,
                "count": topic.count,
                "assignments": None
                if topic.assignments is None
                else [{"broker_ids": list(each)} for each in topic.assignments],
            }
            for topic in topics
        ]
        answer = kafka.ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": wanted, "timeout": 30_000, "validate_only": False})
        return [(topic.name, int(topic.error_code), topic.error_message) for topic in answer.results]

    return Case(here, there, f"partitions {topics}")


def change(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Case:
    def here(cluster: Cluster) -> Items:
        resource = ConfigResource(ConfigResourceType(kind), name)
        wanted = tuple(ConfigChange(key, ConfigOperation(operation), value) for key, operation, value in changes)
        answer = cluster.ask(IncrementalAlterConfigs(((resource, wanted),)))
        return [_flattened(each.resource.name, each.outcome) for each in answer.resources]

    def there(kafka: Kafka) -> Items:
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        answer = kafka.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {
                "resources": [{"resource_type": kind, "resource_name": name, "configs": configs}],
                "validate_only": False,
            },
        )
        return [(each.resource_name, int(each.error_code), each.error_message) for each in answer.responses]

    return Case(here, there, f"configs {kind} {name} {changes}")


def replace(kind: int, name: str, *configs: tuple[str, str]) -> Case:
    def here(cluster: Cluster) -> Items:
        answer = cluster.ask(AlterConfigs(((ConfigResource(ConfigResourceType(kind), name), configs),)))
        return [_flattened(each.resource.name, each.outcome) for each in answer.resources]

    def there(kafka: Kafka) -> Items:
        wanted = [{"name": key, "value": value} for key, value in configs]
        answer = kafka.ask(
            ApiKey.ALTER_CONFIGS,
            2,
            {"resources": [{"resource_type": kind, "resource_name": name, "configs": wanted}], "validate_only": False},
        )
        return [(each.resource_name, int(each.error_code), each.error_message) for each in answer.responses]

    return Case(here, there, f"legacy {kind} {name} {configs}")


def elect(kind: int, *topics: tuple[str, tuple[int, ...]]) -> Case:
    def here(cluster: Cluster) -> Items:
        answer = cluster.ask(ElectLeaders(kind, topics))
        return [_flattened((name, each.index), each.outcome) for name, parts in answer.topics for each in parts]

    def there(kafka: Kafka) -> Items:
        wanted = [{"topic": name, "partitions": list(indexes)} for name, indexes in topics]
        answer = kafka.ask(
            ApiKey.ELECT_LEADERS, 2, {"election_type": kind, "topic_partitions": wanted, "timeout": 30_000}
        )
        return [
            ((topic.topic, each.partition_id), int(each.error_code), each.error_message)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        ]

    return Case(here, there, f"elect {kind} {topics}")


def feature(*updates: tuple[str, int, int]) -> Case:
    def here(cluster: Cluster) -> Items:
        wanted = tuple(FeatureUpdate(name, level, UpgradeType(kind)) for name, level, kind in updates)
        return [_flattened("all", cluster.ask(UpdateFeatures(wanted)).outcome)]

    def there(kafka: Kafka) -> Items:
        wanted = [{"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level, kind in updates]
        answer = kafka.ask(
            ApiKey.UPDATE_FEATURES, 1, {"timeout": 30_000, "feature_updates": wanted, "validate_only": False}
        )
        return [("all", int(answer.error_code), answer.error_message)]

    return Case(here, there, f"features {updates}")


def unregister(broker: int) -> Case:
    def here(cluster: Cluster) -> Items:
        with pytest.raises(PeerError) as error:
            cluster.ask(UnregisterBroker(broker))
        return [(broker, int(error.value.code), error.value.message)]

    def there(kafka: Kafka) -> Items:
        answer = kafka.ask(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": broker})
        return [(broker, int(answer.error_code), answer.error_message)]

    return Case(here, there, f"unregister {broker}")


def _manual(name: str, *assignments: tuple[int, tuple[int, ...]], **more: int) -> TopicToCreate:
    return TopicToCreate(name, assignments=assignments, **more)


SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
MV, GROUP, TRANSACTION, ELR = (
    "metadata.version",
    "group.version",
    "transaction.version",
    "eligible.leader.replicas.version",
)
UNKNOWN_ID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)

CASES = (
    create(
        TopicToCreate("good", 2, 1),
        TopicToCreate("a.b", 1, 1),
        TopicToCreate("Bad name", 1, 1),
        TopicToCreate("", 1, 1),
    ),
    create(
        TopicToCreate(".", 1, 1),
        TopicToCreate("..", 1, 1),
        TopicToCreate("x" * 250, 1, 1),
        TopicToCreate("x" * 249, 1, 1),
    ),
    create(TopicToCreate("good", 1, 1)),
    create(TopicToCreate("a_b", 1, 1)),
    create(TopicToCreate("dup", 1, 1), TopicToCreate("dup", 2, 1)),
    create(TopicToCreate("z.z", 1, 1), TopicToCreate("z_z", 1, 1)),
    create(
        TopicToCreate("none", 0, 1),
        TopicToCreate("minus", -2, 1),
        TopicToCreate("no-copy", 1, 0),
        TopicToCreate("minus-copy", 1, -2),
    ),
    create(TopicToCreate("two", 1, 2)),
    create(TopicToCreate("large", 10_001, 1)),
    create(
        TopicToCreate("c1", 1, 1, configs=(("retention.ms", "abc"),)),
        TopicToCreate("c2", 1, 1, configs=(("nope", "1"),)),
    ),
    create(TopicToCreate("c3", 1, 1, configs=(("retention.ms", None),))),
    create(TopicToCreate("c4", 1, 1, configs=(("min.insync.replicas", "40000"), ("cleanup.policy", "compact")))),
    create(_manual("m1", (0, (1,)), num_partitions=1), _manual("m2", (0, (1,)), replication_factor=1)),
    create(_manual("m3", (0, (1,)), (0, (1,))), _manual("m4", (0, (7,))), _manual("m5", (0, (1, 1)))),
    create(_manual("m6", (0, ())), _manual("m7", (1, (1,))), _manual("m8", (0, (1,)), (1, (1,)))),
    create(TopicToCreate("__cluster_metadata", 1, 1)),
    create(TopicToCreate("only-asked", 3, 1), TopicToCreate("Bad name", 1, 1), validate_only=True),
    create(),
    grow(NewPartitions("good", 2)),
    grow(NewPartitions("good", 1), NewPartitions("none", 3)),
    grow(NewPartitions("good", 4, ((1,),))),
    grow(NewPartitions("good", 3, ((9,),))),
    grow(NewPartitions("good", 3, ((1, 1),))),
    grow(NewPartitions("good", 3, ((),))),
    grow(NewPartitions("good", 3, ())),
    grow(NewPartitions("good", 3), NewPartitions("good", 4)),
    grow(NewPartitions("good", 3), NewPartitions("a.b", 2, ((1,),))),
    delete(TopicReference("none")),
    delete(TopicReference(id=UNKNOWN_ID)),
    delete(TopicReference()),
    delete(TopicReference("a.b", UNKNOWN_ID)),
    delete(TopicReference("a.b"), TopicReference("a.b")),
    delete(TopicReference(id=UNKNOWN_ID), TopicReference(id=UNKNOWN_ID)),
    change(2, "good", ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")),
    change(2, "good", ("retention.ms", APPEND, "5000")),
    change(2, "good", ("cleanup.policy", SUBTRACT, "delete")),
    change(2, "good", ("cleanup.policy", SUBTRACT, "compact")),
    change(2, "good", ("nope", SET, "1")),
    change(2, "none", ("retention.ms", SET, "1")),
    change(2, "", ("retention.ms", SET, "1")),
    change(2, "Bad name", ("retention.ms", SET, "1")),
    change(2, "good", ("retention.ms", SET, "abc")),
    change(2, "good", ("min.insync.replicas", SET, "2")),
    change(4, "", ("min.insync.replicas", SET, "2")),
    change(4, "", ("min.insync.replicas", DELETE, None)),
    change(4, "1", ("min.insync.replicas", SET, "2")),
    change(4, "1", ("min.insync.replicas", DELETE, None)),
    change(4, "", ("min.insync.replicas", SET, "40000")),
    change(4, "", ("log.retention.ms", SET, "100000")),
    change(16, "metrics", ("interval.ms", SET, "1000")),
    change(16, "metrics", ("nope", SET, "1000")),
    change(16, "", ("interval.ms", SET, "1000")),
    change(32, "group", ("consumer.session.timeout.ms", SET, "50000")),
    change(32, "", ("consumer.session.timeout.ms", SET, "50000")),
    change(32, "group", ("nope", SET, "50000")),
    change(32, "group", ("consumer.session.timeout.ms", SET, "1")),
    change(32, "group", ("consumer.session.timeout.ms", SET, "abc")),
    replace(2, "good", ("retention.ms", "7000")),
    replace(2, "good"),
    replace(2, "none", ("retention.ms", "1")),
    replace(4, ""),
    elect(0, ("good", (0, 5)), ("none", (0,))),
    elect(1, ("good", (0,))),
    feature((MV, 31, 1)),
    feature((MV, 30, 1)),
    feature((MV, 29, 1)),
    feature((MV, 29, 2)),
    feature((MV, 29, 3)),
    feature((MV, 6, 3)),
    feature((MV, 30, 2)),
    feature(("nope", 1, 1)),
    feature((GROUP, 0, 2)),
    feature((GROUP, 1, 1)),
    feature((GROUP, 5, 1)),
    feature((GROUP, 1, 2)),
    feature((GROUP, -1, 2)),
    feature((GROUP, 1, 0)),
    feature((GROUP, 0, 1)),
    feature((GROUP, 1, 1), ("nope", 1, 1)),
    feature(("kraft.version", 0, 2)),
    feature(("kraft.version", 1, 1)),
    feature((TRANSACTION, 1, 2)),
    feature((TRANSACTION, 2, 2)),
    feature((ELR, 0, 2)),
    change(4, "1", ("min.insync.replicas", SET, "1")),
    feature((ELR, 1, 1)),
    unregister(44),
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with ApacheKafka(heap="512m") as broker:
        connection = Kafka(broker.port)
        yield connection
        connection.close()


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    made = Cluster(1)
    made.controller.state.kraft_version = 1
    return made


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_same_answer(case: Case, cluster: Cluster, answer: Answer) -> None:
    """The cases build on each other, in order."""
    theirs = answer("kafka", lambda kafka: sorted(case.there(kafka), key=repr))
    assert as_recorded(sorted(case.here(cluster), key=repr)) == theirs
