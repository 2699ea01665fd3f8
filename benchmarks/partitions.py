"""Many partitions: creation, clean stop, start, memory and disk; topics one by one; an idle node."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import STARTERS, Figures, both, cpu_of, resident_mb, scratch

TOPICS = 100
PARTITIONS_EACH = 100
SINGLE_TOPICS = 500
IDLE_PARTITIONS = 1000
IDLE_S = 20


def run(figures: Figures, repeats: int) -> None:
    for side in STARTERS:
        many_partitions(figures, side)
    with both() as subjects:
        for attempt in range(2):
            for side, subject in subjects.items():
                rate = one_by_one(subject.bootstrap, f"round{attempt}")
                if attempt:
                    figures.add(f"{SINGLE_TOPICS} topics created one by one", side, rate, "topics/s")
    with both() as subjects:
        for subject in subjects.values():
            create(subject.bootstrap, {f"idle-{n}": 100 for n in range(IDLE_PARTITIONS // 100)})
            time.sleep(5)
        for _ in range(repeats):
            for side, subject in subjects.items():
                with cpu_of(subject.pid) as used:
                    time.sleep(IDLE_S)
                    figures.add(f"idle with {IDLE_PARTITIONS} partitions", side, used() / IDLE_S * 100, "% of a core")


def many_partitions(figures: Figures, side: str) -> None:
    total = TOPICS * PARTITIONS_EACH
    with scratch() as directory:
        subject = STARTERS[side](data_dir=directory)
        try:
            started = time.perf_counter()
            create(subject.bootstrap, {f"many-{n}": PARTITIONS_EACH for n in range(TOPICS)})
            await_leaders(subject.bootstrap, total)
            figures.add(f"{total} partitions: created until all have leaders", side, time.perf_counter() - started, "s")
            time.sleep(5)
            figures.add(f"{total} partitions: memory", side, resident_mb(subject.pid), "MB")
            started = time.perf_counter()
            subject.stop(wait_s=120)
            figures.add(f"{total} partitions: clean stop", side, time.perf_counter() - started, "s")
            figures.add(f"{total} partitions: disk", side, disk_mb(directory), "MB")
            started = time.perf_counter()
            subject.start()
            await_leaders(subject.bootstrap, total)
            figures.add(f"{total} partitions: spawn to all leaders", side, time.perf_counter() - started, "s")
        finally:
            subject.close()


def create(bootstrap: str, topics: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 120_000})
    wanted = [NewTopic(name, count, 1) for name, count in topics.items()]
    # A request with more than 10,000 metadata records fails on both sides (POLICY_VIOLATION): send two.
    answers = [admin.create_topics(wanted[start::2], request_timeout=120, operation_timeout=120) for start in range(2)]
    for answer in answers:
        for future in answer.values():
            future.result()


def await_leaders(bootstrap: str, total: int, *, timeout_s: float = 120) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        try:
            topics = admin.list_topics(timeout=30).topics.values()
        except Exception:
            continue
        if sum(p.leader >= 0 for t in topics if t.topic.startswith("many-") for p in t.partitions.values()) >= total:
            return
        time.sleep(0.02)
    raise TimeoutError("not all partitions got leaders")


def one_by_one(bootstrap: str, prefix: str) -> float:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    started = time.perf_counter()
    for number in range(SINGLE_TOPICS):
        for future in admin.create_topics([NewTopic(f"{prefix}-{number}", 1, 1)]).values():
            future.result()
    return SINGLE_TOPICS / (time.perf_counter() - started)


def disk_mb(directory: Path) -> float:
    done = subprocess.run(["du", "-s", "--block-size=1", str(directory)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1e6
