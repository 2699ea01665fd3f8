"""What processes tell clients of a leader that was killed and that nobody has fenced: it leads, but is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.client.admin import Admin
from fenceline.client.async_admin import NewTopic
from fenceline.client.metadata import PartitionMetadata
from fenceline.client.producer import Producer
from fenceline.errors import ErrorCode
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually

pytestmark = pytest.mark.timeout(300)
TOPIC = "led"
NOBODY_IS_FENCED = {"broker.session.timeout.ms": "600000", "fenceline.broker.fencing.grace.ms": "600000"}


def told_by(node: MixedNode, *topics: str) -> PartitionMetadata:
    """By its word; of all topics where none is named."""
    with Admin(node.bootstrap) as admin:
        return admin.metadata(list(topics) or None).topics[TOPIC].partitions[0]


def test_clients_ask_again_for_a_dead_leader_and_find_it_when_it_is_back(tmp_path: Path) -> None:
    with MixedCluster(tmp_path / "cluster", [COMBINED] * 3, settings=NOBODY_IS_FENCED) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        active = cluster.leader()
        old = next(node for node in cluster.nodes if node is not active)
        others = [node for node in cluster.nodes if node is not old]
        with Admin([node.bootstrap for node in cluster.nodes]) as admin:
            admin.create_topics([NewTopic(TOPIC, assignments={0: [old.node_id, *(each.node_id for each in others)]})])
        for node in others:
            eventually(lambda node=node: told_by(node, TOPIC).leader == old.node_id, "its leader is known")
        old.kill()
        for node in others:
            eventually(
                lambda node=node: (
                    told_by(node, TOPIC)[:1] == (-1,) and told_by(node, TOPIC).error is ErrorCode.LEADER_NOT_AVAILABLE
                ),
                "the leader is not told",
            )
            assert told_by(node).leader == old.node_id, "who looks at all topics sees what the controllers have decided"
        old.start()
        old.wait_ready()
        for node in cluster.nodes:
            eventually(lambda node=node: told_by(node, TOPIC).leader >= 0, "a leader is told")
        with Producer([node.bootstrap for node in cluster.nodes]) as producer:
            producer.send(TOPIC, b"after", partition=0).result()
