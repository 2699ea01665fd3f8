"""An unclean election under consumers of every policy, on a cluster of Fenceline and on one of Apache Kafka.

Three brokers; a partition on the last two. One of these is down while the other takes records alone; then that one goes
down, and the first is elected without them. Whoever had read them is told what is gone: from the fetches that it makes,
or at its start from what it had committed. When the old leader comes back it cuts its log, and where it is a broker of
Fenceline its receipt is found for the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fenceline.client import Consumer, LogTruncationError, NewTopic, Producer, TopicPartition
from fenceline.client.admin import Admin
from fenceline.client.metadata import PartitionMetadata
from fenceline.errors import PeerError
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from tests.support.kafka_start import quick_environment
from tests.support.leaders import UNCLEAN, elect
from tests.support.mixed_stage import SETTINGS

pytestmark = pytest.mark.timeout(600)

KEPT: Final = 100
LOST: Final = 50
ANEW: Final = 20
TOPIC: Final = "truncated"
TP: Final = TopicPartition(TOPIC, 0)
_KINDS: Final = ("broker,controller", "broker", "broker")
_SETTINGS: Final = {**SETTINGS, "offsets.topic.replication.factor": "3", "offsets.topic.num.partitions": "1"}


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    kinds, environment = list(_KINDS), None
    if request.param == "kafka":
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        kinds, environment = ["kafka:" + kind for kind in _KINDS], quick_environment(scratch)
    made = MixedCluster(tmp_path, kinds, settings=_SETTINGS, heap="320m", environment=environment)
    with made as running:
        running.wait_ready()
        running.wait_complete()
        yield running


class Story:
    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(node.bootstrap for node in cluster.nodes)
        with Admin(self.bootstrap) as admin:
            configs = {"min.insync.replicas": "1", "retention.ms": "-1", "unclean.leader.election.enable": "true"}
            admin.create_topics([NewTopic(TOPIC, assignments={0: [2, 3]}, configs=configs)])
        self.await_partition(lambda it: it.leader == 2 and set(it.isr) == {2, 3}, "node 2 leads")

    def await_partition(self, holds: Callable[[PartitionMetadata], bool], what: str) -> None:
        def look() -> bool:
            with Admin(self.bootstrap) as admin:
                found = admin.metadata([TOPIC]).topics[TOPIC].partitions
            return 0 in found and holds(found[0])

        eventually(look, what, wait_s=120)

    def write(self, count: int, stem: str) -> list[bytes]:
        values = [f"{stem}{number}".encode() for number in range(count)]
        with Producer({"bootstrap.servers": self.bootstrap, "acks": "all"}) as producer:
            for delivery in [producer.send(TOPIC, value, partition=0) for value in values]:
                delivery.result(60)
        return values

    def consumer(self, **config: Any) -> Consumer:
        made = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "auto.offset.reset": "none",
                "enable.auto.commit": False,
                "metadata.max.age.ms": 2000,
                **config,
            }
        )
        made.assign([TP])
        return made

    def lose(self) -> None:
        cluster = self.cluster
        cluster.node(2).kill()
        cluster.node(3).start()
        cluster.node(3).wait_ready()

        def is_elected() -> bool:
            elect(cluster.node(1).port, TOPIC, [0], UNCLEAN)
            with Admin(self.bootstrap) as admin:
                return admin.metadata([TOPIC]).topics[TOPIC].partitions[0].leader == 3

        eventually(is_elected, "node 3 is elected uncleanly", wait_s=120)


def _read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    end_s = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records came"
        found += [record.value for record in consumer.poll(1000)]
    return found


def _told(consumer: Consumer) -> LogTruncationError:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        try:
            assert consumer.poll(1000) == [], "it crossed the truncation unnoticed"
        except LogTruncationError as error:
            return error
    raise AssertionError("it is not told")


def _is_exact(error: LogTruncationError) -> bool:
    return (error.truncated_from, error.divergent_offset) == (KEPT + LOST, KEPT)


def test_consumers_of_every_policy(cluster: MixedCluster) -> None:
    story = Story(cluster)
    group = {"group.id": "keepers"}
    with story.consumer(**group) as consumer:
        consumer.commit({TP: 0})  # its coordinator's topic is made while all are there
    kept = story.write(KEPT, "kept")
    cluster.node(3).kill()
    story.await_partition(lambda it: it.isr == (2,), "node 2 leads alone")
    lost = story.write(LOST, "lost")
    met: list[LogTruncationError] = []

    def decide(error: LogTruncationError) -> str:
        met.append(error)
        return "rewind"

    policies: dict[str, dict[str, Any]] = {
        "fail": {},
        "rewind": {"on.truncation": "rewind"},
        "latest": {"on.truncation": "latest"},
        "function": {"on.truncation": decide},
        "earliest": {"auto.offset.reset": "earliest"},
    }
    consumers = {name: story.consumer(**config) for name, config in policies.items()}
    try:
        for consumer in consumers.values():
            consumer.seek(TP, 0)
            assert _read(consumer, KEPT + LOST) == [*kept, *lost]
        with story.consumer(**group) as consumer:
            consumer.seek(TP, 0)
            _read(consumer, KEPT + LOST)
            consumer.commit()
            epoch = consumer.position_and_epoch(TP).leader_epoch
        story.lose()
        anew = story.write(ANEW, "new")

        for name in ("fail", "earliest"):
            error = _told(consumers[name])
            assert _is_exact(error)
            assert (error.leader_epoch, error.epochs[-1]) == (epoch, epoch)
            consumers[name].seek(TP, error.divergent_offset, error.divergent_epoch)
        for name in ("fail", "earliest", "rewind", "function"):
            assert _read(consumers[name], ANEW) == anew, name
        assert [_is_exact(error) for error in met] == [True]
        eventually(lambda: consumers["latest"].poll(200) or consumers["latest"].truncations(), "it has met it")
        assert [record.value for record in consumers["latest"].poll(500)] == []
        assert consumers["latest"].position(TP) == KEPT + ANEW
        later = story.write(1, "later")
        for name, consumer in consumers.items():
            assert _read(consumer, 1) == later, name
            assert [_is_exact(each) for each in consumer.truncations()] == [True], name

        cluster.node(2).start()
        cluster.node(2).wait_ready()
        story.await_partition(lambda it: set(it.isr) == {2, 3}, "the old leader is in sync again")
        is_kafka = cluster.node(2).is_kafka

        def has_receipt() -> bool:
            try:
                found = consumers["fail"].loss_receipts(error, timeout_ms=5000)
            except PeerError:
                return False
            return bool(found) != is_kafka

        eventually(has_receipt, "the receipt is there, or there is none")
        with story.consumer(**group, **{"truncation.evidence.timeout.ms": 20_000}) as consumer:
            error = _told(consumer)
        assert _is_exact(error)
        if is_kafka:
            assert error.evidence == ()
        else:
            (receipt,) = error.evidence
            assert (receipt.start_offset, receipt.end_offset_exclusive) == (KEPT, KEPT + LOST)
            assert (receipt.replica, receipt.records) == (2, LOST)
            assert receipt.id[:12] in str(error)
    finally:
        for consumer in consumers.values():
            consumer.close()
