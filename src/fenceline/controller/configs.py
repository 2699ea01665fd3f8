"""Changes of topic, broker, group and client metrics configs.

Owns which changes are allowed and the records that they write. `fenceline.config` validates single values.

Rules: controller.md C3, C36; since_4_0.md K25 (cordoned directories), K26 (min.insync.replicas with eligible leader
replicas). Dynamic broker configs are validated by the broker that receives the request; the controller checks only
their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from fenceline.config.group import validate_client_metrics, validate_group_configs
from fenceline.config.topic import TOPIC_CONFIGS, is_list_config, validate_topic_configs
from fenceline.controller.partitions import check_size, elections_after_configs
from fenceline.controller.requests import (
    SUCCESS,
    AlterConfigs,
    AlterConfigsAnswer,
    AlteredResource,
    ConfigChange,
    ConfigOperation,
    IncrementalAlterConfigs,
    RequestOutcome,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import MV_CORDONED_LOG_DIRS
from fenceline.metadata.image import ConfigResource, ConfigResourceType
from fenceline.metadata.records import ClearElrRecord, ConfigRecord, MetadataRecord

T = TypeVar("T")

MIN_ISR: Final = "min.insync.replicas"
CORDONED: Final = "cordoned.log.dirs"
_BROKER_LISTS: Final = frozenset(
    {"log.cleanup.policy", CORDONED, "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)


def incremental_alter_configs(state: ControllerState, request: IncrementalAlterConfigs) -> Decision:
    """SET, DELETE, APPEND, SUBTRACT by key; each resource succeeds or fails alone.

    Raises PeerError(POLICY_VIOLATION) for more than 10,000 changes.
    """

    def changes_of(resource: ConfigResource, changes: Sequence[ConfigChange]) -> list[tuple[str, str | None]]:
        current: Mapping[str, str] = state.image.configs.get(resource) or {}
        return [(change.name, _new_value(resource, change, current.get(change.name))) for change in changes]

    return _alter(state, request.resources, changes_of, request.validate_only)


def alter_configs(state: ControllerState, request: AlterConfigs) -> Decision:
    """The legacy request: configs that it does not name are deleted."""

    def changes_of(
        resource: ConfigResource, requested: Sequence[tuple[str, str | None]]
    ) -> list[tuple[str, str | None]]:
        current: Mapping[str, str] = state.image.configs.get(resource) or {}
        named = dict(requested)
        return [*named.items(), *((name, None) for name in current if name not in named)]

    return _alter(state, request.resources, changes_of, request.validate_only)


def _alter(
    state: ControllerState,
    resources: Sequence[tuple[ConfigResource, T]],
    changes_of: Callable[[ConfigResource, T], list[tuple[str, str | None]]],
    validate_only: bool,
) -> Decision:
    records: list[MetadataRecord] = []
    results: list[AlteredResource] = []
    for resource, requested in resources:
        try:
            records += _records(state, resource, changes_of(resource, requested))
            results.append(AlteredResource(resource, SUCCESS))
        except PeerError as error:
            results.append(AlteredResource(resource, RequestOutcome(error.code, error.message or None)))
    if validate_only:
        records = []
    check_size(records)
    records += elections_after_configs(state, records)
    return Decision(records, AlterConfigsAnswer(tuple(results)))


def _new_value(resource: ConfigResource, change: ConfigChange, current: str | None) -> str | None:
    match change.operation:
        case ConfigOperation.SET:
            return change.value
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            if not _is_list(resource, change.name):
                raise PeerError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
                )
            parts = [part for part in (_start_of(resource, change.name, current) or "").split(",") if part]
            for part in (change.value or "").split(","):
                if change.operation is ConfigOperation.APPEND:
                    if part not in parts:
                        parts.append(part)
                elif part in parts:
                    parts.remove(part)
            return ",".join(parts)


def _is_list(resource: ConfigResource, name: str) -> bool:
    if resource.type == ConfigResourceType.TOPIC:
        return is_list_config(name)
    return name in _BROKER_LISTS


def _start_of(resource: ConfigResource, name: str, current: str | None) -> str | None:
    """An unset list starts from its default."""
    if current is not None or resource.type != ConfigResourceType.TOPIC:
        return current
    default = TOPIC_CONFIGS[name].default
    return default if isinstance(default, str) else None


def _records(
    state: ControllerState, resource: ConfigResource, changes: list[tuple[str, str | None]]
) -> list[MetadataRecord]:
    """An unchanged value writes no record, except for brokers, which reload on any record (KAFKA-14136)."""
    current: Mapping[str, str] = state.image.configs.get(resource) or {}
    always = resource.type == ConfigResourceType.BROKER
    effective = [(name, value) for name, value in changes if always or current.get(name) != value]
    _check_min_isr(state, resource, effective)
    if any(name == CORDONED for name, _ in effective) and state.image.metadata_version < MV_CORDONED_LOG_DIRS:
        raise PeerError(
            ErrorCode.INVALID_CONFIG, "The cordoned.log.dirs configuration requires metadata.version 4.3-IV0 or newer."
        )
    merged = dict(current)
    for name, value in effective:
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    _validate(state, resource, merged)
    records: list[MetadataRecord] = [
        ConfigRecord(resource.type, resource.name, name, value) for name, value in effective
    ]
    if state.image.elr_enabled and any(name == MIN_ISR for name, _ in effective):
        records.append(ClearElrRecord(resource.name if resource.type == ConfigResourceType.TOPIC else ""))
    return records


def _check_min_isr(state: ControllerState, resource: ConfigResource, changes: Sequence[tuple[str, str | None]]) -> None:
    """K26: with eligible leader replicas there is one value for all brokers, and it cannot be removed.

    4.3.1 accepts values above 32767 (observed on a running one), against the rule's last sentence.
    """
    if not state.image.elr_enabled or resource.type != ConfigResourceType.BROKER:
        return
    for name, value in changes:
        if name == MIN_ISR and resource.name:
            raise PeerError(
                ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            )
        if name == MIN_ISR and value is None:
            raise PeerError(
                ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            )


def _validate(state: ControllerState, resource: ConfigResource, merged: Mapping[str, str]) -> None:
    """The resource must exist and its complete new set of overrides must be valid."""
    name = resource.name
    match resource.type:
        case ConfigResourceType.TOPIC:
            if not name:
                raise PeerError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            fault = name_fault(name)
            if fault is not None:
                raise PeerError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            validate_topic_configs(merged)
            if name not in state.image.topics_by_name:
                raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        case ConfigResourceType.BROKER:
            if name:
                _check_broker(state, name)
        case ConfigResourceType.GROUP:
            if not name:
                raise PeerError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            validate_group_configs(merged, state.settings.broker_value)
        case ConfigResourceType.CLIENT_METRICS:
            validate_client_metrics(name, merged)
        case _:
            raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type.name}")


def _check_broker(state: ControllerState, name: str) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.") from None
    if broker_id < 0:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    if broker_id not in state.image.brokers and broker_id not in state.image.controllers:
        raise PeerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {broker_id} found.")
