"""The life of a broker as the controller sees it: registered, fenced, unfenced, shutting down, gone.

Owns registration, heartbeats and fencing. What a state asks for and leads to is the table `_NEXT`.

Rules: controller.md C11-C20; since_4_0.md K22-K25.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from fenceline.controller.partitions import update_partitions
from fenceline.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    Done,
    RegisterBroker,
    RegisterBrokerAnswer,
    RegisterController,
    UnregisterBroker,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import METADATA_VERSION, MV_CORDONED_LOG_DIRS, MV_DIRECTORIES, MV_ELR, Levels
from fenceline.metadata.image import BrokerImage
from fenceline.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    MetadataRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

_RESERVED_DIRECTORIES: Final = 100
_FENCE: Final = 1
_UNFENCE: Final = -1


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


# -- registration ------------------------------------------------------------------------------------------------------


def register_broker(state: ControllerState, request: RegisterBroker, now_ms: int) -> Decision:
    """C11, C12, K22-K24. A new incarnation gets the offset of its first record as its broker epoch.

    Raises PeerError: 104 other cluster, 101 another incarnation lives, 102 migrating broker, 119 directories or no
    metadata.version range, 35 a finalized feature is out of the broker's range.
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
    if existing is not None and not known and state.sessions.is_alive(existing.id, existing.epoch, now_ms):
        raise PeerError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker is registered with that broker id.")
    if request.is_migrating_zk_broker:
        raise PeerError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
    _check_directories(state, request)
    _check_features(state, request)
    records: list[MetadataRecord] = []
    if existing is None or not known:
        if existing is not None:
            records += _leave_partitions(state, existing, request.previous_broker_epoch)
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
        session.last_contact_ms = now_ms
    else:
        state.sessions.begin(request.broker_id, epoch, now_ms, registration_offset)
    return Decision(records, RegisterBrokerAnswer(epoch), atomic=len(records) <= MAX_RECORDS)


def _leave_partitions(
    state: ControllerState, existing: BrokerImage, previous_broker_epoch: int
) -> list[MetadataRecord]:
    """K23: a new incarnation is in no ISR; after an unclean stop in no ELR either."""
    image = state.image
    if image.metadata_version < MV_ELR:
        return []
    if image.elr_enabled and previous_broker_epoch == existing.epoch:
        return update_partitions(state, state.index.in_isr(existing.id), leaving=existing.id)
    records = update_partitions(state, state.index.in_isr(existing.id), unclean=existing.id)
    return records + update_partitions(state, state.index.in_elr(existing.id), unclean=existing.id)


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
        wanted = set(directories)
        for broker in state.image.brokers.values():
            if broker.id != request.broker_id and not wanted.isdisjoint(broker.log_dirs):
                shared = next(directory for directory in directories if directory in broker.log_dirs)
                fault = f"Broker {broker.id} is already registered with directory {_text(shared)}"
                break
    if fault is not None:
        raise PeerError(ErrorCode.INVALID_REGISTRATION, fault)


def _check_features(state: ControllerState, request: RegisterBroker) -> None:
    """Every finalized level must lie in the broker's range; a feature it does not name is [0, 0] (K37)."""
    image = state.image
    if METADATA_VERSION not in request.features:
        raise PeerError(
            ErrorCode.INVALID_REGISTRATION,
            "Request features do not contain 'metadata.version'",
        )
    if not image.metadata_version:
        raise PeerError(ErrorCode.INVALID_REGISTRATION, "No metadata.version is finalized in this cluster.")
    for name, levels in request.features.items():
        _check_level(name, image.features.get(name, 0), levels)
    for name, level in image.features.items():
        if name not in request.features:
            _check_level(name, level, Levels(0, 0))


def _check_level(name: str, finalized: int, levels: Levels) -> None:
    if finalized not in levels:
        raise PeerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {finalized} of {name}. "
            f"The broker wants a version between {levels.minimum} and {levels.maximum}, inclusive.",
        )


def register_controller(state: ControllerState, request: RegisterController) -> Decision:
    """A controller's registration is written each time it asks (K20: it does at each start)."""
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=tuple(ControllerEndpoint(*endpoint) for endpoint in request.endpoints),
        features=tuple(ControllerFeature(name, *levels) for name, levels in request.features.items()),
    )
    return Decision((record,), Done())


def unregister_broker(state: ControllerState, request: UnregisterBroker) -> Decision:
    """C19. Raises PeerError(BROKER_ID_NOT_REGISTERED)."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise PeerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    records = update_partitions(state, state.index.in_isr(broker.id), leaving=broker.id)
    records += update_partitions(state, state.index.in_elr(broker.id), unclean=broker.id)
    records.append(UnregisterBrokerRecord(broker.id, broker.epoch))
    state.sessions.drop(broker.id)
    return Decision(records, Done(), atomic=False)


# -- heartbeats --------------------------------------------------------------------------------------------------------


def _from_fenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerState:
    if request.want_shut_down:
        return BrokerState.SHUTDOWN_NOW
    if request.want_fence or not _is_caught_up(state, request):
        return BrokerState.FENCED
    return BrokerState.UNFENCED


def _from_unfenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerState:
    if request.want_fence:
        return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
    if not request.want_shut_down:
        return BrokerState.UNFENCED
    return BrokerState.CONTROLLED_SHUTDOWN if state.index.leads_any(broker.id) else BrokerState.SHUTDOWN_NOW


def _from_shutdown(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerState:
    """It may go when it leads nothing and every active broker knows so."""
    if state.index.leads_any(broker.id):
        return BrokerState.CONTROLLED_SHUTDOWN
    session = state.sessions.get(broker.id)
    began = session.shutdown_offset if session is not None else None
    active = (other.id for other in state.image.brokers.values() if other.is_active)
    lowest = state.sessions.lowest_offset(active)
    if began is None or lowest is None or lowest >= began:
        return BrokerState.SHUTDOWN_NOW
    return BrokerState.CONTROLLED_SHUTDOWN


_NEXT: Final[Mapping[BrokerState, Callable[[ControllerState, BrokerImage, BrokerHeartbeat], BrokerState]]] = {
    BrokerState.FENCED: _from_fenced,
    BrokerState.UNFENCED: _from_unfenced,
    BrokerState.CONTROLLED_SHUTDOWN: _from_shutdown,
}
"""C14: what a heartbeat leads to, by the state of the registration."""


def state_of(broker: BrokerImage) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def broker_heartbeat(state: ControllerState, request: BrokerHeartbeat, now_ms: int) -> Decision:
    """C13-C16, C20, K25. Raises PeerError(STALE_BROKER_EPOCH)."""
    broker = state.broker(request.broker_id, request.broker_epoch)
    current = state_of(broker)
    following = _NEXT[current](state, broker, request)
    records: list[MetadataRecord] = []
    if following is not current:
        match following:
            case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW:
                records += _fence(state, broker)
            case BrokerState.UNFENCED:
                records += _unfence(state, broker)
            case BrokerState.CONTROLLED_SHUTDOWN:
                records += _begin_shutdown(state, broker)
    state.sessions.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
    session = state.sessions.get(broker.id)
    assert session is not None, "a session was just touched"
    if following is BrokerState.CONTROLLED_SHUTDOWN and session.shutdown_offset is None:
        session.shutdown_offset = state.next_offset + len(records) - 1
    records += _directory_changes(state, broker, request)
    answer = BrokerHeartbeatAnswer(
        is_caught_up=_is_caught_up(state, request),
        is_fenced=following in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=following is BrokerState.SHUTDOWN_NOW,
    )
    return Decision(records, answer, atomic=False)


def _is_caught_up(state: ControllerState, request: BrokerHeartbeat) -> bool:
    """It has applied its own registration. After a failover that offset is not known here: see `begin_sessions`."""
    session = state.sessions.get(request.broker_id)
    registered = session.registration_offset if session is not None else request.broker_epoch
    return request.current_metadata_offset >= registered


def _fence(state: ControllerState, broker: BrokerImage) -> list[MetadataRecord]:
    """C16: out of every ISR first, then fenced."""
    records = update_partitions(state, state.index.in_isr(broker.id), leaving=broker.id)
    if not broker.fenced:
        records.append(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_FENCE))
    return records


def _unfence(state: ControllerState, broker: BrokerImage) -> list[MetadataRecord]:
    """C16: unfenced first, then it may lead what nobody leads."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_UNFENCE)
    return [change, *update_partitions(state, state.index.leaderless(), arriving=broker.id)]


def _begin_shutdown(state: ControllerState, broker: BrokerImage) -> list[MetadataRecord]:
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
    return [change, *update_partitions(state, state.index.in_isr(broker.id), leaving=broker.id)]


def _directory_changes(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> list[MetadataRecord]:
    """C20: replicas in directories that went offline leave their ISR. K25: the list of cordoned directories."""
    records: list[MetadataRecord] = []
    offline = set(request.offline_log_dirs).intersection(broker.log_dirs)
    if offline and state.image.metadata_version >= MV_DIRECTORIES:
        hit = [
            (topic_id, index)
            for topic_id, index in state.index.in_isr(broker.id)
            if state.image.topics_by_id[topic_id].partitions[index].directory_of(broker.id) in offline
        ]
        records += update_partitions(state, hit, leaving=broker.id)
        remaining = tuple(directory for directory in broker.log_dirs if directory not in offline)
        records.append(
            BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=remaining)
        )
    cordoned = request.cordoned_log_dirs
    if (
        cordoned is not None
        and state.image.metadata_version >= MV_CORDONED_LOG_DIRS
        and cordoned != broker.cordoned_log_dirs
    ):
        records.append(
            BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=cordoned)
        )
    return records


# -- time --------------------------------------------------------------------------------------------------------------


def fence_stale_broker(state: ControllerState, now_ms: int) -> Decision:
    """C17: fence one broker whose session has ended. More may wait: ask again while it writes records."""
    for broker_id in state.sessions.expired(now_ms):
        broker = state.image.brokers.get(broker_id)
        state.sessions.drop(broker_id)
        if broker is not None and not broker.fenced:
            return Decision(_fence(state, broker), Done(), atomic=False)
    return Decision((), Done(), atomic=False)


def begin_sessions(state: ControllerState, now_ms: int, *, dead: frozenset[int] = frozenset()) -> None:
    """C15: on taking the lead, every registered broker gets a fresh session, save those known to be `dead`.

    `dead` holds the broker of this very process at its start: whoever registered under its id before has ended, as
    the lock on the data directory proves, so its next incarnation need not wait for a session to time out.
    """
    state.sessions.clear()
    for broker in state.image.brokers.values():
        if broker.id not in dead:
            state.sessions.begin(broker.id, broker.epoch, now_ms, state.image.offset)


def _text(directory: UUID) -> str:
    from fenceline.ids import encode_uuid

    return encode_uuid(directory)
