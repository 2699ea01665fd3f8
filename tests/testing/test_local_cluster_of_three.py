"""Several nodes as separate processes: one cluster, whichever of them is killed, frozen or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.errors import ErrorCode
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.local_cluster.probe import known_brokers
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.raw import ConnectionClosed, RawConnection
from tests.testing.echo_peer import need_cuts

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(3, data_dir=tmp_path_factory.mktemp("three")) as running:
        yield running


def ports(cluster: LocalCluster) -> dict[int, int]:
    return {node.node_id: node.port for node in cluster.layout.brokers if node.port is not None}


def create_topic(port: int, name: str) -> None:
    """Send the request to this node, as soon as it knows the leader of the quorum."""

    def created() -> bool:
        try:
            with RawConnection(port, timeout_s=5) as connection:
                topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
                answer = connection.call(
                    ApiKey.CREATE_TOPICS, 7, {"topics": (topic,), "timeout": 3000, "validate_only": False}
                )
        except (OSError, ConnectionClosed):
            return False
        return answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    eventually(created, f"{name} is created")


def knows_topic(port: int, name: str) -> bool:
    try:
        with RawConnection(port, timeout_s=5) as connection:
            answer = connection.call(
                ApiKey.METADATA, 4, {"topics": ({"name": name},), "allow_auto_topic_creation": False}
            )
    except (OSError, ConnectionClosed):
        return False
    return bool(answer.topics[0].error_code == ErrorCode.NONE)


def other(node: int) -> int:
    return node % 3 + 1


def test_ready_means_that_every_broker_knows_all_brokers(cluster: LocalCluster) -> None:
    assert [known_brokers(port, timeout_s=30) for port in ports(cluster).values()] == [{1, 2, 3}] * 3
    assert [status.state for status in cluster.status()] == ["running"] * 3
    assert len({status.pid for status in cluster.status()}) == 3


@pytest.mark.parametrize("node", [1, 2, 3])
def test_killed_and_restarted(cluster: LocalCluster, node: int) -> None:
    cluster.kill(node)
    name = f"without-killed-{node}"
    create_topic(ports(cluster)[other(node)], name)
    cluster.restart(node)
    eventually(lambda: knows_topic(ports(cluster)[node], name), "what the others decided is known")


@pytest.mark.parametrize("node", [1, 2, 3])
def test_cut_off_and_healed(cluster: LocalCluster, node: int) -> None:
    """One of the three was the active controller."""
    need_cuts()
    cluster.isolate(node)
    name = f"without-isolated-{node}"
    create_topic(ports(cluster)[other(node)], name)
    cluster.heal(node)
    eventually(lambda: knows_topic(ports(cluster)[node], name), "what the others decided is known")


def test_an_isolated_node_commits_no_changes(cluster: LocalCluster) -> None:
    """A node that only clients can reach commits no changes."""
    need_cuts()
    cluster.isolate(1, peers=[2, 3])
    create_topic(ports(cluster)[2], "two-of-three")
    assert not knows_topic(ports(cluster)[1], "two-of-three")
    cluster.heal(1)
    eventually(lambda: knows_topic(ports(cluster)[1], "two-of-three"), "what the others decided is known")


def test_all_stop_cleanly_and_continue(cluster: LocalCluster) -> None:
    cluster_id = cluster.cluster_id
    create_topic(ports(cluster)[1], "kept")
    assert cluster.stop() == {1: 0, 2: 0, 3: 0}
    cluster.start()
    assert cluster.cluster_id == cluster_id
    for port in ports(cluster).values():
        eventually(lambda port=port: knows_topic(port, "kept"), "a topic is kept")


def test_dedicated_controllers(tmp_path: Path) -> None:
    with LocalCluster(2, controllers=1, data_dir=tmp_path) as cluster:
        assert [status.roles for status in cluster.status()] == [("broker",), ("broker",), ("controller",)]
        assert [known_brokers(port, timeout_s=30) for port in ports(cluster).values()] == [{1, 2}] * 2
        create_topic(ports(cluster)[1], "shared")
        eventually(lambda: knows_topic(ports(cluster)[2], "shared"), "a topic is known everywhere")
        cluster.restart(3)
        create_topic(ports(cluster)[2], "after")
        assert set(cluster.stop().values()) == {0}
