"""The records of `__consumer_offsets` for groups of the consumer protocol: schemas, bytes, and their meaning.

Owns `formats.md F7` for key types 3-8 and 16, as Kafka 4.3.1 writes them. Decides nothing.

A meaning is one change to a group. Writes are encoded from meanings, and the same function applies them to the group
that replays the log (`consumer.replay.applied`), so that a loaded group equals the original one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from immutables import Map

from fenceline.errors import InternalError
from fenceline.groups.consumer.model import ClassicMember, ConsumerMember, Held, MemberState, ResolvedRegex
from fenceline.groups.messages import KeyValue, Partitions
from fenceline.ids import ZERO_UUID
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import MessageCodec, codec, kafka

EPOCH_KEY: Final = 3
OLD_METADATA_KEY: Final = 4
"""Subscribed topics as in Kafka 4.0; since 4.1 a hash in the record of the epoch replaces it."""
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
REGEX_KEY: Final = 16

_INT16: Final = struct.Struct(">h")
_VERSION: Final = _INT16.pack(0)
_EMPTY: Final[Map[str, object]] = Map()
"""A struct of defaults."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Of records of a group."""

    group_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Of records of a member, or of a regular expression."""

    group_id: str = kafka("string", versions="0+", default="")
    member_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class EpochValue:
    """ConsumerGroupMetadataValue."""

    epoch: int = kafka("int32", versions="0+", default=0)
    metadata_hash: int = kafka("int64", versions="0+", tag=0, tagged_versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol of a member that speaks the classic one."""

    name: str = kafka("string", versions="0+", default="")
    metadata: bytes = kafka("bytes", versions="0+", default=b"")


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """Of a member that speaks the classic protocol."""

    session_timeout_ms: int = kafka("int32", versions="0+", default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = kafka("[]ClassicProtocol", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class MemberValue:
    """ConsumerGroupMemberMetadataValue."""

    instance_id: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    rack_id: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    client_id: str = kafka("string", versions="0+", default="")
    client_host: str = kafka("string", versions="0+", default="")
    subscribed_topic_names: tuple[str, ...] = kafka("[]string", versions="0+", default=())
    subscribed_topic_regex: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = kafka("int32", versions="0+", default=-1)
    server_assignor: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    # Kafka's default is an empty struct, not null: null is written explicitly.
    classic_member_metadata: ClassicMemberMetadata | None = kafka(  # noqa: RUF009
        "ClassicMemberMetadata", versions="0+", tag=0, tagged_versions="0+", nullable="0+", default=_EMPTY
    )


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    """ConsumerGroupTargetAssignmentMetadataValue."""

    assignment_epoch: int = kafka("int32", versions="0+", default=0)
    assignment_timestamp: int = kafka("int64", versions="0+", tag=0, tagged_versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of a target."""

    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)  # noqa: RUF009
    partitions: tuple[int, ...] = kafka("[]int32", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class TargetValue:
    """ConsumerGroupTargetAssignmentMemberValue."""

    topic_partitions: tuple[TargetTopic, ...] = kafka("[]TargetTopic", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic whose partitions a member owns. `assignment_epochs` run parallel to `partitions`; null in older logs."""

    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)  # noqa: RUF009
    partitions: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    assignment_epochs: tuple[int, ...] | None = kafka(
        "[]int32", versions="0+", tag=0, tagged_versions="0+", nullable="0+", default=None
    )


@dataclass(frozen=True, slots=True)
class CurrentValue:
    """ConsumerGroupCurrentMemberAssignmentValue."""

    member_epoch: int = kafka("int32", versions="0+", default=0)
    previous_member_epoch: int = kafka("int32", versions="0+", default=0)
    state: int = kafka("int8", versions="0+", default=0)
    assigned_partitions: tuple[HeldTopic, ...] = kafka("[]HeldTopic", versions="0+", default=())
    partitions_pending_revocation: tuple[HeldTopic, ...] = kafka("[]HeldTopic", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class RegexValue:
    """ConsumerGroupRegularExpressionValue."""

    topics: tuple[str, ...] = kafka("[]string", versions="0+", default=())
    version: int = kafka("int64", versions="0+", default=0)
    timestamp: int = kafka("int64", versions="0+", default=0)


_GROUP_KEY: Final = codec(GroupKey, versions=(0, 0), flexible=None)
_MEMBER_KEY: Final = codec(MemberKey, versions=(0, 0), flexible=None)
_EPOCH_VALUE: Final = codec(EpochValue, versions=(0, 0), flexible="0+")
_MEMBER_VALUE: Final = codec(MemberValue, versions=(0, 0), flexible="0+")
_TARGET_EPOCH_VALUE: Final = codec(TargetEpochValue, versions=(0, 0), flexible="0+")
_TARGET_VALUE: Final = codec(TargetValue, versions=(0, 0), flexible="0+")
_CURRENT_VALUE: Final = codec(CurrentValue, versions=(0, 0), flexible="0+")
_REGEX_VALUE: Final = codec(RegexValue, versions=(0, 0), flexible="0+")


# --- what a record means ----------------------------------------


class EpochStored(NamedTuple):
    group_id: str
    value: EpochValue | None
    """None: the group is deleted."""


class OldMetadataStored(NamedTuple):
    group_id: str
    exists: bool


class MemberStored(NamedTuple):
    """A member's identity and subscription."""

    group_id: str
    member_id: str
    value: MemberValue | None
    """None: it is removed."""


class TargetEpochStored(NamedTuple):
    group_id: str
    value: TargetEpochValue | None


class TargetStored(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str
    value: Partitions | None


class CurrentStored(NamedTuple):
    """A member's current assignment and its state."""

    group_id: str
    member_id: str
    value: CurrentValue | None


class RegexStored(NamedTuple):
    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerMeaning: TypeAlias = (
    EpochStored | OldMetadataStored | MemberStored | TargetEpochStored | TargetStored | CurrentStored | RegexStored
)


def decode(key_type: int, key: bytes, value: bytes | None) -> ConsumerMeaning | None:
    """The meaning of a record; None for a key type of another module. Raises InternalError."""
    reader = _READERS.get(key_type)
    if reader is None:
        return None
    try:
        return reader(key, value)
    except (struct.error, MalformedRequest) as error:
        raise InternalError(f"a consumer group record cannot be read: {error} (key {key.hex()})") from error


def _value(kind: MessageCodec[Any], value: bytes) -> Any:
    (version,) = _INT16.unpack_from(value)
    return kind.decode(version, value, 2)[0]


def _group_of(key: bytes) -> str:
    return _GROUP_KEY.decode(0, key, 2)[0].group_id


def _member_of(key: bytes) -> tuple[str, str]:
    read, _ = _MEMBER_KEY.decode(0, key, 2)
    return read.group_id, read.member_id


def _read_regex(key: bytes, value: bytes | None) -> RegexStored:
    read: RegexValue | None = None if value is None else _value(_REGEX_VALUE, value)
    resolved = None if read is None else ResolvedRegex(frozenset(read.topics), read.version, read.timestamp)
    return RegexStored(*_member_of(key), resolved)


def _read_target(key: bytes, value: bytes | None) -> TargetStored:
    read: TargetValue | None = None if value is None else _value(_TARGET_VALUE, value)
    target = None if read is None else {each.topic_id: frozenset(each.partitions) for each in read.topic_partitions}
    return TargetStored(*_member_of(key), target)


_READERS: Final[dict[int, Callable[[bytes, bytes | None], ConsumerMeaning]]] = {
    EPOCH_KEY: lambda key, value: EpochStored(_group_of(key), None if value is None else _value(_EPOCH_VALUE, value)),
    OLD_METADATA_KEY: lambda key, value: OldMetadataStored(_group_of(key), value is not None),
    MEMBER_KEY: lambda key, value: MemberStored(
        *_member_of(key), None if value is None else _value(_MEMBER_VALUE, value)
    ),
    TARGET_EPOCH_KEY: lambda key, value: TargetEpochStored(
        _group_of(key), None if value is None else _value(_TARGET_EPOCH_VALUE, value)
    ),
    TARGET_KEY: _read_target,
    CURRENT_KEY: lambda key, value: CurrentStored(
        *_member_of(key), None if value is None else _value(_CURRENT_VALUE, value)
    ),
    REGEX_KEY: _read_regex,
}


# --- what is written ----------------------------------------


def encode(meaning: ConsumerMeaning) -> KeyValue:
    """The record with this meaning."""
    match meaning:
        case EpochStored(group_id, value):
            return _pair(EPOCH_KEY, _group_key(group_id), _EPOCH_VALUE, value)
        case OldMetadataStored(group_id, exists):
            if exists:
                raise InternalError("subscribed topics are stored as a hash")
            return _pair(OLD_METADATA_KEY, _group_key(group_id), _EPOCH_VALUE, None)
        case MemberStored(group_id, member_id, value):
            return _pair(MEMBER_KEY, _member_key(group_id, member_id), _MEMBER_VALUE, value)
        case TargetEpochStored(group_id, value):
            return _pair(TARGET_EPOCH_KEY, _group_key(group_id), _TARGET_EPOCH_VALUE, value)
        case TargetStored(group_id, member_id, target):
            body = None if target is None else TargetValue(_target_topics(target))
            return _pair(TARGET_KEY, _member_key(group_id, member_id), _TARGET_VALUE, body)
        case CurrentStored(group_id, member_id, value):
            return _pair(CURRENT_KEY, _member_key(group_id, member_id), _CURRENT_VALUE, value)
        case RegexStored(group_id, regex, resolved):
            stored = (
                None
                if resolved is None
                else RegexValue(tuple(sorted(resolved.topics)), resolved.version, resolved.timestamp_ms)
            )
            return _pair(REGEX_KEY, _member_key(group_id, regex), _REGEX_VALUE, stored)


def _pair(key_type: int, key: bytes, kind: MessageCodec[Any], value: object | None) -> KeyValue:
    return _INT16.pack(key_type) + key, None if value is None else _VERSION + kind.encode(0, value)


def _group_key(group_id: str) -> bytes:
    return _GROUP_KEY.encode(0, GroupKey(group_id))


def _member_key(group_id: str, member_id: str) -> bytes:
    return _MEMBER_KEY.encode(0, MemberKey(group_id, member_id))


def _target_topics(target: Partitions) -> tuple[TargetTopic, ...]:
    return tuple(TargetTopic(topic_id, tuple(sorted(partitions))) for topic_id, partitions in target.items())


def member_stored(group_id: str, member: ConsumerMember) -> MemberStored:
    """A member's identity and subscription, as the log stores them."""
    classic = member.classic
    return MemberStored(
        group_id,
        member.member_id,
        MemberValue(
            member.instance_id,
            member.rack_id,
            member.client_id,
            member.client_host,
            tuple(sorted(member.subscribed_names)),
            member.subscribed_regex,
            member.rebalance_timeout_ms,
            member.server_assignor,
            None
            if classic is None
            else ClassicMemberMetadata(
                classic.session_timeout_ms, tuple(ClassicProtocol(*each) for each in classic.protocols)
            ),
        ),
    )


def current_stored(group_id: str, member: ConsumerMember) -> CurrentStored:
    """A member's current assignment, as the log stores it."""
    return CurrentStored(
        group_id,
        member.member_id,
        CurrentValue(
            member.epoch, member.previous_epoch, int(member.state), _topics(member.assigned), _topics(member.revoking)
        ),
    )


def _topics(held: Held) -> tuple[HeldTopic, ...]:
    return tuple(
        HeldTopic(topic_id, tuple(sorted(epochs)), tuple(epochs[partition] for partition in sorted(epochs)))
        for topic_id, epochs in held.items()
    )


def held_of(topics: tuple[HeldTopic, ...], member_epoch: int) -> Held:
    """The partitions in a record. If it has no epochs, as before Kafka 4.3, the member's epoch is used."""
    held: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (max(member_epoch, 0),) * len(topic.partitions)
        if topic.partitions:
            held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return held


def classic_of(value: ClassicMemberMetadata | None) -> ClassicMember | None:
    """None also if a record has no such field."""
    if not isinstance(value, ClassicMemberMetadata):
        return None
    return ClassicMember(
        value.session_timeout_ms, tuple((each.name, bytes(each.metadata)) for each in value.supported_protocols)
    )


def state_of(value: int) -> MemberState:
    try:
        return MemberState(value)
    except ValueError:
        return MemberState.UNKNOWN
