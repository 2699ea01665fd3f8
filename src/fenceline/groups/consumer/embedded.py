"""The consumer's data in JoinGroup and SyncGroup of the classic protocol: subscriptions and assignments.

Owns the bytes of the "consumer" protocol type (versions 0 to 3) and their conversion to and from topic ids. The
coordinator of the classic protocol passes them on unread; in a group that mixes both protocols it must parse them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fenceline.groups.messages import Partitions
from fenceline.metadata.image import MetadataImage

_HIGHEST_VERSION: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class MalformedSubscription(Exception):
    """The bytes are not a consumer's data."""


@dataclass(frozen=True, slots=True)
class EmbeddedSubscription:
    """Topics that a consumer subscribes to and partitions that it owns, by name; its rack."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """Partitions by name. `user_data`: from a client's own assignor."""

    partitions: Mapping[str, frozenset[int]]
    user_data: bytes


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        (value,) = _INT16.unpack_from(self._data, self._at)
        self._at += 2
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._read(size).decode()

    def name(self) -> str:
        text = self.string()
        if text is None:
            raise MalformedSubscription("a topic without a name")
        return text

    def blob(self) -> bytes:
        size = self.int32()
        return b"" if size < 0 else self._read(size)

    def count(self) -> int:
        count = self.int32()
        if count < 0 or count > len(self._data):
            raise MalformedSubscription(f"{count} entries in {len(self._data)} bytes")
        return count

    def partitions(self) -> dict[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count()):
            topic = self.name()
            found[topic] = frozenset(self.int32() for _ in range(self.count()))
        return found

    def _read(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise MalformedSubscription("it is truncated")
        content = self._data[self._at : self._at + size]
        self._at += size
        return content


def read_subscription(data: bytes) -> EmbeddedSubscription:
    """The metadata of a protocol in JoinGroup. Raises MalformedSubscription."""
    reader = _Reader(data)
    try:
        version = reader.int16()
        if version < 0:
            raise MalformedSubscription(f"version {version}")
        topics = tuple(reader.name() for _ in range(reader.count()))
        reader.blob()
        owned = reader.partitions() if version >= 1 else {}
        if version >= 2:
            reader.int32()
        rack_id = reader.string() if version >= 3 else None
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedSubscription(str(error)) from None
    return EmbeddedSubscription(version, topics, owned, rack_id or None)


def read_assignment(data: bytes) -> Assignment:
    """The assignment in a SyncGroup response; empty for no bytes. Raises MalformedSubscription."""
    if not data:
        return Assignment({}, b"")
    reader = _Reader(data)
    try:
        reader.int16()
        return Assignment(reader.partitions(), reader.blob())
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedSubscription(str(error)) from None


def write_assignment(partitions: Partitions, image: MetadataImage, version: int) -> bytes:
    """For SyncGroup, in the version of the member's subscription; deleted topics are left out."""
    named = sorted(
        (topic.name, sorted(indexes))
        for topic_id, indexes in partitions.items()
        if (topic := image.topics_by_id.get(topic_id)) is not None
    )
    parts = [_INT16.pack(min(version, _HIGHEST_VERSION)), _INT32.pack(len(named))]
    for name, indexes in named:
        encoded = name.encode()
        parts += [_INT16.pack(len(encoded)), encoded, _INT32.pack(len(indexes))]
        parts += [_INT32.pack(index) for index in indexes]
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


def by_id(partitions: Mapping[str, frozenset[int]], image: MetadataImage) -> Partitions:
    """By topic id instead of name; deleted topics are left out."""
    return {
        topic.id: indexes
        for name, indexes in partitions.items()
        if indexes and (topic := image.topics_by_name.get(name)) is not None
    }


def without_epochs(held: Mapping[UUID, Iterable[int]]) -> Partitions:
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items() if epochs}
