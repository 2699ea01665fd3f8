"""A committed offset in its record's encoding, for offsets without a pending write.

Owns the one shape that nearly all values have: version 4, no metadata, with or without a topic id. Bytes of this shape
are kept undecoded, at a third of the memory and time of a decoded value, and are unpacked when read. `records` handles
every other shape.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from fenceline.ids import ZERO_UUID

_HEAD: Final = struct.Struct(">hqiBqB")
"""Version, offset, leader epoch, length of the metadata + 1, commit time, number of tagged fields."""
_VERSION: Final = b"\x00\x04"
_METADATA_AT: Final = 14
_NO_METADATA: Final = 1
_TAGS_AT: Final = 23
_NO_TAGS: Final = b"\x00"
_TOPIC_ID: Final = b"\x01\x00\x10"
"""One tagged field, number 0, of 16 bytes."""
_SIZE_BYTES: Final = _TAGS_AT + len(_NO_TAGS)
_SIZE_WITH_TOPIC_ID_BYTES: Final = _TAGS_AT + len(_TOPIC_ID) + 16


def is_packed(value: bytes) -> bool:
    """Whether a record's value has the shape."""
    if len(value) == _SIZE_WITH_TOPIC_ID_BYTES:
        tags = value[_TAGS_AT:-16] == _TOPIC_ID
    elif len(value) == _SIZE_BYTES:
        tags = value[_TAGS_AT:] == _NO_TAGS
    else:
        return False
    return tags and value[_METADATA_AT] == _NO_METADATA and value[:2] == _VERSION


def are_packed(values: Sequence[bytes]) -> bool:
    """Whether all of them have the shape, in one and the same size."""
    size = len(values[0])
    if size not in (_SIZE_BYTES, _SIZE_WITH_TOPIC_ID_BYTES) or set(map(len, values)) != {size}:
        return False
    tags = _NO_TAGS if size == _SIZE_BYTES else _TOPIC_ID
    joined, count = b"".join(values), len(values)
    # Compare one byte position of all values at a time: the number of steps does not depend on their number.
    return all(
        joined[at::size] == expected.to_bytes() * count
        for first, content in ((0, _VERSION), (_METADATA_AT, bytes((_NO_METADATA,))), (_TAGS_AT, tags))
        for at, expected in enumerate(content, first)
    )


def pack(offset: int, leader_epoch: int, commit_ms: int, topic_id: UUID) -> bytes:
    """Inverse of `unpack`."""
    number = topic_id.int  # comparing UUIDs, and their bytes, take three times as long
    if not number:
        return _HEAD.pack(4, offset, leader_epoch, _NO_METADATA, commit_ms, 0)
    return _HEAD.pack(4, offset, leader_epoch, _NO_METADATA, commit_ms, 1) + _TOPIC_ID[1:] + number.to_bytes(16)


def is_not_below(before: bytes, after: bytes) -> bool:
    """Whether the second of two packed offsets is at least the first."""
    # Non-negative numbers compare as their bytes do; a negative one is never committed.
    return before[2:10] <= after[2:10]


def unpack(value: bytes) -> tuple[int, int, int, UUID]:
    """Offset, leader epoch, commit time in ms, topic id of packed bytes."""
    _, offset, leader_epoch, _, commit_ms, _ = _HEAD.unpack_from(value)
    return offset, leader_epoch, commit_ms, topic_id_of(value)


def topic_id_of(value: bytes) -> UUID:
    """Of packed bytes."""
    return ZERO_UUID if len(value) == _SIZE_BYTES else _topic_id(value[-16:])


@lru_cache(maxsize=4096)
def _topic_id(content: bytes) -> UUID:
    return UUID(bytes=content)
