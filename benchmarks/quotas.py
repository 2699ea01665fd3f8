"""One 100 B record at a time through librdkafka, acks=all: alone, and beside a client that is held at its quota.

The other client runs in a process of its own, with a client id that has a quota. Its producer offers ten times the
quota, and drops what it cannot queue; its consumer reads a topic from the start, as fast as it may.
"""

from __future__ import annotations

import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import confluent_kafka

from benchmarks.harness import Figures, Subject, both
from benchmarks.latency import add_percentiles
from benchmarks.workloads import confluent_produce, create_topic, percentile, synchronous_latencies_us
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.client_quotas import ClientQuotaAlteration

MEASURED_S: Final = 20.0
"""Several windows of a quota: the other client sends in bursts, and waits between them."""
ROUND: Final = 5_000
QUOTA_BYTES: Final = 4_000_000
ASKED: Final = 10
GREEDY: Final = "greedy"
RECORD_BYTES: Final = 1_000
STORED: Final = 2_000_000
_STEP_S: Final = 0.01
_SETTLING_S: Final = 12.0
"""Longer than the window of a quota: a client may first use up what it has saved."""
_PROCESS: Final = "import sys; from benchmarks import quotas; quotas.{role}(sys.argv[1])"


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, "latency", 1)
            create_topic(subject.bootstrap, "sent", 1, {"retention.bytes": "100000000", "segment.bytes": "50000000"})
            create_topic(subject.bootstrap, "stored", 1)
            confluent_produce(subject.bootstrap, "stored", STORED, RECORD_BYTES)
            _set_quotas(subject, {"producer_byte_rate": QUOTA_BYTES, "consumer_byte_rate": QUOTA_BYTES})
            _latencies_us(subject)
        for _ in range(repeats):
            for side, subject in subjects.items():
                alone = _latencies_us(subject)
                add_percentiles(figures, side, "alone", alone)
            for role, label in (("produce", "a producer"), ("consume", "a consumer")):
                for side, subject in subjects.items():
                    _measure_beside(figures, side, subject, role, f"beside {label} at its quota")
        figures.note(f"the quota is {QUOTA_BYTES / 1e6:g} MB/s, the producer offers {ASKED} times as much")


def _latencies_us(subject: Subject) -> list[float]:
    """Sorted."""
    latencies: list[float] = []
    until_s = time.perf_counter() + MEASURED_S
    while time.perf_counter() < until_s:
        latencies += synchronous_latencies_us(subject.bootstrap, "latency", ROUND)
    return sorted(latencies)


def _set_quotas(subject: Subject, values: Mapping[str, float]) -> None:
    with Admin(subject.bootstrap) as admin:
        admin.alter_client_quotas([ClientQuotaAlteration({"client-id": GREEDY}, values)])


def _measure_beside(figures: Figures, side: str, subject: Subject, role: str, label: str) -> None:
    code = _PROCESS.format(role=role)
    other = subprocess.Popen(
        [sys.executable, "-c", code, subject.bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        latencies = _latencies_us(subject)
        other.stdin.close()
        rate = float(other.stdout.readline())
    finally:
        other.kill()
        other.wait()
    add_percentiles(figures, side, label, latencies)
    alone = statistics.median(figures.series["alone: p99"][side].values)
    figures.add(f"{label}: p99 over that alone", side, percentile(latencies, 0.99) / alone, "times")
    figures.add(f"{label}: what it gets", side, rate / 1e6, "MB/s")


# -- in the other process: prints a line when it is at its quota, and its bytes per second until its input ends


def produce(bootstrap: str) -> None:
    taken = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal taken
        assert error is None, error
        taken += RECORD_BYTES

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": GREEDY,
            "linger.ms": 5,
            "batch.size": 200_000,
            "queue.buffering.max.kbytes": 20_000,
            "on_delivery": delivered,
        }
    )
    value = bytes(RECORD_BYTES)
    each_step = round(QUOTA_BYTES * ASKED * _STEP_S / RECORD_BYTES)

    def step() -> None:
        until_s = time.perf_counter() + _STEP_S
        for _ in range(each_step):
            try:
                producer.produce("sent", value)
            except BufferError:
                break
        producer.poll(max(0.0, until_s - time.perf_counter()))
        time.sleep(max(0.0, until_s - time.perf_counter()))

    _repeat(step, lambda: taken)


def consume(bootstrap: str) -> None:
    taken = 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "client.id": GREEDY, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition("stored", 0, 0)])

    def step() -> None:
        nonlocal taken
        taken += RECORD_BYTES * len(consumer.consume(10_000, _STEP_S))

    _repeat(step, lambda: taken)


def _repeat(step: Callable[[], None], taken: Callable[[], int]) -> None:
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + _SETTLING_S:
        step()
    print("ready", flush=True)
    before, began_s = taken(), time.perf_counter()
    while not _input_has_ended():
        step()
    print((taken() - before) / (time.perf_counter() - began_s), flush=True)


def _input_has_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])
