"""Partitions on several brokers, as processes: writes, leader changes, truncation, and equal logs afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.consumer import Consumer
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster
from fenceline.testing.waiting import eventually
from tests.node.replicated_topics import (
    bootstrap,
    create,
    evidence,
    in_sync,
    leader,
    log_bytes,
    partition,
    replicas_are_equal,
    write,
)

pytestmark = pytest.mark.timeout(300)
QUICK = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path_factory.mktemp("replicated"), [COMBINED] * 3, settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def three(cluster: MixedCluster) -> MixedCluster:
    """All three nodes run, whatever an earlier failed test left."""
    for node in cluster.nodes:
        if not node.is_running:
            node.start()
    cluster.wait_ready()
    cluster.wait_complete()
    return cluster


def read_all(cluster: MixedCluster, topic: str, count: int) -> list[str]:
    """The values of `count` records from the start, in the order of their offsets."""
    found: list[str] = []
    with Consumer(bootstrap(cluster), auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])

        def all_read() -> bool:
            found.extend((record.value or b"").decode() for record in consumer.poll(500))
            return len(found) >= count

        eventually(all_read, f"{count} records of {topic}")
    return found


def wait_for_later_epoch(cluster: MixedCluster, topic: str, epoch: int) -> None:
    """Brokers learn of an election one after the other, and the client may ask any of them."""
    eventually(lambda: partition(cluster, topic).leader_epoch > epoch, f"{topic}-0: an epoch after {epoch}")


def test_every_replica_has_every_byte(three: MixedCluster) -> None:
    create(three, "bytes")
    values = [f"value {number}" for number in range(500)]
    write(three, "bytes", values)
    replicas_are_equal(three.nodes, "bytes")
    assert read_all(three, "bytes", 500) == values


def test_leader_is_killed_and_no_acknowledged_record_is_lost(three: MixedCluster) -> None:
    """Each broker in turn; a restarted broker truncates its extra records, catches up, and is in sync again."""
    create(three, "killed")
    written: list[str] = []
    for turn in range(3):
        old = leader(three, "killed")
        epoch = partition(three, "killed").leader_epoch
        values = [f"turn {turn} value {number}" for number in range(50)]
        write(three, "killed", values)
        old.kill()
        wait_for_later_epoch(three, "killed", epoch)
        assert leader(three, "killed") is not old
        after = [f"turn {turn} after {number}" for number in range(50)]
        write(three, "killed", after)
        written += values + after
        old.start()
        old.wait_ready()
        in_sync(three, "killed", {1, 2, 3})
    replicas_are_equal(three.nodes, "killed")
    assert read_all(three, "killed", len(written)) == written


def test_too_few_in_sync_replicas_reject_acks_all(three: MixedCluster) -> None:
    """`epochs.md E42`: 19, and nothing is written."""
    create(three, "few", configs={"min.insync.replicas": "3"})
    write(three, "few", ["all there"])
    gone = next(node for node in three.nodes if node is not leader(three, "few"))
    gone.kill()
    try:
        in_sync(three, "few", {node.node_id for node in three.nodes if node is not gone})
        with pytest.raises(PeerError) as refused:
            write(three, "few", ["too few"], retries=0, enable_idempotence=False)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    finally:
        gone.start()
        gone.wait_ready()
    in_sync(three, "few", {1, 2, 3})
    write(three, "few", ["all there again"])
    assert read_all(three, "few", 2) == ["all there", "all there again"]


def test_unclean_election_reports_recovery_and_keeps_truncated_bytes(three: MixedCluster) -> None:
    """`recovery.md V11`, V37-V39: the replica that was not in sync leads alone and reports when it has recovered; the
    replica that returns later truncates the records that the new history does not have, and keeps them
    (docs/how-it-works.md \"Cuts\").
    """
    create(three, "unclean", replicas=2, configs={"unclean.leader.election.enable": "true"})
    write(three, "unclean", ["kept"])
    old = leader(three, "unclean")
    behind = three.node(next(each for each in partition(three, "unclean").replicas if each != old.node_id))
    replicas_are_equal([old, behind], "unclean")
    behind.kill()
    in_sync(three, "unclean", {old.node_id})
    write(three, "unclean", ["lost"])
    lost = log_bytes(old, "unclean")[len(log_bytes(behind, "unclean")) :]
    old.kill()
    behind.start()
    behind.wait_ready()
    eventually(lambda: leader(three, "unclean") is behind)
    write(three, "unclean", ["new"])
    assert read_all(three, "unclean", 2) == ["kept", "new"]
    old.start()
    old.wait_ready()
    in_sync(three, "unclean", {old.node_id, behind.node_id})
    replicas_are_equal([old, behind], "unclean")
    assert lost
    assert evidence(old, "unclean").endswith(lost)


def test_partition_without_another_replica_recovers_alone(three: MixedCluster) -> None:
    """`gaps.md G19`: metadata do not stay RECOVERING forever."""
    create(three, "alone", replicas=1, configs={"unclean.leader.election.enable": "true"})
    write(three, "alone", ["before"])
    owner = leader(three, "alone")
    owner.kill()
    owner.start()
    owner.wait_ready()
    write(three, "alone", ["after"])
    assert read_all(three, "alone", 2) == ["before", "after"]


def test_end_offsets_are_returned_by_leaders_only(three: MixedCluster) -> None:
    create(three, "ends")
    write(three, "ends", ["one", "two"])
    with Admin(bootstrap(three)) as admin:
        found = admin.list_offsets({("ends", 0): -1})
    assert found["ends", 0].offset == 2
