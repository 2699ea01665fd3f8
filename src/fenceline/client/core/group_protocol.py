"""The subscriptions and assignments that members of a "consumer" group exchange through the coordinator.

Owns Kafka's ConsumerProtocolSubscription (versions 0-3) and ConsumerProtocolAssignment (0-3). They have a version and
plain fields, and are never flexible; the fields that a newer version adds are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fenceline.client.core.errors import ClientError
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition

SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ClassicSubscription:
    """A member's topics, the partitions that it owns, and the generation of that assignment (-1: unknown)."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    user_data: bytes | None = None
    rack: str | None = None


class _Cursor:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.position = raw, 0

    def take(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self.raw, self.position)
        except struct.error:
            raise ClientError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member's group metadata is truncated") from None
        self.position += struct.calcsize(form)
        return int(value)

    def block(self, size: int) -> bytes:
        taken = self.raw[self.position : self.position + size]
        if size < 0 or len(taken) != size:
            raise ClientError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member's group metadata is truncated")
        self.position += size
        return taken

    def text(self) -> str:
        return self.block(self.take(">h")).decode()

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.take(">i")):
            topic = self.text()
            found.extend(TopicPartition(topic, self.take(">i")) for _ in range(self.take(">i")))
        return tuple(found)

    def nullable_bytes(self) -> bytes | None:
        size = self.take(">i")
        return None if size < 0 else self.block(size)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    out = [struct.pack(">i", len(grouped))]
    for topic, indexes in grouped.items():
        out += [_text(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join(out)


def _nullable(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def encode_subscription(subscription: ClassicSubscription) -> bytes:
    topics = sorted(subscription.topics)
    return b"".join(
        [
            struct.pack(">hi", SUBSCRIPTION_VERSION, len(topics)),
            *map(_text, topics),
            _nullable(subscription.user_data),
            _partitions(subscription.owned),
            struct.pack(">i", subscription.generation_id),
            struct.pack(">h", -1) if subscription.rack is None else _text(subscription.rack),
        ]
    )


def decode_subscription(raw: bytes) -> ClassicSubscription:
    """Raises ClientError(INCONSISTENT_GROUP_PROTOCOL) for bytes that are not a subscription."""
    cursor = _Cursor(raw)
    version = cursor.take(">h")
    topics = tuple(cursor.text() for _ in range(cursor.take(">i")))
    user_data = cursor.nullable_bytes()
    owned = cursor.partitions() if version >= 1 else ()
    generation_id = cursor.take(">i") if version >= 2 else -1
    rack = None
    if version >= 3:
        size = cursor.take(">h")
        rack = None if size < 0 else cursor.block(size).decode()
    return ClassicSubscription(topics, owned, generation_id, user_data, rack)


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    return struct.pack(">h", ASSIGNMENT_VERSION) + _partitions(partitions) + _nullable(user_data)


def decode_assignment(raw: bytes) -> tuple[TopicPartition, ...]:
    """Empty bytes mean no partitions (a member that has not synced)."""
    if not raw:
        return ()
    cursor = _Cursor(raw)
    cursor.take(">h")
    return cursor.partitions()


def encode_owned(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """The user data of the sticky assignor: the member's last assignment and its generation."""
    return _partitions(partitions) + struct.pack(">i", generation_id)


def decode_owned(raw: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Inverse of `encode_owned`; old members omit the generation."""
    cursor = _Cursor(raw)
    partitions = cursor.partitions()
    generation_id = cursor.take(">i") if cursor.position < len(raw) else -1
    return partitions, generation_id
