"""The records of the metadata log and of its snapshots, and their encoding.

Owns one frozen dataclass with a schema for each record type (those of brokers and controllers are in `node_records`,
those of users and clients in `security_records`), and the record version to write at each metadata.version.
`metadata.delta` owns the meaning of records.

A value in the log: frame version 1, api key and record version as unsigned varints, then the fields, all flexible
(`formats.md F6`, `controller.md C5`). Keys are null. Record versions follow `since_4_0.md K3` and `controller.md C40`.
A tagged field with its default value is not written (`recovery.md V2`).
"""

# ruff: noqa: RUF009 - the defaults are immutable
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform
from uuid import UUID

from fenceline.errors import OperatorError
from fenceline.ids import ZERO_UUID
from fenceline.metadata import features
from fenceline.metadata.node_records import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from fenceline.metadata.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import MessageCodec, codec, kafka

_R = TypeVar("_R")


@dataclass_transform(frozen_default=True, field_specifiers=(kafka,))
def _numerous(cls: type[_R]) -> type[_R]:
    """A frozen dataclass of which one decision makes thousands. Only the type checker knows that it is frozen: creating
    one takes an eighth of the time."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A new topic; its configs and partitions follow (C22)."""

    name: str = kafka("string", versions="0+", default="")
    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)


@_numerous
class PartitionRecord:
    """The complete state of a partition."""

    partition_id: int = kafka("int32", versions="0+", default=-1)
    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    replicas: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    isr: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    removing_replicas: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    adding_replicas: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    leader: int = kafka("int32", versions="0+", default=-1)
    leader_recovery_state: int = kafka("int8", versions="0+", tag=0, tagged_versions="0+", default=0)
    leader_epoch: int = kafka("int32", versions="0+", default=-1)
    partition_epoch: int = kafka("int32", versions="0+", default=-1)
    directories: tuple[UUID, ...] = kafka("[]uuid", versions="1+", default=())
    eligible_leader_replicas: tuple[int, ...] | None = kafka(
        "[]int32", versions="2+", tag=1, tagged_versions="2+", nullable="2+", default=None
    )
    last_known_elr: tuple[int, ...] | None = kafka(
        "[]int32", versions="2+", tag=2, tagged_versions="2+", nullable="2+", default=None
    )


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """One config of one resource; a null value deletes it."""

    resource_type: int = kafka("int8", versions="0+", default=0)
    resource_name: str = kafka("string", versions="0+", default="")
    name: str = kafka("string", versions="0+", default="")
    value: str | None = kafka("string", versions="0+", nullable="0+", default=None)


@_numerous
class PartitionChangeRecord:
    """Changes to a partition; fields with their default value are unchanged (C9)."""

    partition_id: int = kafka("int32", versions="0+", default=-1)
    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    isr: tuple[int, ...] | None = kafka(
        "[]int32", versions="0+", tag=0, tagged_versions="0+", nullable="0+", default=None
    )
    leader: int = kafka("int32", versions="0+", tag=1, tagged_versions="0+", default=-2)
    replicas: tuple[int, ...] | None = kafka(
        "[]int32", versions="0+", tag=2, tagged_versions="0+", nullable="0+", default=None
    )
    removing_replicas: tuple[int, ...] | None = kafka(
        "[]int32", versions="0+", tag=3, tagged_versions="0+", nullable="0+", default=None
    )
    adding_replicas: tuple[int, ...] | None = kafka(
        "[]int32", versions="0+", tag=4, tagged_versions="0+", nullable="0+", default=None
    )
    leader_recovery_state: int = kafka("int8", versions="0+", tag=5, tagged_versions="0+", default=-1)
    directories: tuple[UUID, ...] | None = kafka(
        "[]uuid", versions="1+", tag=8, tagged_versions="1+", nullable="1+", default=None
    )
    eligible_leader_replicas: tuple[int, ...] | None = kafka(
        "[]int32", versions="2+", tag=6, tagged_versions="2+", nullable="2+", default=None
    )
    last_known_elr: tuple[int, ...] | None = kafka(
        "[]int32", versions="2+", tag=7, tagged_versions="2+", nullable="2+", default=None
    )

    def of_partition(self, topic_id: UUID, partition_id: int) -> PartitionChangeRecord:
        """The same change of another partition."""
        return PartitionChangeRecord(
            partition_id,
            topic_id,
            self.isr,
            self.leader,
            self.replicas,
            self.removing_replicas,
            self.adding_replicas,
            self.leader_recovery_state,
            self.directories,
            self.eligible_leader_replicas,
            self.last_known_elr,
        )


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """Drops a topic, its partitions and configs (C25)."""

    topic_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """The finalized level of a feature; 0 removes it."""

    name: str = kafka("string", versions="0+", default="")
    feature_level: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """The first producer id of the next block (C41)."""

    broker_id: int = kafka("int32", versions="0+", default=0)
    broker_epoch: int = kafka("int64", versions="0+", default=-1)
    next_producer_id: int = kafka("int64", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class NoOpRecord:
    """Keeps the log moving (C7)."""


@dataclass(frozen=True, slots=True)
class ZkMigrationStateRecord:
    """From the ZooKeeper migration; read, never written (K20)."""

    zk_migration_state: int = kafka("int8", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """Opens a metadata transaction (C8)."""

    name: str | None = kafka("string", versions="0+", tag=0, tagged_versions="0+", nullable="0+", default=None)


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    """Publishes the open transaction."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    """Drops the open transaction."""

    reason: str | None = kafka("string", versions="0+", tag=0, tagged_versions="0+", nullable="0+", default=None)


@dataclass(frozen=True, slots=True)
class ClearElrRecord:
    """Clears the eligible leader replicas of a topic, "" = of all topics (K26)."""

    topic_name: str = kafka("string", versions="0+", default="")


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | DelegationTokenRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RemoveUserScramCredentialRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RemoveDelegationTokenRecord
    | RegisterControllerRecord
    | ClearElrRecord
)
"""Any record of the metadata log that is not a control record."""


class UnknownRecord(OperatorError):
    """A record type or version that this release does not support: a newer release wrote the log."""

    def __init__(self, prefix: bytes) -> None:
        """`prefix`: the value's first three bytes."""
        kind = _KIND_BY_KEY.get(prefix[1]) if len(prefix) == 3 and prefix[0] == 1 else None
        if kind is not None:
            record = (
                f"a {kind.record.__name__} of version {prefix[2]}; this release supports up to {kind.latest_version}"
            )
        elif len(prefix) == 3 and prefix[0] == 1 and prefix[1] < 128:
            record = f"a record of type {prefix[1]}, which this release does not support"
        else:
            record = f"an invalid record that starts with {prefix.hex() or 'nothing'}"
        super().__init__(
            f"The metadata log contains {record}.",
            "A newer release wrote it. Run that release on this node. Upgrade all nodes before metadata.version.",
        )


class UnreadableRecord(OperatorError):
    """A record of a supported type and version whose bytes cannot be decoded."""

    def __init__(self, value: bytes, reason: str) -> None:
        kind = _KIND_BY_KEY.get(api_key_of(value))
        record = kind.record.__name__ if kind is not None else "record"
        super().__init__(
            f"Cannot decode a {record} of the metadata log: {reason}",
            "If a newer release wrote it, run that release on this node. Otherwise the record is corrupt: check the"
            " disk, and reformat this node if the other voters are running.",
        )


class _Kind(NamedTuple):
    record: type[MetadataRecord]
    api_key: int
    latest_version: int
    version: Callable[[MetadataRecord, int], int]
    """(record, metadata.version) -> the version to write."""


def _version_0(record: MetadataRecord, metadata_version: int) -> int:
    return 0


def _register_broker_version(record: MetadataRecord, metadata_version: int) -> int:
    return features.register_broker_record_version(metadata_version)


def _partition_version(record: MetadataRecord, metadata_version: int) -> int:
    return features.partition_record_version(metadata_version)


def _registration_change_version(record: MetadataRecord, metadata_version: int) -> int:
    """The lowest version that has all fields that are set (K3)."""
    assert isinstance(record, BrokerRegistrationChangeRecord)
    if record.cordoned_log_dirs is not None:
        return 3
    return 2 if record.log_dirs else 1 if record.in_controlled_shutdown else 0


_KINDS: Final = (
    _Kind(RegisterBrokerRecord, 0, 4, _register_broker_version),
    _Kind(UnregisterBrokerRecord, 1, 0, _version_0),
    _Kind(TopicRecord, 2, 0, _version_0),
    _Kind(PartitionRecord, 3, 2, _partition_version),
    _Kind(ConfigRecord, 4, 0, _version_0),
    _Kind(PartitionChangeRecord, 5, 2, _partition_version),
    _Kind(FenceBrokerRecord, 7, 0, _version_0),
    _Kind(UnfenceBrokerRecord, 8, 0, _version_0),
    _Kind(RemoveTopicRecord, 9, 0, _version_0),
    _Kind(DelegationTokenRecord, 10, 0, _version_0),
    _Kind(UserScramCredentialRecord, 11, 0, _version_0),
    _Kind(FeatureLevelRecord, 12, 0, _version_0),
    _Kind(ClientQuotaRecord, 14, 0, _version_0),
    _Kind(ProducerIdsRecord, 15, 0, _version_0),
    _Kind(BrokerRegistrationChangeRecord, 17, 3, _registration_change_version),
    _Kind(AccessControlEntryRecord, 18, 0, _version_0),
    _Kind(RemoveAccessControlEntryRecord, 19, 0, _version_0),
    _Kind(NoOpRecord, 20, 0, _version_0),
    _Kind(ZkMigrationStateRecord, 21, 0, _version_0),
    _Kind(RemoveUserScramCredentialRecord, 22, 0, _version_0),
    _Kind(BeginTransactionRecord, 23, 0, _version_0),
    _Kind(EndTransactionRecord, 24, 0, _version_0),
    _Kind(AbortTransactionRecord, 25, 0, _version_0),
    _Kind(RemoveDelegationTokenRecord, 26, 0, _version_0),
    _Kind(RegisterControllerRecord, 27, 0, _version_0),
    _Kind(ClearElrRecord, 28, 0, _version_0),
)

API_KEYS: Final = {kind.record: kind.api_key for kind in _KINDS}
"""Api key of each record class."""


class _Encoder(NamedTuple):
    prefix: tuple[bytes, ...]
    """Frame version, api key and record version, by record version."""
    codec: MessageCodec[Any]
    version: Callable[[MetadataRecord, int], int]


class _Encoders(dict[type[MetadataRecord], _Encoder]):
    """By record class, created at first use: a start needs few of them."""

    def __missing__(self, record: type[MetadataRecord]) -> _Encoder:
        kind = _KIND_OF[record]
        # Frame version, key and record version are all below 128, so each varint is one byte.
        prefix = tuple(bytes((1, kind.api_key, version)) for version in range(kind.latest_version + 1))
        made = _Encoder(prefix, codec(record, versions=(0, kind.latest_version), flexible="0+"), kind.version)
        self[record] = made
        return made


class _Decoders(dict[bytes, tuple[Callable[..., Any], int]]):
    """Decoder and record version by the first three bytes of a value."""

    def __missing__(self, prefix: bytes) -> tuple[Callable[..., Any], int]:
        kind = _KIND_BY_KEY.get(prefix[1]) if len(prefix) == 3 and prefix[0] == 1 else None
        if kind is None or prefix[2] > kind.latest_version:
            raise UnknownRecord(prefix)
        made = self[prefix] = (_ENCODERS[kind.record].codec.decode, prefix[2])
        return made


_KIND_OF: Final = {kind.record: kind for kind in _KINDS}
_KIND_BY_KEY: Final = {kind.api_key: kind for kind in _KINDS}
_ENCODERS: Final = _Encoders()
_DECODERS: Final = _Decoders()


def encode_record(record: MetadataRecord, metadata_version: int) -> bytes:
    """The value to write for `record` while `metadata_version` is finalized."""
    entry = _ENCODERS[type(record)]
    version = entry.version(record, metadata_version)
    return entry.prefix[version] + entry.codec.encode(version, record)


def api_key_of(value: bytes) -> int:
    """The api key of an encoded record, without decoding it; -1 if it is too short."""
    return value[1] if len(value) > 1 else -1


def decode_record(value: bytes) -> MetadataRecord:
    """Inverse of `encode_record`. Raises UnknownRecord for an unsupported type or version, MalformedRequest for bytes
    that cannot be decoded or are left over; Kafka rejects both."""
    decode, version = _DECODERS[value[:3]]
    record: MetadataRecord
    record, end = decode(version, value, 3)
    if end != len(value):
        raise MalformedRequest(f"{len(value) - end} bytes left over")
    return record
