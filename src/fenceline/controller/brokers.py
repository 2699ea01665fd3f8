"""The life of a registered broker as the controller sees it: fenced, unfenced, shutting down, told to go.

Owns heartbeats and fencing. What a state asks for and leads to is the table `_NEXT`. Who may register is
`controller.registrations`.

Faster than Kafka: a broker whose process is gone for certain is fenced at once (`broker_gone`); one that is only silent
keeps its session. A broker that was fenced and lives comes back by its next heartbeat, with the epoch that it has.

Rules: controller.md C13-C20; since_4_0.md K22-K25; gaps.md G44.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from fenceline.controller.directories import cordon, failed_directories, leave_failed
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.requests import BrokerGone, BrokerHeartbeat, BrokerHeartbeatAnswer, Done
from fenceline.controller.state import ControllerState, Decision
from fenceline.metadata.image import BrokerImage
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord
from fenceline.metadata.records import MetadataRecord

_FENCE: Final = 1
_UNFENCE: Final = -1


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


# -- heartbeats --------------------------------------------------------------------------------------------------------


def _from_fenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerState:
    if request.want_shut_down:
        return BrokerState.SHUTDOWN_NOW
    if _wants_fence(broker, request) or not _is_caught_up(state, request) or broker.in_controlled_shutdown:
        return BrokerState.FENCED  # what began to shut down comes back as another incarnation only
    return BrokerState.UNFENCED


def _from_unfenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerState:
    if _wants_fence(broker, request):
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


def _wants_fence(broker: BrokerImage, request: BrokerHeartbeat) -> bool:
    """A broker all of whose directories have failed serves nothing, whatever it says."""
    return request.want_fence or (bool(broker.log_dirs) and set(broker.log_dirs) <= set(request.offline_log_dirs))


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
    failed = failed_directories(state, broker, request.offline_log_dirs)
    records = _step(state, broker, current, following, failed)
    session = state.sessions.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
    if following is not BrokerState.CONTROLLED_SHUTDOWN:
        session.shutdown_offset = None
    elif following is not current or session.shutdown_offset is None:
        session.shutdown_offset = state.next_offset + len(records) - 1
    records += cordon(state, broker, request.cordoned_log_dirs)
    answer = BrokerHeartbeatAnswer(
        is_caught_up=_is_caught_up(state, request),
        is_fenced=following in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=following is BrokerState.SHUTDOWN_NOW,
    )
    return Decision(records, answer, atomic=False)


def _step(
    state: ControllerState,
    broker: BrokerImage,
    current: BrokerState,
    following: BrokerState,
    failed: Collection[UUID],
) -> list[MetadataRecord]:
    """C16: out of every ISR first, then fenced; unfenced first, then it may lead what nobody leads. C20."""
    changes = PartitionChanges(state)
    if following is BrokerState.UNFENCED:
        before: list[MetadataRecord] = []
        if current is not following:
            before.append(_change(broker, fenced=_UNFENCE))
            partitions = state.index.leaderless_of(broker.id)
            changes.elect(partitions, arriving=broker.id, failed_directories=failed)
        after = leave_failed(state, changes, broker, failed)
        return [*before, *changes.records, *after]
    after = leave_failed(state, changes, broker, failed) if len(failed) < len(broker.log_dirs) else []
    if current is following:
        return [*changes.records, *after]
    changes.leave(state.index.in_isr(broker.id), broker.id, failed_directories=failed)
    if following is BrokerState.CONTROLLED_SHUTDOWN:
        return [_change(broker, in_controlled_shutdown=1), *changes.records, *after]
    fence = [] if broker.fenced else [_change(broker, fenced=_FENCE)]
    return [*changes.records, *fence, *after]


def _change(broker: BrokerImage, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> MetadataRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=in_controlled_shutdown
    )


def _is_caught_up(state: ControllerState, request: BrokerHeartbeat) -> bool:
    """It has applied its own registration. After a failover that offset is not known here: see `begin_sessions`."""
    session = state.sessions.get(request.broker_id)
    registered = session.registration_offset if session is not None else request.broker_epoch
    return request.current_metadata_offset >= registered


# -- time --------------------------------------------------------------------------------------------------------------


def fence_stale_broker(state: ControllerState, now_ms: int) -> Decision:
    """C17: fence one broker whose session has ended. More may wait: ask again while it writes records."""
    for broker_id in state.sessions.expired(now_ms):
        silent = state.image.brokers.get(broker_id)
        state.sessions.expire(broker_id)
        if silent is not None and not silent.fenced:
            return Decision(fence(state, silent), Done(), atomic=False)
    return Decision((), Done(), atomic=False)


def broker_gone(state: ControllerState, request: BrokerGone) -> Decision:
    """Fence a broker whose process has ended, and let its next incarnation register. Nothing where it is not believed.

    `Sessions.may_have_ended` says when: what the probe saw is older than what the broker said meanwhile.
    """
    broker = state.image.brokers.get(request.broker_id)
    epoch = request.broker_epoch
    if broker is None or broker.epoch != epoch:
        return Decision((), Done())
    if not state.sessions.may_have_ended(broker.id, epoch, request.since_ms):
        return Decision((), Done())
    state.sessions.end(broker.id, epoch, for_good=not broker.fenced)
    return Decision([] if broker.fenced else fence(state, broker), Done(), atomic=False)


def fence(state: ControllerState, broker: BrokerImage) -> list[MetadataRecord]:
    """C16, for whatever reason: out of every ISR, leaders elected elsewhere, then fenced."""
    return _step(state, broker, state_of(broker), BrokerState.FENCED, frozenset())


def begin_sessions(state: ControllerState, now_ms: int, *, dead: frozenset[int] = frozenset()) -> None:
    """C15: on taking the lead, every registered broker gets a fresh session, save those known to be `dead`.

    `dead` holds the broker of this very process at its start: whoever registered under its id before has ended, as
    the lock on the data directory proves, so its next incarnation need not wait for a session to time out.

    G44: a broker that is shutting down waits until the others have applied all that was decided before; when its
    shutdown began is not in the log.
    """
    state.sessions.clear()
    for broker in state.image.brokers.values():
        if broker.id not in dead:
            session = state.sessions.begin(broker.id, broker.epoch, now_ms, state.image.offset)
            session.heard = not broker.fenced
            if state_of(broker) is BrokerState.CONTROLLED_SHUTDOWN:
                session.shutdown_offset = state.image.offset


def restore_sessions(state: ControllerState, now_ms: int) -> None:
    """C2: a broker that is not fenced, because what fenced it was never committed, has a session again."""
    for broker in state.image.brokers.values():
        if not broker.fenced and not state.sessions.has(broker.id, broker.epoch):
            state.sessions.forget_end(broker.id)
            state.sessions.begin(broker.id, broker.epoch, now_ms, state.image.offset).heard = True
