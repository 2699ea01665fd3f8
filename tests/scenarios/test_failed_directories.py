"""Brokers with two data directories, as processes: one directory is replaced with a file while they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.node.replicated_topics import bootstrap, create, in_sync, leader, partition, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TOPIC = "spread"
PARTITIONS = 4
SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "300",
    # A periodic checkpoint accesses the directory even without writes.
    "replica.high.watermark.checkpoint.interval.ms": "200",
}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path, [COMBINED] * 3, settings=SETTINGS, directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield cluster


def take_away(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.write_text("no directory")


def put_back(path: Path) -> None:
    path.unlink()
    path.with_suffix(".away").rename(path)


def held(node: MixedNode, path: Path) -> list[int]:
    """Partitions of the topic that a node has in one directory."""
    return sorted(int(each.name.rpartition("-")[2]) for each in path.glob(f"{TOPIC}-*"))


def errors_of(cluster: MixedCluster, node: MixedNode) -> dict[str, str]:
    """The error that the node reports for each directory."""
    with Admin(bootstrap(cluster)) as admin:
        return {each.path: str(each.error or "") for each in admin.describe_log_dirs([node.node_id])[node.node_id]}


def write_to_all(cluster: MixedCluster, value: str) -> None:
    for index in range(PARTITIONS):
        write(cluster, TOPIC, [value], index=index)


def test_a_failed_directory_moves_only_its_partitions_to_other_leaders(three: MixedCluster) -> None:
    create(three, TOPIC, partitions=PARTITIONS)
    write_to_all(three, "before")
    everyone = {1, 2, 3}
    for index in range(PARTITIONS):
        in_sync(three, TOPIC, everyone, index)
    node = leader(three, TOPIC)
    second = next(path for path in node.log_dirs[1:])
    lost, kept = held(node, second), held(node, node.log_dir)
    assert sorted(lost + kept) == list(range(PARTITIONS))
    assert lost
    assert kept

    take_away(second)
    others = everyone - {node.node_id}
    for index in lost:
        in_sync(three, TOPIC, others, index)
        # Any broker may answer, also one that applies the change last.
        eventually(lambda index=index: leader(three, TOPIC, index) is not node, "another node leads")  # type: ignore[misc]
    write_to_all(three, "without it")
    for index in kept:
        in_sync(three, TOPIC, everyone, index)
    assert node.is_running
    assert "log directory offline" in node.output
    assert errors_of(three, node)[str(node.log_dir)] == ""
    assert errors_of(three, node)[str(second)] != ""

    # It starts without the directory, and recreates none of its partitions in the other.
    assert node.stop() == 0
    node.start()
    node.wait_ready()
    for index in kept:
        in_sync(three, TOPIC, everyone, index)
    assert held(node, node.log_dir) == kept
    write_to_all(three, "still without it")
    assert all(node.node_id not in partition(three, TOPIC, index).isr for index in lost)

    assert node.stop() == 0
    put_back(second)
    node.start()
    node.wait_ready()
    for index in range(PARTITIONS):
        in_sync(three, TOPIC, everyone, index)
    assert (held(node, second), held(node, node.log_dir)) == (lost, kept)
    assert "Traceback" not in node.output


def test_a_node_stops_if_the_directory_of_its_metadata_log_fails(three: MixedCluster) -> None:
    create(three, TOPIC, partitions=PARTITIONS)
    write_to_all(three, "before")
    node = leader(three, TOPIC)
    take_away(node.log_dir)
    eventually(lambda: not node.is_running, "the node has ended")
    assert "has failed" in node.output or "Could not flush" in node.output
    assert "Traceback" not in node.output
    for index in range(PARTITIONS):
        assert leader(three, TOPIC, index) is not node
    write_to_all(three, "without it")
