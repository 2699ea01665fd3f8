"""The records of classic groups in `__consumer_offsets`: schemas, bytes, and their meaning.

Owns `formats.md F7` for key type 2. Decides nothing. Written in version 3, as Kafka 4.3.1 does (checked against it in
tests). Read: all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.errors import InternalError
from fenceline.groups.classic.model import ClassicGroup, ClassicGroupMember
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import KeyValue
from fenceline.wire.message import codec, kafka

GROUP_KEY: Final = 2
GROUP_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")


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


_GROUP_KEY: Final = codec(GroupMetadataKey, versions=(0, 0), flexible=None)
_GROUP_VALUE: Final = codec(GroupMetadataValue, versions=(0, 4), flexible="4+")


class GroupStored(NamedTuple):
    group_id: str
    value: GroupMetadataValue | None
    """None: deleted."""


# --- what is read ----------------------------------------


def decode(key: bytes, value: bytes | None) -> GroupStored:
    """The meaning of one record of this key type. Raises struct.error, MalformedRequest."""
    return GroupStored(group_of_key(key), None if value is None else _group_of(value))


def group_of_key(key: bytes) -> str:
    """Of a group of any kind: they have the same key. Raises MalformedRequest."""
    return _GROUP_KEY.decode(0, key, 2)[0].group


def _group_of(value: bytes) -> GroupMetadataValue:
    (version,) = _INT16.unpack_from(value)
    stored, _ = _GROUP_VALUE.decode(version, value, 2)
    return stored


def restored(group_id: str, stored: GroupMetadataValue) -> ClassicGroup:
    """The group of a record. Raises InternalError if no group can have this state."""
    group = ClassicGroup(
        group_id,
        stored.current_state_timestamp,
        state=GroupState.STABLE if stored.members else GroupState.EMPTY,
        previous_state=GroupState.EMPTY,
        generation=stored.generation,
        protocol_type=stored.protocol_type or None,
        protocol_name=stored.protocol,
    )
    for each in stored.members:
        if stored.protocol is None:
            raise InternalError(f"group {group_id} was stored with members but without a protocol")
        group.add(
            ClassicGroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout if each.rebalance_timeout == -1 else each.rebalance_timeout,
                each.session_timeout,
                ((stored.protocol, each.subscription),),
                each.assignment,
            )
        )
    group.leader_id = stored.leader
    group.subscribed_topics = group.read_subscriptions()
    return group


# --- what is written ----------------------------------------


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
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


def new_group_record(group: ClassicGroup) -> KeyValue:
    """An existing group without members: stored before its first generation."""
    body = GroupMetadataValue(current_state_timestamp=group.state_since_ms)
    return _group_key(group.group_id), _INT16.pack(GROUP_VERSION) + _GROUP_VALUE.encode(GROUP_VERSION, body)


def group_tombstone(group_id: str) -> KeyValue:
    return _group_key(group_id), None


def _group_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_KEY) + _GROUP_KEY.encode(0, GroupMetadataKey(group_id))
