"""Control records: the quorum's own records in the metadata log and its snapshots.

Owns their encoding: key = int16 version 0, int16 type; flexible values that start with their own version.

Rules: raft.md Q38; snapshots.md N7, N8; since_4_0.md K17 (LEADER_CHANGE is written as version 0).
"""

# ruff: noqa: RUF009
from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from fenceline.ids import ZERO_UUID
from fenceline.wire.message import MessageCodec, codec, kafka


class QuorumControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class VoterId:
    """A voter by id, as LEADER_CHANGE names it in version 0."""

    voter_id: int = kafka("int32", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The first record of every epoch."""

    version: int = kafka("int16", versions="0+", default=0)
    leader_id: int = kafka("int32", versions="0+", default=0)
    voters: tuple[VoterId, ...] = kafka("[]VoterId", versions="0+", default=())
    granting_voters: tuple[VoterId, ...] = kafka("[]VoterId", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """First record of a snapshot. `last_contained_log_timestamp`: append time in ms of the last batch it contains."""

    version: int = kafka("int16", versions="0+", default=0)
    last_contained_log_timestamp: int = kafka("int64", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """Last record of a snapshot: marks it as complete."""

    version: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """The finalized kraft.version."""

    version: int = kafka("int16", versions="0+", default=0)
    k_raft_version: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """An endpoint of a voter."""

    name: str = kafka("string", versions="0+", default="")
    host: str = kafka("string", versions="0+", default="")
    port: int = kafka("uint16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class KRaftVersionFeature:
    """The range of kraft.version that a voter supports."""

    min_supported_version: int = kafka("int16", versions="0+", default=0)
    max_supported_version: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter's key (id and directory id), endpoints and supported range."""

    voter_id: int = kafka("int32", versions="0+", default=0)
    voter_directory_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    endpoints: tuple[VoterEndpoint, ...] = kafka("[]VoterEndpoint", versions="0+", default=())
    k_raft_version_feature: KRaftVersionFeature = kafka(
        "KRaftVersionFeature", versions="0+", default=KRaftVersionFeature()
    )


@dataclass(frozen=True, slots=True)
class KRaftVoters:
    """The complete voter set from here on."""

    version: int = kafka("int16", versions="0+", default=0)
    voters: tuple[Voter, ...] = kafka("[]Voter", versions="0+", default=())


ControlRecord: TypeAlias = LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | KRaftVoters

_TYPES: Final[dict[type[ControlRecord], QuorumControlType]] = {
    LeaderChange: QuorumControlType.LEADER_CHANGE,
    SnapshotHeader: QuorumControlType.SNAPSHOT_HEADER,
    SnapshotFooter: QuorumControlType.SNAPSHOT_FOOTER,
    KRaftVersion: QuorumControlType.KRAFT_VERSION,
    KRaftVoters: QuorumControlType.KRAFT_VOTERS,
}
_CLASSES: Final = {int(control_type): record for record, control_type in _TYPES.items()}
_KEY: Final = struct.Struct(">hh")


_CODECS: Final[dict[type[Any], MessageCodec[Any]]] = {}


def _codec_of(record: type[Any]) -> MessageCodec[Any]:
    """Created at first use."""
    found = _CODECS.get(record)
    if found is None:
        found = _CODECS[record] = codec(record, versions=(0, 0), flexible="0+")
    return found


def encode_control(record: ControlRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    return _KEY.pack(0, _TYPES[type(record)]), _codec_of(type(record)).encode(0, record)


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord | None:
    """The record, or None for a type that is unknown or not the quorum's: these are skipped (Q38)."""
    if key is None or value is None or len(key) < _KEY.size:
        return None
    found = _CLASSES.get(_KEY.unpack_from(key)[1])
    if found is None:
        return None
    record: ControlRecord = _codec_of(found).decode(0, value)[0]
    return record


def leader_change(leader_id: int, voter_ids: Sequence[int], granting: Sequence[int]) -> LeaderChange:
    return LeaderChange(0, leader_id, tuple(map(VoterId, voter_ids)), tuple(map(VoterId, granting)))
