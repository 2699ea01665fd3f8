"""Consume throughput and the broker's CPU, 100 B records, data in the page cache."""

from __future__ import annotations

from benchmarks.harness import Figures, both, cpu_of
from benchmarks.workloads import confluent_consume, confluent_produce, consumer_performance, create_topic

PARTITIONS = 6
RECORDS = 4_000_000
WARM_UPS = 2
TOPIC = "consume-100"


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, TOPIC, PARTITIONS)
            confluent_produce(subject.bootstrap, TOPIC, RECORDS, 100)
        for client in ("confluent-kafka", "ConsumerPerformance"):
            for attempt in range(WARM_UPS + repeats):
                for side, subject in subjects.items():
                    with cpu_of(subject.pid) as used:
                        if client == "confluent-kafka":
                            rate = confluent_consume(subject.bootstrap, TOPIC, PARTITIONS, RECORDS)
                        else:
                            rate = consumer_performance(subject.bootstrap, TOPIC, RECORDS)
                        cpu = used()
                    if attempt >= WARM_UPS:
                        figures.add(f"{client}: records/s", side, rate, "records/s")
                        figures.add(f"{client}: broker CPU", side, cpu, "s")
