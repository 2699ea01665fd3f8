"""kill -9 in a loop under load: no acknowledged record is lost or duplicated, and no offset is missing.

The producer is librdkafka's idempotent one with acks=all. It numbers its records; acknowledged records are compared
with the log afterwards. A seed decides when the node is killed and is printed when a run fails.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.testing.node import EmbeddedNode

pytestmark = pytest.mark.long

PARTITIONS = 3
TOPIC = "killed"


class Load:
    """Produces numbered records until it is stopped, and keeps the offsets of those that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[str] = []
        self.sent = 0
        self.progress = threading.Event()
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "delivery.timeout.ms": 250_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending and wait until every record is acknowledged or has failed."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(250)
        assert left == 0, f"{left} records neither acknowledged nor failed"

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) > 2000:
                self._producer.poll(0.01)
                continue
            number = self.sent
            self._producer.produce(
                TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.acknowledged[int(value)] = (partition, offset)
        self.progress.set()


def read_everything(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """Partition -> (offset, number) of every record, in log order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False})
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(PARTITIONS)}
    try:
        ends = {i: consumer.get_watermark_offsets(TopicPartition(TOPIC, i), timeout=60)[1] for i in range(PARTITIONS)}
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        wanted = sum(ends.values())
        while sum(map(len, found.values())) < wanted:
            # `consume` waits for the full count, so the last call gets what is left.
            left = wanted - sum(map(len, found.values()))
            messages = consumer.consume(min(left, 5000), timeout=60)
            assert messages, "the log ends before its end offset"
            for message in messages:
                assert message.error() is None, message.error()
                value, partition, offset = message.value(), message.partition(), message.offset()
                assert value is not None
                assert partition is not None
                assert offset is not None
                found[partition].append((offset, int(value)))
    finally:
        consumer.close()
    return found


def kill_loop(directory: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    node = EmbeddedNode(data_dir=directory, overrides={"log.segment.bytes": str(1 << 20)})
    try:
        node.start()
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            future.result()
        load = Load(node.bootstrap)
        load.start()
        try:
            for _ in range(kills):
                # Each process acknowledges at least one record, then runs under load for a random time.
                load.progress.clear()
                assert load.progress.wait(60), f"no progress within 60 s, node says: {node.errors}"
                threading.Event().wait(rng.uniform(0, 0.15))
                node.kill()
                node.start()
        finally:
            load.stop()
        found = read_everything(node.bootstrap)
    finally:
        node.close()
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records))), f"gap in partition {partition}"
    positions = {number: (p, offset) for p, records in found.items() for offset, number in records}
    assert len(positions) == sum(map(len, found.values())), "a record is in the log twice"
    lost = [number for number in load.acknowledged if number not in positions]
    assert not lost, f"acknowledged and lost: {lost[:10]} of {len(load.acknowledged)}"
    moved = {
        n: (reported, positions[n])
        for n, reported in load.acknowledged.items()
        if reported != positions[n] and reported[1] >= 0
    }
    assert not moved, f"acknowledged at another offset: {dict(list(moved.items())[:5])}"
    assert not load.failed, load.failed[:5]


@pytest.mark.timeout(300)
def test_ten_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    kill_loop(tmp_path, kills=10, seed=7)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_five_hundred_kills_lose_no_acknowledged_record(tmp_path: Path, seed: int) -> None:
    """Ten seeds of fifty kills each."""
    kill_loop(tmp_path, kills=50, seed=seed)
