"""Fenceline's client against confluent-kafka, both on a Fenceline node: rows read and sent as Arrow, 100 B records."""

from __future__ import annotations

import time

import pyarrow as pa

from benchmarks.harness import Figures, start_fenceline
from benchmarks.workloads import confluent_consume, confluent_produce, create_topic, delete_topics
from fenceline.client import Consumer, Producer, TopicPartition

PARTITIONS = 4
RECORDS = 4_000_000
PER_POLL = 10_000
"""`max.poll.records`, the batch size of `confluent_consume`."""
DEFAULT_PER_POLL = 500
SENT_ROWS = 2_000_000
WARM_UPS = 1
TOPIC = "client-100"


def run(figures: Figures, repeats: int) -> None:
    node = start_fenceline()
    try:
        create_topic(node.bootstrap, TOPIC, PARTITIONS)
        confluent_produce(node.bootstrap, TOPIC, RECORDS, 100)
        for attempt in range(WARM_UPS + repeats):
            ours, cpu = poll_arrow(node.bootstrap)
            theirs = confluent_consume(node.bootstrap, TOPIC, PARTITIONS, RECORDS)
            polled, polled_by_default = poll(node.bootstrap, PER_POLL), poll(node.bootstrap, DEFAULT_PER_POLL)
            sent = send_arrow(node.bootstrap)
            if attempt >= WARM_UPS:
                figures.add("consume as Arrow", "fenceline", ours, "rows/s")
                figures.add("consume as Arrow", "confluent-kafka", theirs, "rows/s")
                figures.add("consume as Arrow: client CPU", "fenceline", cpu, "s")
                figures.add("poll() records", "fenceline", polled, "rows/s")
                figures.add("poll() records", "confluent-kafka", theirs, "rows/s")
                figures.add(f"poll() records, {DEFAULT_PER_POLL} a call", "fenceline", polled_by_default, "rows/s")
                figures.add(f"poll() records, {DEFAULT_PER_POLL} a call", "confluent-kafka", theirs, "rows/s")
                figures.add("send_arrow()", "fenceline", sent, "rows/s")
    finally:
        node.close()


def _consumer(bootstrap: str, max_poll_records: int = PER_POLL) -> Consumer:
    consumer = Consumer(bootstrap, **{"enable.auto.commit": False, "max.poll.records": max_poll_records})
    consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
    consumer.seek_to_beginning()
    return consumer


def poll_arrow(bootstrap: str) -> tuple[float, float]:
    """Rows per second from the first batch on, and CPU seconds of this process."""
    before = time.process_time()
    with _consumer(bootstrap) as consumer:
        rows, started = 0, 0.0
        while rows < RECORDS:
            batch = consumer.poll_arrow(timeout_ms=10_000)
            if not batch.num_rows:
                raise RuntimeError(f"{rows} of {RECORDS} rows, then nothing for 10 s")
            started = started or time.perf_counter()
            rows += batch.num_rows
        elapsed = time.perf_counter() - started
    return rows / elapsed, time.process_time() - before


def poll(bootstrap: str, max_poll_records: int) -> float:
    """Rows per second from the first poll with records on."""
    with _consumer(bootstrap, max_poll_records) as consumer:
        rows, started = 0, 0.0
        while rows < RECORDS:
            records = consumer.poll(timeout_ms=10_000)
            if not records:
                raise RuntimeError(f"{rows} rows, then nothing for 10 s")
            started = started or time.perf_counter()
            rows += len(records)
        return rows / (time.perf_counter() - started)


def send_arrow(bootstrap: str) -> float:
    create_topic(bootstrap, "sent", PARTITIONS)
    table = pa.table({"value": pa.array([b"x" * 100] * 200_000, pa.binary())})
    with Producer(bootstrap) as producer:
        started = time.perf_counter()
        deliveries = [producer.send_arrow(table, "sent") for _ in range(SENT_ROWS // table.num_rows)]
        for delivery in deliveries:
            delivery.result()
        elapsed = time.perf_counter() - started
    delete_topics(bootstrap, ["sent"])
    return SENT_ROWS / elapsed
