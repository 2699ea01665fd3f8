"""The source over real connections: metadata of clusters and of their topics. No Spark session."""

from __future__ import annotations

import pytest

from fenceline.client.core.errors import NeverReached
from fenceline.errors import ErrorCode, PeerError
from fenceline.local_cluster.ports import free_ports
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.connect import ClientCluster
from pyspark_fenceline.errors import DataLossError, LossKind
from tests.client.scripted_cluster import ScriptedCluster
from tests.spark.conftest import Broker
from tests.spark.driver import Driver


def test_an_unauthorized_topic_is_distinguished_from_a_missing_one() -> None:
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


def test_a_new_query_says_soon_that_no_broker_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_FIRST_CONTACT_MS", 50)
    nobody = {"bootstrap.servers": f"127.0.0.1:{free_ports(1)}"}
    with pytest.raises(NeverReached, match="answered within 50 ms"):
        connect.reached(nobody)
    with pytest.raises(NeverReached, match="answered within 70 ms"):
        connect.reached({**nobody, "default.api.timeout.ms": "70"})
    with Driver(nobody["bootstrap.servers"]) as driver, pytest.raises(NeverReached, match="answered within 50 ms"):
        driver.batch()


def test_brokers_that_were_reached_once_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_FIRST_CONTACT_MS", 10_000)
    with ScriptedCluster() as brokers:
        properties = {"bootstrap.servers": brokers.bootstrap, "client.id": "reached once"}
        connect.reached(properties)
    monkeypatch.setattr(connect, "_FIRST_CONTACT_MS", 1)
    connect.reached(properties)
    connect.forget("cluster", properties)


def test_a_checkpoint_of_another_cluster_is_reported_with_both_cluster_ids() -> None:
    with EmbeddedNode() as old, EmbeddedNode() as new:
        clusters = []
        for node, count in ((old, 5), (new, 9)):
            broker = Broker("fenceline", node.bootstrap)
            broker.create("t")
            broker.produce("t", range(count))
            clusters.append(broker.admin.describe_cluster().cluster_id)
            broker.admin.close()
        with Driver(old.bootstrap) as driver:
            end, rows = driver.batch()
        assert len(rows) == 5
        with Driver(new.bootstrap) as driver, pytest.raises(DataLossError) as caught:
            driver.batch(end)
        (loss,) = caught.value.losses
        assert (loss.kind, loss.offset, loss.log_end_offset) == (LossKind.TOPIC_RECREATED, 5, 9)
        assert [loss.cluster_id, loss.found_cluster_id] == clusters
        with Driver(new.bootstrap, onRecreated="restart") as driver:
            end, rows = driver.batch(end)
        assert [offset for offset, _, _ in rows] == list(range(9))
        assert end["cluster"] == clusters[1]
