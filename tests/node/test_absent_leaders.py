"""Metadata of a killed leader that is not fenced yet, from processes: it still leads, but is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually

pytestmark = pytest.mark.timeout(300)
TOPIC = "led"
NOBODY_IS_FENCED = {"broker.session.timeout.ms": "600000", "fenceline.broker.fencing.grace.ms": "600000"}


def metadata_from(node: MixedNode, *topics: str) -> PartitionMetadata:
    """The metadata from this node; of all topics if none is given."""
    with Admin(node.bootstrap) as admin:
        return admin.metadata(list(topics) or None).topics[TOPIC].partitions[0]


def test_clients_retry_until_a_killed_leader_returns(tmp_path: Path) -> None:
    with MixedCluster(tmp_path / "cluster", [COMBINED] * 3, settings=NOBODY_IS_FENCED) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        active = cluster.leader()
        old = next(node for node in cluster.nodes if node is not active)
        others = [node for node in cluster.nodes if node is not old]
        with Admin([node.bootstrap for node in cluster.nodes]) as admin:
            admin.create_topics([NewTopic(TOPIC, assignments={0: [old.node_id, *(each.node_id for each in others)]})])
        for node in others:
            eventually(lambda node=node: metadata_from(node, TOPIC).leader == old.node_id, "its leader is known")
        old.kill()
        for node in others:
            eventually(
                lambda node=node: (
                    metadata_from(node, TOPIC)[:1] == (-1,)
                    and metadata_from(node, TOPIC).error is ErrorCode.LEADER_NOT_AVAILABLE
                ),
                "the response names no leader",
            )
            assert metadata_from(node).leader == old.node_id, (
                "requests for all topics show the decision of the controller"
            )
        old.start()
        old.wait_ready()
        for node in cluster.nodes:
            eventually(lambda node=node: metadata_from(node, TOPIC).leader >= 0, "the response names a leader")
        with Producer([node.bootstrap for node in cluster.nodes]) as producer:
            producer.send(TOPIC, b"after", partition=0).result()
