"""Produce throughput and the broker's CPU, with Kafka's ProducerPerformance and with confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Figures, Subject, both, cpu_of, resident_mb
from benchmarks.workloads import confluent_produce, create_topic, delete_topics, producer_performance

PARTITIONS = 6
WARM_UPS = 2
Client = Callable[[str, str, int, int], float]
CLIENTS: dict[str, Client] = {"ProducerPerformance": producer_performance, "confluent-kafka": confluent_produce}
SIZES = {100: 3_000_000, 1000: 500_000}


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for client, produce in CLIENTS.items():
            for size_bytes, records in SIZES.items():
                for attempt in range(WARM_UPS + repeats):
                    for side, subject in subjects.items():
                        measure(
                            figures if attempt >= WARM_UPS else None,
                            side,
                            subject,
                            client,
                            produce,
                            size_bytes,
                            records,
                        )
        for side, subject in subjects.items():
            figures.add("resident memory after produce", side, resident_mb(subject.pid), "MB")


def measure(
    figures: Figures | None,
    side: str,
    subject: Subject,
    client: str,
    produce: Client,
    size_bytes: int,
    records: int,
) -> None:
    topic = f"produce-{size_bytes}"
    create_topic(subject.bootstrap, topic, PARTITIONS)
    with cpu_of(subject.pid) as used:
        rate = produce(subject.bootstrap, topic, records, size_bytes)
        cpu = used()
    delete_topics(subject.bootstrap, [topic])
    if figures is not None:
        label = f"{client}, {size_bytes} B"
        figures.add(f"{label}: records/s", side, rate, "records/s")
        figures.add(f"{label}: broker CPU", side, cpu, "s")
        figures.add(f"{label}: MB per broker CPU second", side, records * size_bytes / 1e6 / cpu, "MB/s")
