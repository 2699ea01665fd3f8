"""One 100 B record at a time through librdkafka, acks=all: quiet, and while another consumer reads cold data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Figures, Subject, both
from benchmarks.workloads import confluent_produce, create_topic, percentile, synchronous_latencies_us

RECORDS = 5_000
COLD_RECORDS = 5_000_000
COLD_PARTITIONS = 4
_COLD_READER = """
import sys
from benchmarks.workloads import confluent_consume
confluent_consume(sys.argv[1], "cold", int(sys.argv[2]), int(sys.argv[3]))
"""


def run(figures: Figures, repeats: int) -> None:
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, "latency", 1)
        for attempt in range(2 + repeats):
            for side, subject in subjects.items():
                measure(figures if attempt >= 2 else None, side, subject, "quiet")
        for side, subject in subjects.items():
            create_topic(subject.bootstrap, "cold", COLD_PARTITIONS)
            confluent_produce(subject.bootstrap, "cold", COLD_RECORDS, 1000)
            drop_page_cache(Path(subject.log_dir))  # type: ignore[attr-defined]
            reader = subprocess.Popen(
                [sys.executable, "-c", _COLD_READER, subject.bootstrap, str(COLD_PARTITIONS), str(COLD_RECORDS)]
            )
            try:
                measure(figures, side, subject, "beside a cold reader of 5 GB", beside=reader)
            finally:
                reader.kill()
                reader.wait()


def measure(
    figures: Figures | None,
    side: str,
    subject: Subject,
    label: str,
    *,
    beside: subprocess.Popen[bytes] | None = None,
) -> None:
    """Percentiles of `RECORDS` records, or of as many as go out for as long as another process runs."""
    latencies = synchronous_latencies_us(subject.bootstrap, "latency", RECORDS)
    while beside is not None and beside.poll() is None:
        latencies += synchronous_latencies_us(subject.bootstrap, "latency", RECORDS)
    ordered = sorted(latencies)
    if figures is not None:
        for name, fraction in (("p50", 0.5), ("p99", 0.99)):
            figures.add(f"{label}: {name}", side, percentile(ordered, fraction), "us")


def drop_page_cache(directory: Path) -> None:
    """Write the directory's files out and drop them from the page cache (needs no privilege)."""

    for path in directory.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
