"""The fast path between partitions and their encoded records gives the same results as the ordinary codec."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given

from fenceline.errors import FencelineError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.features import partition_record_version
from fenceline.metadata.image import EMPTY_IMAGE, LeaderRecoveryState, PartitionImage
from fenceline.metadata.partition_values import (
    PartitionDecoder,
    PartitionEncoder,
    encode_records,
    partition_key,
    partition_record,
)
from fenceline.metadata.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    UnknownRecord,
    decode_record,
    encode_record,
)
from fenceline.metadata.topics_delta import changed_partition
from tests.metadata.helpers import values_of

TOPIC = UUID(int=0xABCD)


def _partition(rng: Random) -> PartitionImage:
    replicas = tuple(rng.sample(range(5), rng.choice((1, 2, 3))))
    many = tuple(range(rng.choice((126, 127, 128)))) if rng.random() < 0.05 else replicas
    return PartitionImage(
        many,
        rng.choice((many, replicas[:1], ())),
        rng.choice((-1, replicas[0])),
        rng.randrange(1 << 31),
        rng.randrange(1 << 31),
        rng.choice(tuple(LeaderRecoveryState)),
        tuple(UUID(int=rng.choice((0, 7, 1 << 100))) for _ in many),
        rng.choice(((), replicas[-1:])),
        rng.choice(((), replicas[:1])),
        rng.choice(((), (9,))),
        rng.choice(((), (8, 9))),
    )


@pytest.mark.parametrize("metadata_version", [7, 17, 22, 23, 30])
def test_encoding(metadata_version: int) -> None:
    """K3: at every record version, on first use and again."""
    rng = Random(metadata_version)
    encoder = PartitionEncoder(metadata_version)
    for _ in range(3000):
        partition, index = _partition(rng), rng.randrange(1 << 31)
        expected = encode_record(partition_record(TOPIC, index, partition), metadata_version)
        assert encoder.encode(TOPIC, TOPIC.bytes, index, partition) == expected


def test_decoding() -> None:
    rng = Random(1)
    decoder, straight = PartitionDecoder(), PartitionDecoder()
    versions = set()
    for _ in range(5000):
        metadata_version = rng.choice((7, 17, 23, 30))
        versions.add(partition_record_version(metadata_version))
        index = rng.randrange(1 << 31)
        value = encode_record(partition_record(TOPIC, index, _partition(rng)), metadata_version)
        record = decode_record(value)
        assert isinstance(record, PartitionRecord)
        assert decoder.decode(value) == straight.image_of(record)
        assert partition_key(value) == (index, TOPIC.bytes)
    assert versions == {0, 1, 2}


@given(values_of(PartitionRecord))
def test_any_record(record: PartitionRecord) -> None:
    decoder = PartitionDecoder()
    try:
        value = encode_record(record, 30)
        expected = decoder.image_of(record)
    except (FencelineError, IndexError, AssertionError):
        return  # no partition has such a recovery state
    assert decoder.decode(value) == decoder.decode(value) == expected


def test_equal_tuples_are_one_object() -> None:
    """Keeps images small."""
    decoder = PartitionDecoder()
    first = decoder.decode(encode_record(PartitionRecord(0, TOPIC, (1, 2), (1, 2)), 30))
    other = decoder.decode(encode_record(PartitionRecord(1, TOPIC, (1, 2), (2,)), 30))
    assert first.replicas is first.isr is other.replicas


def test_malformed_bytes_are_rejected() -> None:
    """What the ordinary codec rejects is rejected, whatever was decoded before."""
    decoder = PartitionDecoder()
    value = encode_record(PartitionRecord(0, TOPIC, (1, 2), (1, 2), directories=(UUID(int=1), UUID(int=2))), 30)
    decoder.decode(value)
    for end in range(2, len(value)):
        with pytest.raises(FencelineError):
            decoder.decode(value[:end])
    with pytest.raises(UnknownRecord):
        decoder.decode(value[:2] + b"\x4d" + value[3:])
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(TopicRecord("t", TOPIC))
    with pytest.raises(FencelineError):
        delta.replay_value(value[:10])


def _change(rng: Random) -> PartitionChangeRecord:
    """Few distinct ones, as in a real log."""
    return PartitionChangeRecord(
        rng.randrange(1 << 31),
        UUID(int=rng.randrange(1 << 64)),
        rng.choice((None, (), (1,), (2, 1))),
        rng.choice((-2, -1, 1, 2)),
        rng.choice((None, (1, 2), (1, 2, 3))),
        leader_recovery_state=rng.choice((-1, 0, 1)),
        directories=rng.choice((None, (UUID(int=200), UUID(int=201)))),
        eligible_leader_replicas=rng.choice((None, (), (3,))),
        last_known_elr=rng.choice((None, (), (1,))),
    )


def _creation(rng: Random) -> PartitionRecord:
    """Few distinct ones, as in a real log."""
    return PartitionRecord(
        rng.randrange(1 << 31),
        UUID(int=rng.randrange(1 << 64)),
        rng.choice(((1,), (2, 1), (1, 2, 3))),
        rng.choice(((1,), (2, 1))),
        rng.choice(((), (3,))),
        rng.choice(((), (4,))),
        rng.choice((-1, 1, 2)),
        rng.choice((0, 1)),
        rng.choice((0, 7)),
        rng.choice((0, 7)),
        rng.choice(((), (UUID(int=200), UUID(int=201)))),
        rng.choice((None, (3,))),
        rng.choice((None, (1,))),
    )


@pytest.mark.parametrize("metadata_version", [7, 17, 23, 30])
def test_creations_are_encoded_and_replayed_as_by_the_ordinary_codec(metadata_version: int) -> None:
    """Whatever was encoded or replayed before."""
    rng, decoder = Random(metadata_version), PartitionDecoder()
    records = [_creation(rng) for _ in range(3000)]
    assert list(encode_records(records, metadata_version)) == [
        encode_record(each, metadata_version) for each in records
    ]
    for record in records:
        image = decoder.image_of(record)
        assert partition_record(record.topic_id, record.partition_id, image) == record
        assert decoder.image_of(replace(record, partition_id=0)) is image


@pytest.mark.parametrize("metadata_version", [7, 17, 23, 30])
def test_changes_are_encoded_as_by_the_ordinary_codec(metadata_version: int) -> None:
    """Whatever was encoded before."""
    rng = Random(metadata_version)
    records: list[MetadataRecord] = [_change(rng) for _ in range(2000)]
    records.insert(1000, TopicRecord("t", TOPIC))
    expected = [encode_record(record, metadata_version) for record in records]
    assert list(encode_records(records, metadata_version)) == expected


def test_changes_are_decoded_as_by_the_ordinary_codec() -> None:
    """All but topic and number, which `partition_key` returns."""
    rng, decoder = Random(3), PartitionDecoder()
    distinct = set()
    for _ in range(3000):
        value = encode_record(_change(rng), rng.choice((7, 17, 30)))
        record = decode_record(value)
        assert isinstance(record, PartitionChangeRecord)
        change = decoder.decode_change(value)
        assert partition_key(value) == (record.partition_id, record.topic_id.bytes)
        assert change.of_partition(record.topic_id, record.partition_id) == record
        distinct.add(id(change))
    assert len(distinct) < 1500, "equal changes share an object"


@given(values_of(PartitionChangeRecord))
def test_any_change(record: PartitionChangeRecord) -> None:
    try:
        value = encode_record(record, 30)
    except (FencelineError, IndexError, AssertionError):
        return
    again, decoder = record.of_partition(UUID(int=9), 3), PartitionDecoder()
    assert list(encode_records([record, again, record], 30)) == [value, encode_record(again, 30), value]
    first = decoder.decode_change(value)
    assert decoder.decode_change(encode_record(again, 30)) is first
    assert first.of_partition(record.topic_id, record.partition_id) == decode_record(value)


def test_replayed_values_and_records_lead_to_the_same_image() -> None:
    """The successor of a partition is remembered by identity: never that of another one, or of another change."""
    rng = Random(5)
    of_values, of_records = MetadataDelta(EMPTY_IMAGE), MetadataDelta(EMPTY_IMAGE)
    records: list[MetadataRecord] = [TopicRecord("t", TOPIC)]
    records += [PartitionRecord(index, TOPIC, (1, 2, 3), (1, 2, 3), leader=1, leader_epoch=0) for index in range(50)]
    for _ in range(3000):
        records.append(replace(_change(rng), topic_id=TOPIC, partition_id=rng.randrange(50)))
    for record in records:
        of_records.replay(record)
        of_values.replay_value(encode_record(record, 30))
    straight = [PartitionImage((1, 2, 3), (1, 2, 3), 1, 0, -1)] * 50
    for record in records:
        if isinstance(record, PartitionChangeRecord):
            straight[record.partition_id] = changed_partition(straight[record.partition_id], record)
    image, _ = of_values.build(len(records) - 1, 0)
    assert image == of_records.build(len(records) - 1, 0)[0]
    assert image.topics_by_name["t"].partitions == tuple(straight)


def test_malformed_changes_are_rejected() -> None:
    """What the ordinary codec rejects is rejected, whatever was decoded before."""
    decoder, value = PartitionDecoder(), encode_record(_change(Random(1)), 30)
    decoder.decode_change(value)
    for end in range(2, len(value)):
        with pytest.raises(FencelineError):
            decoder.decode_change(value[:end])
    delta = MetadataDelta(EMPTY_IMAGE)
    with pytest.raises(FencelineError):
        delta.replay_value(value[:10])
    with pytest.raises(FencelineError):
        delta.replay_value(value)  # of an unknown topic


def test_equal_partitions_are_one_object() -> None:
    """After changes, too."""
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(TopicRecord("t", TOPIC))
    for index in range(3):
        delta.replay_value(encode_record(PartitionRecord(index, TOPIC, (1, 2), (1, 2), leader=1), 30))
    for index in range(3):
        delta.replay_value(encode_record(PartitionChangeRecord(index, TOPIC, (2,), 2), 30))
    image, _ = delta.build(0, 0)
    assert len({id(each) for each in image.topics_by_name["t"].partitions}) == 1
