"""Replay of whole batches gives the same state as record by record, for any content of the log."""

from __future__ import annotations

from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest

from fenceline.errors import InternalError
from fenceline.groups import records
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.classic.records import group_tombstone, new_group_record
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import KeyValue, Now
from fenceline.groups.offsets import records as offset_records
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.groups.offsets.packed import are_packed, is_not_below, is_packed, pack, unpack
from fenceline.groups.offsets.records import OffsetCommitKey, OffsetCommitValue, offset_record, offset_tombstone
from fenceline.groups.replay import _MANY
from fenceline.groups.settings import GroupSettings
from fenceline.groups.shard import Shard
from fenceline.ids import ZERO_UUID
from tests.groups.helpers import START_MS

NOW = Now(START_MS, 0)
IDS = (ZERO_UUID, UUID(int=5), UUID(int=6))


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None


def _shard() -> Shard:
    shard, _ = GroupCoordinator(GroupSettings(), Random(1), 1).begin_load(0, 1, NOW)
    assert shard is not None
    return shard


def _offset(rng: Random) -> KeyValue:
    slot = OffsetSlot(f"g{rng.randrange(4)}", f"topic-{rng.randrange(3)}", rng.randrange(4))
    if rng.random() < 0.15:
        return offset_tombstone(slot)
    return offset_record(
        slot,
        StoredOffset(
            rng.choice((rng.randrange(50), rng.randrange(2**62))),
            rng.randrange(-1, 5),
            rng.choice(("", "", "", "m")),
            START_MS + rng.randrange(1000),
            rng.choice((-1, -1, -1, 5)),
            rng.choice(IDS),
        ),
    )


def _old_offset(rng: Random) -> KeyValue:
    """As before Kafka 0.9: another key for the same slot."""
    key, value = _offset(rng)
    return b"\x00\x00" + key[2:], value


def _group(rng: Random) -> KeyValue:
    name = f"g{rng.randrange(4)}"
    if rng.random() < 0.5:
        return group_tombstone(name)
    return new_group_record(ClassicGroup(name, START_MS))


def _foreign_group(rng: Random) -> KeyValue:
    key, _ = group_tombstone(f"g{rng.randrange(4)}")
    return rng.choice((b"\x00\x03", b"\x00\x0b")) + key[2:], rng.choice((None, b"\x00\x00\x00\x00\x00\x01\x00"))


def _state(shard: Shard) -> object:
    return (
        sorted(shard.state.classic),
        sorted(shard.state.foreign),
        sorted(shard.state.consumer),
        {
            slot: value._replace(order=0)
            for group_id in shard.state.offsets.group_ids
            for slot, value in shard.state.offsets.slots(group_id)
        },
    )


@pytest.mark.parametrize("seed", range(60))
def test_batch_replay_equals_record_by_record_replay(seed: int) -> None:
    rng = Random(seed)
    kinds = [_offset] * 12 + [_old_offset, _group, _foreign_group]
    one_by_one, by_batches = _shard(), _shard()
    replay = by_batches.replaying()
    for _ in range(60):
        if rng.random() < 0.1:
            producer, committed = rng.randrange(2), rng.random() < 0.5
            one_by_one.replay_marker(producer, committed=committed)
            by_batches.replay_marker(producer, committed=committed)
            continue
        transaction_of = rng.randrange(2) if rng.random() < 0.15 else None
        kind = _offset if transaction_of is not None else None
        batch = [_Record(*(kind or rng.choice(kinds))(rng)) for _ in range(rng.randrange(1, 12))]
        for record in batch:
            one_by_one.replay(record.key, record.value, NOW, transaction_of)
        replay.batch(batch, NOW, transaction_of)
        assert _state(by_batches) == _state(one_by_one)


def _commit(rng: Random) -> list[KeyValue]:
    """A commit of several partitions of one topic, nearly all in one format, sometimes with a different record."""
    group, topic, topic_id = f"g{rng.randrange(2)}", f"topic-{rng.randrange(2)}", rng.choice(IDS)
    first = rng.choice((0, 0, 0, 1_000))
    slots = [OffsetSlot(group, topic, first + index) for index in rng.sample(range(_MANY), _MANY)]
    if rng.random() < 0.3:
        return [offset_tombstone(slot) for slot in slots]
    batch = [
        offset_record(slot, StoredOffset(rng.randrange(50), rng.randrange(4), "", START_MS, -1, topic_id))
        for slot in slots
    ]
    if rng.random() < 0.3:
        return [(b"\x00\x00" + key[2:], value) for key, value in batch]
    if rng.random() < 0.5:
        others = (batch[0], (batch[1][0], batch[0][1]), (batch[1][0], None), _old_offset(rng), _group(rng))
        batch.insert(rng.randrange(len(batch)), rng.choice(others))
    return batch


@pytest.mark.parametrize("seed", range(60))
def test_batch_replay_of_many_commits_equals_record_by_record_replay(seed: int) -> None:
    rng = Random(seed)
    one_by_one, by_batches = _shard(), _shard()
    replay = by_batches.replaying()
    for _ in range(40):
        batch = [_Record(*each) for each in _commit(rng)]
        for record in batch:
            one_by_one.replay(record.key, record.value, NOW)
        replay.batch(batch, NOW)
        assert _state(by_batches) == _state(one_by_one)


def test_undecodable_key_among_many_stops_the_load() -> None:
    pairs = [offset_record(OffsetSlot("g", "t", index), StoredOffset(1, 2, "", 3)) for index in range(_MANY)]
    broken = b"\x00\x01\x00\x09" + pairs[0][0][4:]
    for batch in ([(broken, pairs[0][1]), *pairs], [*pairs, (broken, pairs[0][1])], [(broken, pairs[0][1])] * _MANY):
        with pytest.raises(InternalError, match="cannot be read"):
            _shard().replaying().batch([_Record(*each) for each in batch], NOW)


def test_values_are_packed_only_if_each_of_them_is() -> None:
    plain = [pack(offset, 2, 3, ZERO_UUID) for offset in range(20)]
    with_id = [pack(offset, 2, 3, IDS[1]) for offset in range(20)]
    assert are_packed(plain)
    assert are_packed(with_id)
    assert not are_packed(plain + with_id)
    for values in (plain, with_id):
        for at in range(len(values[0])):
            other = values[7][:at] + bytes((values[7][at] ^ 1,)) + values[7][at + 1 :]
            assert are_packed([*values, other]) is is_packed(other)


@pytest.mark.parametrize("topic_id", IDS)
@pytest.mark.parametrize(("metadata", "expire_ms"), [("", -1), ("m", -1), ("", 5)])
def test_value_is_packed_if_its_bytes_hold_every_field(topic_id: UUID, metadata: str, expire_ms: int) -> None:
    offset = StoredOffset(2**62, 7, metadata, START_MS, expire_ms, topic_id)
    _, value = offset_record(OffsetSlot("g", "t", 0), offset)
    assert value is not None
    assert is_packed(value) is (metadata == "" and expire_ms == -1)
    if is_packed(value):
        assert unpack(value) == (2**62, 7, START_MS, topic_id)


def test_values_of_other_versions_or_tags_are_not_packed() -> None:
    _, plain = offset_record(OffsetSlot("g", "t", 0), StoredOffset(1, 2, "", 3))
    _, with_id = offset_record(OffsetSlot("g", "t", 0), StoredOffset(1, 2, "", 3, -1, IDS[1]))
    assert plain is not None
    assert with_id is not None
    assert is_packed(plain)
    assert is_packed(with_id)
    version_3 = b"\x00\x03" + plain[2:14] + b"\x00\x00" + plain[15:23]
    assert len(version_3) == len(plain), "only the content distinguishes them"
    metadata = "\0" * 8 + "\x01\x00\x10" + "\0" * 7
    _, with_metadata = offset_record(OffsetSlot("g", "t", 0), StoredOffset(1, 2, metadata, 3))
    assert with_metadata is not None
    assert (len(with_metadata), with_metadata[23:26]) == (len(with_id), with_id[23:26])
    for other in (
        version_3,
        with_metadata,
        plain[:-1] + b"\x01",
        with_id[:24] + b"\x01" + with_id[25:],
        with_id[:25] + b"\x0f" + with_id[26:],
        b"",
        plain[:-1],
    ):
        assert not is_packed(other)


def test_is_not_below_compares_offsets() -> None:
    def packed(offset: int) -> bytes:
        _, value = offset_record(OffsetSlot("g", "t", 0), StoredOffset(offset, 2, "", 3))
        assert value is not None
        return value

    assert is_not_below(packed(255), packed(256))
    assert is_not_below(packed(256), packed(256))
    assert not is_not_below(packed(256), packed(255))


@pytest.mark.parametrize(
    "key",
    [
        b"\x00\x01\x00\x01g\x00\x09t\x00\x00\x00\x00",
        b"\x00\x01\x00\x01g\x00\x01t\x00\x00",
        b"\x00\x01\xff\xffg\x00\x01t\x00\x00\x00\x00",
        b"\x00\x01\x00\x01\xff\x00\x01t\x00\x00\x00\x00",
        b"\x00\x01",
    ],
)
def test_undecodable_key_stops_the_load(key: bytes) -> None:
    _, value = offset_record(OffsetSlot("g", "t", 0), StoredOffset(1, 2, "", 3))
    with pytest.raises(InternalError, match="cannot be read"):
        _shard().replaying().batch([_Record(key, value)], NOW)


@pytest.mark.parametrize("seed", range(20))
def test_offsets_are_encoded_as_by_the_schema(seed: int) -> None:
    """Offsets in the common format are encoded by hand."""
    rng = Random(seed)
    slot = OffsetSlot("gr\u00fcn" * rng.randrange(1, 9), "t" * rng.randrange(1, 250), rng.randrange(2**31))
    offset, epoch, at_ms = rng.randrange(2**63), rng.randrange(-1, 2**31), rng.randrange(2**63)
    topic_id = rng.choice((ZERO_UUID, UUID(int=rng.randrange(1, 2**128))))
    key, value = offset_record(slot, StoredOffset(offset, epoch, "", at_ms, -1, topic_id))
    assert key == b"\x00\x01" + offset_records._OFFSET_KEY.encode(0, OffsetCommitKey(*slot))
    body = OffsetCommitValue(offset, epoch, "", at_ms, -1, topic_id)
    assert value == b"\x00\x04" + offset_records._OFFSET_VALUE.encode(4, body)
    assert records.decode(key, value) == (slot, StoredOffset(offset, epoch, "", at_ms, -1, topic_id))
