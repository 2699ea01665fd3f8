"""Several data directories with Apache Kafka: its format and ours, its tools, its controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import BROKER, COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.node.replicated_topics import create, in_sync, leader, partition, write
from tests.scheduling import CLUSTERS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400), pytest.mark.together(CLUSTERS)]

PARTITIONS = 4


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_apache_kafka()


def on_disk(node: MixedNode, topic: str) -> list[list[int]]:
    return [sorted(int(each.name.rpartition("-")[2]) for each in path.glob(f"{topic}-*")) for path in node.log_dirs]


def ids(node: MixedNode) -> list[str]:
    return [(path / "meta.properties").read_text().split("directory.id=")[1].split()[0] for path in node.log_dirs]


def described(node: MixedNode, topic: str) -> dict[str, list[int]]:
    """As Kafka's tool prints it."""
    printed = run_tool(
        "org.apache.kafka.tools.LogDirsCommand",
        *("--bootstrap-server", node.bootstrap, "--describe", "--topic-list", topic),
    )
    reported: Any = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    (broker,) = reported["brokers"]
    return {
        each["logDir"]: sorted(int(one["partition"].rpartition("-")[2]) for one in each["partitions"])
        for each in broker["logDirs"]
        if each["error"] is None
    }


def go_on_as(node: MixedNode, *, kafka: bool) -> None:
    assert node.stop() in (0, 143)
    node.is_kafka = kafka
    node.start()
    node.wait_ready()
    eventually(lambda: node.knows([1]), "it is registered")


def test_directories_alternate_between_kafka_and_fenceline(tmp_path: Path) -> None:
    """Formatted by Kafka, opened here, written by both, and back."""
    with MixedCluster(tmp_path, [f"kafka:{COMBINED}"], directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        (node,) = cluster.nodes
        formatted = ids(node)
        create(cluster, "theirs", partitions=PARTITIONS, replicas=1)
        for index in range(PARTITIONS):
            write(cluster, "theirs", [f"first {index}"], index=index)
        placed = on_disk(node, "theirs")
        assert sorted(map(len, placed)) == [2, 2]

        go_on_as(node, kafka=False)
        for index in range(PARTITIONS):
            write(cluster, "theirs", [f"second {index}"], index=index)
        assert on_disk(node, "theirs") == placed
        create(cluster, "ours", partitions=PARTITIONS, replicas=1)
        for index in range(PARTITIONS):
            write(cluster, "ours", [f"first {index}"], index=index)
        chosen = on_disk(node, "ours")
        assert sorted(map(len, chosen)) == [2, 2]
        assert described(node, "theirs") == dict(zip(map(str, node.log_dirs), placed, strict=True))
        assert described(node, "ours") == dict(zip(map(str, node.log_dirs), chosen, strict=True))

        go_on_as(node, kafka=True)
        for topic, where in (("theirs", placed), ("ours", chosen)):
            for index in range(PARTITIONS):
                write(cluster, topic, [f"last {index}"], index=index)
            assert on_disk(node, topic) == where
            assert described(node, topic) == dict(zip(map(str, node.log_dirs), where, strict=True))
        assert ids(node) == formatted


@pytest.fixture
def under_kafka(tmp_path: Path) -> Iterator[MixedCluster]:
    settings = {
        "broker.heartbeat.interval.ms": "300",
        "replica.high.watermark.checkpoint.interval.ms": "200",
    }
    kinds = ["kafka:controller", BROKER, BROKER]
    with MixedCluster(tmp_path, kinds, settings=settings, directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield cluster


def test_failed_directory_is_reported_to_kafkas_controller(under_kafka: MixedCluster) -> None:
    cluster = under_kafka
    brokers = cluster.nodes[1:]
    create(cluster, "spread", partitions=PARTITIONS, replicas=2)
    for index in range(PARTITIONS):
        write(cluster, "spread", ["before"], index=index)
        in_sync(cluster, "spread", {2, 3}, index)
    node = leader(cluster, "spread")
    (other,) = (each for each in brokers if each is not node)
    kept, lost = on_disk(node, "spread")
    assert kept
    assert lost
    second = node.log_dirs[1]
    second.rename(second.with_suffix(".away"))
    second.write_text("no directory")
    for index in lost:
        in_sync(cluster, "spread", {other.node_id}, index)
        assert leader(cluster, "spread", index) is other
    for index in range(PARTITIONS):
        write(cluster, "spread", ["after"], index=index)
    assert all(set(partition(cluster, "spread", index).isr) == {2, 3} for index in kept)
    assert node.is_running
    with Admin([other.bootstrap]) as admin:
        errors = {each.path: each.error for each in admin.describe_log_dirs([node.node_id])[node.node_id]}
    assert errors[str(second)]
    assert not errors[str(node.log_dir)]
