"""Records of a snapshot that were deleted or modified since (KIP-630 \"When to Snapshot\"; gaps.md G23)."""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.metadata.changed_records import ChangedRecords, changed_records, record_count
from fenceline.metadata.changes import difference
from fenceline.metadata.delta import apply
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.node_records import RegisterBrokerRecord, UnregisterBrokerRecord
from fenceline.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from fenceline.metadata.security_records import ClientQuotaRecord, QuotaEntityPart
from fenceline.metadata.snapshot import image_records
from tests.metadata.test_delta_and_snapshot import RandomHistory

TOPIC = UUID(int=1)
DIRECTORY = UUID(int=7)
QUOTA = (QuotaEntityPart("user", "u"),)


def _partition(index: int, topic: UUID = TOPIC) -> PartitionRecord:
    return PartitionRecord(index, topic, (1,), (1,), (), (), 1, 0, 0, 0, (DIRECTORY,))


STATE: list[MetadataRecord] = [
    FeatureLevelRecord("metadata.version", 30),
    RegisterBrokerRecord(broker_id=1, broker_epoch=4, log_dirs=(DIRECTORY,)),
    TopicRecord("t", TOPIC),
    _partition(0),
    _partition(1),
    ConfigRecord(2, "t", "retention.ms", "1"),
    ConfigRecord(2, "t", "segment.ms", "1"),
    ProducerIdsRecord(1, 4, 1000),
    ClientQuotaRecord(QUOTA, "producer_byte_rate", 1.0, False),
]


@pytest.fixture
def image() -> MetadataImage:
    return apply(EMPTY_IMAGE, STATE, len(STATE) - 1, 1)[0]


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ([PartitionChangeRecord(0, TOPIC, leader=1)], 1),
        ([RemoveTopicRecord(TOPIC)], 5),
        ([ConfigRecord(2, "t", "retention.ms", "2")], 1),
        ([ConfigRecord(2, "t", "retention.ms", None)], 1),
        ([ConfigRecord(2, "t", "retention.ms", "1")], 0),
        ([ConfigRecord(2, "t", "cleanup.policy", "compact")], 0),
        ([TopicRecord("new", UUID(int=2)), _partition(0, UUID(int=2))], 0),
        ([_partition(2)], 0),
        ([UnregisterBrokerRecord(1, 4)], 1),
        ([RegisterBrokerRecord(broker_id=2, broker_epoch=9)], 0),
        ([ProducerIdsRecord(1, 4, 2000)], 1),
        ([FeatureLevelRecord("metadata.version", 31)], 1),
        ([FeatureLevelRecord("group.version", 1)], 0),
        ([ClientQuotaRecord(QUOTA, "producer_byte_rate", 2.0, False)], 1),
        ([ClientQuotaRecord(QUOTA, "consumer_byte_rate", 2.0, False)], 0),
        ([ClientQuotaRecord(QUOTA, "producer_byte_rate", 0.0, True)], 1),
    ],
)
def test_deleted_and_modified_records_count_and_new_ones_do_not(
    image: MetadataImage, records: list[MetadataRecord], count: int
) -> None:
    after, delta = apply(image, records, image.offset + len(records), 1)
    found = list(changed_records(image, after, delta))
    assert len(found) == len(set(found)) == count


def test_stepwise_counting_equals_the_whole_difference() -> None:
    """Whatever a later step does to a record: records of the snapshot that changed are counted, by every way."""
    for seed in range(40):
        history = RandomHistory(seed)
        for _ in range(30):
            history.image, _ = apply(history.image, history.step(), history.image.offset + 1, 1)
        before = history.image
        assert record_count(before) == len(list(image_records(before)))
        changed = ChangedRecords(before)
        changed.restart(1 << 30)
        for _ in range(30):
            history.image, delta = apply(history.image, history.step(), history.image.offset + 1, 1)
            changed.apply_delta(history.image, delta)
        whole = set(changed_records(before, history.image, difference(before, history.image)))
        assert whole <= changed.restart(0), seed


def test_counting_stops_at_the_limit(image: MetadataImage) -> None:
    changed = ChangedRecords(image)
    changed.restart(1)
    for value in range(2, 6):
        before = image
        image, delta = apply(before, [ConfigRecord(2, "t", "segment.ms", str(value))], before.offset + 1, 1)
        changed.apply_delta(image, delta)
    assert changed.count == 1
    image, delta = apply(image, [RemoveTopicRecord(TOPIC)], image.offset + 1, 1)
    changed.apply_delta(image, delta)
    assert changed.count == 1, "the limit is reached"
