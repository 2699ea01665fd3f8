"""Brokers to test the client with: the same tests run on Apache Kafka and on a Fenceline node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.testing.apache_kafka import small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.client.scripted_cluster import ScriptedCluster

_SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    # Keep records with timestamps of 1970: Kafka first checks retention 30 s after its start.
    "log.retention.ms": "-1",
}
_numbers = itertools.count()


@pytest.fixture(scope="package")
def kafka_bootstrap() -> Iterator[str]:
    """Apache Kafka, started once for all tests that use it."""
    overrides = {**_SETTINGS, "transaction.state.log.num.partitions": "2", "log.cleaner.backoff.ms": "200"}
    with small_kafka(overrides=overrides) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def fenceline_bootstrap() -> Iterator[str]:
    """A Fenceline node, started once for all tests that use it."""
    with EmbeddedNode(overrides=_SETTINGS) as node:
        yield node.bootstrap


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "fenceline"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker; each test that takes it runs once on each kind."""
    address: str = request.getfixturevalue(f"{request.param}_bootstrap")
    return address


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Two scripted brokers."""
    with ScriptedCluster(nodes=2) as scripted:
        yield scripted


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Generates names that no other test uses."""
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def make_topic(admin: Admin, unique: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """Creates topics, and deletes them after the test."""
    made: list[str] = []

    def make(partitions: int = 1, stem: str = "topic", **configs: str) -> str:
        name = unique(stem)
        admin.create_topics([NewTopic(name, partitions, 1, {k.replace("_", "."): v for k, v in configs.items()})])
        made.append(name)
        # Kafka's controller has answered by then, but its broker may not know the topic yet.
        eventually(lambda: admin.describe_configs([("topic", name)]), f"{name} described")
        return name

    yield make
    for name in made:
        admin.delete_topics([name])
