"""Leaders that are frozen in real processes, where no session and no fetch timeout ends within the test: only their
silence gets them replaced (`fenceline.controller.silence`)."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.waiting import eventually

pytestmark = pytest.mark.long

NEVER_MS = "3600000"
TIMEOUTS = {
    "broker.session.timeout.ms": NEVER_MS,
    "controller.quorum.fetch.timeout.ms": NEVER_MS,
    "controller.quorum.request.timeout.ms": NEVER_MS,
    "replica.lag.time.max.ms": NEVER_MS,
    "replica.socket.timeout.ms": NEVER_MS,
}
RECORDS = 200


@pytest.fixture
def cluster() -> Iterator[LabCluster]:
    with LabCluster(3, properties=TIMEOUTS) as running:
        yield running


def _topic_led_by(cluster: LabCluster, node: int) -> str:
    """A topic in sync on all three nodes, whose only partition is led by this one."""
    others = [each for each in cluster.nodes if each != node]
    topic = cluster.create_topic(assignments={0: [node, *others]})
    eventually(lambda: (found := cluster.partition(topic)) is not None and len(found.isr) == 3, "in sync")
    return topic


def _written(cluster: LabCluster, topic: str) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, str(number), on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failed == []


@pytest.mark.parametrize("is_controller", [False, True])
def test_frozen_leader_is_replaced_and_returns(cluster: LabCluster, is_controller: bool) -> None:
    """Also if it is the active controller; and nothing that it acknowledged is lost."""
    quorum = cluster.processes.quorum()
    assert quorum is not None
    active = quorum.leader_id
    node = active if is_controller else next(each for each in cluster.nodes if each != active)
    topic = _topic_led_by(cluster, node)
    _written(cluster, topic)
    with cluster.faults.pause(node):
        eventually(lambda: cluster.leader(topic) not in (node, -1), "another one leads")
    eventually(lambda: (found := cluster.partition(topic)) is not None and len(found.isr) == 3, "it is in sync again")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "all", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read: set[bytes] = set()
    while len(read) < RECORDS:
        read.update(record.value() for record in consumer.consume(100, 1.0))
    consumer.close()
    assert cluster.losses(topic) == []
    assert sum(cluster.log(each).count("does not answer, before its session") for each in cluster.nodes) >= 1
