"""Requests to send to a real Kafka 4.3.1 and to a Fenceline node, whose answers must be the same.

A script is a list of steps that build on each other. Every topic begins with `adm`, so that scripts can share a server
with other tests. `Step.ours_only` drops rows of other topics; `Step.drop` names fields that may differ, with the reason
beside the step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fenceline.wire.apis import ApiKey
from tests.support.raw import RawConnection, plain

UNKNOWN_ID = UUID("0b558df6-ad2d-4cdb-8a0f-3e29f648b81e")


@dataclass(frozen=True)
class IdOf:
    """Stands for the id of a topic, looked up when the step is sent."""

    topic: str


@dataclass(frozen=True)
class Step:
    api: ApiKey
    version: int
    fields: Mapping[str, Any]
    ours_only: bool = False
    drop: frozenset[str] = frozenset()


def step(api: ApiKey, version: int, *, ours_only: bool = False, drop: tuple[str, ...] = (), **fields: Any) -> Step:
    return Step(api, version, fields, ours_only, frozenset(drop))


# --- running ------------------------------------------------------------------------------------------------------


def run_script(connection: RawConnection, steps: list[Step]) -> list[Any]:
    """The comparable answers to all steps, with none of our topics there before."""
    forget_topics(connection)
    answers = []
    for each in steps:
        answer = connection.call(each.api, each.version, _resolve(connection, each.fields))
        answers.append(comparable(each, answer))
        _settle(connection, each, answer)
    return answers


def forget_topics(connection: RawConnection) -> None:
    """Delete every topic that a script made."""
    deadline = time.monotonic() + 60
    while True:
        answer = connection.call(ApiKey.METADATA, 12, {"topics": None, "allow_auto_topic_creation": False})
        ours = [{"name": each.name} for each in answer.topics if each.name.startswith("adm")]
        if not ours:
            return
        assert time.monotonic() < deadline, f"topics that stay: {ours}"
        connection.call(ApiKey.DELETE_TOPICS, 6, {"topics": ours, "timeout": 10_000})


_CHANGES = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CONFIGS,
    }
)
_BARRIER = "barrier"
_barrier_values = itertools.count(1000)


def _settle(connection: RawConnection, each: Step, answer: Any) -> None:
    """Kafka responds before its broker has applied a change; later steps must not depend on that."""
    if each.api not in _CHANGES or each.fields.get("validate_only"):
        return
    if each.api is ApiKey.CREATE_TOPICS:
        _wait_for_replicas(connection, [row.name for row in answer.topics if row.error_code == 0])
    if each.api is ApiKey.CREATE_PARTITIONS:
        _wait_for_replicas(connection, [row.name for row in answer.results if row.error_code == 0])
    _pass_barrier(connection)


def _pass_barrier(connection: RawConnection) -> None:
    """Make a harmless change and wait until it is visible: changes are applied in order."""
    value = str(next(_barrier_values))
    change_it = alter(change(GROUP, _BARRIER, ("consumer.assignment.interval.ms", SET, value)))
    look = describe(4, GROUP, _BARRIER, "consumer.assignment.interval.ms")
    connection.call(change_it.api, change_it.version, change_it.fields)
    deadline = time.monotonic() + 60
    while True:
        answer = connection.call(look.api, look.version, look.fields)
        if answer.results[0].configs[0].value == value:
            return
        assert time.monotonic() < deadline, "the barrier change is not visible"
        time.sleep(0.005)


def _wait_for_replicas(connection: RawConnection, topics: list[str]) -> None:
    deadline = time.monotonic() + 60
    while topics:
        reported = connection.call(
            ApiKey.METADATA, 12, {"topics": [{"name": name} for name in topics], "allow_auto_topic_creation": False}
        )
        asked = [
            {"topic": row.name, "partitions": [each.partition_index for each in row.partitions]}
            for row in reported.topics
        ]
        held = connection.call(ApiKey.DESCRIBE_LOG_DIRS, 3, {"topics": asked})
        found = sum(len(row.partitions) for directory in held.results for row in directory.topics)
        if all(row.error_code == 0 for row in reported.topics) and found == sum(
            len(row["partitions"]) for row in asked
        ):
            return
        assert time.monotonic() < deadline, f"no replicas of {topics}"
        time.sleep(0.02)


def _resolve(connection: RawConnection, value: Any) -> Any:
    if isinstance(value, IdOf):
        answer = connection.call(
            ApiKey.METADATA, 12, {"topics": [{"name": value.topic}], "allow_auto_topic_creation": False}
        )
        return answer.topics[0].topic_id
    if isinstance(value, Mapping):
        return {key: _resolve(connection, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_resolve(connection, item) for item in value]
    return value


_ORDER = ("name", "resource_type", "resource_name", "partition_index", "topic_id", "node_id", "broker_id", "log_dir")
_ALWAYS_DROPPED = frozenset(
    {"cluster_id", "host", "port", "log_dir", "total_bytes", "usable_bytes", "partition_size", "documentation"}
)
"""Differ between any two servers; sizes on disk and sentences are no protocol."""


def comparable(each: Step, answer: Any) -> Any:
    """An answer without what may differ: order of rows, ids that the server made up, addresses, sizes."""
    return _normal(plain(answer), each)


def _normal(value: Any, each: Step) -> Any:
    if isinstance(value, dict):
        kept = {k: _normal(v, each) for k, v in value.items() if k not in _ALWAYS_DROPPED and k not in each.drop}
        return {k: _id(v) if k == "topic_id" else v for k, v in kept.items()}
    if isinstance(value, list):
        rows = [_normal(item, each) for item in value if _in_kafka(item) and (not each.ours_only or _is_ours(item))]
        if rows and isinstance(rows[0], dict) and "source" not in rows[0]:
            rows.sort(key=lambda row: tuple(str(row.get(key)) for key in _ORDER))
        return rows
    return value


def _id(value: Any) -> Any:
    return value if value is None or value == str(UNKNOWN_ID) else "some id"


def _in_kafka(row: Any) -> bool:
    """Whether Kafka could have the row: it has no config of Fenceline's own."""
    return not isinstance(row, dict) or not str(row.get("name")).startswith("fenceline.")


def _is_ours(row: Any) -> bool:
    """Rows of brokers are everybody's; of topics, groups and subscriptions only those that begin as ours do."""
    if not isinstance(row, dict):
        return True
    name = row.get("resource_name", row.get("name"))
    named = "partitions" in row or row.get("resource_type") in (TOPIC, CLIENT_METRICS, GROUP)
    return not named or str(name).startswith("adm")


# --- requests -----------------------------------------------------------------------------------------------------


def create(version: int, *topics: Mapping[str, Any], validate_only: bool = False) -> Step:
    return step(ApiKey.CREATE_TOPICS, version, topics=topics, timeout=30_000, validate_only=validate_only)


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def assigned(name: str, *replicas: list[int], first: int = 0, partitions: int = -1, factor: int = -1) -> dict[str, Any]:
    rows = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas, first)]
    return topic(name, partitions, factor, assignments=rows)


def configured(name: str, *configs: tuple[str, str | None]) -> dict[str, Any]:
    return topic(name, configs=[{"name": key, "value": value} for key, value in configs])


def delete(version: int, *names: str) -> Step:
    if version >= 6:
        return delete_by(*((name, None) for name in names))
    return step(ApiKey.DELETE_TOPICS, version, topic_names=names, timeout=30_000)


def delete_by(*topics: tuple[str | None, Any]) -> Step:
    rows = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    return step(ApiKey.DELETE_TOPICS, 6, topics=rows, timeout=30_000)


def grow(version: int, *topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> Step:
    rows = [
        {"name": n, "count": c, "assignments": None if a is None else [{"broker_ids": ids} for ids in a]}
        for n, c, a in topics
    ]
    return step(ApiKey.CREATE_PARTITIONS, version, topics=rows, timeout=30_000, validate_only=validate_only)


def metadata(version: int, *names: str, create: bool = False, ours_only: bool = False, **more: Any) -> Step:
    rows = [{"name": name} for name in names]
    return step(ApiKey.METADATA, version, topics=rows, allow_auto_topic_creation=create, ours_only=ours_only, **more)


def metadata_by(version: int, *topics: tuple[str | None, Any]) -> Step:
    rows = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    return step(ApiKey.METADATA, version, topics=rows, allow_auto_topic_creation=False)


def partitions_of(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Step:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    rows = [{"name": name} for name in names]
    return step(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=rows, response_partition_limit=limit, cursor=at)


TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def change(kind: int, name: str, *configs: tuple[str, int, str | None]) -> dict[str, Any]:
    rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    return {"resource_type": kind, "resource_name": name, "configs": rows}


def alter(*resources: Mapping[str, Any], version: int = 1, validate_only: bool = False) -> Step:
    return step(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=validate_only)


def replace(version: int, kind: int, name: str, *configs: tuple[str, str | None], validate_only: bool = False) -> Step:
    rows = [{"name": key, "value": value} for key, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    return step(ApiKey.ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only)


def describe(version: int, kind: int, name: str, *keys: str, synonyms: bool = True, drop: tuple[str, ...] = ()) -> Step:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    return step(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=synonyms, drop=drop)


def resources(version: int, *kinds: int) -> Step:
    return step(ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=kinds, ours_only=True)


# --- scripts ------------------------------------------------------------------------------------------------------

SCRIPTS: dict[str, list[Step]] = {
    "create topics": [
        *(create(version, topic(f"adm-v{version}", 2)) for version in range(2, 8)),
        create(5, configured("adm-configured", ("retention.ms", "1"), ("cleanup.policy", "delete,delete"))),
        create(7, topic("adm-v7")),
        *(create(7, topic(name)) for name in ("bad/name", "", ".", "..", "x" * 250)),
        create(7, topic("adm.b"), topic("adm.c")),
        create(7, topic("adm_b")),
        create(7, topic("adm-p0", 0)),
        create(7, topic("adm-p", -2)),
        create(7, topic("adm-rf2", 1, 2)),
        create(7, topic("adm-rf0", 1, 0)),
        create(7, topic("adm-rfm", 1, -2)),
        create(7, topic("adm-default", -1, -1)),
        create(2, topic("adm-default2", -1, -1)),
        create(7, assigned("adm-manual", [1], [1])),
        create(7, assigned("adm-manual1", [1], partitions=2)),
        create(7, assigned("adm-manual2", [1], factor=1)),
        create(7, assigned("adm-manual3", [2])),
        create(7, assigned("adm-manual4", [1, 1])),
        create(7, assigned("adm-manual5", [1], first=1)),
        create(7, assigned("adm-manual6", [])),
        create(7, configured("adm-c1", ("retention.ms", None))),
        create(7, configured("adm-c2", ("nope", "1"))),
        create(7, configured("adm-c3", ("retention.ms", "abc"))),
        create(7, configured("adm-c4", ("retention.ms", "1"), ("retention.ms", "2"))),
        create(7, configured("adm-c5", ("remote.storage.enable", "true"))),
        create(7, configured("adm-c6", ("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8"))),
        create(7, topic("adm-dry"), validate_only=True),
        create(7, topic("adm-dry", -1, 1), validate_only=True),
        create(7, topic("adm-twice"), topic("adm-twice"), topic("adm-once")),
        create(7, topic("__cluster_metadata")),
        create(7, topic("adm-big", 10_001)),
        create(7, topic("adm-big", 200_000)),
        create(7, topic("adm-one"), topic("adm-big", 200_000)),
        create(7, topic("adm-one"), topic("adm bad", 200_000)),
        create(7, topic("adm-one"), topic("adm-default", 200_000)),
        create(7, *(topic(f"adm-big{n}", 4_000) for n in range(3))),
        create(7, assigned("adm-big", *[[1]] * 10_001)),
        create(7, assigned("adm-big", *[[77]] * 10_001)),
        create(7, topic("adm-big", 10_000)),
        create(7, topic("adm-less", -20_000), topic("adm-big1", 9_000), topic("adm-big2", 9_000)),
        create(7),
    ],
    "delete topics": [
        create(7, *(topic(f"adm-del{n}") for n in range(8))),
        delete(1, "adm-del0", "adm-nope", "adm-del0"),
        delete(1, "adm-del0"),
        delete(3, "adm-del1", "adm-nope"),
        delete(5, "adm-nope"),
        delete(6, "adm-del2"),
        delete(6, "adm-nope"),
        delete_by((None, UNKNOWN_ID)),
        delete_by((None, None)),
        delete_by(("adm-del3", UNKNOWN_ID)),
        delete(6, "adm-del3", "adm-del3"),
        delete_by(("adm-del4", None), (None, IdOf("adm-del4"))),
        delete_by((None, IdOf("adm-del4")), (None, IdOf("adm-del4"))),
        delete_by((None, IdOf("adm-del4"))),
        delete(1, "bad/name", "", "__cluster_metadata"),
        delete(6),
    ],
    "create partitions": [
        create(7, topic("adm-grow", 2)),
        grow(3, ("adm-grow", 3, None)),
        *(grow(3, ("adm-grow", count, None)) for count in (3, 2, 0, -1)),
        grow(3, ("adm-nope", 2, None)),
        grow(3, ("adm-grow", 4, [[1]])),
        grow(3, ("adm-grow", 6, [[1]])),
        *(grow(3, ("adm-grow", 5, [ids])) for ids in ([2], [1, 1], [])),
        grow(3, ("adm-grow", 5, [])),
        grow(0, ("adm-grow", 5, None), validate_only=True),
        grow(3, ("adm-grow", 5, None), ("adm-grow", 6, None)),
        grow(3, ("bad/name", 2, None), ("", 2, None)),
        grow(3),
        metadata(12, "adm-grow"),
    ],
    "metadata": [
        create(7, topic("adm-m1", 2), topic("adm-m2")),
        *(metadata(version, "adm-m1", "adm-m2") for version in range(14)),
        *(metadata(version, "adm-m1", "bad/x", "adm-nope", "") for version in (4, 8, 9, 10, 12, 13)),
        metadata(1),
        metadata(13),
        step(ApiKey.METADATA, 12, topics=None, ours_only=True),
        step(ApiKey.METADATA, 0, topics=(), ours_only=True),
        metadata(
            8,
            "adm-m1",
            "adm-nope",
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        ),
        metadata(13, "adm-m1", "bad/x", include_topic_authorized_operations=True),
        metadata(9, "adm-m1", "adm-m1"),
        metadata_by(10, ("", IdOf("adm-m1"))),
        metadata_by(11, ("x", IdOf("adm-m1"))),
        metadata_by(12, (None, IdOf("adm-m1")), (None, UNKNOWN_ID)),
        metadata_by(12, (None, None)),
        metadata_by(12, ("adm-m1", IdOf("adm-m1"))),
        metadata_by(13, ("adm-m2", None), (None, IdOf("adm-m1"))),
        metadata(12, "__cluster_metadata", create=True),
    ],
    "describe topic partitions": [
        create(7, topic("adm-t1", 4), topic("adm-t0"), topic("adm-t2", 2)),
        partitions_of("adm-t1"),
        partitions_of("adm-t1", "adm-t0", "adm-t00", limit=2),
        partitions_of("adm-t1", "adm-t0", limit=2, cursor=("adm-t1", 2)),
        partitions_of("adm-t1", limit=2, cursor=("adm-t1", 9)),
        partitions_of("adm-t1", limit=2, cursor=("adm-t1", -1)),
        partitions_of("adm-t1", limit=0),
        partitions_of("adm-t1", limit=-1),
        partitions_of("bad/x"),
        partitions_of("", "adm-t1"),
        partitions_of("adm-t1", "adm-t1", limit=100),
        partitions_of("adm-t0", cursor=("adm-t1", 0)),
        partitions_of("adm-nope", cursor=("adm-nope", 3)),
        partitions_of("adm-t1", limit=4),
        partitions_of("adm-t1", "adm-tz", limit=4),
        partitions_of("adm-t1", "adm-t2", limit=1, cursor=("adm-t2", 2)),
        partitions_of(limit=1, cursor=("zzzz", 0)),
    ],
    "cluster": [
        *(step(ApiKey.DESCRIBE_CLUSTER, v, include_cluster_authorized_operations=True) for v in range(3)),
        step(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True),
        step(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=2),
        step(ApiKey.DESCRIBE_CLUSTER, 2, endpoint_type=9),
    ],
    "log dirs": [
        create(7, topic("adm-d1", 2)),
        *(
            step(ApiKey.DESCRIBE_LOG_DIRS, v, topics=[{"topic": "adm-d1", "partitions": [0, 1, 77]}])
            for v in range(1, 6)
        ),
        step(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[]),
        step(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": "adm-nope", "partitions": [0]}]),
        step(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": "adm-d1", "partitions": []}]),
    ],
    "topic configs": [
        create(7, topic("adm-cfg")),
        *(describe(version, TOPIC, "adm-cfg") for version in range(1, 5)),
        describe(4, TOPIC, "adm-cfg", synonyms=False),
        describe(4, TOPIC, "adm-cfg", "retention.ms", "nope", "internal.segment.bytes"),
        *(describe(4, TOPIC, name) for name in ("adm-nope", "bad/x", "")),
        alter(change(TOPIC, "adm-cfg", ("retention.ms", SET, " 7 ")), version=0),
        describe(4, TOPIC, "adm-cfg", "retention.ms"),
        alter(change(TOPIC, "adm-cfg", ("cleanup.policy", SET, "delete,delete, compact"))),
        describe(4, TOPIC, "adm-cfg", "cleanup.policy"),
        alter(change(TOPIC, "adm-nope", ("retention.ms", SET, "7"))),
        *(
            alter(change(TOPIC, "adm-cfg", each))
            for each in (
                ("nope", SET, "7"),
                ("retention.ms", SET, "x"),
                ("retention.ms", SET, None),
                ("retention.ms", 9, "1"),
                ("retention.ms", APPEND, "1"),
                ("nope", APPEND, "1"),
                ("nope", DELETE, None),
                ("cleanup.policy", SUBTRACT, "compact,delete"),
                ("cleanup.policy", APPEND, "foo"),
                ("cleanup.policy", APPEND, None),
                ("cleanup.policy", APPEND, "compact"),
                ("cleanup.policy", DELETE, None),
            )
        ),
        alter(change(TOPIC, "adm-cfg", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))),
        alter(
            change(TOPIC, "adm-cfg", ("retention.ms", SET, "1")), change(TOPIC, "adm-cfg", ("retention.ms", SET, "2"))
        ),
        alter(change(TOPIC, "", ("retention.ms", SET, "1"))),
        alter(change(TOPIC, "bad/x", ("retention.ms", SET, "1"))),
        alter(change(TOPIC, "adm-cfg")),
        alter(),
        alter(
            change(TOPIC, "adm-cfg", ("retention.ms", SET, "8")),
            change(TOPIC, "adm-nope", ("retention.ms", SET, "7")),
            change(BROKER, "1", ("log.dirs", SET, "x")),
            validate_only=True,
        ),
        replace(0, TOPIC, "adm-cfg", ("retention.ms", "9")),
        replace(2, TOPIC, "adm-cfg", ("retention.bytes", "9")),
        describe(4, TOPIC, "adm-cfg"),
        replace(1, TOPIC, "adm-cfg", ("retention.bytes", "10"), validate_only=True),
        replace(2, TOPIC, "adm-cfg", ("retention.bytes", None)),
        replace(2, TOPIC, "adm-cfg", ("x", "1")),
        replace(2, TOPIC, "adm-cfg", ("retention.ms", "1"), ("retention.ms", "2")),
        replace(2, TOPIC, "adm-nope"),
        replace(2, TOPIC, "adm-cfg"),
        describe(4, TOPIC, "adm-cfg"),
    ],
    "broker configs": [
        create(7, topic("adm-bc")),
        describe(4, BROKER, "1", "node.id", "broker.id", "ssl.keystore.password", "nope", "log.retention.ms"),
        *(describe(4, BROKER, name) for name in ("2", "x", "-1")),
        alter(change(BROKER, "", ("log.retention.ms", SET, "99999999"), ("message.max.bytes", SET, "2000000"))),
        describe(4, BROKER, ""),
        describe(4, BROKER, "", "nope", "log.retention.ms"),
        describe(4, BROKER, "1", "log.retention.ms", "log.retention.hours", "message.max.bytes"),
        describe(4, TOPIC, "adm-bc"),
        create(7, topic("adm-bc2")),
        alter(change(BROKER, "1", ("log.retention.ms", SET, "88888888"))),
        describe(4, BROKER, "1", "log.retention.ms"),
        describe(4, TOPIC, "adm-bc", "retention.ms"),
        create(7, topic("adm-bc3")),
        alter(change(BROKER, "1", ("log.retention.ms", DELETE, None))),
        alter(
            change(BROKER, "", ("log.retention.ms", DELETE, None), ("message.max.bytes", DELETE, None)),
        ),
        *(
            alter(change(BROKER, "1", each))
            for each in (
                ("log.dirs", SET, "/x"),
                ("log.dirs", DELETE, None),
                ("log.retention.hours", SET, "5"),
                ("log.cleaner.threads", SET, "x"),
                ("log.cleaner.threads", SET, "-2"),
                ("log.cleaner.threads", SET, None),
                ("log.segment.bytes", SET, "5"),
                ("compression.type", SET, "foo"),
                ("min.insync.replicas", SET, "2"),
                ("log.retention.ms", APPEND, "5"),
                ("leader.replication.throttled.rate", SET, "x"),
                ("leader.replication.throttled.rate", SET, "-1"),
                ("leader.replication.throttled.rate", SET, "1000"),
            )
        ),
        describe(4, BROKER, "1", "leader.replication.throttled.rate"),
        alter(change(BROKER, "1", ("leader.replication.throttled.rate", DELETE, None))),
        alter(change(BROKER, "1", ("log.cleanup.policy", APPEND, "compact")), validate_only=True),
        alter(change(BROKER, "1", ("log.cleaner.threads", SET, "2"), ("log.cleaner.threads", SET, "3"))),
        *(alter(change(BROKER, name, ("log.cleaner.threads", SET, "2"))) for name in ("2", "x", "-1")),
        alter(change(BROKER, "", ("min.insync.replicas", DELETE, None))),
        *(
            alter(change(BROKER, "", (name, SET, "x")))
            for name in ("ssl.keystore.location", "ssl.protocol", "cordoned.log.dirs", "advertised.listeners")
        ),
        replace(2, BROKER, "1", ("log.dirs", "2")),
        replace(2, BROKER, "1"),
        replace(2, BROKER, ""),
        replace(2, BROKER, "2"),
    ],
    "loggers": [
        describe(4, LOGGER, "1", "root", drop=("value",)),  # each server has its own level to begin with
        describe(4, LOGGER, "2"),
        describe(4, LOGGER, ""),
        alter(change(LOGGER, "1", ("root", SET, "INFO")), validate_only=True),
        alter(change(LOGGER, "1", ("root", SET, "INFO"))),
        describe(4, LOGGER, "1", "root"),
        alter(change(LOGGER, "1", ("root", SET, "WARN"))),
        *(
            alter(change(LOGGER, "1", each))
            for each in (
                ("root", SET, "FOO"),
                ("nope.logger", SET, "INFO"),
                ("root", DELETE, None),
                ("root", APPEND, "INFO"),
            )
        ),
        *(alter(change(LOGGER, name, ("root", SET, "INFO"))) for name in ("2", "x", "")),
        replace(2, LOGGER, "1", ("root", "INFO")),
    ],
    "other configs": [
        describe(4, CLIENT_METRICS, "adm-m"),
        describe(4, CLIENT_METRICS, ""),
        *(
            alter(change(CLIENT_METRICS, "adm-m", each))
            for each in (
                ("interval.ms", SET, "1000"),
                ("interval.ms", SET, "1"),
                ("interval.ms", SET, "abc"),
                ("nope", SET, "1000"),
                ("match", SET, "client_id=.*"),
                ("match", SET, "zzz=.*"),
                ("match", SET, "client_id"),
                ("metrics", SET, "a,b"),
                ("metrics", APPEND, "c"),
            )
        ),
        alter(change(CLIENT_METRICS, "", ("interval.ms", SET, "1000"))),
        describe(4, CLIENT_METRICS, "adm-m"),
        resources(0),
        describe(4, GROUP, "adm-g"),
        describe(4, GROUP, ""),
        *(
            alter(change(GROUP, "adm-g", each))
            for each in (
                ("consumer.session.timeout.ms", SET, "50000"),
                ("consumer.session.timeout.ms", SET, "1"),
                ("consumer.session.timeout.ms", SET, "70000"),
                ("consumer.session.timeout.ms", SET, "abc"),
                ("nope", SET, "1"),
                ("consumer.heartbeat.interval.ms", SET, "50000"),
                ("share.isolation.level", SET, "bla"),
                ("share.auto.offset.reset", SET, "by_duration:PT1H"),
                ("streams.num.standby.replicas", SET, "3"),
                ("share.delivery.count.limit", SET, "11"),
                ("share.delivery.count.limit", SET, "1"),
            )
        ),
        alter(change(GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))),
        describe(4, GROUP, "adm-g"),
        *(resources(1, *kinds) for kinds in ((), (TOPIC,), (BROKER, TOPIC, TOPIC), (99,), (0,), (8, 32, 16))),
        replace(2, CLIENT_METRICS, "adm-m"),
        replace(2, GROUP, "adm-g"),
        *(alter(change(kind, "x", ("a", SET, "1"))) for kind in (0, 3, 99)),
        replace(2, 99, "x"),
        *(describe(4, kind, "x", drop=("error_message",)) for kind in (0, 99)),  # the sentence is the client library's
    ],
}
