"""Elections and reassignments, of Fenceline's brokers and of Apache Kafka's; members removed from groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fenceline.client import Admin, Consumer, TopicPartition
from fenceline.client.admin.leadership import ElectionKind
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.fault_state import BROKERS, LinkFault
from fenceline.testing.waiting import eventually


def test_a_partition_that_needs_no_election_is_left_as_it_is(
    bootstrap: str, admin: Admin, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    before = admin.metadata([topic]).topics[topic].partitions
    admin.elect_leaders([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    admin.elect_leaders(None)
    admin.elect_leaders([TopicPartition(topic, 0)], ElectionKind.UNCLEAN)
    assert admin.metadata([topic]).topics[topic].partitions == before


def test_what_cannot_be_elected_or_moved_says_why(
    bootstrap: str, admin: Admin, make_topic: Callable[[int], str]
) -> None:
    with pytest.raises(PeerError, match="nothing-0") as error:
        admin.elect_leaders([TopicPartition("nothing", 0)])
    assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = make_topic(1)
    with pytest.raises(PeerError, match=f"{topic}-0") as error:
        admin.reassign_partitions({TopicPartition(topic, 0): [4711]})
    assert error.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(PeerError) as error:
        admin.reassign_partitions({TopicPartition(topic, 0): None})
    assert error.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert TopicPartition(topic, 0) not in admin.list_reassignments()


def test_a_partition_moves_and_its_leader_is_elected() -> None:
    with LabCluster(3) as cluster:
        admin = cluster.admin
        topic = cluster.create_topic(assignments={0: [1, 2]})
        tp = TopicPartition(topic, 0)
        cluster.produce(topic, 10)
        # Node 3 fetches nothing from the leader, and answers clients and controllers.
        hold = LinkFault(0, peer="nodes", listener=BROKERS, holds_incoming=True, holds_outgoing=True)
        with cluster.faults.links("no replication", 3, [hold]):
            admin.reassign_partitions({tp: [3, 2]})
            found = admin.list_reassignments()[tp]
            assert (found.adding, found.removing) == ((3,), (1,))
        eventually(lambda: tp not in admin.list_reassignments(), wait_s=30)
        admin.elect_leaders([tp])
        eventually(lambda: cluster.leader(topic) == 3, wait_s=30)
        assert [record.offset for record in cluster.read(topic)] == list(range(10))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_removed_members_join_again(
    bootstrap: str, admin: Admin, make_topic: Callable[[int], str], unique: Callable[[str], str], protocol: str
) -> None:
    topic, group = make_topic(1), unique("group")
    settings = {"group.id": group, "group.protocol": protocol}
    with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(50) == [] and len(consumer.assignment()) == 1, wait_s=60)
        (member,) = admin.describe_groups([group])[group].members
        assert admin.remove_members(group) == [member.member_id]
        assert not admin.describe_groups([group])[group].members
        eventually(
            lambda: consumer.poll(50) == [] and len(admin.describe_groups([group])[group].members) == 1, wait_s=60
        )
        eventually(lambda: consumer.poll(50) == [] and len(consumer.assignment()) == 1, wait_s=60)
    assert admin.remove_members(group) == []
