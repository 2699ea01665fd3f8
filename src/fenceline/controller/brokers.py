"""States of a registered broker: fenced, unfenced, in controlled shutdown, shutting down.

Owns heartbeats and fencing. The table `_NEXT` maps each state to the next one. Which brokers may register is decided in
`controller.registrations`.

Faster than Kafka: a broker whose process has certainly ended is fenced at once (`fence_ended_broker`); one that is only
silent keeps its session, unless a majority of its followers and this controller miss it (`fence_silent_broker`). A
fenced broker that is alive returns with its next heartbeat, with the same broker epoch.

Rules: controller.md C13-C20; since_4_0.md K22-K25; gaps.md G44.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from fenceline.controller.directories import cordon, failed_directories, leave_failed_directories
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_visits import VisitCause
from fenceline.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    EmptyAnswer,
    FenceEndedBroker,
    FenceSilentBroker,
    SilentBroker,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.metadata.image import BrokerImage
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord
from fenceline.metadata.records import MetadataRecord

_FENCE: Final = 1
_UNFENCE: Final = -1


class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


# -- heartbeats --------------------------------------------------------------------------------------------------------


def _from_fenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerControlState:
    if request.want_shut_down:
        return BrokerControlState.SHUTDOWN_NOW
    if _wants_fence(broker, request) or not _is_caught_up(state, request) or broker.in_controlled_shutdown:
        return BrokerControlState.FENCED  # a broker that is shutting down returns only as a new incarnation
    return BrokerControlState.UNFENCED


def _from_unfenced(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerControlState:
    if _wants_fence(broker, request):
        return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
    if not request.want_shut_down:
        return BrokerControlState.UNFENCED
    return (
        BrokerControlState.CONTROLLED_SHUTDOWN if state.index.leads_any(broker.id) else BrokerControlState.SHUTDOWN_NOW
    )


def _from_shutdown(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeat) -> BrokerControlState:
    """The broker may stop when it leads no partition and every active broker knows that."""
    if _is_still_leaving(state, broker):
        return BrokerControlState.CONTROLLED_SHUTDOWN
    session = state.sessions.get(broker.id)
    began = session.shutdown_offset if session is not None else None
    active = (other.id for other in state.image.brokers.values() if other.is_active)
    lowest = state.sessions.lowest_offset(active)
    if began is None or lowest is None or lowest >= began:
        return BrokerControlState.SHUTDOWN_NOW
    return BrokerControlState.CONTROLLED_SHUTDOWN


def _wants_fence(broker: BrokerImage, request: BrokerHeartbeat) -> bool:
    """A broker whose log directories have all failed is fenced, whatever it requests."""
    return request.want_fence or (bool(broker.log_dirs) and set(broker.log_dirs) <= set(request.offline_log_dirs))


_NEXT: Final[
    Mapping[BrokerControlState, Callable[[ControllerState, BrokerImage, BrokerHeartbeat], BrokerControlState]]
] = {
    BrokerControlState.FENCED: _from_fenced,
    BrokerControlState.UNFENCED: _from_unfenced,
    BrokerControlState.CONTROLLED_SHUTDOWN: _from_shutdown,
}
"""C14: the next state after a heartbeat, by the current state."""


def state_of(broker: BrokerImage) -> BrokerControlState:
    if broker.fenced:
        return BrokerControlState.FENCED
    return BrokerControlState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerControlState.UNFENCED


def broker_heartbeat(state: ControllerState, request: BrokerHeartbeat, now_ms: int) -> Decision:
    """C13-C16, C20, K25. Raises PeerError(STALE_BROKER_EPOCH)."""
    broker = state.broker(request.broker_id, request.broker_epoch)
    current = state_of(broker)
    following = _NEXT[current](state, broker, request)
    failed = failed_directories(state, broker, request.offline_log_dirs)
    records, more = _step(state, broker, current, following, failed)
    session = state.sessions.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
    if following is not BrokerControlState.CONTROLLED_SHUTDOWN:
        session.shutdown_offset = None
    elif following is not current or session.shutdown_offset is None or records:
        session.shutdown_offset = state.next_offset + len(records) - 1
    records += cordon(state, broker, request.cordoned_log_dirs)
    answer = BrokerHeartbeatAnswer(
        is_caught_up=_is_caught_up(state, request),
        is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
    )
    return Decision(records, answer, atomic=False, more=more)


def _step(
    state: ControllerState,
    broker: BrokerImage,
    current: BrokerControlState,
    following: BrokerControlState,
    failed: Collection[UUID],
) -> tuple[list[MetadataRecord], bool]:
    """C16: when fencing, leave every ISR first; when unfencing, elect the broker for leaderless partitions afterwards.
    C20. Also returns whether partitions are left for another step."""
    more = False
    changes = PartitionChanges(state)
    if following is BrokerControlState.UNFENCED:
        before: list[MetadataRecord] = []
        if current is not following:
            before.append(_change(broker, fenced=_UNFENCE))
        if current is not following or state.visits.is_in_progress(VisitCause.RETURNING, broker.id, broker.epoch):
            some, more = state.visits.next(
                VisitCause.RETURNING,
                broker.id,
                broker.epoch,
                lambda: state.index.leaderless_of(broker.id),
                state.visits_in_a_step,
            )
            changes.elect(some, arriving=broker.id, failed_directories=failed)
        after = leave_failed_directories(state, changes, broker, failed)
        return [*before, *changes.records, *after], more
    after = leave_failed_directories(state, changes, broker, failed) if len(failed) < len(broker.log_dirs) else []
    is_leaving = following is BrokerControlState.CONTROLLED_SHUTDOWN
    if current is following and not (is_leaving and _is_still_leaving(state, broker)):
        return [*changes.records, *after], False
    some, more = state.visits.next(
        VisitCause.LEAVING if is_leaving else VisitCause.FENCED,
        broker.id,
        broker.epoch,
        lambda: state.index.in_isr(broker.id),
        state.visits_in_a_step,
    )
    changes.leave(some, broker.id, failed_directories=failed)
    if is_leaving:
        begin = [] if current is following else [_change(broker, in_controlled_shutdown=1)]
        return [*begin, *changes.records, *after], more
    fence = [] if broker.fenced or more else [_change(broker, fenced=_FENCE)]
    return [*changes.records, *fence, *after], more


def _is_still_leaving(state: ControllerState, broker: BrokerImage) -> bool:
    """Whether the step that began its shutdown was not the last one, here or at an earlier controller."""
    return state.index.leads_any(broker.id) or state.visits.is_in_progress(VisitCause.LEAVING, broker.id, broker.epoch)


def _change(broker: BrokerImage, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> MetadataRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=in_controlled_shutdown
    )


def _is_caught_up(state: ControllerState, request: BrokerHeartbeat) -> bool:
    """The broker has applied its own registration. After a failover that offset is unknown here: see
    `begin_sessions`."""
    session = state.sessions.get(request.broker_id)
    registered = session.registration_offset if session is not None else request.broker_epoch
    return request.current_metadata_offset >= registered


# -- timers ------------------------------------------------------------------------------------------------------------


def fence_stale_broker(state: ControllerState, now_ms: int) -> Decision:
    """C17: fence one broker whose session has expired. The caller repeats this while it writes records."""
    for broker_id in (*state.fencing, *state.sessions.expired(now_ms)):
        silent = state.image.brokers.get(broker_id)
        begun = state.fencing.get(broker_id)
        if begun is not None and (silent is None or silent.fenced or silent.epoch != begun):
            del state.fencing[broker_id]  # a new process has registered meanwhile
            continue
        if silent is None or silent.fenced:
            state.sessions.expire(broker_id)
            continue
        decision = fence(state, silent)
        if not decision.more:
            state.sessions.expire(broker_id)
        return decision
    return Decision((), EmptyAnswer(), atomic=False)


def fence_ended_broker(state: ControllerState, request: FenceEndedBroker) -> Decision:
    """Fence a broker whose process has ended, and let its next incarnation register. Does nothing if the report is not
    credible.

    `Sessions.may_have_ended` decides that: a heartbeat that arrived after the probe outweighs it.
    """
    broker = state.image.brokers.get(request.broker_id)
    epoch = request.broker_epoch
    if broker is None or broker.epoch != epoch:
        return Decision((), EmptyAnswer())
    if state.fencing.get(broker.id) != epoch:
        if not state.sessions.may_have_ended(broker.id, epoch, request.since_ms):
            return Decision((), EmptyAnswer())
        state.sessions.end(broker.id, epoch, for_good=not broker.fenced)
    return Decision((), EmptyAnswer(), atomic=False) if broker.fenced else fence(state, broker)


def is_missed_by_followers(state: ControllerState, silent: SilentBroker, now_ms: int) -> bool:
    """Whether a majority of the in-sync followers of this unfenced broker reports that it does not answer, and it may
    be fenced for that (`controller.silence`)."""
    broker = state.image.brokers.get(silent.broker_id)
    if broker is None or broker.epoch != silent.broker_epoch or broker.fenced:
        return False
    if not state.silence.may_fence(silent, now_ms):
        return False
    brokers = state.image.brokers
    followers = [
        each for each in state.index.followers_of(silent.broker_id) if each in brokers and not brokers[each].fenced
    ]
    return state.silence.is_missed(silent, followers, now_ms)


def fence_silent_broker(state: ControllerState, request: FenceSilentBroker, now_ms: int) -> Decision:
    """Fence a broker that neither answers its followers nor this controller. Does nothing if that is not so any more: a
    heartbeat that arrived after the controller began to ask outweighs it."""
    silent = SilentBroker(request.broker_id, request.broker_epoch)
    broker = state.image.brokers.get(silent.broker_id)
    if broker is not None and not broker.fenced and state.fencing.get(broker.id) == broker.epoch == silent.broker_epoch:
        return fence(state, broker)  # the next step
    session = state.sessions.get(silent.broker_id)
    if session is not None and session.last_contact_ms > request.since_ms:
        return Decision((), EmptyAnswer())
    if not is_missed_by_followers(state, silent, now_ms):
        return Decision((), EmptyAnswer())
    state.sessions.end(silent.broker_id, silent.broker_epoch, for_good=False)
    state.silence.fenced(silent, now_ms)
    return fence(state, state.image.brokers[silent.broker_id])


def fence(state: ControllerState, broker: BrokerImage) -> Decision:
    """C16: remove the broker from every ISR, elect other leaders, then fence it. One step of it."""
    records, more = _step(state, broker, state_of(broker), BrokerControlState.FENCED, frozenset())
    if more:
        state.fencing[broker.id] = broker.epoch
    else:
        state.fencing.pop(broker.id, None)
    return Decision(records, EmptyAnswer(), atomic=False, more=more)


def begin_sessions(state: ControllerState, now_ms: int, *, dead: frozenset[int] = frozenset()) -> None:
    """C15: a new active controller starts a session for every registered broker, except those known to be `dead`.

    `dead` contains the broker of this process at its start: the lock on the data directory proves that its previous
    incarnation has ended, so the next one need not wait for a session timeout.

    G44: a broker in controlled shutdown waits until the others have applied every earlier record, because the log
    does not contain the start of its shutdown.
    """
    state.sessions.clear()
    for broker in state.image.brokers.values():
        if broker.id not in dead:
            session = state.sessions.begin(broker.id, broker.epoch, now_ms, state.image.offset)
            session.has_heartbeat = not broker.fenced
            if state_of(broker) is BrokerControlState.CONTROLLED_SHUTDOWN:
                session.shutdown_offset = state.image.offset


def restore_sessions(state: ControllerState, now_ms: int) -> None:
    """C2: a broker that is unfenced again, because its fencing was never committed, gets a session."""
    for broker in state.image.brokers.values():
        if not broker.fenced and not state.sessions.has(broker.id, broker.epoch):
            state.sessions.forget_end(broker.id)
            state.sessions.begin(broker.id, broker.epoch, now_ms, state.image.offset).has_heartbeat = True
