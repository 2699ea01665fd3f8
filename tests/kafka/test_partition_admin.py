"""ElectLeaders, reassignments, UpdateFeatures and UnregisterBroker beside Kafka 4.3.1: same answers, field by field."""

from __future__ import annotations

import pytest

from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.admin_scripts import Step, run_script, step
from tests.support.raw import RawConnection

pytestmark = pytest.mark.kafka


def elect(version: int, kind: int, *topics: tuple[str, tuple[int, ...]], everything: bool = False) -> Step:
    named = [{"topic": name, "partitions": indexes} for name, indexes in topics]
    kinds = {} if version == 0 else {"election_type": kind}
    return step(ApiKey.ELECT_LEADERS, version, topic_partitions=None if everything else named, timeout=30_000, **kinds)


def move(version: int, *topics: tuple[str, tuple[tuple[int, tuple[int, ...] | None], ...]], **more: bool) -> Step:
    wanted = [
        {"name": name, "partitions": [{"partition_index": i, "replicas": replicas} for i, replicas in partitions]}
        for name, partitions in topics
    ]
    return step(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=wanted, timeout=30_000, **more)


def listed(*topics: tuple[str, tuple[int, ...]], everything: bool = False) -> Step:
    wanted = None if everything else [{"name": name, "partition_indexes": indexes} for name, indexes in topics]
    return step(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=wanted, timeout=30_000)


def features(version: int, *updates: tuple[str, int, int], **more: bool) -> Step:
    wanted = [
        {"feature": name, "max_version_level": level, **({"upgrade_type": kind} if version else {})}
        for name, level, kind in updates
    ]
    return step(ApiKey.UPDATE_FEATURES, version, feature_updates=wanted, timeout=30_000, **more)


STEPS = [
    step(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": "adm-parts", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}],
        timeout=30_000,
        validate_only=False,
        drop=("topic_id",),
    ),
    *(
        each
        for version in (0, 1, 2)
        for each in (
            elect(version, 0, ("adm-parts", (0, 1, 9)), ("adm-none", (0,))),
            elect(version, 1, ("adm-parts", (0,))),
            elect(version, 2, ("adm-parts", (0,))),
            elect(version, 0),
        )
    ),
    *(
        each
        for version in (0, 1)
        for each in (
            move(version),
            move(version, ("adm-none", ((0, (1,)),)), ("adm-parts", ((0, (1,)), (9, (1,)), (1, None)))),
            move(version, ("adm-parts", ((0, ()), (0, (1, 1)), (0, (7,))))),
        )
    ),
    move(1, ("adm-parts", ((0, (1, 2)), (1, (1,)))), allow_replication_factor_change=False),
    listed(("adm-parts", (0, 1, 9)), ("adm-none", (0,))),
    listed(),
    listed(everything=True),
    *(
        each
        for version in (0, 1, 2)
        for each in (
            features(version, ("group.version", 1, 1)),
            features(version, ("nope", 1, 1)),
            features(version, ("group.version", 0, 1)),
            features(version),
        )
    ),
    features(1, ("group.version", 0, 2), validate_only=True),
    features(2, ("group.version", 0, 2), ("nope", 1, 1), validate_only=True),
    features(1, ("group.version", 1, 77)),
    step(ApiKey.UNREGISTER_BROKER, 0, broker_id=44),
]


def test_same_answers(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> None:
    reported = []
    for port in (apache_kafka.port, fenceline_node.port):
        with RawConnection(port) as connection:
            reported.append(run_script(connection, STEPS))
    for each, theirs, ours in zip(STEPS, *reported, strict=True):
        assert ours == theirs, f"{each.api.name} v{each.version} {each.fields}"
