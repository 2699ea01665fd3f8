"""An Apache Kafka 4.3.1 broker and a Fenceline node, shared by all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from tests.conftest import need_apache_kafka

SAME_SETTINGS = {"node.id": "1", "offsets.topic.replication.factor": "1", "group.initial.rebalance.delay.ms": "0"}
"""What both are told, so that their answers can be the same."""


@pytest.fixture(scope="package")
def apache_kafka() -> Iterator[ApacheKafka]:
    """A running Kafka. Skips with the reason if Kafka cannot run; in CI that is a failure."""
    need_apache_kafka()
    with small_kafka(overrides=SAME_SETTINGS) as kafka:
        yield kafka


@pytest.fixture(scope="package")
def fenceline_node() -> Iterator[EmbeddedNode]:
    """A running Fenceline node."""
    with EmbeddedNode(overrides=SAME_SETTINGS) as node:
        yield node
