"""Transactions on one node: rate and broker CPU, latency of small transactions, many producers, memory of idle ids.

Rates: confluent-kafka sends records of 1 KB to 6 partitions and commits every 100 ms. Latency: a transaction of one
record in each of 10 partitions, from its begin until a READ_COMMITTED reader has the last of them. Many producers: a
transactional id each, a transaction of one record a second.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import confluent_kafka

from benchmarks.harness import Figures, Subject, both, cpu_of, cpu_seconds
from benchmarks.workloads import create_topic, percentile
from fenceline.client.producer.producer import Producer

SECONDS: Final = 8.0
COMMIT_S: Final = 0.1
RECORD_BYTES: Final = 1_000
PARTITIONS: Final = 6
SMALL_PARTITIONS: Final = 10
SMALL: Final = 300
PRODUCERS: Final = 1_000
PRODUCERS_S: Final = 20.0


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, "rate", PARTITIONS)
            create_topic(subject.bootstrap, "small", SMALL_PARTITIONS)
            create_topic(subject.bootstrap, "many", PARTITIONS)
        for attempt in range(2 + repeats):
            for side, subject in subjects.items():
                rate, cpu_s, megabytes = committed_rate(subject)
                latencies = small_transactions_ms(subject)
                if attempt >= 2:
                    figures.add("1 KB, commit every 100 ms", side, rate, "records/s")
                    figures.add("1 KB, commit every 100 ms: a broker CPU second", side, megabytes / cpu_s, "MB")
                    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
                        figures.add(
                            f"10 partitions, begin to read: {name}", side, percentile(latencies, fraction), "ms"
                        )
        for side, subject in subjects.items():
            served, share = many_producers(subject)
            figures.add("1,000 producers, a transaction a second each: served", side, served, "transactions/s")
            figures.add("1,000 producers, a transaction a second each: broker", side, 100 * share, "% of a core")


def committed_rate(subject: Subject) -> tuple[float, float, float]:
    """Committed records a second, the broker's CPU seconds, and megabytes."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": subject.bootstrap,
            "transactional.id": "rate",
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
        }
    )
    producer.init_transactions(60)
    value = bytes(RECORD_BYTES)
    count = 0
    with cpu_of(subject.pid) as used:
        began_s = time.perf_counter()
        while (now_s := time.perf_counter()) - began_s < SECONDS:
            producer.begin_transaction()
            while time.perf_counter() - now_s < COMMIT_S:
                for partition in range(PARTITIONS):
                    try:
                        producer.produce("rate", value, partition=partition)
                        count += 1
                    except BufferError:
                        producer.poll(0.001)
                producer.poll(0)
            producer.commit_transaction(60)
        elapsed_s = time.perf_counter() - began_s
        cpu_s = used()
    return count / elapsed_s, cpu_s, count * RECORD_BYTES / 1e6


def small_transactions_ms(subject: Subject) -> list[float]:
    """Sorted, of each transaction."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": subject.bootstrap, "transactional.id": "small", "linger.ms": 0}
    )
    producer.init_transactions(60)
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": subject.bootstrap,
            "group.id": "small",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "auto.offset.reset": "latest",
        }
    )
    where = [confluent_kafka.TopicPartition("small", index, confluent_kafka.OFFSET_END) for index in range(10)]
    reader.assign(where)
    found: list[float] = []
    for number in range(SMALL + 20):
        began_s = time.perf_counter()
        producer.begin_transaction()
        for index in range(SMALL_PARTITIONS):
            producer.produce("small", str(number).encode(), partition=index)
        producer.commit_transaction(60)
        seen = 0
        while seen < SMALL_PARTITIONS:
            message = reader.poll(1 if number else 0.2)
            if message is not None and message.error() is None:
                seen += message.value() == str(number).encode()
            elif number < 20 and time.perf_counter() - began_s > 2:
                break  # the reader had not found the end before this one
        if number >= 20:
            found.append((time.perf_counter() - began_s) * 1000)
    reader.close()
    return sorted(found)


def many_producers(subject: Subject) -> tuple[float, float]:
    """Transactions a second, and the broker's share of a core."""
    served = 0
    lock = threading.Lock()
    starting = threading.Barrier(9)
    stop = threading.Event()

    def drive(first: int, count: int) -> None:
        nonlocal served
        producers: list[Any] = []
        for number in range(first, first + count):
            producer = Producer(subject.bootstrap, transactional_id=f"many-{number}", linger_ms=0)
            producer.init_transactions()
            producers.append(producer)
        starting.wait()
        began_s = time.perf_counter()
        done = 0
        while not stop.is_set():
            producer = producers[done % count]
            due_s = began_s + done / count
            time.sleep(max(0.0, due_s - time.perf_counter()))
            with producer.transaction():
                producer.send("many", b"x", partition=done % PARTITIONS)
            done += 1
        with lock:
            served += done
        for producer in producers:
            producer.close()

    each = PRODUCERS // 8
    threads = [threading.Thread(target=drive, args=(index * each, each)) for index in range(8)]
    for thread in threads:
        thread.start()
    starting.wait()
    before_s, began_s = cpu_seconds(subject.pid), time.perf_counter()
    time.sleep(PRODUCERS_S)
    used_s, elapsed_s = cpu_seconds(subject.pid) - before_s, time.perf_counter() - began_s
    stop.set()
    for thread in threads:
        thread.join()
    return served / elapsed_s, used_s / elapsed_s
