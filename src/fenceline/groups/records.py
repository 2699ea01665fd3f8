"""The records of `__consumer_offsets`: the meaning of any of them.

Owns the list of key types and which module reads each: `offsets.records`, `classic.records` or `consumer.records`
(`formats.md F7`). Decides nothing.

A key is an int16 type followed by its fields, a value an int16 version followed by its fields; no value is a tombstone.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from fenceline.errors import InternalError
from fenceline.groups.classic import records as classic_records
from fenceline.groups.classic.records import GROUP_KEY, GroupStored
from fenceline.groups.consumer import records as consumer_records
from fenceline.groups.consumer.records import ConsumerMeaning
from fenceline.groups.offsets import records as offset_records
from fenceline.groups.offsets.records import LEGACY_OFFSET_KEY, OFFSET_KEY, OffsetCommitted
from fenceline.wire.errors import MalformedRequest

FOREIGN_GROUP_KEYS: Final = frozenset({11, 17})
"""Metadata of share and streams groups: a group of another kind exists."""

_INT16: Final = struct.Struct(">h")
_MARKER_KEY: Final = struct.Struct(">hh")


class ForeignGroup(NamedTuple):
    group_id: str
    exists: bool


class Unserved(NamedTuple):
    key_type: int


Meaning: TypeAlias = OffsetCommitted | GroupStored | ForeignGroup | Unserved | ConsumerMeaning


def decode(key: bytes | None, value: bytes | None) -> Meaning:
    """The meaning of one record. Raises InternalError on unreadable bytes."""
    if key is None:
        raise InternalError("a coordinator record has no key")
    try:
        (key_type,) = _INT16.unpack_from(key)
        if key_type in (LEGACY_OFFSET_KEY, OFFSET_KEY):
            return offset_records.decode(key, value)
        if key_type == GROUP_KEY:
            return classic_records.decode(key, value)
        if key_type in FOREIGN_GROUP_KEYS:
            return ForeignGroup(classic_records.group_of_key(key), value is not None)
    except (struct.error, MalformedRequest) as error:
        raise InternalError(f"a coordinator record cannot be read: {error} (key {key.hex()})") from error
    return consumer_records.decode(key_type, key, value) or Unserved(key_type)


def transaction_end(key: bytes | None) -> bool | None:
    """Whether a control record commits (True) or aborts (False) its transaction; None for other control records."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(key)
    return {0: False, 1: True}.get(kind)
