"""Transactions that a broker of Apache Kafka coordinates, in partitions that Fenceline leads: Produce asks that broker
(AddPartitionsToTxn), and it sends its markers (WriteTxnMarkers).

The Java client uses transaction version 2 (the leader adds partitions), librdkafka version 1 (it adds them itself).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import MixedCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

OURS, KAFKAS = 1, 2
TOPIC = "rain"
PARTITIONS = {0: [OURS, KAFKAS], 1: [OURS, KAFKAS], 2: [KAFKAS, OURS]}
TRANSACTIONS = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    one = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    settings = {
        **dict.fromkeys((*one, "transaction.state.log.min.isr"), "1"),
        "transaction.state.log.num.partitions": "3",
    }
    root: Path = tmp_path_factory.mktemp("mixed")
    with MixedCluster(root, ["broker,controller", "kafka:broker"], settings=settings) as running:
        running.wait_ready()
        with Admin(bootstrap_servers=running.node(OURS).bootstrap) as admin:
            state = NewTopic(
                TRANSACTION_STATE_TOPIC,
                configs={"cleanup.policy": "compact"},
                assignments={index: [KAFKAS] for index in range(3)},
            )
            admin.create_topics([state, NewTopic(TOPIC, assignments=PARTITIONS)])
        yield running


def _committed(bootstrap: str, partition: int) -> list[bytes]:
    """What a read_committed consumer gets from the partition's start on."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "neither a record nor the end"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        value = message.value()
        assert value is not None
        found.append(value)


def test_librdkafka(cluster: MixedCluster) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.node(OURS).bootstrap, "transactional.id": "till"})
    producer.init_transactions(60)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(TOPIC, b"%d" % number, partition=partition)
        if number % 7 == 3:
            producer.flush(60)
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)(60)
    expected = [b"%d" % number for number in range(TRANSACTIONS) if number % 3 != 2]
    for node_id in (OURS, KAFKAS):
        assert [_committed(cluster.node(node_id).bootstrap, each) for each in PARTITIONS] == [expected] * 3


def test_java_client(cluster: MixedCluster) -> None:
    printed = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", TOPIC, "--num-records", "2000", "--record-size", "100", "--throughput", "4000"),
        *("--bootstrap-server", cluster.node(OURS).bootstrap, "--transactional-id", "perf"),
        *("--transaction-duration-ms", "20"),
    )
    assert "2000 records sent" in printed
    written = sum(
        len([each for each in _committed(cluster.node(OURS).bootstrap, index) if len(each) == 100])
        for index in PARTITIONS
    )
    assert written == 2000
    epochs: list[int] = []
    for partition in PARTITIONS:
        described = run_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", cluster.node(OURS).bootstrap),
            *("describe-producers", "--topic", TOPIC, "--partition", str(partition)),
        )
        rows = re.findall(r"^(\d+)\s+(\d+)\s+(-?\d+)\s+(-?\d+)\s+(-?\d+)\s+(\S+)", described, re.M)
        assert [row[5] for row in rows] == ["None"] * len(rows), "no transaction is open"
        epochs += [int(row[1]) for row in rows]
    assert max(epochs) > 0, "each transaction had an epoch of its own"
