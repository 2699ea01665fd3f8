"""The records of `__consumer_offsets` for classic groups: schemas, bytes, and their meaning as values.

Owns `formats.md F7` for key types 0-2 and the list of the other key types; `consumer.records` owns those of the
consumer protocol. Decides nothing.

A key is an int16 type followed by its fields, a value an int16 version followed by its fields; no value is a tombstone.
Written as Kafka 4.3.1 does (since_4_0.md K32, checked against it in tests): offsets in version 4, or 1 if the commit
has its own expiry (v4 has no field for it); groups in version 3. Read: all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.errors import InternalError
from fenceline.groups.classic.model import Group
from fenceline.groups.consumer import records as consumer_records
from fenceline.groups.messages import KeyValue
from fenceline.groups.names import MOST_BYTES
from fenceline.groups.offsets.offsets import CommittedOffset, OffsetSlot, unpacked
from fenceline.groups.offsets.packed import is_packed, pack
from fenceline.ids import ZERO_UUID
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka

LEGACY_OFFSET_KEY: Final = 0
OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
FOREIGN_GROUP_KEYS: Final = frozenset({11, 17})
"""Metadata of share and streams groups: a group of another kind exists."""
OFFSET_VERSION: Final = 4
OFFSET_VERSION_WITH_EXPIRY: Final = 1
GROUP_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")
_MARKER_KEY: Final = struct.Struct(">hh")


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    """Which committed offset a record holds."""

    group: str = kafka("string", versions="0+", default="")
    topic: str = kafka("string", versions="0+", default="")
    partition: int = kafka("int32", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """A committed offset."""

    offset: int = kafka("int64", versions="0+", default=0)
    leader_epoch: int = kafka("int32", versions="3+", default=-1)
    metadata: str = kafka("string", versions="0+", default="")
    commit_timestamp: int = kafka("int64", versions="0+", default=0)
    expire_timestamp: int = kafka("int64", versions="1", default=-1)
    topic_id: UUID = kafka("uuid", versions="4+", tag=0, tagged_versions="4+", default=ZERO_UUID)  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    """Which group a record belongs to."""

    group: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member in the group's record."""

    member_id: str = kafka("string", versions="0+", default="")
    group_instance_id: str | None = kafka("string", versions="3+", nullable="3+", default=None)
    client_id: str = kafka("string", versions="0+", default="")
    client_host: str = kafka("string", versions="0+", default="")
    rebalance_timeout: int = kafka("int32", versions="1+", default=-1)
    session_timeout: int = kafka("int32", versions="0+", default=0)
    subscription: bytes = kafka("bytes", versions="0+", default=b"")
    assignment: bytes = kafka("bytes", versions="0+", default=b"")


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """A generation of a group."""

    protocol_type: str = kafka("string", versions="0+", default="")
    generation: int = kafka("int32", versions="0+", default=0)
    protocol: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    leader: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    current_state_timestamp: int = kafka("int64", versions="2+", default=-1)
    members: tuple[MemberMetadata, ...] = kafka("[]MemberMetadata", versions="0+", default=())


_OFFSET_KEY: Final = codec(OffsetCommitKey, versions=(0, 0), flexible=None)
_OFFSET_VALUE: Final = codec(OffsetCommitValue, versions=(0, 4), flexible="4+")
_GROUP_KEY: Final = codec(GroupMetadataKey, versions=(0, 0), flexible=None)
_GROUP_VALUE: Final = codec(GroupMetadataValue, versions=(0, 4), flexible="4+")


# --- what a record means ----------------------------------------


class OffsetCommitted(NamedTuple):
    slot: OffsetSlot
    value: CommittedOffset | None
    """None: deleted."""


class GroupStored(NamedTuple):
    group_id: str
    value: GroupMetadataValue | None
    """None: deleted."""


class ForeignGroup(NamedTuple):
    group_id: str
    exists: bool


class Unserved(NamedTuple):
    key_type: int


Meaning: TypeAlias = OffsetCommitted | GroupStored | ForeignGroup | Unserved | consumer_records.ConsumerMeaning


def decode(key: bytes | None, value: bytes | None) -> Meaning:
    """The meaning of one record. Raises InternalError on unreadable bytes."""
    if key is None:
        raise InternalError("a coordinator record has no key")
    try:
        (key_type,) = _INT16.unpack_from(key)
        if key_type in (LEGACY_OFFSET_KEY, OFFSET_KEY):
            return OffsetCommitted(_slot_of(key), None if value is None else _offset_of(value))
        if key_type == GROUP_KEY:
            group_key, _ = _GROUP_KEY.decode(0, key, 2)
            return GroupStored(group_key.group, None if value is None else _group_of(value))
        if key_type in FOREIGN_GROUP_KEYS:
            group_key, _ = _GROUP_KEY.decode(0, key, 2)
            return ForeignGroup(group_key.group, value is not None)
    except (struct.error, MalformedRequest) as error:
        raise InternalError(f"a coordinator record cannot be read: {error} (key {key.hex()})") from error
    return consumer_records.decode(key_type, key, value) or Unserved(key_type)


def _slot_of(key: bytes) -> OffsetSlot:
    """Of an offset's key. Raises struct.error, MalformedRequest."""
    # Decoded by hand: a load reads one of these for each topic of each group.
    (group_size,) = _INT16.unpack_from(key, 2)
    topic_at = 4 + group_size + 2
    (topic_size,) = _INT16.unpack_from(key, topic_at - 2)
    if group_size < 0 or topic_size < 0 or topic_at + topic_size + _PARTITION.size != len(key):
        name, _ = _OFFSET_KEY.decode(0, key, 2)
        return OffsetSlot(name.group, name.topic, name.partition)
    group, topic = key[4 : topic_at - 2], key[topic_at : -_PARTITION.size]
    try:
        return OffsetSlot(group.decode(), topic.decode(), partition_of_key(key))
    except UnicodeDecodeError as error:
        raise MalformedRequest(str(error)) from None


def _offset_of(value: bytes) -> CommittedOffset:
    if is_packed(value):
        return unpacked(value)
    (version,) = _INT16.unpack_from(value)
    stored, _ = _OFFSET_VALUE.decode(version, value, 2)
    return CommittedOffset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        stored.expire_timestamp,
        stored.topic_id,
    )


_OFFSET_KEY_TYPE: Final = _INT16.pack(OFFSET_KEY)
_PARTITION: Final = struct.Struct(">i")
_KEY_HEAD: Final = struct.Struct(">hh")


def is_offset_key(key: bytes) -> bool:
    """Whether it is an offset key in the current version."""
    return key[:2] == _OFFSET_KEY_TYPE


def decode_slot(key: bytes) -> OffsetSlot:
    """Of an offset's key. Raises InternalError on unreadable bytes."""
    try:
        return _slot_of(key)
    except (struct.error, MalformedRequest) as error:
        raise InternalError(f"a coordinator record cannot be read: {error} (key {key.hex()})") from error


def group_of_key(key: bytes) -> bytes:
    """Of an offset's key: the group's name, as UTF-8."""
    return key[4 : 4 + int.from_bytes(key[2:4])]


def partition_of_key(key: bytes) -> int:
    """Of an offset's key, which ends with it."""
    index: int = _PARTITION.unpack_from(key, len(key) - _PARTITION.size)[0]
    return index


def partitions_of_keys(keys: Sequence[bytes]) -> tuple[int, ...] | None:
    """Of offset keys that differ only in their partition; None if they differ in more."""
    size, count = len(keys[0]), len(keys)
    begins = size - _PARTITION.size
    joined = b"".join(keys)
    # Compare one byte position of all keys at a time, as in `packed.are_packed`.
    if set(map(len, keys)) != {size} or any(joined[at::size] != joined[at : at + 1] * count for at in range(begins)):
        return None
    ends = bytearray(_PARTITION.size * count)
    for at in range(_PARTITION.size):
        ends[at :: _PARTITION.size] = joined[begins + at :: size]
    return struct.unpack(f">{count}i", ends)


def _group_of(value: bytes) -> GroupMetadataValue:
    (version,) = _INT16.unpack_from(value)
    stored, _ = _GROUP_VALUE.decode(version, value, 2)
    return stored


def transaction_end(key: bytes | None) -> bool | None:
    """Whether a control record commits (True) or aborts (False) its transaction; None for other control records."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(key)
    return {0: False, 1: True}.get(kind)


# --- what is written ----------------------------------------


def offset_record(slot: OffsetSlot, value: CommittedOffset) -> KeyValue:
    if not value.metadata and value.expire_timestamp_ms < 0:
        return _offset_key(slot), pack(value.offset, value.leader_epoch, value.commit_timestamp_ms, value.topic_id)
    version = OFFSET_VERSION if value.expire_timestamp_ms < 0 else OFFSET_VERSION_WITH_EXPIRY
    body = OffsetCommitValue(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp_ms,
        value.expire_timestamp_ms,
        value.topic_id,
    )
    return _offset_key(slot), _INT16.pack(version) + _OFFSET_VALUE.encode(version, body)


def offset_tombstone(slot: OffsetSlot) -> KeyValue:
    return _offset_key(slot), None


def group_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
    """The group with these assignments (missing ones are empty), or with those of its members."""
    body = GroupMetadataValue(
        "" if group.protocol_type is None else group.protocol_type,
        group.generation,
        group.protocol_name,
        group.leader_id,
        group.state_since_ms,
        tuple(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ),
    )
    return _group_key(group.group_id), _INT16.pack(GROUP_VERSION) + _GROUP_VALUE.encode(GROUP_VERSION, body)


def new_group_record(group: Group) -> KeyValue:
    """An existing group without members: stored before its first generation."""
    body = GroupMetadataValue(current_state_timestamp=group.state_since_ms)
    return _group_key(group.group_id), _INT16.pack(GROUP_VERSION) + _GROUP_VALUE.encode(GROUP_VERSION, body)


def group_tombstone(group_id: str) -> KeyValue:
    return _group_key(group_id), None


def _offset_key(slot: OffsetSlot) -> bytes:
    group, topic = slot.group_id.encode(), slot.topic.encode()
    if max(len(group), len(topic)) > MOST_BYTES:
        return _OFFSET_KEY_TYPE + _OFFSET_KEY.encode(0, OffsetCommitKey(*slot))  # which raises the exact error
    return b"".join(
        (_KEY_HEAD.pack(OFFSET_KEY, len(group)), group, _INT16.pack(len(topic)), topic, _PARTITION.pack(slot.partition))
    )


def _group_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_KEY) + _GROUP_KEY.encode(0, GroupMetadataKey(group_id))
