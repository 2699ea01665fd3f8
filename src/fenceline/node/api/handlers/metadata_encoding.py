"""Metadata responses as bytes, encoded by hand: a client of 10,000 partitions asks for all of them at once.

Owns the layout of Metadata responses v0-13 and the cache of encoded ones. Decides only what Kafka derives from the
image: partition errors, offline replicas, and the controller that clients see (any live broker).

The fields after a partition's index are the same for many partitions (leader, epoch, replicas, ISR), so each distinct
combination is encoded once. Encoded topics are cached by topic image, complete responses by request shape. Both caches
are dropped when the topics or brokers of the image are different objects: an image that only advances its offset keeps
them.

Fields by version: v1 rack, controller, internal; v2 cluster id; v3 throttle; v5 offline replicas; v7 leader epoch;
v8 authorized operations (of the cluster only until v10); v9 flexible; v10 topic id; v12 nullable name; v13 error code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.ids import INTERNAL_TOPICS, ZERO_UUID
from fenceline.metadata.image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from fenceline.node.replication.absent_brokers import NO_ABSENT, Absent
from fenceline.wire.primitives import uvarint

SHARE_STATE_TOPIC: Final = "__share_group_state"
OPERATIONS_NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all, without an authorizer."""
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

_ONLINE_DIRECTORIES: Final = frozenset({MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY})
_WHOLE_ANSWERS_KEPT: Final = 8

_int16: Final = struct.Struct(">h").pack
_int32: Final = struct.Struct(">i").pack

_TailKey: TypeAlias = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[UUID, ...]]


def is_internal(topic: str) -> bool:
    """Whether clients see it as an internal topic."""
    return topic in INTERNAL_TOPICS or topic == SHARE_STATE_TOPIC


def controller_for_clients(image: MetadataImage, asked: int) -> int:
    """A live broker, which forwards requests for the controller: the one that was `asked`, since it is certainly alive;
    another one if it is fenced; -1 if none is alive."""
    own = image.brokers.get(asked)
    if own is not None and own.is_active:
        return asked
    return min((broker.id for broker in image.alive_brokers()), default=-1)


def is_offline(broker: BrokerImage | None, partition: PartitionImage, replica: int, listener: str) -> bool:
    """Whether a replica cannot serve: broker unknown, fenced, not on this listener, or its directory offline."""
    if broker is None or broker.fenced or broker.endpoint(listener) is None:
        return True
    directory = partition.directory_of(replica)
    if directory is None or directory in _ONLINE_DIRECTORIES:
        return False
    return directory == LOST_DIRECTORY or bool(broker.log_dirs and directory not in broker.log_dirs)


class PartitionView(NamedTuple):
    """A partition as clients of one listener see it."""

    error: ErrorCode
    leader: int
    offline: tuple[int, ...]


def view_partition(
    image: MetadataImage,
    partition: PartitionImage,
    listener: str,
    *,
    old_errors: bool,
    left: frozenset[int] = NO_ABSENT.disconnected,
) -> PartitionView:
    """`old_errors`: up to v5 a leader without this listener is LEADER_NOT_AVAILABLE, later LISTENER_NOT_FOUND.

    left: unavailable leaders, whatever the image says (`absent_brokers`).
    """
    offline = tuple(
        replica
        for replica in partition.replicas
        if is_offline(image.brokers.get(replica), partition, replica, listener)
    )
    leader = image.brokers.get(partition.leader)
    if leader is None or leader.id in left:
        return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, -1, offline)
    if leader.endpoint(listener) is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE if old_errors else ErrorCode.LISTENER_NOT_FOUND
        return PartitionView(error, -1, offline)
    return PartitionView(ErrorCode.NONE, partition.leader, offline)


class TopicError(NamedTuple):
    """A requested topic that cannot be returned."""

    code: ErrorCode
    name: str | None
    topic_id: UUID = ZERO_UUID
    operations: int = OPERATIONS_NOT_ASKED


class MetadataEncoder:
    """Encodes responses of one version for one listener, and caches them while they are valid."""

    __slots__ = (
        "_absent",
        "_answers",
        "_brokers",
        "_flexible",
        "_image",
        "_listener",
        "_node_id",
        "_tails",
        "_topics",
        "_version",
    )

    def __init__(self, version: int, listener: str, node_id: int) -> None:
        self._version = version
        self._node_id = node_id
        self._flexible = version >= 9
        self._listener = listener
        self._image: MetadataImage | None = None
        self._absent = NO_ABSENT
        self._brokers = b""
        self._tails: dict[_TailKey, tuple[bytes, bytes]] = {}
        self._topics: dict[UUID, tuple[TopicImage, bytes]] = {}
        self._answers: dict[tuple[object, ...], bytes] = {}

    def use_image(self, image: MetadataImage, absent: Absent = NO_ABSENT) -> None:
        """Use `image`, with `absent` brokers, for the next responses; drop outdated cache entries."""
        before, self._image = self._image, image
        absent_before, self._absent = self._absent, absent
        if before is None or before.brokers is not image.brokers or absent_before != absent:
            self._brokers = self._encode_brokers(image)
            self._tails.clear()
            self._topics.clear()
            self._answers.clear()
        elif before.topics_by_name is not image.topics_by_name:
            self._answers.clear()
            if len(self._topics) > 2 * len(image.topics_by_name) + 16:
                self._topics.clear()

    def cached(self, shape: tuple[object, ...]) -> bytes | None:
        """The cached response to a request of this shape, if nothing has changed since."""
        return self._answers.get(shape)

    def cache(self, shape: tuple[object, ...], answer: bytes) -> None:
        if len(self._answers) >= _WHOLE_ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[shape] = answer

    def answer(
        self,
        topics: Sequence[TopicImage],
        errors_before: Iterable[TopicError],
        errors_after: Iterable[TopicError],
        *,
        cluster_id: str,
        topic_operations: int,
        cluster_operations: int,
        operations_of: Callable[[str], int] | None = None,
    ) -> bytes:
        """The body: unknown ids, then topics, then other errors, in Kafka's order. `operations_of`: the operations on
        a topic of this name, if not all topics have `topic_operations`."""
        assert self._image is not None, "use_image comes first"
        tail = _int32(topic_operations) if self._version >= 8 else b""
        tail += b"\0" if self._flexible else b""
        parts = [part for error in errors_before for part in self._encode_error(error)]
        count = len(parts)
        for topic in topics:
            parts.append(self._encode_topic(topic))
            if operations_of is not None and self._version >= 8:
                tail = _int32(operations_of(topic.name)) + (b"\0" if self._flexible else b"")
            parts.append(tail)
        failed = [part for error in errors_after for part in self._encode_error(error)]
        count += len(topics) + len(failed)
        head = [self._throttle(), self._brokers]
        if self._version >= 2:
            head.append(self._string(cluster_id))
        if self._version >= 1:
            head.append(_int32(controller_for_clients(self._image, self._node_id)))
        return b"".join((*head, self._length(count), *parts, *failed, self._end(cluster_operations)))

    def refusal(self, errors: Sequence[TopicError]) -> bytes:
        """The body for an invalid request: no brokers, no cluster id, an error for each topic."""
        parts = [self._throttle(), self._length(0)]
        if self._version >= 2:
            parts.append(self._string(None))
        if self._version >= 1:
            parts.append(_int32(-1))
        parts.append(self._length(len(errors)))
        parts += [part for error in errors for part in self._encode_error(error)]
        return b"".join((*parts, self._end(OPERATIONS_NOT_ASKED)))

    # --- pieces ---------------------------------------------------------------------------------------------------

    def _throttle(self) -> bytes:
        return _int32(0) if self._version >= 3 else b""

    def _end(self, cluster_operations: int) -> bytes:
        end = _int32(cluster_operations) if 8 <= self._version <= 10 else b""
        if self._version >= 13:
            end += _int16(ErrorCode.NONE)
        return end + (b"\0" if self._flexible else b"")

    def _encode_brokers(self, image: MetadataImage) -> bytes:
        """Live brokers, and those fenced a moment ago; if there are none, this broker, which is certainly alive. A
        client that gets no broker at all has none left to ask, and librdkafka (2.10 and later) never asks again."""
        parts: list[bytes] = []
        own = image.brokers.get(self._node_id)
        lately = self._absent.recently_fenced
        listed = [
            each
            for each in image.brokers.values()
            if (not each.fenced or each.id in lately) and each.endpoint(self._listener) is not None
        ]
        if not listed and own is not None:
            listed = [own]
        for broker in sorted(listed, key=lambda one: one.id):
            endpoint = broker.endpoint(self._listener)
            if endpoint is None:
                continue
            row = _int32(broker.id) + self._string(endpoint.host) + _int32(endpoint.port)
            if self._version >= 1:
                row += self._string(broker.rack)
            parts.append(row + (b"\0" if self._flexible else b""))
        return self._length(len(parts)) + b"".join(parts)

    def _encode_topic(self, topic: TopicImage) -> bytes:
        """A topic up to its authorized operations."""
        known = self._topics.get(topic.id)
        if known is not None and known[0] is topic:
            return known[1]
        version = self._version
        head = _int16(ErrorCode.NONE) + self._string(topic.name)
        if version >= 10:
            head += topic.id.bytes
        if version >= 1:
            head += b"\1" if is_internal(topic.name) else b"\0"
        parts = [head, self._length(len(topic.partitions))]
        shared: dict[int, tuple[bytes, bytes]] = {}  # by identity: most partitions share an image
        for index, partition in enumerate(topic.partitions):
            tail = shared.get(id(partition))
            if tail is None:
                tail = shared[id(partition)] = self._tail_of(partition)
            parts += (tail[0], _int32(index), tail[1])
        encoded = b"".join(parts)
        self._topics[topic.id] = (topic, encoded)
        return encoded

    def _tail_of(self, partition: PartitionImage) -> tuple[bytes, bytes]:
        key = (
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            partition.directories,
        )
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = self._encode_partition(partition)
        return tail

    def _encode_partition(self, partition: PartitionImage) -> tuple[bytes, bytes]:
        """The bytes before a partition's index, and those after it."""
        image, version = self._image, self._version
        assert image is not None, "use_image comes first"
        view = view_partition(image, partition, self._listener, old_errors=version <= 5, left=self._absent.disconnected)
        error, replicas, isr = view.error, partition.replicas, partition.isr
        if version == 0:
            # The oldest clients get live replicas only, with an error if some are missing.
            replicas = tuple(each for each in replicas if self._is_alive(image, each))
            isr = tuple(each for each in isr if self._is_alive(image, each))
            if error is ErrorCode.NONE and (len(replicas), len(isr)) != (len(partition.replicas), len(partition.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        after = _int32(view.leader)
        if version >= 7:
            after += _int32(partition.leader_epoch)
        after += self._ids(replicas) + self._ids(isr)
        if version >= 5:
            after += self._ids(view.offline)
        return _int16(error), after + (b"\0" if self._flexible else b"")

    def _is_alive(self, image: MetadataImage, broker_id: int) -> bool:
        broker = image.brokers.get(broker_id)
        return broker is not None and not broker.fenced and broker.endpoint(self._listener) is not None

    def _encode_error(self, error: TopicError) -> tuple[bytes]:
        version = self._version
        row = _int16(error.code) + self._string(error.name if version >= 12 else error.name or "")
        if version >= 10:
            row += error.topic_id.bytes
        if version >= 1:
            row += b"\1" if error.name is not None and is_internal(error.name) else b"\0"
        row += self._length(0)
        if version >= 8:
            row += _int32(error.operations)
        return (row + (b"\0" if self._flexible else b""),)

    def _length(self, count: int) -> bytes:
        return uvarint(count + 1) if self._flexible else _int32(count)

    def _ids(self, ids: tuple[int, ...]) -> bytes:
        return self._length(len(ids)) + struct.pack(f">{len(ids)}i", *ids)

    def _string(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self._flexible else _int16(-1)
        encoded = text.encode()
        return (uvarint(len(encoded) + 1) if self._flexible else _int16(len(encoded))) + encoded
