"""One cluster of the laboratory for the tests of a module; faults end with each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fenceline.client import Producer
from fenceline.testing.lab.cluster import LabCluster

Send = Callable[..., list[int]]


@pytest.fixture(scope="module")
def shared() -> Iterator[LabCluster]:
    with LabCluster(3) as running:
        yield running


@pytest.fixture
def cluster(shared: LabCluster) -> Iterator[LabCluster]:
    yield shared
    shared.faults.undo_all()


@pytest.fixture
def topic(cluster: LabCluster) -> str:
    return cluster.create_topic()


@pytest.fixture
def producer(cluster: LabCluster) -> Iterator[Producer]:
    """Of the application; quick to give up on a connection."""
    settings = {**cluster.client_settings, "client.id": "app", "request.timeout.ms": 1000, "retry.backoff.ms": 20}
    with Producer(settings) as made:
        yield made


def isr_of(cluster: LabCluster, topic: str) -> set[int]:
    """The replicas of partition 0 that are in sync."""
    found = cluster.partition(topic)
    return set() if found is None else set(found.isr)
