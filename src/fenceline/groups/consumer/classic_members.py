"""Members that speak the classic protocol in a group of the consumer protocol: JoinGroup, SyncGroup, Heartbeat,
LeaveGroup of a group that is being migrated (KIP-848).

Owns how the classic requests are served on such a group. There is no join phase and no leader: the server assigns. A
member is asked to rejoin (REBALANCE_IN_PROGRESS) when its assignment changes; its JoinGroup reports the partitions it
owns and is its step towards the target; its SyncGroup returns the partitions it may use. It has its rebalance timeout
to join when asked, and to sync after it has joined.
"""

from __future__ import annotations

from dataclasses import replace

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import CONSUMER_PROTOCOL_TYPE
from fenceline.groups.consumer.change import GroupChange
from fenceline.groups.consumer.checks import check_not_fenced, unknown_member
from fenceline.groups.consumer.embedded import (
    MalformedSubscription,
    by_id,
    read_subscription,
    without_epochs,
    write_assignment,
)
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.membership import ConsumerMembership
from fenceline.groups.consumer.migration import Migration
from fenceline.groups.consumer.model import ClassicMember, ConsumerGroup, ConsumerMember, MemberState
from fenceline.groups.consumer.subscriptions import Subscriptions
from fenceline.groups.consumer.targets import TargetAssignments
from fenceline.groups.messages import (
    NO_MEMBER_ID,
    ClassicHeartbeat,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeftMember,
    Now,
    SyncRequest,
    SyncResponse,
    Ticket,
)
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import Writes


class ClassicMembers:
    """The classic requests of one shard to groups of the consumer protocol. They raise PeerError before anything has
    changed."""

    __slots__ = ("_groups", "_membership", "_migration", "_subscriptions", "_targets", "_timers", "_writes")

    def __init__(
        self,
        groups: ConsumerGroups,
        subscriptions: Subscriptions,
        targets: TargetAssignments,
        migration: Migration,
        membership: ConsumerMembership,
        writes: Writes,
        timers: PartitionTimers,
    ) -> None:
        self._groups = groups
        self._subscriptions = subscriptions
        self._targets = targets
        self._migration = migration
        self._membership = membership
        self._writes = writes
        self._timers = timers

    # --- JoinGroup ----------------------------------------

    def join(self, group: ConsumerGroup, ticket: Ticket, request: JoinRequest, now: Now) -> None:
        groups, membership = self._groups, self._membership
        is_unknown = request.member_id == NO_MEMBER_ID
        member_id = membership.new_member_id() if is_unknown else request.member_id
        membership.check_not_full(group, member_id)
        names = (name for name, _ in request.protocols)
        if (
            request.protocol_type != CONSUMER_PROTOCOL_TYPE
            or not request.protocols
            or not group.supports_classic(names)
        ):
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if is_unknown and request.group_instance_id is None and request.must_know_member_id:
            self._writes.answer(ticket, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        try:
            wants = read_subscription(request.protocols[0][1])
        except MalformedSubscription:
            raise PeerError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
        change = GroupChange(group)
        known = group.static_member(request.group_instance_id)
        is_downgrade = self._migration.may_downgrade_with(group, known)
        if request.group_instance_id is None:
            member = group.members.get(member_id) or ConsumerMember(member_id)
        else:
            member = membership.static(change, member_id, request.group_instance_id, is_unknown, uses_classic=True)
        updated = replace(
            member,
            instance_id=request.group_instance_id or member.instance_id,
            rack_id=wants.rack_id or member.rack_id,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            subscribed_names=frozenset(wants.topics),
            subscribed_regex="",
            client_id=request.client_id,
            client_host=request.client_host,
            classic=ClassicMember(request.session_timeout_ms, request.protocols),
        )
        subscribed = self._subscriptions.subscribe(change, member, updated)
        self._targets.refresh(change, subscribed.has_changed)
        owned = by_id(wants.owned, groups.image)

        def answer(joined: ConsumerMember) -> JoinResponse:
            return JoinResponse(
                member_id=member_id,
                generation=joined.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=request.protocols[0][0],
            )

        if is_downgrade:
            is_outdated = change.group.epoch > change.group.assignment_epoch
            if not is_outdated:
                updated = self._targets.reconcile(change, updated, owned, subscribed.has_changed, now)
            left = list(change.group.members.values())
            self._migration.downgrade(change, left, now, rebalances=is_outdated, ticket=ticket, outcome=answer(updated))
            return
        self._targets.compute(change, now)
        updated = self._targets.reconcile(change, updated, owned, subscribed.has_changed, now)
        self._timers.disarm(TimerKind.JOIN, request.group_id, member_id)
        groups.keep_alive(group, updated, now)
        sync_ms = now.monotonic_ms + request.rebalance_timeout_ms
        self._timers.arm(TimerKind.SYNC, request.group_id, member_id, sync_ms)
        groups.commit(change, now, ticket, answer(updated))

    # --- SyncGroup ----------------------------------------

    def sync(self, group: ConsumerGroup, ticket: Ticket, request: SyncRequest, now: Now) -> None:
        groups = self._groups
        member, classic = self._member(group, request.member_id, request.group_instance_id)
        if member.epoch != request.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        name, metadata = classic.protocols[0]
        if (request.protocol_type is not None and request.protocol_type != CONSUMER_PROTOCOL_TYPE) or (
            request.protocol_name is not None and request.protocol_name != name
        ):
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._ask_to_join(group, member, now)
            raise PeerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.disarm(TimerKind.SYNC, request.group_id, member.member_id)
        groups.keep_alive(group, member, now)
        try:
            version = read_subscription(metadata).version
        except MalformedSubscription:
            raise PeerError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
        assignment = write_assignment(without_epochs(member.assigned), groups.image, version)
        outcome = SyncResponse(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment)
        groups.respond_when_idle(ticket, outcome, (request.group_id,))

    # --- Heartbeat, LeaveGroup ----------------------------------------

    def heartbeat(self, group: ConsumerGroup, request: ClassicHeartbeat, now: Now) -> HeartbeatResponse:
        """Asks the member to rejoin if the target is newer than its assignment, if it has to revoke partitions, and if
        the partitions it waits for are free."""
        member, _ = self._member(group, request.member_id, request.group_instance_id)
        if member.epoch != request.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        self._groups.keep_alive(group, member, now)
        if (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            self._ask_to_join(group, member, now)
            return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, group: ConsumerGroup, request: LeaveRequest, now: Now) -> LeaveResponse:
        """An administrator can also remove members of the consumer protocol this way."""
        left: list[LeftMember] = []
        going: dict[str, ConsumerMember] = {}
        for member_id, instance_id in request.members:
            try:
                if instance_id is None:
                    found = group.members.get(member_id)
                    if found is None:
                        raise unknown_member(group.group_id, member_id)
                else:
                    found = group.static_member(instance_id)
                    if found is None:
                        raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
                    if member_id != NO_MEMBER_ID:
                        check_not_fenced(found, member_id, instance_id)
            except PeerError as error:
                left.append(LeftMember(member_id, instance_id, error.code))
                continue
            going[found.member_id] = found
            left.append(LeftMember(member_id, instance_id, ErrorCode.NONE))
        if going:
            self._migration.fence(group, tuple(going.values()), now)
        return LeaveResponse(members=tuple(left))

    # --- small parts ----------------------------------------

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicMember]:
        """Raises PeerError if it is not in the group, or speaks the other protocol."""
        member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
        if member is None:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if instance_id is not None:
            check_not_fenced(member, member_id, instance_id)
        if member.classic is None:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member, member.classic

    def _ask_to_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Its time to join starts when it is first asked."""
        if not self._timers.is_armed(TimerKind.JOIN, group.group_id, member.member_id):
            deadline_ms = now.monotonic_ms + member.rebalance_timeout_ms
            self._timers.arm(TimerKind.JOIN, group.group_id, member.member_id, deadline_ms)
