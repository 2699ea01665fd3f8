"""Topics with several replicas on a cluster of processes: creation, writes, and inspection from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.producer.producer import Producer
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually

TOPIC = "replicated"


def create(
    cluster: MixedCluster, topic: str, *, partitions: int = 1, replicas: int = 3, configs: Mapping[str, str] = {}
) -> None:
    with Admin(bootstrap(cluster)) as admin:
        admin.create_topics([NewTopic(topic, partitions, replicas, configs=configs)])
    eventually(lambda: partition(cluster, topic).leader >= 0)


def bootstrap(cluster: MixedCluster) -> list[str]:
    return [node.bootstrap for node in cluster.nodes]


def partition(cluster: MixedCluster, topic: str, index: int = 0) -> PartitionMetadata:
    with Admin(bootstrap(cluster)) as admin:
        return admin.metadata([topic]).topics[topic].partitions[index]


def leader(cluster: MixedCluster, topic: str, index: int = 0) -> MixedNode:
    """The leading node; waits until it is one that runs."""

    def look() -> MixedNode | None:
        found = partition(cluster, topic, index).leader
        return cluster.node(found) if found >= 0 and cluster.node(found).is_running else None

    return eventually(look, f"a leader of {topic}-{index}")


def in_sync(cluster: MixedCluster, topic: str, wanted: Collection[int], index: int = 0) -> None:
    """Wait until exactly these are in sync."""
    eventually(lambda: set(partition(cluster, topic, index).isr) == set(wanted), f"{topic}-{index}: {wanted} in sync")


def write(cluster: MixedCluster, topic: str, values: Collection[str], *, index: int = 0, **config: object) -> None:
    """All acknowledged, in their order, despite failovers. Raises PeerError."""
    with Producer(bootstrap(cluster), **config) as producer:
        sent = [producer.send(topic, value.encode(), partition=index) for value in values]
        producer.flush()
        for each in sent:
            each.result()


def log_bytes(node: MixedNode, topic: str, index: int = 0) -> bytes:
    """The records of a replica on its disk."""
    folder: Path = node.log_dir / f"{topic}-{index}"
    return b"".join(each.read_bytes() for each in sorted(folder.glob("*.log")))


def evidence(node: MixedNode, topic: str, index: int = 0) -> bytes:
    """What the replica has truncated."""
    folder: Path = node.log_dir / f"{topic}-{index}" / "lost+found"
    return b"".join(each.read_bytes() for each in sorted(folder.glob("*.log*")))


def replicas_are_equal(nodes: Collection[MixedNode], topic: str, index: int = 0) -> None:
    """Wait until the replicas of these nodes have the same bytes, and at least one record."""

    def look() -> bool:
        logs = {log_bytes(node, topic, index) for node in nodes}
        return len(logs) == 1 and logs != {b""}

    eventually(look, f"equal replicas of {topic}-{index}")
