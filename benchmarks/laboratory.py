"""The laboratory for tests: from a fixture to the first record, many clusters at once, situations, simulated seeds.

Fixtures run in pytest, in a process of its own each time, so that nothing is started before. Apache Kafka is formatted
and started from its jars by the same test, with its client being Fenceline's.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import ROOT, SIDES, Figures, Side, scratch
from fenceline.client import Consumer
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.waiting import eventually

_FEW: Final = 2
"""Repeats of a cluster of three nodes of Apache Kafka."""
_CLUSTERS: Final = 8
_TOPICS: Final = 50
_SEEDS: Final = 2000
_FIXTURES: Final = """
import time
import pytest
from fenceline.testing.connected import ConnectedCluster

began_s = {}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    began_s.setdefault(fixturedef.argname, time.perf_counter())


@pytest.fixture
def kafka_of_jars(request, tmp_path):
    from fenceline.testing.mixed_cluster import MixedCluster

    with MixedCluster(tmp_path / "cluster", ["kafka:broker,controller"] * request.param, heap="320m") as cluster:
        cluster.wait_complete()
        yield ConnectedCluster(",".join(node.bootstrap for node in cluster.nodes))


@pytest.fixture
def first_record():
    def write(fixture, cluster, replicas):
        topic = cluster.create_topic("first", replication_factor=replicas)
        cluster.produce(topic, 1)
        print(f"taken_s={time.perf_counter() - began_s[fixture]}")

    return write
"""
_TESTS: Final = """
import pytest


def test_broker(kafka_broker, first_record):
    first_record("kafka_broker", kafka_broker, 1)


def test_cluster(kafka_cluster, first_record):
    first_record("kafka_cluster", kafka_cluster, 3)


@pytest.mark.parametrize("kafka_of_jars", [1], indirect=True)
def test_broker_of_jars(kafka_of_jars, first_record):
    first_record("kafka_of_jars", kafka_of_jars, 1)


@pytest.mark.parametrize("kafka_of_jars", [3], indirect=True)
def test_cluster_of_jars(kafka_of_jars, first_record):
    first_record("kafka_of_jars", kafka_of_jars, 3)
"""


def run(figures: Figures, repeats: int) -> None:
    with scratch() as folder:
        (folder / "conftest.py").write_text(_FIXTURES)
        (folder / "test_fixtures.py").write_text(_TESTS)
        for what, figure, count in (
            ("broker", "fixture of one broker until the first record is acknowledged", repeats),
            ("cluster", "fixture of three brokers until a topic of three replicas takes a record", min(repeats, _FEW)),
        ):
            for attempt in range(count + 1):
                for side in SIDES:
                    taken_s = _first_record_s(folder, what, side)
                    # The first run of each side fills the page cache.
                    if attempt:
                        figures.add(figure, side, taken_s, "s")
    _topics(figures, repeats)
    for _ in range(repeats):
        _many(figures)
    _situations(figures, repeats)
    _seeds(figures, repeats)


def _first_record_s(folder: Path, what: str, side: Side) -> float:
    name = f"test_{what}" if side == "fenceline" else f"test_{what}_of_jars"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"test_fixtures.py::{name}"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    taken = [part for part in done.stdout.split() if "taken_s=" in part]
    if not taken:
        raise RuntimeError(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    return float(taken[0].partition("taken_s=")[2])


def _topics(figures: Figures, repeats: int) -> None:
    """What a test of its own costs on a shared broker: its topic, made and deleted."""
    with LabCluster(1) as cluster:
        for _ in range(repeats):
            began_s = time.perf_counter()
            for _ in range(_TOPICS):
                cluster.delete_topic(cluster.create_topic())
            taken_ms = (time.perf_counter() - began_s) / _TOPICS * 1000
            figures.add("a test's topic on a shared broker", "fenceline", taken_ms, "ms")


def _many(figures: Figures) -> None:
    """Clusters of three that are started at once, each with a record."""
    started: list[LabCluster] = []

    def start() -> float:
        began_s = time.perf_counter()
        cluster = LabCluster(3).start()
        started.append(cluster)
        cluster.produce(cluster.create_topic(), 1)
        return time.perf_counter() - began_s

    try:
        start()
        figures.add("a cluster of three, alone, until its first record", "fenceline", start(), "s")
        used_s = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in _pids(started[-1:]))
        figures.add("CPU time of its nodes until then (not of the client)", "fenceline", used_s, "s")
        alone = len(started)
        with ThreadPoolExecutor(_CLUSTERS) as threads:
            slowest_s = max(each.result() for each in [threads.submit(start) for _ in range(_CLUSTERS)])
        figures.add(f"the slowest of {_CLUSTERS} clusters of three, started at once", "fenceline", slowest_s, "s")
        clusters = started[alone:]
        figures.add(f"memory of {_CLUSTERS} clusters of three (proportional)", "fenceline", _memory_mb(clusters), "MB")
        for text, work in (("1,000 records", _write_records), ("an unclean election", _lose_records)):
            alone_s, slowest_s = _slowest_s(clusters[:1], work), _slowest_s(clusters, work)
            figures.add(f"{text} in one of {_CLUSTERS} clusters", "fenceline", alone_s, "s")
            figures.add(f"{text} in each of {_CLUSTERS} clusters at once, the slowest", "fenceline", slowest_s, "s")
    finally:
        for cluster in started:
            cluster.close()


def _memory_mb(clusters: Sequence[LabCluster]) -> float:
    """Of all nodes and of this process; pages that processes share are counted once (PSS)."""
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in [*_pids(clusters), os.getpid()]) / 1e6


def _pids(clusters: Sequence[LabCluster]) -> list[int]:
    return [cluster.processes.running(node).pid for cluster in clusters for node in cluster.nodes]


def _lose_records(cluster: LabCluster, topic: str) -> None:
    cluster.situations.unclean_election(topic, lose=20)


def _write_records(cluster: LabCluster, topic: str) -> None:
    cluster.produce(topic, 1000)


def _slowest_s(clusters: Sequence[LabCluster], work: Callable[[LabCluster, str], None]) -> float:
    """The work in each cluster at the same time, until the slowest is done."""
    topics = [cluster.create_topic() for cluster in clusters]

    def timed_s(cluster: LabCluster, topic: str) -> float:
        began_s = time.perf_counter()
        work(cluster, topic)
        return time.perf_counter() - began_s

    with ThreadPoolExecutor(len(clusters)) as threads:
        return max(threads.map(timed_s, clusters, topics))


def _situations(figures: Figures, repeats: int) -> None:
    """From the call until the situation is true."""
    with LabCluster(3) as cluster:
        for _ in range(repeats):
            with _situations_of(cluster) as situations:
                for name, make in situations:
                    began_s = time.perf_counter()
                    make()
                    figures.add(f"situation {name}", "fenceline", time.perf_counter() - began_s, "s")
                    cluster.faults.undo_all()
                    eventually(lambda: _is_whole(cluster), wait_s=30)


def _is_whole(cluster: LabCluster) -> bool:
    topics = cluster.admin.metadata().topics.values()
    return all(set(each.isr) == set(each.replicas) for topic in topics for each in topic.partitions.values())


@contextmanager
def _situations_of(cluster: LabCluster) -> Iterator[list[tuple[str, Callable[[], Any]]]]:
    """All of them, for a topic that a group consumes."""
    topic, group = cluster.create_topic(), "bench"
    cluster.produce(topic, 10)
    settings = {**cluster.client_settings, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    stop = threading.Event()

    def poll() -> None:
        with consumer:
            while not stop.is_set():
                try:
                    consumer.poll(20)
                except Exception:
                    time.sleep(0.02)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    cluster.wait_for_group(group)
    found: list[tuple[str, Callable[[], Any]]] = []
    for name, make in inspect.getmembers(cluster.situations, callable):
        if name.startswith("_"):
            continue
        parameters = list(inspect.signature(make).parameters)
        given = {"topic": topic, "group": group, "transactional_id": "bench"}[parameters[0]]
        found.append((name, lambda make=make, given=given: make(given)))
    # What needs members comes first: the topic is another one at the end.
    found.sort(key=lambda each: (each[0] == "topic_recreated", "group" not in each[0]))
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _seeds(figures: Figures, repeats: int) -> None:
    """The order service of examples/orders, in the simulated world."""
    command = [sys.executable, "-m", "fenceline.testing.applications", "examples/orders/simulated.py"]
    for attempt in range(repeats + 1):
        began_s = time.perf_counter()
        options = ["--seeds", f"0..{_SEEDS}", "--workers", "2"]
        subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True, timeout=300)
        if attempt:
            rate = _SEEDS / (time.perf_counter() - began_s)
            figures.add("seeds of the simulated order service, two workers", "fenceline", rate, "seeds/s")
