"""Registration of brokers and controllers, and unregistration of brokers.

Owns the checks of a registration, and the effects of a new incarnation on the partitions of the previous one. The
states of a registered broker belong to `controller.brokers`.

Rules: controller.md C11, C12, C19; since_4_0.md K22-K24, K37; gaps.md G47.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final
from uuid import UUID

from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_visits import VisitCause
from fenceline.controller.requests import (
    EmptyAnswer,
    RegisterBroker,
    RegisterBrokerAnswer,
    RegisterController,
    UnregisterBroker,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import encode_uuid
from fenceline.metadata.features import (
    METADATA_VERSION,
    MV_CONTROLLER_REGISTRATION,
    MV_DIRECTORIES,
    MV_ELR,
    NO_LEVELS,
    Levels,
)
from fenceline.metadata.image import BrokerImage, Endpoint
from fenceline.metadata.node_records import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from fenceline.metadata.records import MetadataRecord

_RESERVED_DIRECTORIES: Final = 100
_SECURITY_PROTOCOLS: Final = range(4)
"""PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."""


def register_broker(state: ControllerState, request: RegisterBroker, now_ms: int) -> Decision:
    """C11, C12, K22-K24. A new incarnation gets the offset of its first record as its broker epoch.

    Raises PeerError: 104 wrong cluster, 101 another incarnation is alive, 102 migrating broker, 119 directories or no
    metadata.version range, 35 a finalized feature is out of the broker's range, 42 a value that no record may contain.
    """
    image = state.image
    cluster_id = state.settings.cluster_id
    if request.cluster_id != cluster_id:
        raise PeerError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    existing = image.brokers.get(request.broker_id)
    known = existing is not None and existing.incarnation_id == request.incarnation_id
    alive = existing is not None and state.sessions.is_alive(existing.id, existing.epoch, now_ms)
    if existing is not None and alive and not known and not _replaces_ended_process(state, existing, request):
        raise PeerError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker is registered with that broker id.")
    if request.is_migrating_zk_broker:
        raise PeerError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
    _check_node(request.broker_id, request.endpoints, request.features)
    _check_directories(state, request)
    _check_features(state, request)
    records: list[MetadataRecord] = []
    if existing is None or not known:
        if existing is not None:
            left, more = _leave_partitions(state, existing, request.previous_broker_epoch)
            if more:
                return Decision(left, EmptyAnswer(), atomic=False, more=True)
            records += left
        epoch, fenced, shutting_down = state.next_offset, True, False
    else:
        epoch, fenced, shutting_down = existing.epoch, existing.fenced, existing.in_controlled_shutdown
    records.append(
        RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=tuple(BrokerEndpoint(*endpoint) for endpoint in request.endpoints),
            features=tuple(BrokerFeature(name, *levels) for name, levels in request.features.items()),
            rack=request.rack,
            fenced=fenced,
            in_controlled_shutdown=shutting_down,
            log_dirs=request.log_dirs if image.metadata_version >= MV_DIRECTORIES else (),
        )
    )
    registration_offset = state.next_offset + len(records) - 1
    session = state.sessions.get(request.broker_id)
    if known and session is not None:
        session.registration_offset = registration_offset
    else:
        state.sessions.begin(request.broker_id, epoch, now_ms, registration_offset)
    return Decision(records, RegisterBrokerAnswer(epoch), atomic=len(records) <= MAX_RECORDS)


def _replaces_ended_process(state: ControllerState, existing: BrokerImage, request: RegisterBroker) -> bool:
    """Whether the process of `existing`, whose session has not expired, has certainly ended.

    It has no connection here, and the new process has what only a live one could hold: one of its directories, which
    are locked, and one of its addresses. A copy of a directory on another machine lacks the address; then a probe of
    the old address decides (`node.controller.presence`), or the session. Here a probe could not decide, because the new
    process may be listening there.
    """
    if not state.settings.knows_connections or state.sessions.is_connected(existing.id, existing.epoch):
        return False
    addresses = {(endpoint.host, endpoint.port) for endpoint in request.endpoints}
    return not set(existing.log_dirs).isdisjoint(request.log_dirs) and any(
        (endpoint.host, endpoint.port) in addresses for endpoint in existing.endpoints
    )


def _leave_partitions(
    state: ControllerState, existing: BrokerImage, previous_broker_epoch: int
) -> tuple[list[MetadataRecord], bool]:
    """K23: a new incarnation is in no ISR; after an unclean stop in no ELR either (G47 where there is none). Also
    returns whether partitions are left for another step.

    Below metadata.version 4.0-IV1 brokers do not report how they stopped. Kafka leaves them in the ISR there: a broker
    that was not fenced yet would remain leader while fenced.
    """
    changes = PartitionChanges(state)
    clean = previous_broker_epoch == existing.epoch or state.image.metadata_version < MV_ELR

    def partitions() -> Iterator[tuple[UUID, int]]:
        index = state.index
        return index.in_isr(existing.id) if clean else chain(index.in_isr(existing.id), index.in_elr(existing.id))

    some, more = state.visits.next(VisitCause.REPLACED, existing.id, existing.epoch, partitions, state.visits_in_a_step)
    changes.leave(some, existing.id, unclean=not clean)
    return changes.records, more


def _check_node(node_id: int, endpoints: tuple[Endpoint, ...], features: Mapping[str, Levels]) -> None:
    """C4: check values that other nodes read from the record. Raises PeerError(INVALID_REQUEST).

    Kafka accepts a negative id, and its controller fails on an unknown protocol or levels in the wrong order.
    """
    fault = None
    if node_id < 0:
        fault = f"The node id {node_id} is negative."
    for endpoint in endpoints:
        if endpoint.security_protocol not in _SECURITY_PROTOCOLS:
            fault = f"Listener {endpoint.name} has the unknown security protocol {endpoint.security_protocol}."
    for name, levels in features.items():
        if not 0 <= levels.minimum <= levels.maximum:
            fault = f"Feature {name} has the invalid range {levels.minimum}-{levels.maximum}."
    if fault is not None:
        raise PeerError(ErrorCode.INVALID_REQUEST, fault)


def _check_directories(state: ControllerState, request: RegisterBroker) -> None:
    if state.image.metadata_version < MV_DIRECTORIES:
        return
    directories = request.log_dirs
    fault: str | None = None
    if not directories:
        fault = "No directories specified in request"
    elif any(directory.int < _RESERVED_DIRECTORIES for directory in directories):
        fault = "Reserved directory ID in request"
    elif len(set(directories)) != len(directories):
        fault = "Duplicate directory ID in request"
    else:
        fault = _directory_of_another(state, request.broker_id, directories)
    if fault is not None:
        raise PeerError(ErrorCode.INVALID_REGISTRATION, fault)


def _directory_of_another(state: ControllerState, broker_id: int, directories: tuple[UUID, ...]) -> str | None:
    requested = set(directories)
    for broker in state.image.brokers.values():
        if broker.id != broker_id and not requested.isdisjoint(broker.log_dirs):
            shared = next(directory for directory in directories if directory in broker.log_dirs)
            return f"Broker {broker.id} is already registered with directory {encode_uuid(shared)}"
    return None


def _check_features(state: ControllerState, request: RegisterBroker) -> None:
    """Every finalized level must be in the broker's range; a feature it does not name is [0, 0] (K37)."""
    image = state.image
    if METADATA_VERSION not in request.features:
        raise PeerError(
            ErrorCode.INVALID_REGISTRATION,
            "Request features do not contain 'metadata.version'",
        )
    if not image.metadata_version:
        raise PeerError(ErrorCode.INVALID_REGISTRATION, "No metadata.version is finalized in this cluster.")
    for name, levels in request.features.items():
        _check_level(name, state.finalized(name), levels)
    for name, level in image.features.items():
        if name not in request.features:
            _check_level(name, level, NO_LEVELS)


def _check_level(name: str, finalized: int, levels: Levels) -> None:
    if finalized not in levels:
        raise PeerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {finalized} of {name}. "
            f"The broker wants a version between {levels.minimum} and {levels.maximum}, inclusive.",
        )


def register_controller(state: ControllerState, request: RegisterController) -> Decision:
    """A controller's registration is written for each request (K20: one at each start).

    Raises PeerError(UNSUPPORTED_VERSION) below metadata.version 3.7-IV0.
    """
    if state.image.metadata_version < MV_CONTROLLER_REGISTRATION:
        raise PeerError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations.",
        )
    _check_node(request.controller_id, request.endpoints, request.features)
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=tuple(ControllerEndpoint(*endpoint) for endpoint in request.endpoints),
        features=tuple(ControllerFeature(name, *levels) for name, levels in request.features.items()),
    )
    return Decision((record,), EmptyAnswer())


def unregister_broker(state: ControllerState, request: UnregisterBroker) -> Decision:
    """C19: remove the broker from every ISR and ELR, for good. Raises PeerError(BROKER_ID_NOT_REGISTERED).

    Kafka adds it to the ELR when it leaves the ISR.
    """
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise PeerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    changes = PartitionChanges(state)
    changes.leave(state.index.in_isr(broker.id), broker.id, unclean=True)
    changes.leave(state.index.in_elr(broker.id), broker.id, unclean=True)
    state.sessions.drop(broker.id)
    return Decision([*changes.records, UnregisterBrokerRecord(broker.id, broker.epoch)], EmptyAnswer(), atomic=False)
