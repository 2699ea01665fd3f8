"""Membership of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and session timeouts.

Owns the rules of the classic group protocol as in Kafka 4.3.1 (KIP-134 initial delay, KIP-345 static members,
KIP-394 required member id, KIP-559 protocol check in SyncGroup, KIP-814 skipped assignment). Never touches offsets.

How it works. A JoinGroup or SyncGroup that cannot be answered yet is parked on its member as a ticket. `rebalance.py`
handles the effects on the group. Errors that end a request are raised as `PeerError`; the coordinator converts them
into responses.

| request   | Empty            | PreparingRebalance     | CompletingRebalance        | Stable               | Dead |
|-----------|------------------|------------------------|----------------------------|----------------------|------|
| join new  | parks, rebalance | parks                  | parks, rebalance           | parks, rebalance     | 15   |
| rejoin    | 25               | parks                  | same protocols: answer,    | leader or changed:   | 15   |
|           |                  |                        | else parks, rebalance      | rebalance, else answer |    |
| sync      | 25               | 27                     | parks; leader's is written | assignment           | 15   |
| heartbeat | 25               | 27, keeps alive        | 0                          | 0                    | 15   |
| leave     | 25               | may end the join phase | rebalance                  | rebalance            | 15   |
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import ClassicGroup, ClassicGroupMember, StoredMember
from fenceline.groups.classic.rebalance import DISPLACED, Rebalance
from fenceline.groups.classic.records import new_group_record
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import (
    NO_MEMBER_ID,
    ClassicHeartbeat,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    Now,
    SyncRequest,
    SyncResponse,
    Ticket,
)
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import Writes
from fenceline.ids import random_id
from fenceline.rng import Rng


class ClassicMembership:
    """Of the classic groups of one shard."""

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        foreign: AbstractSet[str],
        max_size: int,
        new_member_join_timeout_ms: int,
        rebalance: Rebalance,
        writes: Writes,
        timers: PartitionTimers,
        rng: Rng,
    ) -> None:
        """`foreign`: the share and streams groups, whose names no classic group can have."""
        self._groups = groups
        self._foreign = foreign
        self._max_size = max_size
        self._new_member_join_timeout_ms = new_member_join_timeout_ms
        self._rebalance = rebalance
        self._writes = writes
        self._timers = timers
        self._rng = rng

    # --- JoinGroup ----------------------------------------

    def join(self, ticket: Ticket, request: JoinRequest, now: Now) -> None:
        is_unknown = request.member_id == NO_MEMBER_ID
        group = self._groups.get(request.group_id)
        is_new_group = group is None
        if group is None:
            if not is_unknown:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
            if request.group_id in self._foreign:
                raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, now.wall_ms)
        writes_before = self._writes.count
        if not self._has_room(group, request.member_id):
            self._rebalance.remove_member(group, request.member_id)
            self._writes.answer(ticket, JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not group.supports(request.protocol_type, request.protocols):
            self._writes.answer(ticket, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif is_unknown:
            self._join_new(ticket, request, group, now)
        else:
            self._join_known(ticket, request, group, now)
        if is_new_group and self._writes.count == writes_before:
            self._writes.begin((new_group_record(group),))

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """`group.max.size`; during the join phase waiting members count, so that the last to rejoin are rejected."""
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                member = group.members.get(member_id)
                is_waiting = member is not None and member.join_ticket is not None
                return is_waiting or group.parked_join_count < self._max_size
            case _:
                return member_id in group.members or len(group.members) < self._max_size

    def _join_new(self, ticket: Ticket, request: JoinRequest, group: ClassicGroup, now: Now) -> None:
        instance_id = request.group_instance_id
        prefix = request.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{random_id(self._rng)}"
        if instance_id is not None:
            current_id = group.static_members.get(instance_id)
            if current_id is not None:
                self._replace_static(ticket, request, group, group.members[current_id], member_id, now)
                return
        elif request.must_know_member_id:
            group.pending_joins.add(member_id)
            self._timers.arm(
                TimerKind.SESSION, group.group_id, member_id, now.monotonic_ms + request.session_timeout_ms
            )
            self._writes.answer(ticket, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        self._add(ticket, request, group, member_id, now)

    def _join_known(self, ticket: Ticket, request: JoinRequest, group: ClassicGroup, now: Now) -> None:
        if request.member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # A pending id was given to a dynamic member: a static one cannot know it.
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._add(ticket, request, group, request.member_id, now)
            return
        try:
            member = group.require_member(request.member_id, request.group_instance_id)
        except PeerError as error:
            self._writes.answer(ticket, JoinResponse(error.code, request.member_id))
            return
        is_unchanged = member.protocols == request.protocols
        match group.state:
            case GroupState.COMPLETING_REBALANCE if is_unchanged:
                # It may not have received the response to its JoinGroup: send it again.
                self._writes.answer(ticket, self._rebalance.joined(group, member))
            case GroupState.STABLE if is_unchanged and group.leader_id != member.member_id:
                self._writes.answer(ticket, self._rebalance.joined(group, member, show_members=False))
            case GroupState.PREPARING_REBALANCE | GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
                self._rebalance.park_join(group, member, ticket)
                self._rebalance.membership_changed(group, now)
            case _:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _add(self, ticket: Ticket, request: JoinRequest, group: ClassicGroup, member_id: str, now: Now) -> None:
        member = ClassicGroupMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
            join_ticket=ticket,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member)
        self._rebalance.keep_alive(group, member, now, self._new_member_join_timeout_ms)
        self._rebalance.membership_changed(group, now)

    def _replace_static(
        self,
        ticket: Ticket,
        request: JoinRequest,
        group: ClassicGroup,
        member: ClassicGroupMember,
        new_id: str,
        now: Now,
    ) -> None:
        """An instance returned without its member id, as after a restart: the old id is fenced, its place is kept."""
        old_id, old_leader = member.member_id, group.leader_id
        if not member.open_replacements:
            # Otherwise an instance returned twice, and the id before this one may never be in the log.
            member.stored_state = StoredMember(
                old_id, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
            )
        self._rebalance.fail_parked_requests(group, member, ErrorCode.FENCED_INSTANCE_ID, member_id=old_id)
        self._timers.disarm(TimerKind.SESSION, group.group_id, old_id)
        group.rename_static(member, new_id)
        member.is_new = False
        self._rebalance.keep_alive(group, member, now)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._rebalance.park_join(group, member, ticket)
        match group.state:
            case GroupState.STABLE if group.select_protocol() == group.protocol_name:
                # Nothing changes for the others: store the new id and keep the old assignment.
                generation = group.generation
                member.open_replacements += 1

                def stored(error: ErrorCode, then: Now) -> None:
                    member.open_replacements -= 1
                    if error is ErrorCode.NONE:
                        member.stored_state = StoredMember(
                            new_id, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
                        )
                    if group.members.get(new_id) is not member or member.join_ticket is None:
                        return
                    if error is not ErrorCode.NONE:
                        kept = member.stored_state
                        assert kept is not None, "set at the first replacement"
                        parked = group.unpark_join(member)
                        group.update(member, kept.protocols, kept.rebalance_timeout_ms, kept.session_timeout_ms)
                        self._timers.disarm(TimerKind.SESSION, group.group_id, new_id)
                        group.rename_static(member, kept.member_id)
                        self._rebalance.keep_alive(group, member, then)
                        self._writes.answer(
                            parked,
                            JoinResponse(
                                error,
                                generation=generation,
                                protocol_type=group.protocol_type,
                                protocol_name=group.protocol_name,
                                leader=old_leader or NO_MEMBER_ID,
                            ),
                        )
                    elif group.state is GroupState.STABLE and group.generation == generation:
                        parked = group.unpark_join(member)
                        leads = group.leader_id == new_id
                        if request.may_skip_assignment:
                            outcome = self._rebalance.joined(group, member, skip_assignment=leads)
                        else:
                            # An old client that leads would assign again; with the old leader's id it does not.
                            outcome = self._rebalance.joined(group, member, show_members=False, leader=old_leader)
                        self._writes.answer(parked, outcome)
                        # Its session may have ended while it waited.
                        self._rebalance.keep_alive(group, member, then)

                self._rebalance.store(group, stored)
            case GroupState.COMPLETING_REBALANCE:
                # The leader may have received the old id already: its assignment would miss the new one.
                self._rebalance.prepare(group, now)
            case GroupState.STABLE:
                self._rebalance.membership_changed(group, now)
            case _:
                self._rebalance.maybe_complete_join(group, now)

    # --- SyncGroup ----------------------------------------

    def sync(self, ticket: Ticket, request: SyncRequest, now: Now) -> None:
        group = self._groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.require_member(request.member_id, request.group_instance_id)
        if request.generation != group.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise PeerError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._timers.disarm(TimerKind.SYNC, group.group_id)
        if group.state is GroupState.STABLE:
            self._writes.answer(ticket, self._rebalance.synced(group, member))
            return
        displaced, member.sync_ticket = member.sync_ticket, ticket
        if displaced is not None:
            self._writes.answer(displaced, SyncResponse(DISPLACED))
        if group.leader_id == member.member_id:
            self._rebalance.store_assignment(group, dict(request.assignments), now)

    # --- Heartbeat, LeaveGroup ----------------------------------------

    def heartbeat(self, request: ClassicHeartbeat, now: Now) -> HeartbeatResponse:
        group = self._groups.get(request.group_id)
        if group is None:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.require_member(request.member_id, request.group_instance_id)
        if request.generation != group.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        self._rebalance.keep_alive(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, request: LeaveRequest, now: Now) -> LeaveResponse:
        group = self._groups.get(request.group_id)
        if group is None:
            return LeaveResponse(
                members=tuple(LeftMember(*each, ErrorCode.UNKNOWN_MEMBER_ID) for each in request.members)
            )
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        left = tuple(LeftMember(*each, self._leave_one(group, each)) for each in request.members)
        if any(each.error is ErrorCode.NONE for each in left):
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalance.prepare(group, now)
            else:
                self._rebalance.maybe_complete_join(group, now)
        return LeaveResponse(members=left)

    def _leave_one(self, group: ClassicGroup, identity: LeavingMember) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            # An administrator removes a static member without knowing its id (KIP-345).
            static_id = group.static_members.get(identity.group_instance_id or "")
            if identity.group_instance_id is None or static_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static_id
        elif member_id not in group.pending_joins:
            try:
                group.require_member(member_id, identity.group_instance_id)
            except PeerError as error:
                return error.code
        self._rebalance.remove_member(group, member_id)
        return ErrorCode.NONE

    # --- time ----------------------------------------

    def on_session_timeout(self, group_id: str, member_id: str, now: Now) -> None:
        group = self._groups.get(group_id)
        if group is None:
            return
        member = group.members.get(member_id)
        if member is None:
            if member_id not in group.pending_joins:
                return
            group.pending_joins.discard(member_id)
        elif member.is_kept_alive_by_waiting:
            return
        else:
            self._rebalance.remove_member(group, member_id)
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalance.prepare(group, now)
                return
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._rebalance.complete_join(group, now)

    def prepare_if_too_large(self, group: ClassicGroup, now: Now) -> None:
        """The group was just loaded: members that are no longer allowed must leave."""
        if len(group.members) > self._max_size:
            self._rebalance.prepare(group, now)


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual
