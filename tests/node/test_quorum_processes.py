"""Several nodes as processes on one machine: elections, topics, replication, agreement, and survival of kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.producer.producer import Producer
from fenceline.errors import FencelineError, PeerError
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ALTERED = ("topic", "altered")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path_factory.mktemp("three"), ["broker,controller"] * 3) as cluster:
        cluster.wait_ready()
        yield cluster


def create(node: MixedNode, topic: str) -> None:
    """Through `node`, retried as a client does during an election."""

    def attempt() -> bool:
        with Admin(node.bootstrap) as admin:
            try:
                admin.create_topics([NewTopic(topic, 3, 1)], timeout_ms=20_000)
            except PeerError as error:
                if "TOPIC_ALREADY_EXISTS" not in f"{error} {error.code.name}":
                    raise AssertionError(str(error)) from error
        return True

    eventually(attempt)


def topics(node: MixedNode) -> set[str]:
    with Admin(node.bootstrap) as admin:
        return set(admin.metadata().topics)


def test_topics_are_created_through_any_node_and_all_agree(three: MixedCluster) -> None:
    for node in three.nodes:
        create(node, f"through-{node.node_id}")
    wanted = {f"through-{node.node_id}" for node in three.nodes}
    for node in three.nodes:
        eventually(lambda node=node: wanted <= topics(node))


def test_a_rejection_of_the_controller_is_returned_by_any_node(three: MixedCluster) -> None:
    create(three.nodes[0], "there")
    for node in three.nodes:
        with Admin(node.bootstrap) as admin, pytest.raises(PeerError) as refused:
            admin.create_topics([NewTopic("there", 1, 1)])
        assert "exists" in str(refused.value)


def test_groups_work_on_any_node(three: MixedCluster) -> None:
    """The offsets topic is created on first use and replicated like any other."""
    create(three.nodes[0], "read")
    with Producer(three.nodes[0].bootstrap) as producer:
        for number in range(30):
            producer.send("read", str(number).encode())
        producer.flush()
    with Consumer(three.nodes[1].bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["read"])
        found: set[bytes | None] = set()

        def all_read() -> bool:
            found.update(record.value for record in consumer.poll(500))
            return len(found) == 30

        eventually(all_read)
        consumer.commit()


def test_configs_are_altered_through_any_node(three: MixedCluster) -> None:
    create(three.nodes[0], "altered")
    for node in three.nodes:
        value = str(1000 * node.node_id)
        with Admin(node.bootstrap) as admin:
            admin.alter_configs({ALTERED: {"retention.ms": value}})
        for other in three.nodes:

            def reported(other: MixedNode = other, value: str = value) -> bool:
                with Admin(other.bootstrap) as admin:
                    return admin.describe_configs([ALTERED])[ALTERED]["retention.ms"].value == value

            eventually(reported)


def test_all_logs_become_equal(three: MixedCluster) -> None:
    """DescribeQuorum: all voters have all records."""

    def look() -> bool:
        described = three.leader().describe_quorum()
        ends = {each.log_end_offset for each in described.current_voters}
        return len(described.current_voters) == 3 and ends == {described.high_watermark}

    eventually(look)


def test_a_killed_leader_is_replaced_and_rejoins(three: MixedCluster) -> None:
    for turn in range(2):
        old = three.leader()
        epoch = old.describe_quorum().leader_epoch
        old.kill()
        new = three.leader(but=old.node_id)
        assert new.describe_quorum().leader_epoch > epoch
        others = [node for node in three.nodes if node is not old]
        for node in others:
            create(node, f"turn-{turn}-{node.node_id}")
        old.start()
        old.wait_ready()
        wanted = {f"turn-{turn}-{node.node_id}" for node in others}
        eventually(lambda old=old, wanted=wanted: wanted <= topics(old))


def test_a_frozen_leader_is_replaced_and_then_follows(three: MixedCluster) -> None:
    """It is silent, so its followers wait for the fetch timeout; requests sent to it do not wait longer."""
    old = three.leader()
    os.kill(old.pid, signal.SIGSTOP)
    try:
        other = next(node for node in three.nodes if node is not old)
        create(other, "while-frozen")
    finally:
        os.kill(old.pid, signal.SIGCONT)
    eventually(lambda: "while-frozen" in topics(old))
    new = three.leader()
    eventually(lambda: new.describe_quorum().high_watermark == old_end(new, old))


def old_end(leader: MixedNode, node: MixedNode) -> int:
    described = leader.describe_quorum()
    found: int = next(each.log_end_offset for each in described.current_voters if each.replica_id == node.node_id)
    return found


def test_without_a_majority_topics_cannot_change_but_records_are_served(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, ["broker,controller"] * 3) as cluster:
        cluster.wait_ready()
        node = cluster.node(1)
        with Admin(node.bootstrap) as admin:
            admin.create_topics([NewTopic("here", assignments={0: [1]})])
        # A node that does not know the topic yet would ask the controller to create it.
        eventually(lambda: "here" in topics(node))
        cluster.node(2).kill()
        cluster.node(3).kill()
        # An idempotent producer would need an id from the controller first, as with Kafka.
        with Producer(node.bootstrap, acks="all", enable_idempotence=False) as producer:
            assert producer.send("here", b"still").result(30).offset == 0
        with Admin(node.bootstrap) as admin, pytest.raises(FencelineError):
            admin.create_topics([NewTopic("not-now", 1, 1)], timeout_ms=3000)
        for gone in (cluster.node(2), cluster.node(3)):
            gone.start()
        create(node, "again")
        assert node.is_running


def test_separate_controllers_and_brokers(tmp_path: Path) -> None:
    kinds = ["controller", "controller", "controller", "broker"]
    with MixedCluster(tmp_path, kinds) as cluster:
        cluster.wait_ready()
        broker = cluster.node(4)
        create(broker, "first")
        cluster.leader().kill()
        create(broker, "second")
        eventually(lambda: {"first", "second"} <= topics(broker))
        described = cluster.leader().describe_quorum()
        assert [each.replica_id for each in described.observers] == [4]
        assert broker.stop() == 0


def test_a_controller_joins_automatically(tmp_path: Path) -> None:
    """K16, K39: a controller formatted without initial controllers catches up, then becomes a voter."""
    settings = {"controller.quorum.auto.join.enable": "true"}
    with MixedCluster(tmp_path, ["broker,controller"] * 3, voters=1, settings=settings) as cluster:
        cluster.wait_ready()
        create(cluster.node(2), "t")

        def all_vote() -> bool:
            return {each.replica_id for each in cluster.leader().describe_quorum().current_voters} == {1, 2, 3}

        eventually(all_vote)
        cluster.node(1).kill()
        create(cluster.node(3), "without the first".replace(" ", "-"))


SMALL_SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "controller.quorum.auto.join.enable": "true",
    "controller.quorum.fetch.snapshot.max.bytes": "1000",
}
"""A late node fetches a snapshot, in several chunks, and then the later records."""


def check_late_controller(cluster: MixedCluster, broker: MixedNode) -> None:
    """Node 2 starts when there is a snapshot: it catches up by it, becomes a voter, and leads when it is alone."""
    leader = cluster.node(1)

    def snapshots(node: MixedNode) -> list[int]:
        names = (node.log_dir / "__cluster_metadata-0").glob("*.checkpoint")
        return sorted(int(path.name.split("-")[0]) for path in names)

    for number in range(30):
        create(broker, f"before-{number}")
    eventually(lambda: snapshots(leader)[-1] > 0)
    late = cluster.node(2)
    late.start()
    late.wait_ready()

    def votes() -> bool:
        described = leader.describe_quorum()
        ends = {each.replica_id: each.log_end_offset for each in described.current_voters}
        return set(ends) == {1, 2} and ends[1] == ends[2]

    eventually(votes, wait_s=120)
    assert snapshots(late)[-1] > 0
    first_log = min(int(path.stem) for path in (late.log_dir / "__cluster_metadata-0").glob("*.log"))
    assert first_log in snapshots(late), "its log begins where the snapshot ends"
    create(broker, "after")


def test_a_late_controller_catches_up_by_a_snapshot(tmp_path: Path) -> None:
    kinds = ["controller", "controller", "broker"]
    with MixedCluster(tmp_path, kinds, voters=1, late=[2], settings=SMALL_SNAPSHOTS) as cluster:
        cluster.wait_ready()
        check_late_controller(cluster, cluster.node(3))
        eventually(lambda: {"before-29", "after"} <= topics(cluster.node(3)))


def test_static_voters(tmp_path: Path) -> None:
    """Q39: kraft.version 0, no directory ids."""
    with MixedCluster(tmp_path, ["controller"] * 3 + ["broker"], static=True) as cluster:
        cluster.wait_ready()
        broker = cluster.node(4)
        create(broker, "first")
        cluster.leader().kill()
        create(broker, "second")
        eventually(lambda: {"first", "second"} <= topics(broker))
