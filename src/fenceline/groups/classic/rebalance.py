"""A rebalance from the first change to the assignment: join phase, leader, responses to waiting members.

Owns the steps between states (`states.TRANSITIONS`) and the requests that members wait with. `prepare`, `complete_join`
and the commit of an assignment are the only places where a group with members changes state. Never validates a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.errors import ErrorCode
from fenceline.groups.classic.model import ClassicGroup, ClassicGroupMember
from fenceline.groups.classic.records import group_record
from fenceline.groups.classic.states import GroupState, Step
from fenceline.groups.messages import NO_MEMBER_ID, JoinResponse, Now, SyncResponse, Ticket
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import OnComplete, Writes, no_callback

DISPLACED: Final = ErrorCode.REBALANCE_IN_PROGRESS
"""The error of a parked request when the same member has sent another one."""


class Rebalance:
    """Of the classic groups of one shard."""

    __slots__ = ("_groups", "_initial_delay_ms", "_timers", "_writes")

    def __init__(
        self, groups: Mapping[str, ClassicGroup], initial_delay_ms: int, writes: Writes, timers: PartitionTimers
    ) -> None:
        self._groups = groups
        self._initial_delay_ms = initial_delay_ms
        self._writes = writes
        self._timers = timers

    # --- the join phase ----------------------------------------

    def membership_changed(self, group: ClassicGroup, now: Now) -> None:
        """Membership or a subscription changed: start the join phase, or check whether it is complete."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, now)
        else:
            self.prepare(group, now)

    def prepare(self, group: ClassicGroup, now: Now) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self.answer_syncs(group, now, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.disarm(TimerKind.SYNC, group.group_id)
        is_initial = group.is_empty
        group.transition(Step.REBALANCE, now.wall_ms)
        group.new_member_added = False
        if is_initial:
            delay_ms = self._initial_delay_ms
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._timers.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + delay_ms)
            return
        group.initial_remaining_ms = None
        if group.all_joined:
            self.complete_join(group, now)
        else:
            self._timers.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(self, group: ClassicGroup, now: Now) -> None:
        """End the join phase early when all members have joined; an initial rebalance waits for its full delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            self.complete_join(group, now)

    def complete_join(self, group: ClassicGroup, now: Now) -> None:
        assert group.state is GroupState.PREPARING_REBALANCE, f"group {group.group_id} has no join phase to complete"
        self._timers.disarm(TimerKind.JOIN, group.group_id)
        group.initial_remaining_ms = None
        for member in [m for m in group.members.values() if m.join_ticket is None and not m.is_static]:
            self.remove_member(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none of them has joined: wait for one, or for their sessions to end.
            self._timers.arm(TimerKind.JOIN, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)
            return
        group.start_generation(now.wall_ms)
        if group.is_empty:
            self.store(group)
            return
        for member in group.members.values():
            ticket = group.unpark_join(member)
            if ticket is not None:
                self._writes.answer(ticket, self.joined(group, member))
            self.keep_alive(group, member, now)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        self._timers.arm(TimerKind.SYNC, group.group_id, "", now.monotonic_ms + group.rebalance_timeout_ms)

    def on_join_timeout(self, group_id: str, now: Now) -> None:
        """The join phase, or one part of the initial delay, is over."""
        group = self._groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.new_member_added:
            # A member joined during the delay: others may follow, wait once more (KIP-134).
            group.new_member_added = False
            delay_ms = min(self._initial_delay_ms, remaining_ms)
            group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._timers.arm(TimerKind.JOIN, group_id, "", now.monotonic_ms + delay_ms)
        else:
            self.complete_join(group, now)

    def on_sync_timeout(self, group_id: str, now: Now) -> None:
        """Remove members that joined but never requested their assignment."""
        group = self._groups.get(group_id)
        if group is None or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        if group.pending_syncs:
            for member_id in sorted(group.pending_syncs):
                self.remove_member(group, member_id)
            self.prepare(group, now)

    def joined(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        *,
        show_members: bool = True,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinResponse:
        leads = group.leader_id == member.member_id
        return JoinResponse(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader or group.leader_id or NO_MEMBER_ID,
            skip_assignment=skip_assignment,
            members=group.joined_members() if leads and show_members else (),
        )

    # --- the assignment ----------------------------------------

    def store_assignment(self, group: ClassicGroup, assignments: dict[str, bytes], now: Now) -> None:
        """The group is stable once the leader's assignment is committed, unless another rebalance began meanwhile."""
        assert group.state is GroupState.COMPLETING_REBALANCE, f"group {group.group_id} awaits no assignment"
        generation = group.generation

        def stored(error: ErrorCode, then: Now) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            for member in group.members.values():
                member.assignment = b"" if error else assignments.get(member.member_id, b"")
            self.answer_syncs(group, then, error)
            if error:
                self.membership_changed(group, then)
            else:
                group.transition(Step.ASSIGNED, then.wall_ms)

        self.store(group, stored, assignments)

    def store(
        self, group: ClassicGroup, on_complete: OnComplete = no_callback, assignments: Mapping[str, bytes] | None = None
    ) -> None:
        """Write the group. `assignments`: those to write if the members do not have them yet."""
        self._writes.begin((group_record(group, assignments),), on_complete)

    def answer_syncs(self, group: ClassicGroup, now: Now, error: ErrorCode) -> None:
        for member in group.members.values():
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is not None:
                self._writes.answer(ticket, SyncResponse(error) if error else self.synced(group, member))
                self.keep_alive(group, member, now)

    @staticmethod
    def synced(group: ClassicGroup, member: ClassicGroupMember) -> SyncResponse:
        return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)

    # --- small parts ----------------------------------------

    def keep_alive(
        self, group: ClassicGroup, member: ClassicGroupMember, now: Now, timeout_ms: int | None = None
    ) -> None:
        """A request proves that the member is alive, a commit as well as a heartbeat: restart its session timeout."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self._timers.arm(TimerKind.SESSION, group.group_id, member.member_id, now.monotonic_ms + timeout_ms)

    def park_join(self, group: ClassicGroup, member: ClassicGroupMember, ticket: Ticket) -> None:
        displaced = group.park_join(member, ticket)
        if displaced is not None:
            self._writes.answer(displaced, JoinResponse(DISPLACED, member.member_id))

    def remove_member(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member or a pending one. Its parked requests end with UNKNOWN_MEMBER_ID, so that it rejoins."""
        member = group.members.get(member_id)
        if member is not None:
            self.fail_parked_requests(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member_id)
        self._timers.disarm(TimerKind.SESSION, group.group_id, member_id)

    def fail_parked_requests(
        self, group: ClassicGroup, member: ClassicGroupMember, error: ErrorCode, member_id: str = NO_MEMBER_ID
    ) -> None:
        parked = group.unpark_join(member)
        if parked is not None:
            self._writes.answer(parked, JoinResponse(error, member_id))
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            self._writes.answer(ticket, SyncResponse(error))

    def check(self, group: ClassicGroup) -> None:
        """Assert the group's own invariants, and that each state has the timers that end it, and no others."""
        group.check()
        is_armed, group_id = self._timers.is_armed, group.group_id
        joins = group.state is GroupState.PREPARING_REBALANCE
        assert is_armed(TimerKind.JOIN, group_id) == joins, f"group {group_id}, {group.state}: a join phase has an end"
        waits = bool(group.pending_syncs)
        assert not waits or is_armed(TimerKind.SYNC, group_id), f"group {group_id} waits for SyncGroup without end"
        for member in group.members.values():
            assert member.is_kept_alive_by_waiting or is_armed(TimerKind.SESSION, group_id, member.member_id), (
                f"member {member.member_id} of group {group_id} has no session"
            )
        for member_id in group.pending_joins:
            assert is_armed(TimerKind.SESSION, group_id, member_id), f"pending member {member_id} has no deadline"

    def unload(self, group: ClassicGroup, now: Now) -> None:
        """The group has no coordinator here any more: all waiting members must look it up."""
        group.transition(Step.REMOVED, now.wall_ms)
        for member in group.members.values():
            self.fail_parked_requests(group, member, ErrorCode.NOT_COORDINATOR, member_id=member.member_id)
