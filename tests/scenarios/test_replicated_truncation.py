"""Clients that detect a truncation report the divergent offset, after an unclean election.

A partition with two replicas: one is down while the other appends records and commits them alone. Then the leader goes
down, and the first is elected although it lacks them. A reader of these records without a reset policy gets an error.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.errors import LogTruncationError as KafkaPythonTruncation
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from fenceline.client import Consumer, LogTruncationError, NewTopic, Producer, TopicPartition
from fenceline.client.admin.admin import Admin
from fenceline.local_cluster import reaper
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.apache_kafka import DEFAULT_JARS, QUICK_START
from fenceline.testing.waiting import eventually
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from tests.support.leaders import UNCLEAN, elect

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

KEPT: Final = 100
LOST: Final = 50
WRITTEN_ANEW: Final = 20
_Error = TypeVar("_Error", bound=Exception)
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Stage:
    """A topic of one partition and two replicas, whose logs will diverge at KEPT."""

    cluster: LocalCluster
    topic: str
    leader: int
    other: int

    def isr(self) -> set[int]:
        return set(self._partition().isr)

    def current_leader(self) -> int:
        return self._partition().leader

    def _partition(self):  # type: ignore[no-untyped-def]
        with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
            return admin.metadata([self.topic]).topics[self.topic].partitions[0]

    def write(self, count: int) -> None:
        with Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all"}) as producer:
            deliveries = [producer.send(self.topic, b"%d" % number, partition=0) for number in range(count)]
            for each in deliveries:
                each.result(60)

    def lose(self) -> None:
        """Kill the leader, elect the replica that lacks the records from KEPT on, and write others there."""
        cluster = self.cluster
        cluster.kill(self.leader)
        cluster.restart(self.other)
        port = next(node.port for node in cluster.layout.nodes if node.node_id == self.other)
        assert port is not None

        def is_elected() -> bool:
            elect(port, self.topic, [0], UNCLEAN)
            return self.current_leader() == self.other

        eventually(is_elected, "the other one is elected uncleanly")
        eventually(lambda: self.write(WRITTEN_ANEW) is None, "it serves")

    def mend(self) -> None:
        self.cluster.restart(self.leader)
        eventually(lambda: self.isr() == {self.leader, self.other}, "both are in sync")


@pytest.fixture
def stage(cluster: LocalCluster) -> Iterator[Stage]:
    name = f"truncated-{next(_names)}"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        configs = {"min.insync.replicas": "1", "retention.ms": "-1"}
        admin.create_topics([NewTopic(name, assignments={0: [1, 2]}, configs=configs)])
    eventually(lambda: Stage(cluster, name, 1, 2).current_leader() == 1, "node 1 leads")
    stage = Stage(cluster, name, 1, 2)
    stage.write(KEPT)
    cluster.kill(stage.other)
    eventually(lambda: stage.isr() == {stage.leader}, "one is in sync")
    stage.write(LOST)
    yield stage
    stage.mend()


def test_confluent_kafka_reports_the_divergent_offset(stage: Stage) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": stage.cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(stage.topic, 0, 0)])
    read = 0
    while read < KEPT + LOST:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None, message.error()
            read += 1
    stage.lose()

    def poll() -> int:
        messages = consumer.consume(500, 1.0)
        for message in messages:
            error = message.error()
            if error is not None and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise KafkaException(error)
        return sum(message.error() is None for message in messages)

    reported = _error_of(poll, KafkaException).args[0]
    consumer.close()
    # It may report the missing reset policy, with the truncation as its cause.
    assert reported.code() in (KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET), reported
    assert "truncation" in reported.str(), reported.str()
    assert f"offset {KEPT + LOST}" in reported.str(), reported.str()
    assert f"end offset is {KEPT}" in reported.str(), reported.str()


def test_kafka_python_reports_the_divergent_offset(stage: Stage) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=stage.cluster.bootstrap.split(","),
        auto_offset_reset="none",
        enable_auto_commit=False,
        metadata_max_age_ms=1000,
    )
    partition = KafkaPythonPartition(stage.topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    read = 0
    while read < KEPT + LOST:
        read += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    stage.lose()
    reported = _error_of(lambda: len(consumer.poll(timeout_ms=1000)), KafkaPythonTruncation)
    consumer.close()
    assert reported.divergent_offsets[partition].offset == KEPT


def test_fenceline_reports_the_divergent_offset(stage: Stage) -> None:
    with Consumer({"bootstrap.servers": stage.cluster.bootstrap, "auto.offset.reset": "none"}) as consumer:
        partition = TopicPartition(stage.topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        read = 0
        while read < KEPT + LOST:
            read += len(consumer.poll(1000))
        stage.lose()
        reported = _error_of(lambda: len(consumer.poll(1000)), LogTruncationError)
    assert (reported.offset, reported.divergent_offset) == (KEPT + LOST, KEPT)


@pytest.mark.kafka
def test_kafkas_own_client_reports_the_divergent_offset(stage: Stage) -> None:
    """In a separate JVM: the console tool reports it in a log that it does not write by default."""
    port, process = launch_gateway(
        classpath=str(DEFAULT_JARS / "server" / "*"),
        javaopts=["-Xmx256m", *QUICK_START],
        die_on_exit=True,
        return_proc=True,
    )
    reaper.watch_process(process.pid)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        jvm = gateway.jvm
        decoder = "org.apache.kafka.common.serialization.StringDeserializer"
        settings = {
            "bootstrap.servers": stage.cluster.bootstrap,
            "auto.offset.reset": "none",
            "enable.auto.commit": "false",
            "metadata.max.age.ms": "1000",
            "key.deserializer": decoder,
            "value.deserializer": decoder,
        }
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        partition = jvm.org.apache.kafka.common.TopicPartition(stage.topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        second = jvm.java.time.Duration.ofSeconds(1)
        read = 0
        while read < KEPT + LOST:
            read += consumer.poll(second).count()
        stage.lose()
        reported = _error_of(lambda: consumer.poll(second).count(), Py4JJavaError).java_exception
        assert reported.getClass().getSimpleName() == "LogTruncationException", reported.toString()
        assert reported.offsetOutOfRangePartitions()[partition] == KEPT + LOST
        assert reported.divergentOffsets()[partition].offset() == KEPT
        consumer.close()
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()
        reaper.forget_process(process.pid)


def _error_of(poll: Callable[[], int], kind: type[_Error], wait_s: float = 120) -> _Error:
    """Call `poll` until it raises an error of this kind; until then it must return 0 records."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            count = poll()
        except kind as error:
            return error
        assert count == 0, "it crossed the truncation unnoticed"
    raise AssertionError("the truncation is not reported")
