"""A disk that is full, read-only or broken under a running node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from fenceline.client.admin.admin import Admin
from fenceline.ids import TopicPartition as Where
from fenceline.testing.node import NodeFailed
from fenceline.testing.waiting import eventually
from tests.scenarios.faults import STORAGE_ERROR, connection_to, create, fetch, listed, produce, values
from tests.support.faulty_node import FaultyNode

pytestmark = pytest.mark.long


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultyNode]:
    with FaultyNode(data_dir=tmp_path, overrides={"offsets.topic.num.partitions": "1"}) as running:
        yield running


def test_a_full_disk_rejects_producers_serves_consumers_and_recovers(node: FaultyNode) -> None:
    with connection_to(node) as connection:
        assert create(connection, "t") == 0
        kept = [b"before %d" % number for number in range(5)]
        for value in kept:
            assert produce(connection, "t", value).error_code == 0
        node.set("full")
        for _ in range(3):
            refused = produce(connection, "t", b"refused")
            assert refused.error_code == STORAGE_ERROR
            assert "disk of the broker is full" in (refused.error_message or "")
        assert fetch(connection, "t", {0: 0})[0][0] == 0
        node.heal("full")
        healed = produce(connection, "t", b"after")
        assert (healed.error_code, healed.base_offset) == (0, 5)
    assert values(node, "t") == [*kept, b"after"]
    eventually(lambda: "records accepted again" in node.errors)
    assert node.errors.count("records rejected") == 1, "logged once for all rejected requests"
    assert '"partition": "t-0"' in node.errors
    assert "Traceback" not in node.errors
    # Rejected records do not reappear after recovery.
    node.kill()
    node.start()
    assert values(node, "t") == [*kept, b"after"]
    assert "log truncated by recovery" not in node.errors


def test_a_partial_write_to_a_full_disk_leaves_no_bytes(node: FaultyNode) -> None:
    with connection_to(node) as connection:
        create(connection, "t")
        produce(connection, "t", b"first")
        node.set("full-partly")
        node.set("full")
        assert produce(connection, "t", b"torn" * 1000).error_code == STORAGE_ERROR
        node.heal("full")
        assert produce(connection, "t", b"second").base_offset == 1
    node.kill()
    node.start()
    assert values(node, "t") == [b"first", b"second"]
    assert "log truncated by recovery" not in node.errors


def test_librdkafka_delivers_all_records_once_the_disk_has_space(node: FaultyNode) -> None:
    delivered: list[int] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        delivered.append(offset)

    with connection_to(node) as connection:
        create(connection, "t")
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "retry.backoff.ms": 20, "log_level": 0}
    )
    producer.produce("t", b"0", on_delivery=on_delivery)
    assert producer.flush(60) == 0
    node.set("full")
    for number in range(1, 200):
        producer.produce("t", str(number).encode(), on_delivery=on_delivery)
        producer.poll(0.005)  # so that several batches are in flight when the first is rejected
    eventually(lambda: producer.poll(0.02) >= 0 and "records rejected" in node.errors)
    assert len(delivered) == 1
    node.heal("full")
    assert producer.flush(60) == 0
    assert sorted(delivered) == list(range(200))
    assert values(node, "t") == [str(number).encode() for number in range(200)]
    with Admin(node.bootstrap) as admin:
        found = admin.describe_producers([Where("t", 0)])
    epochs = [each.producer_epoch for states in found.values() for each in states]
    assert epochs == [0], "the producer epoch must not change: a new one could write duplicates"


def test_a_full_disk_rejects_topic_creation(node: FaultyNode) -> None:
    with connection_to(node) as connection:
        node.set("full")
        assert create(connection, "t") == STORAGE_ERROR
        assert listed(connection) == {}
        node.heal("full")
        assert create(connection, "t") == 0
        topic_id = listed(connection)["t"].topic_id
    node.kill()
    node.start()
    with connection_to(node) as connection:
        assert listed(connection)["t"].topic_id == topic_id
    assert "Traceback" not in node.errors


def test_a_full_disk_rejects_offset_commits(node: FaultyNode) -> None:
    with connection_to(node) as connection:
        create(connection, "t")
        produce(connection, "t", b"x")
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        node.set("full")
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        assert consumer.committed([TopicPartition("t", 0)], timeout=60)[0].offset == 1
        node.heal("full")
        consumer.commit(offsets=[TopicPartition("t", 0, 9)], asynchronous=False)
        assert consumer.committed([TopicPartition("t", 0)], timeout=60)[0].offset == 9
    finally:
        consumer.close()
    assert '"partition": "__consumer_offsets-0"' in node.errors
    assert "Traceback" not in node.errors


def test_a_node_stops_on_a_full_disk_and_starts_once_there_is_space(node: FaultyNode) -> None:
    with connection_to(node) as connection:
        create(connection, "t")
        produce(connection, "t", b"kept")
        node.set("full")
        assert produce(connection, "t", b"refused").error_code == STORAGE_ERROR
    assert node.stop() == 0
    assert "shutdown was not clean; the next start will recover the logs" in node.errors
    assert "Traceback" not in node.errors
    with pytest.raises(NodeFailed, match="cannot start: No space left on device") as caught:
        node.start()
    assert "Traceback" not in str(caught.value)
    assert "ended with exit code 1" in str(caught.value)
    node.heal("full")
    node.start()
    assert values(node, "t") == [b"kept"]


def test_a_read_only_file_system_rejects_writes_and_serves_reads(node: FaultyNode) -> None:
    """As a kernel remounts after a disk error: writes fail, reads succeed."""
    with connection_to(node) as connection:
        create(connection, "t")
        create(connection, "fresh")
        produce(connection, "t", b"kept")
        node.set("read-only")
        assert produce(connection, "fresh", b"refused").error_code == STORAGE_ERROR
        assert fetch(connection, "t", {0: 0})[0][0] == 0
        node.heal("read-only")
        assert produce(connection, "fresh", b"taken").error_code == 0
    assert "Traceback" not in node.errors


def test_a_failed_fsync_of_the_metadata_log_stops_the_node(node: FaultyNode) -> None:
    """The contents of the disk are unknown after that; the node stops with the reason."""
    with connection_to(node) as connection:
        create(connection, "t")
        produce(connection, "t", b"kept")
        node.set("broken-sync")
        assert create(connection, "u") != 0
    eventually(lambda: "Could not flush the metadata log" in node.errors)
    assert "Traceback" not in node.errors
    node.kill()
    node.heal("broken-sync")
    node.start()
    assert values(node, "t") == [b"kept"]


def test_a_failed_fsync_takes_one_partition_offline(tmp_path: Path) -> None:
    """With `flush.messages=1` records are acknowledged after the flush, so the producer receives the first error."""
    with FaultyNode(data_dir=tmp_path) as node, connection_to(node) as connection:
        create(connection, "flushed", flush_messages="1")
        create(connection, "other")
        produce(connection, "other", b"x")
        node.set("broken-sync")
        assert produce(connection, "flushed", b"x").error_code == STORAGE_ERROR
        eventually(lambda: "partition offline" in node.errors)
        assert produce(connection, "flushed", b"y").error_code == STORAGE_ERROR
        assert fetch(connection, "flushed", {0: 0})[0][0] == STORAGE_ERROR
        assert produce(connection, "other", b"y").error_code == 0
        assert '"partition": "flushed-0"' in node.errors
        assert "Traceback" not in node.errors


def test_jumps_of_the_wall_clock_have_no_effect(node: FaultyNode) -> None:
    """Sessions, timeouts and heartbeats use the monotonic clock; appends and groups are unaffected."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    )
    with connection_to(node) as connection:
        create(connection, "t")
        produce(connection, "t", b"0")
        consumer.subscribe(["t"])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        day_ms = 24 * 3_600_000
        for number, off_ms in enumerate((3 * day_ms, -400 * day_ms, 0, 40 * day_ms), 1):
            node.set("clock-ms", str(off_ms))
            result = produce(connection, "t", b"%d" % number)
            assert (result.error_code, result.base_offset) == (0, number)
            message = consumer.poll(60)
            assert message is not None
            assert message.value() == b"%d" % number
            consumer.commit(asynchronous=False)
    consumer.close()
    assert node.errors == ""
    assert node.stop() == 0
    node.set("clock-ms", str(-4000 * day_ms))
    node.start()
    assert [int(value) for value in values(node, "t")] == [0, 1, 2, 3, 4]
