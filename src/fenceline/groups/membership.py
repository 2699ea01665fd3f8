"""Who is in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and what time does to members.

Owns the rules of the classic group protocol as Kafka 4.3.1 ships them (KIP-134 initial delay, KIP-345 static members,
KIP-394 required member id, KIP-559 protocol check in SyncGroup, KIP-814 skipped assignment). Never touches offsets.

How it works. A JoinGroup or SyncGroup that can not be answered yet is parked on its member as a ticket. `_prepare`,
`_complete_join` and the commit of an assignment are the only places where a group changes state; each walks along
`states.TRANSITIONS`. Errors that end a request are raised as `PeerError`; the coordinator turns them into answers.

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

from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.clock import Now
from fenceline.groups.messages import (
    NO_MEMBER_ID,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LeftMember,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from fenceline.groups.model import Group, Member, StoredMember
from fenceline.groups.states import GroupState, Step
from fenceline.groups.timers import TimerKind

if TYPE_CHECKING:
    from fenceline.groups.shard import Shard

DISPLACED: Final = ErrorCode.REBALANCE_IN_PROGRESS
"""What a parked request is told when the same member sent another one in its place."""


class Membership:
    __slots__ = ("_shard",)

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    # --- JoinGroup ----------------------------------------

    def join(self, ticket: Ticket, request: JoinRequest, now: Now) -> None:
        shard = self._shard
        is_unknown = request.member_id == NO_MEMBER_ID
        group = shard.groups.get(request.group_id)
        is_new_group = group is None
        if group is None:
            if not is_unknown:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = shard.create_group(request.group_id, now)
        writes_before = shard.write_count
        if not self._has_room(group, request.member_id):
            self._drop_member(group, request.member_id)
            shard.answer(ticket, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not group.supports(request.protocol_type, request.protocols):
            shard.answer(ticket, JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif is_unknown:
            self._join_new(ticket, request, group, now)
        else:
            self._join_known(ticket, request, group, now)
        if is_new_group and shard.write_count == writes_before:
            shard.write_new_group(group)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """`group.max.size`; while a group gathers, those who wait count, so that the last to rejoin have to go."""
        max_size = self._shard.settings.max_size
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                member = group.members.get(member_id)
                is_waiting = member is not None and member.join_ticket is not None
                return is_waiting or group.parked_join_count < max_size
            case _:
                return member_id in group.members or len(group.members) < max_size

    def _join_new(self, ticket: Ticket, request: JoinRequest, group: Group, now: Now) -> None:
        shard = self._shard
        instance_id = request.group_instance_id
        member_id = shard.new_member_id(request.client_id if instance_id is None else instance_id)
        if instance_id is not None:
            current_id = group.static_members.get(instance_id)
            if current_id is not None:
                self._replace_static(ticket, request, group, group.members[current_id], member_id, now)
                return
        elif request.must_know_member_id:
            group.pending_joins.add(member_id)
            shard.arm(TimerKind.SESSION, group.group_id, member_id, now.monotonic_ms + request.session_timeout_ms)
            shard.answer(ticket, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        self._add(ticket, request, group, member_id, now)

    def _join_known(self, ticket: Ticket, request: JoinRequest, group: Group, now: Now) -> None:
        if request.member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # A pending id was given to a dynamic member: whoever uses it as a static one does not know its id.
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._add(ticket, request, group, request.member_id, now)
            return
        try:
            member = group.require_member(request.member_id, request.group_instance_id)
        except PeerError as error:
            self._shard.answer(ticket, JoinAnswer(error.code, request.member_id))
            return
        is_unchanged = member.protocols == request.protocols
        match group.state:
            case GroupState.COMPLETING_REBALANCE if is_unchanged:
                # It may not have seen the answer to its JoinGroup: tell it again.
                self._shard.answer(ticket, self._joined(group, member))
            case GroupState.STABLE if is_unchanged and group.leader_id != member.member_id:
                self._shard.answer(ticket, self._joined(group, member, show_members=False))
            case GroupState.PREPARING_REBALANCE | GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
                self._park_join(group, member, ticket)
                self._rebalance(group, now)
            case _:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _add(self, ticket: Ticket, request: JoinRequest, group: Group, member_id: str, now: Now) -> None:
        member = Member(
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
        self._keep_alive(group, member, now, self._shard.settings.new_member_join_timeout_ms)
        self._rebalance(group, now)

    def _replace_static(
        self, ticket: Ticket, request: JoinRequest, group: Group, member: Member, new_id: str, now: Now
    ) -> None:
        """An instance came back without its member id, as after a restart: the old id is fenced, its place is kept."""
        shard = self._shard
        old_id, old_leader = member.member_id, group.leader_id
        if not member.open_replacements:
            # Otherwise an instance came back twice, and the id before this one may never be in the log.
            member.in_log = StoredMember(
                old_id, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
            )
        self._end_waits(group, member, ErrorCode.FENCED_INSTANCE_ID, member_id=old_id)
        shard.disarm(TimerKind.SESSION, group.group_id, old_id)
        group.rename_static(member, new_id)
        member.is_new = False
        self._keep_alive(group, member, now)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._park_join(group, member, ticket)
        match group.state:
            case GroupState.STABLE if group.select_protocol() == group.protocol_name:
                # Nothing changes for the others: store the new id and let it take up the old assignment.
                generation = group.generation
                member.open_replacements += 1

                def stored(error: ErrorCode, then: Now) -> None:
                    member.open_replacements -= 1
                    if error is ErrorCode.NONE:
                        member.in_log = StoredMember(
                            new_id, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
                        )
                    if group.members.get(new_id) is not member or member.join_ticket is None:
                        return
                    if error is not ErrorCode.NONE:
                        kept = member.in_log
                        assert kept is not None, "there since the first replacement"
                        parked = group.unpark_join(member)
                        group.update(member, kept.protocols, kept.rebalance_timeout_ms, kept.session_timeout_ms)
                        shard.disarm(TimerKind.SESSION, group.group_id, new_id)
                        group.rename_static(member, kept.member_id)
                        self._keep_alive(group, member, then)
                        shard.answer(
                            parked,
                            JoinAnswer(
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
                            outcome = self._joined(group, member, skip_assignment=leads)
                        else:
                            # An old client that leads would assign again; with the old leader's id it does not.
                            outcome = self._joined(group, member, show_members=False, leader=old_leader)
                        shard.answer(parked, outcome)

                shard.write_group(group, now, stored)
            case GroupState.COMPLETING_REBALANCE:
                # The leader may have been given the old id already: its assignment would miss the new one.
                self._prepare(group, now)
            case GroupState.STABLE:
                self._rebalance(group, now)
            case _:
                self._maybe_complete_join(group, now)

    def _joined(
        self,
        group: Group,
        member: Member,
        *,
        show_members: bool = True,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinAnswer:
        leads = group.leader_id == member.member_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader or group.leader_id or NO_MEMBER_ID,
            skip_assignment=skip_assignment,
            members=group.joined_members() if leads and show_members else (),
        )

    # --- the join phase ----------------------------------------

    def _rebalance(self, group: Group, now: Now) -> None:
        """Membership or a subscription changed: start to gather, or look whether gathering is done."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(group, now)
        else:
            self._prepare(group, now)

    def _prepare(self, group: Group, now: Now) -> None:
        shard = self._shard
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._answer_syncs(group, now, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        shard.disarm(TimerKind.SYNC, group.group_id)
        is_initial = group.state is GroupState.EMPTY
        group.take(Step.REBALANCE, now.wall_ms)
        group.new_member_added = False
        if is_initial:
            delay_ms = shard.settings.initial_rebalance_delay_ms
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            shard.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + delay_ms)
            return
        group.initial_remaining_ms = None
        if group.all_joined:
            self._complete_join(group, now)
        else:
            shard.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)

    def _maybe_complete_join(self, group: Group, now: Now) -> None:
        """End the join phase early when everybody is there; an initial rebalance waits out its delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            self._complete_join(group, now)

    def _complete_join(self, group: Group, now: Now) -> None:
        shard = self._shard
        shard.disarm(TimerKind.JOIN, group.group_id)
        group.initial_remaining_ms = None
        for member in [m for m in group.members.values() if m.join_ticket is None and not m.is_static]:
            self._drop_member(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none of them is here: wait for one, or for their sessions to end.
            shard.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)
            return
        group.start_generation(now.wall_ms)
        if group.state is GroupState.EMPTY:
            shard.write_group(group, now)
            return
        for member in group.members.values():
            ticket = group.unpark_join(member)
            if ticket is not None:
                shard.answer(ticket, self._joined(group, member))
            self._keep_alive(group, member, now)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        shard.arm(TimerKind.SYNC, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)

    # --- SyncGroup ----------------------------------------

    def sync(self, ticket: Ticket, request: SyncRequest, now: Now) -> None:
        shard = self._shard
        group = shard.groups.get(request.group_id)
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
            shard.disarm(TimerKind.SYNC, group.group_id)
        if group.state is GroupState.STABLE:
            shard.answer(ticket, self._synced(group, member))
            return
        displaced, member.sync_ticket = member.sync_ticket, ticket
        if displaced is not None:
            shard.answer(displaced, SyncAnswer(DISPLACED))
        if group.leader_id == member.member_id:
            self._store_assignment(group, dict(request.assignments), now)

    def _store_assignment(self, group: Group, assignments: dict[str, bytes], now: Now) -> None:
        """The group is stable once the leader's assignment is committed, unless another rebalance began meanwhile."""
        generation = group.generation

        def stored(error: ErrorCode, then: Now) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            for member in group.members.values():
                member.assignment = b"" if error else assignments.get(member.member_id, b"")
            self._answer_syncs(group, then, error)
            if error:
                self._rebalance(group, then)
            else:
                group.take(Step.ASSIGNED, then.wall_ms)

        self._shard.write_group(group, now, stored, assignments)

    def _answer_syncs(self, group: Group, now: Now, error: ErrorCode) -> None:
        for member in group.members.values():
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is not None:
                self._shard.answer(ticket, SyncAnswer(error) if error else self._synced(group, member))
                self._keep_alive(group, member, now)

    @staticmethod
    def _synced(group: Group, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)

    # --- Heartbeat, LeaveGroup ----------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatAnswer:
        group = self._shard.groups.get(request.group_id)
        if group is None:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.require_member(request.member_id, request.group_instance_id)
        if request.generation != group.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        self._keep_alive(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            return HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatAnswer()

    def leave(self, request: LeaveRequest, now: Now) -> LeaveAnswer:
        group = self._shard.groups.get(request.group_id)
        if group is None:
            return LeaveAnswer(
                members=tuple(LeftMember(*each, ErrorCode.UNKNOWN_MEMBER_ID) for each in request.members)
            )
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        left = tuple(LeftMember(*each, self._leave_one(group, each)) for each in request.members)
        if any(each.error is ErrorCode.NONE for each in left):
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._prepare(group, now)
            else:
                self._maybe_complete_join(group, now)
        return LeaveAnswer(members=left)

    def _leave_one(self, group: Group, identity: MemberIdentity) -> ErrorCode:
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
        self._drop_member(group, member_id)
        return ErrorCode.NONE

    # --- time ----------------------------------------

    def on_session_timeout(self, group_id: str, member_id: str, now: Now) -> None:
        group = self._shard.groups.get(group_id)
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
            self._drop_member(group, member_id)
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._prepare(group, now)
                return
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._complete_join(group, now)

    def on_join_timeout(self, group_id: str, now: Now) -> None:
        """The join phase, or one slice of the initial delay, is over."""
        group = self._shard.groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.new_member_added:
            # Somebody came during the delay: others may follow, wait once more (KIP-134).
            group.new_member_added = False
            delay_ms = min(self._shard.settings.initial_rebalance_delay_ms, remaining_ms)
            group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._shard.arm(TimerKind.JOIN, group_id, "", now.monotonic_ms + delay_ms)
        else:
            self._complete_join(group, now)

    def on_sync_timeout(self, group_id: str, now: Now) -> None:
        """Members that joined but never asked for their assignment have to go."""
        group = self._shard.groups.get(group_id)
        if group is None or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        if group.pending_syncs:
            for member_id in sorted(group.pending_syncs):
                self._drop_member(group, member_id)
            self._prepare(group, now)

    def keep_alive(self, group: Group, member: Member, now: Now) -> None:
        """A commit proves life as well as a heartbeat does."""
        self._keep_alive(group, member, now)

    def resume(self, group: Group, now: Now) -> None:
        """The group was just loaded: its members have a session's time to be heard of."""
        for member in group.members.values():
            self._keep_alive(group, member, now)
        if len(group.members) > self._shard.settings.max_size:
            self._prepare(group, now)

    def give_up(self, group: Group, now: Now) -> None:
        """Another broker coordinates the group now: send everybody who waits to look for it."""
        group.take(Step.REMOVED, now.wall_ms)
        for member in group.members.values():
            self._end_waits(group, member, ErrorCode.NOT_COORDINATOR, member_id=member.member_id)

    # --- small parts ----------------------------------------

    def _keep_alive(self, group: Group, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self._shard.arm(TimerKind.SESSION, group.group_id, member.member_id, now.monotonic_ms + timeout_ms)

    def _park_join(self, group: Group, member: Member, ticket: Ticket) -> None:
        displaced = group.park_join(member, ticket)
        if displaced is not None:
            self._shard.answer(displaced, JoinAnswer(DISPLACED, member.member_id))

    def _drop_member(self, group: Group, member_id: str) -> None:
        """Remove a member or a pending one. What it waits for ends with UNKNOWN_MEMBER_ID, so that it joins anew."""
        member = group.members.get(member_id)
        if member is not None:
            self._end_waits(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member_id)
        self._shard.disarm(TimerKind.SESSION, group.group_id, member_id)

    def _end_waits(self, group: Group, member: Member, error: ErrorCode, member_id: str = NO_MEMBER_ID) -> None:
        parked = group.unpark_join(member)
        if parked is not None:
            self._shard.answer(parked, JoinAnswer(error, member_id))
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            self._shard.answer(ticket, SyncAnswer(error))


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual
