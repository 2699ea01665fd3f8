"""One 100 B record at a time through librdkafka, acks=all: alone, and while another consumer reads cold data."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Figures, Subject, both
from benchmarks.workloads import confluent_produce, create_topic, percentile, synchronous_latencies_us

RECORDS = 5_000
ROUND = 1_000
COLD_RECORDS = 5_000_000
COLD_PARTITIONS = 4
COLD_RECORD_BYTES = 1000
_COLD_READER = """
import sys
from benchmarks.workloads import confluent_consume
print(confluent_consume(
    sys.argv[1], "cold", int(sys.argv[2]), int(sys.argv[3]), began=lambda: print("reading", flush=True)
))
"""


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, "latency", 1)
        for attempt in range(2 + repeats):
            for side, subject in subjects.items():
                latencies = synchronous_latencies_us(subject.bootstrap, "latency", RECORDS)
                if attempt >= 2:
                    add_percentiles(figures, side, "quiet", latencies)
        for subject in subjects.values():
            create_topic(subject.bootstrap, "cold", COLD_PARTITIONS)
            confluent_produce(subject.bootstrap, "cold", COLD_RECORDS, COLD_RECORD_BYTES)
        for _ in range(repeats):
            for side, subject in subjects.items():
                (other,) = (each for each in subjects.values() if each is not subject)
                measure_with_reader(figures, side, "beside a cold reader of 5 GB", subject, of=subject)
                # The control: the reader loads the same cores, but another broker.
                measure_with_reader(figures, side, "beside one at the other broker", subject, of=other)


def measure_with_reader(figures: Figures, side: str, label: str, subject: Subject, *, of: Subject) -> None:
    latencies, reader_rate = latencies_with_reader(subject, of=of)
    add_percentiles(figures, side, label, latencies)
    quiet = statistics.median(figures.series["quiet: p99"][side].values)
    figures.add(f"{label}: p99 over the quiet one", side, percentile(latencies, 0.99) / quiet, "times")
    # The throughput that remains for the reader.
    figures.add(f"{label}: the reader", side, reader_rate * COLD_RECORD_BYTES / 1e6, "MB/s")


def latencies_with_reader(subject: Subject, *, of: Subject) -> tuple[list[float], float]:
    """Sorted latencies in microseconds while a process reads the topic `cold` of a broker from disk, and the reader's
    records per second.
    """
    drop_page_cache(Path(of.log_dir))  # type: ignore[attr-defined]
    latencies: list[float] = []
    reader = subprocess.Popen(
        [sys.executable, "-c", _COLD_READER, of.bootstrap, str(COLD_PARTITIONS), str(COLD_RECORDS)],
        stdout=subprocess.PIPE,
    )
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        while True:
            measured = synchronous_latencies_us(subject.bootstrap, "latency", ROUND)
            if reader.poll() is not None:
                break
            latencies += measured
        reader_rate = reader.stdout.read()
    finally:
        reader.kill()
        reader.wait()
    if not latencies:
        raise RuntimeError("the cold reader finished before the first measurement")
    return sorted(latencies), float(reader_rate)


def add_percentiles(figures: Figures, side: str, label: str, latencies: Sequence[float]) -> None:
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        figures.add(f"{label}: {name}", side, percentile(latencies, fraction), "us")


def drop_page_cache(directory: Path) -> None:
    """Flush the directory's segment files and drop them from the page cache (needs no privileges)."""

    for path in directory.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
