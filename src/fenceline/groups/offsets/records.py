"""The records of committed offsets in `__consumer_offsets`: schemas, bytes, and their meaning.

Owns `formats.md F7` for key types 0 and 1. Decides nothing. Written as Kafka 4.3.1 does (since_4_0.md K32, checked
against it in tests): in version 4, or 1 if the commit has its own expiry (v4 has no field for it). Read: all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.errors import InternalError
from fenceline.groups.messages import KeyValue
from fenceline.groups.names import MOST_BYTES
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset, unpacked
from fenceline.groups.offsets.packed import is_packed, pack
from fenceline.ids import ZERO_UUID
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka

LEGACY_OFFSET_KEY: Final = 0
OFFSET_KEY: Final = 1
OFFSET_VERSION: Final = 4
OFFSET_VERSION_WITH_EXPIRY: Final = 1

_INT16: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_KEY_HEAD: Final = struct.Struct(">hh")
_OFFSET_KEY_TYPE: Final = _INT16.pack(OFFSET_KEY)


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


_OFFSET_KEY: Final = codec(OffsetCommitKey, versions=(0, 0), flexible=None)
_OFFSET_VALUE: Final = codec(OffsetCommitValue, versions=(0, 4), flexible="4+")


class OffsetCommitted(NamedTuple):
    slot: OffsetSlot
    value: StoredOffset | None
    """None: deleted."""


# --- what is read ----------------------------------------


def decode(key: bytes, value: bytes | None) -> OffsetCommitted:
    """The meaning of one record of these key types. Raises struct.error, MalformedRequest."""
    return OffsetCommitted(_slot_of(key), None if value is None else _offset_of(value))


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


def _offset_of(value: bytes) -> StoredOffset:
    if is_packed(value):
        return unpacked(value)
    (version,) = _INT16.unpack_from(value)
    stored, _ = _OFFSET_VALUE.decode(version, value, 2)
    return StoredOffset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        stored.expire_timestamp,
        stored.topic_id,
    )


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


# --- what is written ----------------------------------------


def offset_record(slot: OffsetSlot, value: StoredOffset) -> KeyValue:
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


def _offset_key(slot: OffsetSlot) -> bytes:
    group_id, topic, partition = slot
    beginning = _offset_key_beginning(group_id, topic)
    if not beginning:
        return _OFFSET_KEY_TYPE + _OFFSET_KEY.encode(0, OffsetCommitKey(*slot))  # which raises the exact error
    return beginning + _PARTITION.pack(partition)


@lru_cache(maxsize=1)  # a request has many partitions of one topic
def _offset_key_beginning(group_id: str, topic: str) -> bytes:
    """Up to the partition; empty if a name is too long."""
    group, name = group_id.encode(), topic.encode()
    if max(len(group), len(name)) > MOST_BYTES:
        return b""
    return b"".join((_KEY_HEAD.pack(OFFSET_KEY, len(group)), group, _INT16.pack(len(name)), name))
