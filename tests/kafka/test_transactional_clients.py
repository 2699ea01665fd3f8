"""Transactional producers of every client with a running node: what they commit is read, what they abort is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode

MOST_S = 60
pytestmark = [pytest.mark.timeout(120), pytest.mark.together("transactional clients")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path_factory.mktemp("node")) as running:
        yield running


def read_committed(node: EmbeddedNode, topic: str, count: int) -> list[bytes]:
    """All values of the topic that a READ_COMMITTED reader gets; waits for `count` of them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(MOST_S)
        assert message is not None, found
        if message.error() is None:
            found.append(message.value())
        elif len(found) >= count:
            break
    consumer.close()
    return found


def test_librdkafka(node: EmbeddedNode) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "librdkafka"})
    producer.init_transactions(MOST_S)
    for value in (b"a", b"aborted", b"b"):
        producer.begin_transaction()
        producer.produce("of-librdkafka", value, partition=0)
        if value == b"aborted":
            producer.flush(MOST_S)
            producer.abort_transaction(MOST_S)
        else:
            producer.commit_transaction(MOST_S)
    assert read_committed(node, "of-librdkafka", 2) == [b"a", b"b"]


def test_kafka_python(node: EmbeddedNode) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="kafka-python", acks="all")
    producer.init_transactions()
    for value in (b"a", b"aborted", b"b"):
        producer.begin_transaction()
        producer.send("of-kafka-python", value, partition=0).get(MOST_S)
        if value == b"aborted":
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close(timeout=MOST_S)
    assert read_committed(node, "of-kafka-python", 2) == [b"a", b"b"]


def test_aiokafka(node: EmbeddedNode) -> None:
    from aiokafka import AIOKafkaProducer

    async def story() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="aiokafka")
        await producer.start()
        for value in (b"a", b"aborted", b"b"):
            await producer.begin_transaction()
            await producer.send_and_wait("of-aiokafka", value, partition=0)
            if value == b"aborted":
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        await producer.stop()

    asyncio.run(story())
    assert read_committed(node, "of-aiokafka", 2) == [b"a", b"b"]


def test_own_client(node: EmbeddedNode) -> None:
    from fenceline.client import Producer

    with Producer(node.bootstrap, transactional_id="fenceline") as producer:
        producer.init_transactions()
        for value in (b"a", b"aborted", b"b"):
            transaction = producer.transaction()
            try:
                with transaction:
                    producer.send("of-fenceline", value, partition=0)
                    if value == b"aborted":
                        raise RuntimeError
            except RuntimeError:
                pass
    assert read_committed(node, "of-fenceline", 2) == [b"a", b"b"]


@pytest.mark.kafka
def test_kafkas_java_client(node: EmbeddedNode) -> None:
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "of-java", "--num-records", "500", "--record-size", "10", "--throughput", "2000"),
        *("--bootstrap-server", node.bootstrap, "--transactional-id", "java", "--transaction-duration-ms", "20"),
    )
    assert len(read_committed(node, "of-java", 500)) == 500
