"""Brokers that are killed, stopped, frozen or partitioned, as processes with sessions of ten minutes.

So no change of a broker during a test comes from the expiry of its session.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.metadata import ClusterMetadata, PartitionMetadata
from fenceline.client.producer.producer import Producer
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.local_cluster.probe import known_brokers
from fenceline.testing.mixed_cluster import BROKER, COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.node.replicated_topics import replicas_are_equal
from tests.testing.echo_peer import need_cuts

pytestmark = pytest.mark.timeout(300)
LONG = {"broker.session.timeout.ms": "600000"}
TOPIC = "led"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    """Three combined nodes, and a fourth that is a broker only."""
    with MixedCluster(tmp_path / "cluster", [COMBINED, COMBINED, COMBINED, BROKER], settings=LONG) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield cluster


class ClusterView:
    """The cluster as seen by the given nodes."""

    def __init__(self, nodes: list[MixedNode]) -> None:
        self.nodes = nodes
        self.bootstrap = [node.bootstrap for node in nodes]

    def metadata(self) -> ClusterMetadata:
        with Admin(self.bootstrap) as admin:
            return admin.metadata()

    def partition(self) -> PartitionMetadata:
        return self.metadata().topics[TOPIC].partitions[0]

    def led_instead_of(self, node: MixedNode) -> PartitionMetadata | None:
        """The partition once another node leads it. Another node may still name `node` as the leader afterwards."""
        found = self.partition()
        return None if found.leader in (-1, node.node_id) else found

    def has(self, node: MixedNode) -> bool:
        """Whether its broker is not fenced."""
        return node.node_id in self.metadata().brokers

    def write(self, value: str) -> None:
        with Producer(self.bootstrap) as producer:
            producer.send(TOPIC, value.encode(), partition=0).result()


def view_of(cluster: MixedCluster, *but: MixedNode) -> ClusterView:
    return ClusterView([node for node in cluster.nodes if node not in but])


def lead(cluster: MixedCluster, node: MixedNode) -> None:
    """Create a topic that `node` leads, with two other replicas."""
    others = [each.node_id for each in cluster.nodes if each is not node][:2]
    with Admin(view_of(cluster).bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, assignments={0: [node.node_id, *others]})])
    eventually(lambda: view_of(cluster).partition().leader == node.node_id)


@pytest.mark.parametrize("was_active", [False, True])
def test_killed_leader_is_replaced_and_rejoins_at_once(cluster: MixedCluster, was_active: bool) -> None:
    active = cluster.leader()
    old = active if was_active else next(node for node in cluster.nodes[:3] if node is not active)
    lead(cluster, old)
    view_of(cluster).write("before")
    epoch = view_of(cluster).partition().leader_epoch
    old.kill()
    others = view_of(cluster, old)
    found = eventually(lambda: others.led_instead_of(old), "another leader")
    assert found.leader_epoch == epoch + 1
    assert old.node_id not in found.isr
    others.write("after")
    old.start()
    old.wait_ready()
    eventually(lambda: old.node_id in others.partition().isr, "in sync again")
    replicas_are_equal([cluster.node(each) for each in found.replicas], TOPIC)


@pytest.mark.parametrize("was_active", [False, True])
def test_restarted_node_registers_without_delay(cluster: MixedCluster, was_active: bool) -> None:
    """Whether or not the controller probed it before the new process started."""
    active = cluster.leader()
    old = active if was_active else next(node for node in cluster.nodes[:3] if node is not active)
    lead(cluster, old)
    view_of(cluster).write("before")
    old.kill()
    old.start()
    old.wait_ready()
    eventually(lambda: len(view_of(cluster).partition().isr) == 3, "in sync again")
    view_of(cluster).write("after")
    replicas_are_equal([cluster.node(each) for each in view_of(cluster).partition().replicas], TOPIC)


def test_frozen_broker_keeps_its_session(cluster: MixedCluster) -> None:
    """Even a new controller without a connection to it does not fence it, because its port accepts connections."""
    frozen, active = cluster.node(4), cluster.leader()
    lead(cluster, frozen)
    frozen.send_signal(signal.SIGSTOP)
    active.kill()
    others = view_of(cluster, frozen, active)
    eventually(lambda: not others.has(active), "the new controller has looked")
    assert others.has(frozen)
    assert others.partition().leader == frozen.node_id
    frozen.send_signal(signal.SIGCONT)
    view_of(cluster, active).write("after")
    assert others.partition().leader_epoch == 0


def test_partitioned_broker_keeps_its_session(tmp_path: Path) -> None:
    """Its address does not answer; a killed broker probed by the same controller is fenced."""
    need_cuts()
    with LocalCluster(5, data_dir=tmp_path / "cluster", overrides=LONG) as cluster:
        quorum = eventually(cluster.quorum, "a leader")
        dead = quorum.leader_id
        lost, witness = [node for node in range(1, 6) if node != dead][:2]
        port = cluster.layout.nodes[witness - 1].port
        assert port is not None
        cluster.isolate(lost)
        cluster.kill(dead)
        eventually(lambda: known_brokers(port, timeout_s=5) == set(range(1, 6)) - {dead}, "the killed one is fenced")
        cluster.heal(lost)
        cluster.restart(dead)
        eventually(lambda: known_brokers(port, timeout_s=5) == set(range(1, 6)), "all are back")
