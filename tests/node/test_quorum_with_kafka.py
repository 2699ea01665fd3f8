"""Quorums of Fenceline and Apache Kafka 4.3.1 in one voter set, brokers of either under controllers of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.node.metadata_log import DIRECTORY_NAME
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually

from .test_quorum_processes import SMALL_SNAPSHOTS, check_late_controller, create, topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


def describe_status(node: MixedNode) -> dict[str, str]:
    """What Kafka's own tool tells, asked through a broker."""
    told = run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", node.bootstrap, "describe", "--status"
    )
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in told.splitlines())}


def metadata_bytes(node: MixedNode) -> bytes:
    """The metadata log from offset 0 on, as it lies on the disk."""
    return b"".join(path.read_bytes() for path in sorted((node.log_dir / DIRECTORY_NAME).glob("*.log")))


def kill_in_turn(cluster: MixedCluster, broker: MixedNode, turns: int) -> set[str]:
    """Kill whoever leads while topics are created; the kinds of those who led afterwards."""
    kinds = set()
    for turn in range(turns):
        old = cluster.leader()
        old.kill()
        new = cluster.leader(but=old.node_id)
        kinds.add(new.kind)
        create(broker, f"turn-{turn}")
        old.start()
        old.wait_ready()

        def all_have_everything() -> bool:
            described = cluster.leader().describe_quorum()
            return {each.log_end_offset for each in described.current_voters} == {described.high_watermark}

        eventually(all_have_everything)
    return kinds


def check_logs(controllers: list[MixedNode]) -> None:
    """Stop all controllers; what they hold of the log is the same, byte for byte."""
    for node in controllers:
        node.stop()
    contents = [metadata_bytes(node) for node in controllers]
    common = min(map(len, contents))
    assert common > 1000
    for content in contents[1:]:
        assert content[:common] == contents[0][:common]


def test_fenceline_controllers_with_brokers_of_both(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, ["controller", "controller", "controller", "kafka:broker", "broker"]) as cluster:
        cluster.wait_ready()
        kafka, ours = cluster.node(4), cluster.node(5)
        create(kafka, "through-kafka")
        create(ours, "through-ours")
        for broker in (kafka, ours):
            eventually(lambda broker=broker: {"through-kafka", "through-ours"} <= topics(broker))
        status = describe_status(kafka)
        assert status == {
            **describe_status(ours),
            **{name: status[name] for name in ("HighWatermark", "MaxFollowerLagTimeMs")},
        }
        assert status["MaxFollowerLag"] == "0"
        cluster.leader().kill()
        create(kafka, "after-the-leader")
        eventually(lambda: "after-the-leader" in topics(ours))
        kafka.stop()
        kafka.start()
        kafka.wait_ready()
        create(kafka, "after-a-restart")


def test_kafka_controllers_with_a_fenceline_broker(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, ["kafka:controller"] * 3 + ["broker"]) as cluster:
        cluster.wait_ready()
        broker = cluster.node(4)
        create(broker, "first")
        cluster.leader().kill()
        create(broker, "second")
        eventually(lambda: {"first", "second"} <= topics(broker))
        assert broker.stop() == 0
        broker.start()
        broker.wait_ready()
        eventually(lambda: {"first", "second"} <= topics(broker))


@pytest.mark.parametrize(
    "kinds", [["controller"] * 2 + ["kafka:controller"], ["controller"] + ["kafka:controller"] * 2]
)
def test_one_voter_set_of_both(tmp_path: Path, kinds: list[str]) -> None:
    with MixedCluster(tmp_path, [*kinds, "broker"]) as cluster:
        cluster.wait_ready()
        kill_in_turn(cluster, cluster.node(4), 3)
        cluster.node(4).stop()
        check_logs(cluster.nodes[:3])


@pytest.mark.parametrize("kinds", [["controller", "kafka:controller"], ["kafka:controller", "controller"]])
def test_snapshots_are_fetched_from_the_other_kind(tmp_path: Path, kinds: list[str]) -> None:
    with MixedCluster(tmp_path, [*kinds, "broker"], voters=1, late=[2], settings=SMALL_SNAPSHOTS) as cluster:
        cluster.wait_ready()
        check_late_controller(cluster, cluster.node(3))


def test_static_voters_of_both(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, ["controller", "controller", "kafka:controller", "broker"], static=True) as cluster:
        cluster.wait_ready()
        kill_in_turn(cluster, cluster.node(4), 2)
        cluster.node(4).stop()
        check_logs(cluster.nodes[:3])
