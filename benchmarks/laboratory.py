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
from collections.abc import Callable, Sequence
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
_SEEDS: Final = 600
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

    def start(into: list[tuple[float, LabCluster]]) -> None:
        began_s = time.perf_counter()
        cluster = LabCluster(3).start()
        cluster.produce(cluster.create_topic(), 1)
        into.append((time.perf_counter() - began_s, cluster))

    started: list[tuple[float, LabCluster]] = []
    try:
        start(started)
        start(started)
        alone_s = started[-1][0]
        figures.add("a cluster of three, alone, until its first record", "fenceline", alone_s, "s")
        before = len(started)
        threads = [threading.Thread(target=start, args=(started,)) for _ in range(_CLUSTERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together = [taken_s for taken_s, _ in started[before:]]
        figures.add(f"the slowest of {_CLUSTERS} clusters of three, started at once", "fenceline", max(together), "s")
        clusters = [cluster for _, cluster in started[before:]]
        figures.add(f"memory of {_CLUSTERS} clusters of three (proportional)", "fenceline", _memory_mb(clusters), "MB")
        slowest, alone = _records_s(clusters), _records_s(clusters[:1])
        figures.add(
            f"1,000 records in each of {_CLUSTERS} clusters, compared with one", "fenceline", slowest / alone, "x"
        )
    finally:
        for _, cluster in started:
            cluster.close()


def _memory_mb(clusters: Sequence[LabCluster]) -> float:
    """Of all nodes and of this process; pages that processes share are counted once (PSS)."""
    pids = [cluster.processes.running(node).pid for cluster in clusters for node in cluster.nodes]
    return sum(psutil.Process(pid).memory_full_info().pss for pid in [*pids, os.getpid()]) / 1e6


def _records_s(clusters: Sequence[LabCluster]) -> float:
    """Until the slowest cluster has taken 1,000 records, one after the other cluster at a time being no option."""
    taken: list[float] = []

    def write(cluster: LabCluster) -> None:
        topic = cluster.create_topic()
        began_s = time.perf_counter()
        cluster.produce(topic, 1000)
        taken.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=write, args=(cluster,)) for cluster in clusters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(taken)


def _situations(figures: Figures, repeats: int) -> None:
    """From the call until the situation is true."""
    with LabCluster(3) as cluster:
        for _ in range(repeats):
            for name, make in _situations_of(cluster):
                began_s = time.perf_counter()
                make()
                figures.add(f"situation {name}", "fenceline", time.perf_counter() - began_s, "s")
                cluster.faults.undo_all()
                eventually(lambda: _is_whole(cluster), wait_s=30)


def _is_whole(cluster: LabCluster) -> bool:
    topics = cluster.admin.metadata().topics.values()
    return all(set(each.isr) == set(each.replicas) for topic in topics for each in topic.partitions.values())


def _situations_of(cluster: LabCluster) -> list[tuple[str, Callable[[], Any]]]:
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

    def end() -> None:
        stop.set()
        thread.join()

    return [*found, ("(end)", end)]


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
