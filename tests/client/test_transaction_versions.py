"""Producers while transaction.version of an Apache Kafka cluster changes (KIP-890): all levels, up and down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client import Admin, NewTopic, Producer, RangeReader, TransactionOwner
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.apache_kafka import small_kafka
from fenceline.testing.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.together("transaction versions")]
TP = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A Kafka of its own, because levels belong to the cluster."""
    settings = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    with small_kafka(overrides=settings) as kafka:
        with Admin(kafka.bootstrap) as admin:
            admin.create_topics([NewTopic(TP.topic, 1, 1, {})])
            eventually(lambda: admin.describe_configs([("topic", TP.topic)]), "the topic described")
        yield kafka.bootstrap


def _finalize(broker: str, level: int) -> None:
    with Admin(broker) as admin:
        found = admin.describe_features()[1].finalized.get("transaction.version", 0)
        if found != level:
            change = "upgrade" if level > found else "safe_downgrade"
            admin.update_features({"transaction.version": level}, change=change)


def _reconnect(producer: Producer) -> None:
    """Close all connections: new ones know the new level."""
    cluster = producer._async.cluster
    producer._on_loop(lambda: [link.close() for link in [*cluster._links.values(), *cluster._seeds]])


def _commit(producer: Producer, value: bytes) -> bool:
    """Commit one record with the group's offset; whether it was by the protocol of version 2."""
    with producer.transaction():
        producer.send(TP.topic, value, partition=0)
        producer.send_offsets_to_transaction({TP: 1}, "group")
    with producer.transaction():
        producer.send(TP.topic, value, partition=0)
    producer.begin_transaction()
    producer.send(TP.topic, b"aborted", partition=0).result(60)
    producer.abort_transaction()
    assert producer._async._transactions is not None
    return producer._async._transactions.state.is_version_2


def _committed(broker: str) -> list[bytes | None]:
    config = {"isolation.level": "read_committed"}
    with Admin(broker) as admin, RangeReader(broker, **config) as reader:
        ends = [admin.list_offsets({TP: "latest"}, isolation_level=level)[TP].offset for level in config.values()]
        return [record.value for records in reader.read({TP: (0, ends[0])}, arrow=False) for record in records]


def test_levels_change_under_running_producers(broker: str) -> None:
    expected: list[bytes] = []
    with Producer(broker, transactional_id="a") as older, Producer(broker, transactional_id="b") as newer:
        for step, (level, producer) in enumerate([(0, older), (1, older), (2, older), (2, newer), (1, newer)]):
            _finalize(broker, level)
            if step in (0, 3):
                producer.init_transactions()
            value = b"%d" % step
            # With the connections that it has, the producer goes on as before.
            _commit(producer, value)
            _reconnect(producer)
            with producer.transaction():
                pass
            assert _commit(producer, value) is (level == 2)
            expected += [value] * 4
    eventually(lambda: _committed(broker) == expected, "all markers")


@pytest.mark.parametrize("level", [0, 1])
def test_transactions_of_several_processes_require_version_2(broker: str, level: int) -> None:
    _finalize(broker, level)
    with TransactionOwner(broker, "owner") as owner, pytest.raises(OperatorError, match=r"transaction\.version=2"):
        owner.begin()
