"""Helpers of suites, against a broker: records in and out, and waits for groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client import Consumer
from fenceline.errors import OperatorError
from fenceline.testing import ConnectedCluster, KafkaContainer, LabCluster


@pytest.fixture(scope="module")
def broker() -> Iterator[LabCluster]:
    with LabCluster(1) as running:
        yield running


def test_records_by_partition_and_offset(broker: LabCluster) -> None:
    topic = broker.create_topic(partitions=2)
    written = broker.produce(topic, ["a", b"b", None], key=lambda number: b"k", partition=1)
    assert [(each.partition, each.offset, each.key, each.value) for each in written] == [
        (1, 0, b"k", b"a"),
        (1, 1, b"k", b"b"),
        (1, 2, b"k", None),
    ]
    broker.produce(topic, 2, partition=0)
    assert [record.value for record in broker.read(topic)] == [b"value-0", b"value-1", b"a", b"b", None]
    assert [record.value for record in broker.read(topic, 1, partition=1, start=1)] == [b"b"]
    assert broker.read(broker.create_topic()) == []


def test_records_that_do_not_come(broker: LabCluster) -> None:
    topic = broker.create_topic()
    broker.produce(topic, 1)
    with pytest.raises(TimeoutError, match=r"has 1 of 2 records after 0\.3 s"):
        broker.read(topic, 2, wait_s=0.3)


def test_committed_records_only(broker: LabCluster) -> None:
    topic = broker.create_topic()
    broker.situations.aborted_transaction(topic)
    broker.produce(topic, ["committed"])
    assert [record.value for record in broker.read(topic, committed_only=True)] == [b"committed"]
    assert len(broker.read(topic)) == 11


def test_waits_for_a_group(broker: LabCluster) -> None:
    topic = broker.create_topic()
    broker.produce(topic, 3)
    settings = {
        **broker.client_settings,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with pytest.raises(TimeoutError, match="there is no such group"):
        broker.wait_for_group("nobody", wait_s=0.1)
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(100):
            pass
        broker.wait_for_group(topic, members=1)
        with pytest.raises(TimeoutError, match="with 1 members"):
            broker.wait_for_group(topic, members=2, wait_s=0.1)
        with pytest.raises(TimeoutError, match="it has committed nothing"):
            broker.wait_for_lag(topic, wait_s=0.1)
        with pytest.raises(TimeoutError, match="nothing is committed"):
            broker.wait_for_commit(topic, topic, 1, wait_s=0.1)
        assert broker.lag(topic, topic) == 3
        consumer.commit()
        broker.wait_for_commit(topic, topic, 3)
        broker.wait_for_lag(topic)
        broker.produce(topic, 2)
        with pytest.raises(TimeoutError, match="its lag is 2"):
            broker.wait_for_lag(topic, at_most=1, wait_s=0.1)
        broker.wait_for_lag(topic, at_most=2)


def test_a_connected_cluster_has_helpers_and_no_faults(broker: LabCluster) -> None:
    connected = ConnectedCluster(broker.bootstrap_servers)
    topic = connected.create_topic()
    connected.produce(topic, 2)
    assert len(connected.read(topic)) == 2
    for name in ("faults", "situations"):
        with pytest.raises(OperatorError, match=f"has no {name}"):
            getattr(connected, name)
    with pytest.raises(OperatorError, match="no loss receipts"):
        connected.losses()
    connected.close()


def test_the_class_of_testcontainers() -> None:
    container = (
        KafkaContainer("confluentinc/cp-kafka:7.6.0")
        .with_kraft()
        .with_env("KAFKA_NUM_PARTITIONS", 3)
        .with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
        .with_env("KAFKA_HEAP_OPTS", "-Xmx1g")
        .with_envs(SOMETHING="else")
        .with_name("kafka")
    )
    with pytest.raises(OperatorError, match="not started"):
        container.get_bootstrap_server()
    with container as kafka:
        host, _, port = kafka.get_bootstrap_server().rpartition(":")
        assert (kafka.get_container_host_ip(), kafka.get_exposed_port(9093)) == (host, int(port))
        topic = kafka.cluster.create_topic()
        assert len(kafka.cluster.admin.metadata([topic]).topics[topic].partitions) == 1
        kafka.cluster.admin.create_topics(["default"])
        assert len(kafka.cluster.admin.metadata(["default"]).topics["default"].partitions) == 3
        assert kafka.status == "running"
        assert b"Fenceline is ready" in kafka.get_logs()[1]
        with pytest.raises(OperatorError, match="commands in a container"):
            kafka.exec(["kafka-topics", "--list"])
    assert container.status == "not created"
