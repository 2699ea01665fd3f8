"""Many partitions: creation, clean stop, start, memory and disk; a kill of the node, or of the leader of all of them;
topics one by one; an idle node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.clusters import ClusterUnderTest
from benchmarks.harness import SIDES, STARTERS, Figures, Side, both, cpu_of, cpu_seconds, resident_mb, run_rows, scratch
from fenceline.client.admin.admin import Admin
from fenceline.ids import TopicPartition

TOPICS = 100
PARTITIONS_EACH = 100
SINGLE_TOPICS = 500
IDLE_PARTITIONS = 1000
IDLE_S = 20
FULL_TOPICS: Final = 99
"""Of 1,000 partitions each: too many for Apache Kafka in reasonable time."""
REPLICATED: Final = 3
KILLS: Final = int(os.environ.get("BENCH_KILLS", "5"))
LEADERS: Final[dict[str, int]] = {"fenceline": 100_000, "before": 100_000, "kafka": 2_000}
"""Of the killed broker of a cluster; what both sides do is compared at the smallest number."""


def run(figures: Figures, repeats: int) -> None:
    rows = {
        "many": partial(many, figures),
        "killed": partial(killed, figures),
        "leaders": partial(leaders, figures),
        "topics": partial(one_by_one_on_both, figures),
        "idle": partial(idle, figures, repeats),
    }
    run_rows(figures, rows)


def many(figures: Figures) -> None:
    for side in STARTERS:
        many_partitions(figures, side)


def one_by_one_on_both(figures: Figures) -> None:
    with both() as subjects:
        for attempt in range(2):
            for side, subject in subjects.items():
                rate = one_by_one(subject.bootstrap, f"round{attempt}")
                if attempt:
                    figures.add(f"{SINGLE_TOPICS} topics created one by one", side, rate, "topics/s")


def idle(figures: Figures, repeats: int) -> None:
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
            for _ in range(min(2, KILLS) if side == "kafka" else KILLS):
                restart_after_kill(figures, side, subject, total)
        finally:
            subject.close()


def killed(figures: Figures) -> None:
    """The full size; sides other than Apache Kafka alternate."""
    total = FULL_TOPICS * 1000
    with scratch() as root:
        running = {side: STARTERS[side](data_dir=root / side) for side in SIDES if side != "kafka"}
        try:
            for side, subject in running.items():
                for first in range(0, FULL_TOPICS, 9):
                    topics = {f"many-{n}": 1000 for n in range(first, min(first + 9, FULL_TOPICS))}
                    create(subject.bootstrap, topics, requests=1)
                await_leaders(subject.bootstrap, total)
                figures.add(f"{total} partitions: memory", side, resident_mb(subject.pid), "MB")
            for side, subject in running.items():
                subject.stop(wait_s=120)
                started = time.perf_counter()
                subject.start()
                await_leaders(subject.bootstrap, total)
                figures.add(f"{total} partitions: spawn to all leaders", side, time.perf_counter() - started, "s")
            for _ in range(KILLS):
                for side, subject in running.items():
                    restart_after_kill(figures, side, subject, total)
        finally:
            for subject in running.values():
                subject.close()


def restart_after_kill(figures: Figures, side: str, subject: Any, total: int) -> None:
    subject.kill()
    started = time.perf_counter()
    subject.start()
    await_leaders(subject.bootstrap, total)
    row = f"{total} partitions: killed, spawn to all leaders"
    figures.add(row, side, time.perf_counter() - started, "s")
    figures.add(f"{row}, CPU", side, cpu_seconds(subject.pid), "s")
    figures.add(f"{row}, highest memory", side, highest_mb(subject.pid), "MB")
    time.sleep(2)


def leaders(figures: Figures) -> None:
    """A broker of three, which leads all partitions and has their first replicas, is killed and comes back."""
    for side in SIDES:
        for count in sorted({LEADERS[side], min(LEADERS[each] for each in SIDES)}):
            with scratch() as root, ClusterUnderTest(side, root / "cluster") as cluster:
                cluster.start_voters()
                killed_leader(figures, side, cluster, count)


def killed_leader(figures: Figures, side: Side, cluster: ClusterUnderTest, count: int) -> None:
    first, *others = cluster.voters
    assigned = [[first.node_id, *(each.node_id for each in others[:: 1 if n % 2 else -1])] for n in range(1000)]
    admin = AdminClient({"bootstrap.servers": first.bootstrap, "socket.timeout.ms": 120_000})
    for number in range(count // 1000):
        topic = NewTopic(f"many-{number}", 1000, replica_assignment=assigned)
        for future in admin.create_topics([topic], request_timeout=120, operation_timeout=120).values():
            future.result()
    at = others[0].bootstrap
    await_state(at, count, lambda p: len(p.isrs) == REPLICATED and p.leader == first.node_id)
    time.sleep(5)
    row = f"cluster of three, {count} leaders on one broker"
    for _ in range(2 if side == "kafka" else 3):
        used = {each: cpu_seconds(each.pid) for each in others}
        started = time.perf_counter()
        first.kill()
        await_state(at, count, lambda p: p.leader not in (-1, first.node_id))
        figures.add(f"{row}: killed until others lead", side, time.perf_counter() - started, "s")
        spent = sum(cpu_seconds(each.pid) - before for each, before in used.items()) / len(used)
        figures.add(f"{row}: killed until others lead, CPU of each", side, spent, "s")
        started = time.perf_counter()
        first.start()
        await_state(at, count, lambda p: len(p.isrs) == REPLICATED)
        figures.add(f"{row}: spawn until in all ISRs", side, time.perf_counter() - started, "s")
        figures.add(f"{row}: memory of the returned broker", side, resident_mb(first.pid), "MB")
        elected = time.perf_counter()
        elect_preferred(at)
        await_state(at, count, lambda p: p.leader == first.node_id)
        figures.add(f"{row}: preferred leaders elected", side, time.perf_counter() - elected, "s")
        time.sleep(3)


def elect_preferred(bootstrap: str) -> None:
    """In requests of few partitions: one for all of them has too many records."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 120_000}) as admin:
        for name in topics:
            if name.startswith("many-"):
                admin.elect_leaders([TopicPartition(name, index) for index in range(1000)])


def highest_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1e3
    raise ValueError("the system does not tell the highest memory of a process")


def create(bootstrap: str, topics: dict[str, int], *, requests: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 120_000})
    wanted = [NewTopic(name, count, 1) for name, count in topics.items()]
    # A request with more than 10,000 metadata records fails on both sides (POLICY_VIOLATION): send two.
    answers = [
        admin.create_topics(wanted[start::requests], request_timeout=120, operation_timeout=120)
        for start in range(requests)
    ]
    for answer in answers:
        for future in answer.values():
            future.result()


def await_leaders(bootstrap: str, total: int) -> None:
    await_state(bootstrap, total, lambda partition: partition.leader >= 0)


def await_state(bootstrap: str, total: int, is_wanted: Callable[[Any], bool], *, timeout_s: float = 200) -> None:
    """Poll until so many partitions are in a state."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        try:
            topics = admin.list_topics(timeout=30).topics.values()
        except Exception:
            time.sleep(0.01)
            continue
        if sum(is_wanted(p) for t in topics if t.topic.startswith("many-") for p in t.partitions.values()) >= total:
            return
        # The answer for many partitions costs the broker time: the more of them, the fewer questions.
        time.sleep(max(0.02, total / 100_000))
    raise TimeoutError("not all partitions came into the state")


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
