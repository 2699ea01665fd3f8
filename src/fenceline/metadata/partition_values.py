"""Conversion between partitions of the image, or their changes, and encoded records, without decoding each of them.

A snapshot consists mostly of partitions, and most of them are alike: a million partitions have few distinct replica
lists. The common parts are encoded and decoded once, by the ordinary codec, and cached by their bytes or tuples; the
rest of a value are five fixed fields. Values that do not fit that form use the ordinary codec. The same holds for
changes: a broker that leaves or returns changes all its partitions in the same few ways.

A value: frame version, api key, record version; partition (4), topic id (16); *middle*: replicas, in-sync, removing and
adding replicas; leader (4), leader epoch (4), partition epoch (4); *tail*: directories and tagged fields. The value of
a change is partition, topic id, and a tail of tagged fields.

Partitions that are equal share one `PartitionImage`: everything that is derived from an image object (its successor
after a change, the places of an index) is computed once and found by identity afterwards.

Rules: formats.md F6; recovery.md V1, V2, V5; since_4_0.md K3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, TypeVar
from uuid import UUID

from fenceline.errors import InternalError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.features import partition_record_version
from fenceline.metadata.image import LeaderRecoveryState, PartitionImage
from fenceline.metadata.records import (
    API_KEYS,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    decode_record,
    encode_record,
)

PARTITION_PREFIX: Final = bytes((1, API_KEYS[PartitionRecord]))
"""Frame version and api key: the first bytes of every PartitionRecord."""
CHANGE_PREFIX: Final = bytes((1, API_KEYS[PartitionChangeRecord]))
"""The same of every PartitionChangeRecord."""
_HEAD: Final = struct.Struct(">3si16s")
_EPOCHS: Final = struct.Struct(">iii")
_MIDDLE_AT: Final = _HEAD.size
_PREFIX_SIZE: Final = 3
_OF_ONE_PARTITION: Final = ("partition_id", "topic_id")
_CREATED_FIELDS: Final = attrgetter(
    *(each.name for each in fields(PartitionRecord) if each.name not in _OF_ONE_PARTITION)
)
"""The state that a record creates, whatever partition it is of."""
_CHANGED_FIELDS: Final = attrgetter(
    *(each.name for each in fields(PartitionChangeRecord) if each.name not in _OF_ONE_PARTITION)
)
"""What a change changes, whatever partition it is of."""
_REMEMBERED: Final = 8192
_RECOVERY_STATES: Final = (LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING)

V = TypeVar("V")
_Ids = tuple[int, ...]
_Middle = tuple[_Ids, _Ids, _Ids, _Ids]
"""Replicas, in-sync, removing and adding replicas."""
_Tail = tuple[LeaderRecoveryState, tuple[UUID, ...], _Ids, _Ids]
"""Recovery state, directories, eligible and last known eligible leader replicas."""


def partition_record(topic_id: UUID, index: int, partition: PartitionImage) -> PartitionRecord:
    """The record that creates this partition."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing,
        adding_replicas=partition.adding,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known_elr or None,
    )


class PartitionEncoder:
    """Encodes partitions for one metadata.version."""

    def __init__(self, metadata_version: int) -> None:
        self._metadata_version = metadata_version
        self._prefix = PARTITION_PREFIX + bytes((partition_record_version(metadata_version),))
        self._middles: dict[Any, bytes] = {}
        self._tails: dict[Any, bytes] = {}

    def encode(self, topic_id: UUID, id_bytes: bytes, index: int, partition: PartitionImage) -> bytes:
        """Same as `encode_record` of `partition_record`. `id_bytes` are the bytes of `topic_id`."""
        (replicas, isr, leader, leader_epoch, epoch, state, directories, elr, last_known, adding, removing) = partition
        middle = self._middles.get((replicas, isr, removing, adding))
        tail = self._tails.get((state, directories, elr, last_known))
        if middle is None or tail is None:
            return self._encode_and_cache(topic_id, index, partition)
        head = _HEAD.pack(self._prefix, index, id_bytes)
        return head + middle + _EPOCHS.pack(leader, leader_epoch, epoch) + tail

    def _encode_and_cache(self, topic_id: UUID, index: int, partition: PartitionImage) -> bytes:
        value = encode_record(partition_record(topic_id, index, partition), self._metadata_version)
        end = _middle_end(value)
        if end is not None:
            p = partition
            _remember(self._middles, (p.replicas, p.isr, p.removing, p.adding), value[_MIDDLE_AT:end])
            tail = (p.leader_recovery_state, p.directories, p.elr, p.last_known_elr)
            _remember(self._tails, tail, value[end + _EPOCHS.size :])
        return value


def encode_records(records: Iterable[MetadataRecord], metadata_version: int) -> Iterator[bytes]:
    """Same as `encode_record` of each."""
    created: dict[Any, tuple[bytes, bytes]] = {}
    changed: dict[Any, tuple[bytes, bytes]] = {}
    topic_id, id_bytes = ZERO_UUID, ZERO_UUID.bytes
    for record in records:
        if type(record) is PartitionChangeRecord:
            key, rests = _CHANGED_FIELDS(record), changed
        elif type(record) is PartitionRecord:
            key, rests = _CREATED_FIELDS(record), created
        else:
            yield encode_record(record, metadata_version)
            continue
        known = rests.get(key)
        if known is not None:
            if record.topic_id is not topic_id:
                topic_id, id_bytes = record.topic_id, record.topic_id.bytes
            prefix, rest = known
            yield _HEAD.pack(prefix, record.partition_id, id_bytes) + rest
        else:
            value = encode_record(record, metadata_version)
            _remember(rests, key, (value[:_PREFIX_SIZE], value[_MIDDLE_AT:]))
            yield value


def recovery_state(value: int) -> LeaderRecoveryState:
    """`recovery.md V1`. Raises InternalError for a value that no controller writes."""
    if not 0 <= value < len(_RECOVERY_STATES):
        raise InternalError(f"a metadata record has the unknown leader recovery state {value}")
    return _RECOVERY_STATES[value]


class PartitionDecoder:
    """Decodes partitions and their changes. Equal partitions and equal short tuples are shared, which keeps images
    small."""

    def __init__(self) -> None:
        self._images: dict[bytes, PartitionImage] = {}
        self._created: dict[Any, PartitionImage] = {}
        self._equal: dict[PartitionImage, PartitionImage] = {}
        self._changes: dict[bytes, PartitionChangeRecord] = {}
        self._equal_changes: dict[Any, PartitionChangeRecord] = {}
        self._middles: dict[bytes, _Middle] = {}
        self._tails: dict[bytes, _Tail] = {}
        self._shared: dict[Any, Any] = {}

    def share(self, values: tuple[V, ...]) -> tuple[V, ...]:
        """One tuple object for equal short tuples."""
        return _remember(self._shared, values, values) if values else ()

    def share_image(self, image: PartitionImage) -> PartitionImage:
        """One object for equal partitions."""
        return _remember(self._equal, image, image)

    def change_of(self, record: PartitionChangeRecord) -> PartitionChangeRecord:
        """One object for equal changes, whatever partitions they are of."""
        return _remember(self._equal_changes, _CHANGED_FIELDS(record), record)

    def decode_change(self, value: bytes) -> PartitionChangeRecord:
        """The change of an encoded PartitionChangeRecord, with topic and number of any that are equal otherwise.

        Raises MalformedRequest, UnknownRecord.
        """
        rest = value[:_PREFIX_SIZE] + value[_MIDDLE_AT:]
        change = self._changes.get(rest)
        if change is None:
            record = decode_record(value)
            assert isinstance(record, PartitionChangeRecord), "the caller checked the api key"
            change = _remember(self._changes, rest, self.change_of(record))
        return change

    def decode(self, value: bytes) -> PartitionImage:
        """The partition of an encoded PartitionRecord; `partition_key` returns its topic and number.

        Raises MalformedRequest, UnknownRecord.
        """
        rest = value[:_PREFIX_SIZE] + value[_MIDDLE_AT:]
        image = self._images.get(rest)
        return _remember(self._images, rest, self._decode(value)) if image is None else image

    def _decode(self, value: bytes) -> PartitionImage:
        end = _middle_end(value)
        if end is not None:
            middle = self._middles.get(value[_MIDDLE_AT:end])
            # The version determines the fields of the tail.
            tail = self._tails.get(value[2:3] + value[end + _EPOCHS.size :])
            if middle is not None and tail is not None and value[0] == 1:
                replicas, isr, removing, adding = middle
                state, directories, elr, last_known = tail
                leader, leader_epoch, epoch = _EPOCHS.unpack_from(value, end)
                return PartitionImage(
                    replicas, isr, leader, leader_epoch, epoch, state, directories, elr, last_known, adding, removing
                )
        return self._decode_and_cache(value, end)

    def _decode_and_cache(self, value: bytes, end: int | None) -> PartitionImage:
        record = decode_record(value)
        assert isinstance(record, PartitionRecord), "the caller checked the api key"
        image = self.image_of(record)
        if end is not None:
            middle = (image.replicas, image.isr, image.removing, image.adding)
            _remember(self._middles, value[_MIDDLE_AT:end], middle)
            tail = (image.leader_recovery_state, image.directories, image.elr, image.last_known_elr)
            _remember(self._tails, value[2:3] + value[end + _EPOCHS.size :], tail)
        return image

    def image_of(self, record: PartitionRecord) -> PartitionImage:
        """The partition that a record describes."""
        key = _CREATED_FIELDS(record)
        image = self._created.get(key)
        return _remember(self._created, key, self._image_of(record)) if image is None else image

    def _image_of(self, record: PartitionRecord) -> PartitionImage:
        share = self.share
        replicas = share(record.replicas)
        return self.share_image(
            PartitionImage(
                replicas,
                replicas if record.isr == replicas else share(record.isr),
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
                recovery_state(record.leader_recovery_state),
                share(record.directories),
                share(record.eligible_leader_replicas or ()),
                share(record.last_known_elr or ()),
                share(record.adding_replicas),
                share(record.removing_replicas),
            )
        )


def partition_key(value: bytes) -> tuple[int, bytes]:
    """Number and topic id of an encoded PartitionRecord or its change. Raises struct.error for a truncated one."""
    _, index, topic_id = _HEAD.unpack_from(value)
    return index, topic_id


def _middle_end(value: bytes) -> int | None:
    """Where the four arrays end; None for arrays of 127 elements or more, or a truncated value."""
    position = _MIDDLE_AT
    try:
        for _ in range(4):
            count = value[position]
            if count & 0x80:
                return None
            position += 1 + 4 * count - 4 if count else 1
    except IndexError:
        return None
    return position if position + _EPOCHS.size <= len(value) else None


def _remember(known: dict[Any, V], key: Any, value: V) -> V:
    """Cache `value` under `key` and return it. Bounded: a full cache is cleared."""
    if len(known) >= _REMEMBERED:
        known.clear()
    return known.setdefault(key, value)
