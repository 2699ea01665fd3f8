"""Changes of topics under `controller_mutation_rate`: a node, and answers of Apache Kafka 4.3.1.

The bucket has ten tokens and gets another one in a hundred seconds, so that what is left does not depend on how fast a
script runs. Each script has a client id, and so a bucket, of its own.

Rules: security.md A61; KIP-599.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.client_quotas import ClientQuotaAlteration, EntityQuotas
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.mixed_cluster import BROKER, CONTROLLER, MixedCluster
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis
from tests.support.raw import RawConnection
from tests.support.recorded import Answer

pytestmark = pytest.mark.timeout(180)

KEY: Final = "controller_mutation_rate"
RATE: Final = 0.01
WINDOWS: Final = {"controller.quota.window.num": "1000"}
MS_OF_A_TOKEN: Final = 1000 / RATE
ROWS: Final = {
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "responses",
    ApiKey.CREATE_PARTITIONS: "results",
}

Step = tuple[ApiKey, int, dict[str, Any]]


def create(*topics: tuple[str, int], version: int = 7, validate_only: bool = False, replicas: int = 1) -> Step:
    rows = [{"name": name, "num_partitions": count, "replication_factor": replicas} for name, count in topics]
    return ApiKey.CREATE_TOPICS, version, {"topics": rows, "timeout": 30_000, "validate_only": validate_only}


def assigned(name: str, partitions: int) -> Step:
    rows = [{"partition_index": index, "broker_ids": [1]} for index in range(partitions)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows}
    return ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 30_000}


def delete(*names: str, version: int = 6) -> Step:
    fields = {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}
    return ApiKey.DELETE_TOPICS, version, {**fields, "timeout": 30_000}


def grow(*topics: tuple[str, int], version: int = 3, validate_only: bool = False) -> Step:
    rows = [{"name": name, "count": count, "assignments": None} for name, count in topics]
    return ApiKey.CREATE_PARTITIONS, version, {"topics": rows, "timeout": 30_000, "validate_only": validate_only}


def limit_of(name: str, rate: float | None) -> Step:
    """The quota of a client id; "": of the script's own."""
    return ApiKey.ALTER_CLIENT_QUOTAS, 1, {"client_id": name, "rate": rate}


OVERDRAWN: Final = create(("over", 13))
SCRIPTS: Final[dict[str, list[Step]]] = {
    "overdrawn once, then refused": [
        create(("a", 4)),
        create(("b", 4)),
        create(("c", 4)),
        create(("d", 1)),
        create(("d", 0)),
        delete("a"),
        grow(("a", 5)),
        create(("d", 1)),
    ],
    "one request of many topics": [
        create(("a", 6), ("b", 6), ("c", 6)),
        delete("a", "b"),
    ],
    "what fails costs nothing": [
        create(("a", 9)),
        create(("a", 100)),
        create(("bad name", 100)),
        create(("b", 100), replicas=5),
        create(("b", 0)),
        create(("b", 100), ("b", 1)),
        grow(("a", 5)),
        grow(("none", 5)),
        delete("none"),
        create(("c", 1)),
        create(("d", 1)),
        create(("e", 1)),
    ],
    "a failing topic before a good one": [
        create(("a", 1)),
        create(("a", 100), ("b", 1), ("c", 1)),
        grow(("none", 100), ("b", 2)),
        delete("none", "a"),
        create(("d", 1)),
    ],
    "what fails is told while the bucket is overdrawn": [
        OVERDRAWN,
        create(("over", 1)),
        create(("bad name", 1)),
        create(("b", 1), replicas=5),
        create(("b", 1), ("b", 1)),
        create(("b", 1), ("over", 1), ("c", 1)),
        grow(("over", 2)),
        grow(("none", 2)),
        grow(("over", 14)),
        delete("none"),
        delete("none", "over"),
    ],
    "older clients": [
        create(("a", 13), version=5),
        create(("b", 1), version=5),
        create(("b", 1), version=5),
        create(("c", 1), version=6),
        grow(("a", 14), version=2),
        grow(("a", 15), version=3),
        delete("b", version=4),
        delete("a", version=5),
    ],
    "only validated": [
        create(("a", 8), validate_only=True),
        create(("a", 8), validate_only=True),
        create(("a", 8), validate_only=True),
        create(("a", 1)),
    ],
    "partitions that are only validated": [
        create(("a", 1)),
        grow(("a", 9), validate_only=True),
        grow(("a", 9), validate_only=True),
        grow(("a", 9), validate_only=True),
        create(("b", 1)),
    ],
    "the partitions that are said or assigned": [
        create(("a", -1)),
        assigned("b", 8),
        create(("c", -1)),
        create(("d", -1)),
        create(("e", -1)),
    ],
    "quotas change while the bucket is overdrawn": [
        OVERDRAWN,
        limit_of("someone else", 5.0),
        create(("a", 1)),
        limit_of("", RATE * 3),
        create(("a", 1)),
        limit_of("", RATE / 2),
        create(("a", 1)),
        limit_of("", None),
        create(("a", 1)),
    ],
    "deleting gives nothing back": [
        create(("a", 4)),
        delete("a"),
        create(("a", 4)),
        delete("a"),
    ],
}


@pytest.fixture(scope="module")
def kafka_with_mutation_quota() -> Iterator[ApacheKafka]:
    with small_kafka(overrides=WINDOWS) as kafka:
        limit(kafka.bootstrap)
        yield kafka


@pytest.fixture(scope="module")
def node_with_mutation_quota() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(overrides=WINDOWS) as node:
        limit(node.bootstrap)
        yield node


@pytest.fixture(scope="module")
def broker_with_mutation_quota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Its port; the controller is another node."""
    root = tmp_path_factory.mktemp("nodes")
    with MixedCluster(root, [BROKER, CONTROLLER], settings=WINDOWS) as cluster:
        cluster.wait_ready()
        port = cluster.nodes[0].port
        limit(f"127.0.0.1:{port}")
        yield port


def limit(bootstrap: str) -> None:
    set_quota(int(bootstrap.rpartition(":")[2]), None, RATE)


def set_quota(port: int, client_id: str | None, rate: float | None) -> None:
    """Until the node knows it."""
    entity = {"client-id": client_id}
    with Admin(f"127.0.0.1:{port}") as admin:
        admin.alter_client_quotas([ClientQuotaAlteration(entity, {KEY: rate})])
        wanted = [] if rate is None else [EntityQuotas(entity, {KEY: rate})]
        eventually(lambda: admin.describe_client_quotas(entity, strict=True) == wanted)


def run(port: int, client_id: str, steps: list[Step]) -> list[Any]:
    """The code of each topic, and for how many tokens the client is throttled. Each request has a connection of its
    own, since the one before may be muted."""
    found: list[Any] = []
    for key, version, fields in steps:
        if key is ApiKey.ALTER_CLIENT_QUOTAS:
            set_quota(port, fields["client_id"] or client_id, fields["rate"])
            continue
        with RawConnection(port, client_id=client_id) as connection:
            answer = connection.call(key, version, _with_prefix(fields, client_id))
        named = ((row.name.removeprefix(f"{client_id}."), int(row.error_code)) for row in getattr(answer, ROWS[key]))
        found.append([sorted(named), round(millis(answer.throttle_time) / MS_OF_A_TOKEN, 1)])
    return found


def _with_prefix(fields: Mapping[str, Any], client_id: str) -> dict[str, Any]:
    """Topics of a script's own."""
    prefix = f"{client_id}."
    if "topic_names" in fields:
        return {**fields, "topic_names": [prefix + name for name in fields["topic_names"]]}
    return {**fields, "topics": [{**topic, "name": prefix + topic["name"]} for topic in fields["topics"]]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_those_of_kafka(
    name: str, answer: Answer, node_with_mutation_quota: EmbeddedNode, broker_with_mutation_quota: int
) -> None:
    """A node that is its own controller, and a broker that forwards the requests."""
    client_id = name.replace(" ", "-").replace(",", "")
    theirs = answer("kafka_with_mutation_quota", lambda kafka: run(kafka.port, client_id, SCRIPTS[name]))
    check(name, run(node_with_mutation_quota.port, client_id, SCRIPTS[name]), theirs)
    check(name, run(broker_with_mutation_quota, client_id, SCRIPTS[name]), theirs)


def check(name: str, ours: list[Any], theirs: list[Any]) -> None:
    asked = [step for step in SCRIPTS[name] if step[0] in ROWS]
    for step, expected, (rows, tokens) in zip(asked, theirs, ours, strict=True):
        told = f"{step[0].name} {step[1]} {step[2]}"
        assert [list(row) for row in rows] == expected[0], told
        assert tokens == pytest.approx(expected[1], abs=0.3), told
