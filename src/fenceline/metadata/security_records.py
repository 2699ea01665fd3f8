"""Metadata records of users and clients: SCRAM credentials, delegation tokens, ACLs, quotas.

Owns their fields; `metadata.records` owns their encoding. The image and snapshots keep them as controllers wrote
them.

Rules: controller.md C42-C44 (only the records).
"""

# ruff: noqa: RUF009 - the defaults are immutable
from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fenceline.ids import ZERO_UUID
from fenceline.wire.message import kafka


@dataclass(frozen=True, slots=True)
class DelegationTokenRecord:
    """A delegation token."""

    owner: str = kafka("string", versions="0+", default="")
    requester: str = kafka("string", versions="0+", default="")
    renewers: tuple[str, ...] = kafka("[]string", versions="0+", default=())
    issue_timestamp: int = kafka("int64", versions="0+", default=0)
    max_timestamp: int = kafka("int64", versions="0+", default=0)
    expiration_timestamp: int = kafka("int64", versions="0+", default=0)
    token_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class RemoveDelegationTokenRecord:
    """Removes a delegation token."""

    token_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class UserScramCredentialRecord:
    """A user's SCRAM credential (C43)."""

    name: str = kafka("string", versions="0+", default="")
    mechanism: int = kafka("int8", versions="0+", default=0)
    salt: bytes = kafka("bytes", versions="0+", default=b"")
    stored_key: bytes = kafka("bytes", versions="0+", default=b"")
    server_key: bytes = kafka("bytes", versions="0+", default=b"")
    iterations: int = kafka("int32", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class RemoveUserScramCredentialRecord:
    """Removes a SCRAM credential."""

    name: str = kafka("string", versions="0+", default="")
    mechanism: int = kafka("int8", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class QuotaEntityPart:
    """One part of a quota's entity; a null name is the default."""

    entity_type: str = kafka("string", versions="0+", default="")
    entity_name: str | None = kafka("string", versions="0+", nullable="0+", default=None)


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """One quota of one entity (C44)."""

    entity: tuple[QuotaEntityPart, ...] = kafka("[]EntityData", versions="0+", default=())
    key: str = kafka("string", versions="0+", default="")
    value: float = kafka("float64", versions="0+", default=0.0)
    remove: bool = kafka("bool", versions="0+", default=False)


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord:
    """An ACL (C42)."""

    id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    resource_type: int = kafka("int8", versions="0+", default=0)
    resource_name: str = kafka("string", versions="0+", default="")
    pattern_type: int = kafka("int8", versions="0+", default=0)
    principal: str = kafka("string", versions="0+", default="")
    host: str = kafka("string", versions="0+", default="")
    operation: int = kafka("int8", versions="0+", default=0)
    permission_type: int = kafka("int8", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord:
    """Removes an ACL."""

    id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
