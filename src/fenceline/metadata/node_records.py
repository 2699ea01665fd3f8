"""Metadata records of brokers and controllers: registration, fencing, shutdown.

Owns their fields. `metadata.delta` owns their meaning, `metadata.records` their encoding.

Rules: controller.md C10-C20; since_4_0.md K3, K25.
"""

# ruff: noqa: RUF009 - the defaults are immutable
from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fenceline.ids import ZERO_UUID
from fenceline.wire.message import kafka


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A listener of a broker."""

    name: str = kafka("string", versions="0+", default="")
    host: str = kafka("string", versions="0+", default="")
    port: int = kafka("uint16", versions="0+", default=0)
    security_protocol: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class BrokerFeature:
    """Levels that a broker supports."""

    name: str = kafka("string", versions="0+", default="")
    min_supported_version: int = kafka("int16", versions="0+", default=0)
    max_supported_version: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker's new registration; replaces the previous one (C12)."""

    broker_id: int = kafka("int32", versions="0+", default=0)
    is_migrating_zk_broker: bool = kafka("bool", versions="2+", default=False)
    incarnation_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    broker_epoch: int = kafka("int64", versions="0+", default=0)
    end_points: tuple[BrokerEndpoint, ...] = kafka("[]BrokerEndpoint", versions="0+", default=())
    features: tuple[BrokerFeature, ...] = kafka("[]BrokerFeature", versions="0+", default=())
    rack: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    fenced: bool = kafka("bool", versions="0+", default=True)
    in_controlled_shutdown: bool = kafka("bool", versions="1+", default=False)
    log_dirs: tuple[UUID, ...] = kafka("[]uuid", versions="3+", tag=0, tagged_versions="3+", default=())
    cordoned_log_dirs: tuple[UUID, ...] | None = kafka(
        "[]uuid", versions="4+", tag=1, tagged_versions="4+", nullable="4+", default=None
    )


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """Removes a broker's registration (C19)."""

    broker_id: int = kafka("int32", versions="0+", default=0)
    broker_epoch: int = kafka("int64", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class FenceBrokerRecord:
    """Before metadata.version 6; read, never written."""

    id: int = kafka("int32", versions="0+", default=0)
    epoch: int = kafka("int64", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class UnfenceBrokerRecord:
    """Before metadata.version 6; read, never written."""

    id: int = kafka("int32", versions="0+", default=0)
    epoch: int = kafka("int64", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord:
    """`fenced`: 1 fences, -1 unfences; `in_controlled_shutdown`: 1 sets it; empty `log_dirs` means unchanged."""

    broker_id: int = kafka("int32", versions="0+", default=0)
    broker_epoch: int = kafka("int64", versions="0+", default=0)
    fenced: int = kafka("int8", versions="0+", tag=0, tagged_versions="0+", default=0)
    in_controlled_shutdown: int = kafka("int8", versions="1+", tag=1, tagged_versions="1+", default=0)
    log_dirs: tuple[UUID, ...] = kafka("[]uuid", versions="2+", tag=2, tagged_versions="2+", default=())
    cordoned_log_dirs: tuple[UUID, ...] | None = kafka(
        "[]uuid", versions="3+", tag=3, tagged_versions="3+", nullable="3+", default=None
    )


@dataclass(frozen=True, slots=True)
class ControllerEndpoint:
    """A listener of a controller."""

    name: str = kafka("string", versions="0+", default="")
    host: str = kafka("string", versions="0+", default="")
    port: int = kafka("uint16", versions="0+", default=0)
    security_protocol: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class ControllerFeature:
    """Levels that a controller supports."""

    name: str = kafka("string", versions="0+", default="")
    min_supported_version: int = kafka("int16", versions="0+", default=0)
    max_supported_version: int = kafka("int16", versions="0+", default=0)


@dataclass(frozen=True, slots=True)
class RegisterControllerRecord:
    """A controller's registration."""

    controller_id: int = kafka("int32", versions="0+", default=0)
    incarnation_id: UUID = kafka("uuid", versions="0+", default=ZERO_UUID)
    zk_migration_ready: bool = kafka("bool", versions="0+", default=False)
    end_points: tuple[ControllerEndpoint, ...] = kafka("[]ControllerEndpoint", versions="0+", default=())
    features: tuple[ControllerFeature, ...] = kafka("[]ControllerFeature", versions="0+", default=())
