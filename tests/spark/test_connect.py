"""The client's answers in the words that planning uses."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode, PeerError
from pyspark_fenceline.connect import ClientCluster
from tests.client.scripted_cluster import ScriptedCluster


def test_a_topic_that_may_not_be_seen_is_not_one_that_does_not_exist() -> None:
    with ScriptedCluster() as brokers:
        brokers.add_topic("t", 2)
        cluster = ClientCluster({"bootstrap.servers": brokers.bootstrap})
        try:
            assert {name: facts.partitions for name, facts in cluster.topics(["t", "u"]).items()} == {"t": (0, 1)}
            assert cluster.cluster_id() == "scripted"
            brokers.fault_rule = lambda key: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            with pytest.raises(PeerError, match="topic t: TOPIC_AUTHORIZATION_FAILED"):
                cluster.topics(["t"])
        finally:
            cluster.close()
