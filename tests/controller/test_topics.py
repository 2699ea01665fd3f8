"""Creating and deleting topics, adding partitions (controller.md C21-C25, since_4_0.md K27).

The codes and messages here come from a running Apache Kafka 4.3.1; `test_against_kafka.py` checks them again.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.controller.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    TopicReference,
    TopicToCreate,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import ConfigResourceType
from fenceline.metadata.records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from tests.controller.helpers import Cluster


def test_records_come_as_topic_configs_partitions() -> None:
    """C22; recovery.md V5: the leader has recovered, epochs begin at 0."""
    cluster = Cluster(1)
    topic = TopicToCreate("t", 2, 1, configs=(("retention.ms", "1000"),))
    answer = cluster.ask(CreateTopics((topic,))).topics[0]
    assert [type(record) for record in cluster.records] == [TopicRecord, ConfigRecord, PartitionRecord, PartitionRecord]
    assert cluster.records[2] == PartitionRecord(
        0, answer.topic_id, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(UUID(int=10_001),)
    )
    assert (answer.num_partitions, answer.replication_factor, answer.configs) == (2, 1, {"retention.ms": "1000"})


def test_validate_only_checks_and_writes_nothing() -> None:
    cluster = Cluster(1)
    answer = cluster.ask(CreateTopics((TopicToCreate("t", 1, 1), TopicToCreate("a b", 1, 1)), validate_only=True))
    assert cluster.records == []
    assert [topic.outcome.code for topic in answer.topics] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_one_bad_topic_does_not_affect_the_others() -> None:
    cluster = Cluster(1)
    cluster.ask(CreateTopics((TopicToCreate("good", 1, 1), TopicToCreate("a b", 1, 1))))
    assert list(cluster.image.topics_by_name) == ["good"]


def test_names_that_differ_only_in_a_dot_collide() -> None:
    """C21; ReplicationControlManagerTest.testTopicNameCollision: until the other is deleted."""
    cluster = Cluster(1)
    invalid, exists = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_ALREADY_EXISTS

    def codes(*names: str) -> list[ErrorCode]:
        answer = cluster.ask(CreateTopics(tuple(TopicToCreate(name, 1, 1) for name in names)))
        return [topic.outcome.code for topic in answer.topics]

    assert codes("a.b_c", "a-b_c") == [ErrorCode.NONE] * 2
    assert codes("a_b_c", "a.b.c", "a.b_c", "ab_c") == [invalid, invalid, exists, ErrorCode.NONE]
    cluster.ask(DeleteTopics((TopicReference("a.b_c"),)))
    assert codes("a_b.c") == [ErrorCode.NONE]


def test_defaults_apply() -> None:
    cluster = Cluster(2, default_partition_count=3, default_replication_factor=2)
    answer = cluster.ask(CreateTopics((TopicToCreate("t"),))).topics[0]
    assert (answer.num_partitions, answer.replication_factor) == (3, 2)


def test_more_than_ten_thousand_partitions_fail_the_request() -> None:
    cluster = Cluster(1)
    for request in (
        CreateTopics((TopicToCreate("t", 10_001, 1),)),
        CreateTopics((TopicToCreate("t", 6000, 1), TopicToCreate("u", 6000, 1))),
    ):
        with pytest.raises(PeerError) as error:
            cluster.ask(request)
        assert error.value.code is ErrorCode.POLICY_VIOLATION
        assert error.value.message == "Excessively large number of partitions per request."
    assert not cluster.image.topics_by_name


def test_a_recreated_topic_has_a_new_id_and_starts_at_epoch_0() -> None:
    cluster = Cluster(1)
    first = cluster.create("t", (1,), configs={"retention.ms": "1"})
    cluster.ask(DeleteTopics((TopicReference("t"),)))
    assert cluster.records == [RemoveTopicRecord(first)]
    assert not cluster.image.config(ConfigResourceType.TOPIC, "t")
    assert cluster.create("t", (1,)) != first
    assert cluster.partition("t").leader_epoch == 0


def test_replicas_on_fenced_brokers_are_not_in_sync() -> None:
    cluster = Cluster(2)
    cluster.register(3)
    cluster.create("t", (3, 2, 1))
    assert (cluster.partition("t").isr, cluster.partition("t").leader) == ((2, 1), 2)


def test_no_active_broker() -> None:
    cluster = Cluster(0)
    cluster.register(1)
    answer = cluster.ask(CreateTopics((TopicToCreate("auto", 1, 1), TopicToCreate("manual", assignments=((0, (1,)),)))))
    assert [topic.outcome.code for topic in answer.topics] == [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]


def test_deletion_can_be_disabled() -> None:
    cluster = Cluster(1, delete_topics_enabled=False)
    cluster.create("t", (1,))
    answer = cluster.ask(DeleteTopics((TopicReference("t"),)))
    assert answer.topics[0].outcome.code is ErrorCode.TOPIC_DELETION_DISABLED
    assert cluster.records == []


def test_name_and_id_of_the_same_topic() -> None:
    cluster = Cluster(1)
    topic_id = cluster.create("t", (1,))
    answer = cluster.ask(DeleteTopics((TopicReference("t"), TopicReference(id=topic_id))))
    assert [topic.outcome.code for topic in answer.topics] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_new_partitions_are_appended() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.ask(CreatePartitions((NewPartitions("t", 3, ((2, 1), (1, 2))),)))
    assert [partition.leader for partition in cluster.image.topics_by_name["t"].partitions] == [1, 2, 1]
    changed = cluster.deltas[-1].changed_partitions
    assert [(change.index, change.before) for change in changed] == [(1, None), (2, None)]
    cluster.ask(CreatePartitions((NewPartitions("t", 5),), validate_only=True))
    assert cluster.records == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewPartitions("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 4, ((1, 2),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, ((1, 9),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_rejected_partitions(wanted: NewPartitions, code: ErrorCode) -> None:
    """C24; the others of the request are added."""
    cluster = Cluster(2)
    cluster.create("t", (1, 2), (1, 2))
    cluster.create("other", (1, 2))
    answer = cluster.ask(CreatePartitions((wanted, NewPartitions("other", 2))))
    assert [each.outcome.code for each in answer.topics] == [code, ErrorCode.NONE]
    assert len(cluster.image.topics_by_name["t"].partitions) == 2
    assert len(cluster.image.topics_by_name["other"].partitions) == 2


def test_creating_one_topic_shares_all_others() -> None:
    """A change costs only what it changes (docs/how-it-works.md \"Cost\")."""
    cluster = Cluster(1)
    for number in range(50):
        cluster.create(f"t{number}", (1,))
    before = cluster.image
    cluster.create("new", (1,))
    after = cluster.image
    assert all(after.topics_by_name[name] is topic for name, topic in before.topics_by_name.items())
    assert after.brokers is before.brokers
    assert after.configs is before.configs
    one, other = after.partition("new", 0), after.partition("t1", 0)
    assert one is not None
    assert other is not None
    assert one.replicas is one.isr


class FewMutations:
    """Lets a number of changes pass."""

    def __init__(self, changes: int = 100) -> None:
        self.asked: list[int] = []
        self._changes = changes

    def takes(self, partitions: int) -> bool:
        self.asked.append(partitions)
        return len(self.asked) <= self._changes


def test_a_change_costs_its_partitions_once_all_else_is_right() -> None:
    """security.md A61, KIP-599: as ReplicationControlManager does."""
    cluster = Cluster(2, default_partition_count=4)
    cluster.create("old", (1,), (1,), (1,))
    few = FewMutations()
    assigned = TopicToCreate("assigned", assignments=((0, (1,)), (1, (2,))))
    wanted = (TopicToCreate("old", 9, 1), TopicToCreate("a b", 9, 1), TopicToCreate("far", 9, 5))
    cluster.ask(CreateTopics((*wanted, TopicToCreate("t", 5, 2), TopicToCreate("d"), assigned), mutations=few))
    assert few.asked == [5, 4, 2]
    cluster.ask(CreatePartitions((NewPartitions("none", 9), NewPartitions("old", 5)), mutations=few))
    assert few.asked == [5, 4, 2, 2]
    cluster.ask(DeleteTopics((TopicReference("none"), TopicReference("old")), mutations=few))
    assert few.asked == [5, 4, 2, 2, 5]


def test_changes_over_the_quota_are_refused() -> None:
    cluster = Cluster(1)
    few = FewMutations(1)
    created = cluster.ask(CreateTopics((TopicToCreate("a", 1, 1), TopicToCreate("b", 1, 1)), mutations=few))
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert [each.outcome.code for each in created.topics] == [ErrorCode.NONE, refused]
    assert created.topics[1].outcome.message == "The throttling quota has been exceeded."
    grown = cluster.ask(CreatePartitions((NewPartitions("a", 2),), mutations=few))
    deleted = cluster.ask(DeleteTopics((TopicReference("a"),), mutations=few))
    assert grown.topics[0].outcome.code is deleted.topics[0].outcome.code is refused
    assert len(cluster.image.topics_by_name["a"].partitions) == 1
