"""The fast path between partitions and their encoded records gives the same results as the ordinary codec."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given

from fenceline.errors import FencelineError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.features import partition_record_version
from fenceline.metadata.image import EMPTY_IMAGE, LeaderRecoveryState, PartitionImage
from fenceline.metadata.partition_values import PartitionDecoder, PartitionEncoder, partition_key, partition_record
from fenceline.metadata.records import PartitionRecord, TopicRecord, UnknownRecord, decode_record, encode_record
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
