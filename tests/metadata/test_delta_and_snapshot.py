"""Images, deltas between them, and snapshots of them (controller.md C9, C10; snapshots.md N10, N41)."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from fenceline.errors import InternalError
from fenceline.metadata.changes import difference
from fenceline.metadata.delta import MetadataDelta, apply
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from fenceline.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from fenceline.metadata.security_records import ClientQuotaRecord, QuotaEntityPart, RemoveAccessControlEntryRecord
from fenceline.metadata.snapshot import image_of, image_records


class RandomHistory:
    """Random records that fit each other."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.image = EMPTY_IMAGE
        self.number = 0
        self.records: list[MetadataRecord] = [FeatureLevelRecord("metadata.version", 30)]

    def step(self) -> list[MetadataRecord]:
        image, rng = self.image, self.rng
        self.number += 1
        topics = list(image.topics_by_id.values())
        kind = rng.randrange(9)
        if kind <= 1 or not topics:
            topic = UUID(int=self.number)
            parts = [self._partition(topic, index) for index in range(rng.randint(1, 4))]
            rng.shuffle(parts)
            return [TopicRecord(f"t{self.number}", topic), ConfigRecord(2, f"t{self.number}", "a", "1"), *parts]
        topic_image = rng.choice(topics)
        index = rng.randrange(len(topic_image.partitions))
        match kind:
            case 2:
                return [RemoveTopicRecord(topic_image.id)]
            case 3:
                return [self._partition(topic_image.id, len(topic_image.partitions))]
            case 4 | 5:
                change = PartitionChangeRecord(
                    index,
                    topic_image.id,
                    isr=rng.choice([None, (), (1,), (2, 1)]),
                    leader=rng.choice([-2, -1, 1]),
                    eligible_leader_replicas=rng.choice([None, (), (3,)]),
                    last_known_elr=rng.choice([None, (), (1,)]),
                )
                return [change]
            case 6:
                return [ConfigRecord(4, rng.choice(["", "1"]), "k", rng.choice([None, "v", "w"]))]
            case 7:
                if 1 in image.brokers:
                    epoch = image.brokers[1].epoch
                    return [BrokerRegistrationChangeRecord(1, epoch, fenced=rng.choice([-1, 1]))]
                return [RegisterBrokerRecord(broker_id=1, broker_epoch=self.number, log_dirs=(UUID(int=500),))]
            case _:
                quota = ClientQuotaRecord(
                    (QuotaEntityPart("user", None),), "request_percentage", 1.5, rng.random() < 0.3
                )
                return [ProducerIdsRecord(1, 1, image.next_producer_id + 1000), quota]

    def _partition(self, topic: UUID, index: int) -> PartitionRecord:
        replicas = tuple(self.rng.sample([1, 2, 3], self.rng.randint(1, 3)))
        return PartitionRecord(
            index, topic, replicas, replicas, (), (), replicas[0], 0, 0, 0, (UUID(int=500),) * len(replicas)
        )


@pytest.mark.parametrize("seed", range(40))
def test_random_histories(seed: int) -> None:
    """A delta holds the differences; all records at once lead to the same image; a snapshot holds all of it."""
    history = RandomHistory(seed)
    everything: list[MetadataRecord] = []
    offset = -1
    pending = history.records
    for _ in range(60):
        before = history.image
        offset += len(pending)
        everything += pending
        history.image, delta = apply(before, pending, offset, 3)
        expected = difference(before, history.image)
        assert set(delta.changed_partitions) == set(expected.changed_partitions)
        assert set(delta.created_topics) == set(expected.created_topics)
        assert set(delta.deleted_topics) == set(expected.deleted_topics)
        assert set(delta.changed_configs) == set(expected.changed_configs)
        assert set(delta.changed_brokers) == set(expected.changed_brokers)
        assert set(delta.changed_features) == set(expected.changed_features)
        assert delta.producer_ids_changed == expected.producer_ids_changed
        pending = history.step()
    assert _at_once(everything, offset) == history.image
    assert image_of(image_records(history.image), offset, 3) == history.image
    values = [encode_record(record, 30) for record in image_records(history.image)]
    straight = MetadataDelta(EMPTY_IMAGE)
    for value in values:
        straight.replay_value(value)
    assert straight.build(offset, 3)[0] == history.image
    assert [encode_record(decode_record(value), 30) for value in values] == values


def _at_once(records: list[MetadataRecord], offset: int) -> MetadataImage:
    return apply(EMPTY_IMAGE, records, offset, 3)[0]


def test_a_topic_created_and_deleted_in_one_delta_never_existed() -> None:
    topic = UUID(int=1)
    image, delta = apply(EMPTY_IMAGE, [TopicRecord("t", topic), RemoveTopicRecord(topic)], 1, 1)
    assert image.topics_by_name == EMPTY_IMAGE.topics_by_name
    assert delta.is_empty


def test_a_name_reused_in_one_delta() -> None:
    first, second = UUID(int=1), UUID(int=2)
    before, _ = apply(EMPTY_IMAGE, [TopicRecord("t", first)], 0, 1)
    after, delta = apply(before, [RemoveTopicRecord(first), TopicRecord("t", second)], 2, 1)
    assert after.topics_by_name["t"].id == second
    assert set(after.topics_by_id) == {second}
    assert ([topic.id for topic in delta.deleted_topics], [topic.id for topic in delta.created_topics]) == (
        [first],
        [second],
    )


@pytest.mark.parametrize(
    "records",
    [
        [RemoveTopicRecord(UUID(int=1))],
        [PartitionRecord(0, UUID(int=1))],
        [TopicRecord("t", UUID(int=1)), TopicRecord("t", UUID(int=2))],
        [TopicRecord("t", UUID(int=1)), PartitionRecord(1, UUID(int=1))],
        [TopicRecord("t", UUID(int=1)), PartitionChangeRecord(0, UUID(int=1))],
        [BrokerRegistrationChangeRecord(1, 1, fenced=1)],
        [RegisterBrokerRecord(broker_id=1, broker_epoch=2), BrokerRegistrationChangeRecord(1, 1, fenced=1)],
        [ProducerIdsRecord(1, 1, 2000), ProducerIdsRecord(1, 1, 1000)],
        [RemoveAccessControlEntryRecord(UUID(int=1))],
        *(
            [TopicRecord("t", UUID(int=1)), PartitionRecord(0, UUID(int=1), leader_recovery_state=state)]
            for state in (-1, 2, 7)
        ),
        *(
            [
                TopicRecord("t", UUID(int=1)),
                PartitionRecord(0, UUID(int=1)),
                PartitionChangeRecord(0, UUID(int=1), leader_recovery_state=state),
            ]
            for state in (-2, 2, 7)
        ),
    ],
)
def test_inconsistent_records_are_an_internal_error(records: list[MetadataRecord]) -> None:
    """controller.md C10, C41, C42 (an ACL that does not exist); recovery.md V1 (no state but the two that exist)."""
    with pytest.raises(InternalError):
        apply(EMPTY_IMAGE, records, len(records), 1)


def test_leader_epochs() -> None:
    """C9: a named leader, even the same one, starts an epoch; every change increments the partition epoch."""
    topic = UUID(int=1)
    start = [
        TopicRecord("t", topic),
        PartitionRecord(0, topic, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0),
    ]
    image, _ = apply(EMPTY_IMAGE, start, 1, 1)
    image, _ = apply(image, [PartitionChangeRecord(0, topic, isr=(1,))], 2, 1)
    image, _ = apply(image, [PartitionChangeRecord(0, topic, leader=1)], 3, 1)
    partition = image.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 1, 2)


def test_partitions_stay_small() -> None:
    """docs/how-it-works.md "Cost": under 1.5 KB a partition."""
    import gc
    import tracemalloc

    def values() -> list[bytes]:
        made = []
        for number in range(1000):
            topic = UUID(int=number + 1)
            made.append(encode_record(TopicRecord(f"topic-{number}", topic), 30))
            for index in range(2):
                record = PartitionRecord(index, topic, (1, 2), (1, 2), (), (), 1, 0, 0, 0, (UUID(int=7), UUID(int=8)))
                made.append(encode_record(record, 30))
        return made

    encoded = values()
    gc.collect()
    tracemalloc.start()
    delta = MetadataDelta(EMPTY_IMAGE)
    for value in encoded:
        delta.replay_value(value)
    image, _ = delta.build(len(encoded), 1)
    del delta
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(image.topics_by_name) == 1000
    assert used / 2000 < 1500, f"{used / 2000:.0f} bytes a partition"
