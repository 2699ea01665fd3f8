"""Log compaction: from the moment when a topic's log becomes cleanable until the cleaner checkpoint covers it.

Both sides get the same records, in segments of 64 MiB; `min.cleanable.dirty.ratio` of the topic blocks the cleaner
until all of them are written. Bytes are those of the inactive segments, read once.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import STARTERS, Figures, cpu_of, resident_mb, scratch
from benchmarks.workloads import delete_topics
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic

SETTINGS = {"log.cleaner.backoff.ms": "10"}
TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20), "min.cleanable.dirty.ratio": "1.0"}
ROWS: dict[str, dict[str, Any]] = {
    "100 B, 300,000 keys": {"records": 4_000_000, "size_bytes": 100, "keys": 300_000},
    "1 KB, 100,000 keys": {"records": 500_000, "size_bytes": 1_000, "keys": 100_000},
    "1 KB lz4, 100,000 keys": {"records": 500_000, "size_bytes": 1_000, "keys": 100_000, "codec": "lz4"},
    "100 B, batches of 1": {"records": 400_000, "size_bytes": 100, "keys": 50_000, "batch": 1},
}
_FLUSH_S = 7.0
"""Wait until recovery points are written."""
_POLL_S = 0.002


def run(figures: Figures, repeats: int) -> None:
    with scratch() as directory:
        for side, start in STARTERS.items():
            root = directory / side
            subject = start(data_dir=root, overrides=SETTINGS)
            try:
                for number, (label, row) in enumerate(ROWS.items()):
                    for attempt in range(repeats + 1):
                        topic = f"compacted-{number}-{attempt}"
                        measure(figures if attempt else None, side, subject, root / "data", topic, label, row)
                figures.add("resident memory afterwards", side, resident_mb(subject.pid), "MB")
            finally:
                subject.close()


def measure(
    figures: Figures | None, side: str, subject: Any, data: Path, topic: str, label: str, row: dict[str, Any]
) -> None:
    with Admin(subject.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, configs=TOPIC_SETTINGS)])
        write(subject.bootstrap, topic, **row)
        time.sleep(_FLUSH_S)
        sealed = sorted((data / f"{topic}-0").glob("*.log"))
        active = int(sealed.pop().stem)
        size_bytes = sum(path.stat().st_size for path in sealed)
        with cpu_of(subject.pid) as used:
            started_s = time.perf_counter()
            admin.alter_configs({("topic", topic): {"min.cleanable.dirty.ratio": "0.0"}})
            wait_for(data / "cleaner-offset-checkpoint", f"{topic} 0 {active}")
            took_s, cpu_s = time.perf_counter() - started_s, used()
    left = sum(path.stat().st_size for path in (data / f"{topic}-0").glob("*.log") if int(path.stem) < active)
    delete_topics(subject.bootstrap, [topic])
    if figures is not None:
        figures.add(f"{label}: input", side, size_bytes / 1e6 / took_s, "MB/s")
        figures.add(f"{label}: input a CPU second", side, size_bytes / 1e6 / cpu_s, "MB/s")
        figures.add(f"{label}: left", side, 100 * left / size_bytes, "%")


def write(bootstrap: str, topic: str, *, records: int, size_bytes: int, keys: int, **how: Any) -> None:
    """Write random values, which compress badly."""
    from confluent_kafka import Producer

    rng = Random(7)
    values = rng.randbytes(1 << 20)
    settings = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 0 if how.get("batch") else 20,
        "compression.type": how.get("codec", "none"),
        "batch.num.messages": how.get("batch", 10_000),
        "queue.buffering.max.messages": 200_000,
    }
    producer = Producer(settings)
    for _ in range(records):
        start = rng.randrange(len(values) - size_bytes)
        key = b"key-%d" % rng.randrange(keys)
        while True:
            try:
                producer.produce(topic, values[start : start + size_bytes], key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def wait_for(path: Path, line: str, *, timeout_s: float = 600) -> None:
    """Wait until a checkpoint file has this line."""
    deadline_s = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline_s:
        if path.exists() and line in path.read_text().splitlines():
            return
        time.sleep(_POLL_S)
    raise TimeoutError(f"{path} has no line {line!r}")
