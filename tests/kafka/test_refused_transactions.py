"""Transactional producers of every client without a transaction coordinator: rejected immediately with a message.

Each has time-outs of ten minutes, so a client that waits for one does not pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode

NEVER_S = 600
pytestmark = [pytest.mark.timeout(300), pytest.mark.together("refused transactions")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path_factory.mktemp("node")) as running:
        yield running
        assert "transactional producer rejected" in running.errors


def test_librdkafka(node: EmbeddedNode) -> None:
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "orders", "log_level": 0})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(NEVER_S)
    error = caught.value.args[0]
    assert error.fatal()
    assert "Remove transactional.id: idempotent producers are supported" in str(error)


def test_kafka_python(node: EmbeddedNode) -> None:
    from kafka.errors import KafkaError

    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=node.bootstrap, transactional_id="orders", max_block_ms=NEVER_S * 1000, acks="all"
    )
    with pytest.raises(KafkaError, match="unexpected error"):
        producer.init_transactions()
    producer.close(timeout=1)


def test_aiokafka(node: EmbeddedNode) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def story() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="orders")
        with pytest.raises(KafkaError):
            await producer.start()
        await producer.stop()

    asyncio.run(story())


@pytest.mark.kafka
def test_kafkas_java_client(node: EmbeddedNode) -> None:
    printed = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "t", "--num-records", "1", "--record-size", "10", "--throughput", "-1"),
        *("--bootstrap-server", node.bootstrap, "--transactional-id", "orders"),
        *("--command-property", f"max.block.ms={NEVER_S * 1000}"),
        check=False,
    )
    assert "Remove transactional.id: idempotent producers are supported" in printed, printed
