"""Workloads for a broker: topics, producers and consumers of third-party clients. Owns no figures."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.testing.apache_kafka import java_command


def create_topic(bootstrap: str, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
        future.result()


def delete_topics(bootstrap: str, names: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics(list(names)).values():
        future.result()


def producer_performance(bootstrap: str, topic: str, records: int, size_bytes: int) -> float:
    """Records per second of Kafka's ProducerPerformance, acks=all."""
    done = subprocess.run(
        java_command(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic", topic,
            "--num-records", str(records),
            "--record-size", str(size_bytes),
            "--throughput", "-1",
            "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all",
        ),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(re.findall(r"sent, ([\d.]+) records/sec", done.stdout)[-1])


def consumer_performance(bootstrap: str, topic: str, records: int) -> float:
    """Records per second of Kafka's ConsumerPerformance, the time of the rebalance left out."""
    done = subprocess.run(
        java_command(
            "org.apache.kafka.tools.ConsumerPerformance",
            "--bootstrap-server", bootstrap,
            "--topic", topic,
            "--num-records", str(records),
            "--timeout", "60000",
            "--hide-header",
        ),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    fields = done.stdout.strip().splitlines()[-1].split(",")
    return float(fields[-1])


def confluent_produce(bootstrap: str, topic: str, records: int, size_bytes: int) -> float:
    """Records per second of confluent-kafka from one Python thread, acks=all."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "batch.size": 1_000_000,
        }
    )
    payload = b"x" * size_bytes
    failures = 0

    def delivered(error: object, message: object) -> None:
        nonlocal failures
        failures += error is not None

    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, payload, on_delivery=delivered if number % 1000 == 0 else None)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    elapsed = time.perf_counter() - started
    if failures or left:
        raise RuntimeError(f"{failures} failed and {left} undelivered records")
    return records / elapsed


def confluent_consume(
    bootstrap: str, topic: str, partitions: int, records: int, *, began: Callable[[], object] = lambda: None
) -> float:
    """Records per second of confluent-kafka's `consume` from one Python thread, from the first record it gives.

    `began` is called at that record.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,
            "queued.max.messages.kbytes": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    seen, started = 0, 0.0
    while seen < records:
        batch = consumer.consume(10_000, timeout=10)
        if not batch:
            raise RuntimeError(f"consumed {seen} of {records} records, then nothing for 10 s")
        if not started:
            began()
            started = time.perf_counter()
        seen += len(batch)
    elapsed = time.perf_counter() - started
    consumer.close()
    return seen / elapsed


def synchronous_latencies_us(bootstrap: str, topic: str, records: int) -> list[float]:
    """Microseconds from `produce` to the delivery report, one record after the other, acks=all, sorted."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    payload = b"x" * 100
    latencies = []
    delivered: list[object] = []
    for _ in range(records):
        delivered.clear()
        started = time.perf_counter()
        producer.produce(topic, payload, on_delivery=lambda error, message: delivered.append(error))
        while not delivered:
            producer.poll(1)
        latencies.append((time.perf_counter() - started) * 1e6)
        if delivered[0] is not None:
            raise RuntimeError(str(delivered[0]))
    producer.flush(10)
    return sorted(latencies)


def percentile(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
