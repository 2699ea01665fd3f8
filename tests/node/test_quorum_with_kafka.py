"""Brokers under controllers of the other implementation, Fenceline or Apache Kafka 4.3.1; controllers that join
automatically.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import CLUSTER_ID, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.node.test_quorum_processes import SMALL_SNAPSHOTS, check_late_controller, create, topics
from tests.scheduling import CLUSTERS
from tests.support.kafka_start import quick_environment
from tests.support.served import Served

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]


KAFKA_STOPPED = 143
"""Exit code of a JVM after SIGTERM."""
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
}
"""A broker that was killed may register again after 3 s."""


def _cluster(root: Path, kinds: list[str], **how: Any) -> MixedCluster:
    scratch = root / "scratch"
    scratch.mkdir()
    return MixedCluster(root, kinds, **{"settings": SETTINGS, "environment": quick_environment(scratch), **how})


def describe_status(node: MixedNode) -> dict[str, str]:
    """What Kafka's own tool reports, through a broker."""
    reported = run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", node.bootstrap, "describe", "--status"
    )
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reported.splitlines())}


def test_a_kafka_broker_runs_under_fenceline_controllers(tmp_path: Path) -> None:
    """It registers and serves, is stopped and killed, loses its active controller, and is joined by another broker."""
    with _cluster(tmp_path, ["controller"] * 3 + ["kafka:broker", "broker"], late=[5]) as cluster:
        cluster.wait_ready()
        kafka, ours = cluster.node(4), cluster.node(5)
        cluster.wait_complete()
        served = Served(kafka.bootstrap, kafka.node_id, "on-kafka", transactions=True)
        served.check_round()
        assert kafka.stop() == KAFKA_STOPPED
        kafka.start()
        served.check_round()
        leader = cluster.leader()
        leader.kill()
        create(kafka, "after-the-leader")
        served.check_round()
        leader.start()
        kafka.kill()
        kafka.start()
        served.check_round()
        ours.start()
        ours.wait_ready()
        cluster.wait_complete()
        create(ours, "through-ours")
        eventually(lambda: {"after-the-leader", "through-ours"} <= topics(kafka) & topics(ours))

        def all_say_the_same() -> bool:
            reported, expected = describe_status(kafka), describe_status(ours)
            moving = ("HighWatermark", "MaxFollowerLag", "MaxFollowerLagTimeMs")
            return reported == {**expected, **{name: reported[name] for name in moving}}

        eventually(all_say_the_same)


def test_a_fenceline_broker_runs_under_kafka_controllers(tmp_path: Path) -> None:
    with _cluster(tmp_path, ["kafka:controller"] * 3 + ["broker"]) as cluster:
        cluster.wait_ready()
        broker = cluster.node(4)
        cluster.wait_complete()
        served = Served(broker.bootstrap, broker.node_id, "on-ours", transactions=False)
        served.check_round()
        assert broker.stop() == 0
        broker.start()
        served.check_round()
        leader = cluster.leader()
        leader.kill()
        create(broker, "after-the-leader")
        served.check_round()
        leader.start()
        broker.kill()
        broker.start()
        served.check_round()
        eventually(lambda: "after-the-leader" in topics(broker))
        assert describe_status(broker)["ClusterId"] == CLUSTER_ID


@pytest.mark.parametrize("kinds", [["controller", "kafka:controller"], ["kafka:controller", "controller"]])
def test_snapshots_are_fetched_from_the_other_implementation(tmp_path: Path, kinds: list[str]) -> None:
    with _cluster(tmp_path, [*kinds, "broker"], voters=1, late=[2], settings=SMALL_SNAPSHOTS) as cluster:
        cluster.wait_ready()
        check_late_controller(cluster, cluster.node(3))
