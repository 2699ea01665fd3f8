"""Membership of groups of the consumer protocol: ConsumerGroupHeartbeat (KIP-848), static members, timeouts.

Owns the identity of members, and the order of a heartbeat's steps, as in Kafka 4.3.1. Never assigns partitions:
`consumer.targets` does. One request does everything: it joins, keeps the session alive, subscribes, reports owned
partitions and returns the assignment. Each step may add records to the one change that is written at the end:

    1. the member is found, created, or replaces a static one
    2. its subscription is stored if it changed (`consumer.subscriptions`)
    3. the group's epoch is raised if a subscription or the topics have changed, a target is computed if the epoch is
       ahead of it, and the member takes its next step towards the target (`consumer.targets`)

| member epoch sent | known member                                    | unknown member                           |
|-------------------|-------------------------------------------------|------------------------------------------|
| 0                 | rejoins, keeps its partitions                   | joins; the group is created, or upgraded |
| its own           | session continues                               | UNKNOWN_MEMBER_ID                        |
| the previous one  | session continues, if it owns only what it has  | UNKNOWN_MEMBER_ID                        |
| any other         | FENCED_MEMBER_EPOCH                             | UNKNOWN_MEMBER_ID                        |
| -1                | leaves                                          | UNKNOWN_MEMBER_ID                        |
| -2, static only   | its place is kept for its session timeout       | UNKNOWN_MEMBER_ID                        |
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.consumer import records
from fenceline.groups.consumer.change import GroupChange, removal_records
from fenceline.groups.consumer.checks import check_member_epoch, check_not_fenced, unknown_member
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.migration import Migration
from fenceline.groups.consumer.model import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    NONE_HELD,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Held,
)
from fenceline.groups.consumer.subscriptions import Subscriptions
from fenceline.groups.consumer.targets import TargetAssignments
from fenceline.groups.messages import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse, Now, Partitions, Ticket
from fenceline.groups.timers import TimerKey, TimerKind
from fenceline.ids import encode_uuid, random_id
from fenceline.rng import Rng


class ConsumerMembership:
    """The heartbeats of one shard. They raise PeerError before anything has changed."""

    __slots__ = ("_groups", "_migration", "_rng", "_subscriptions", "_targets")

    def __init__(
        self,
        groups: ConsumerGroups,
        subscriptions: Subscriptions,
        targets: TargetAssignments,
        migration: Migration,
        rng: Rng,
    ) -> None:
        self._groups = groups
        self._subscriptions = subscriptions
        self._targets = targets
        self._migration = migration
        self._rng = rng

    # --- the heartbeat ----------------------------------------

    def heartbeat(self, ticket: Ticket, request: ConsumerHeartbeatRequest, now: Now) -> None:
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            self._leave(ticket, request, now)
            return
        groups = self._groups
        is_joining = request.member_epoch == JOINING_EPOCH
        change = self._migration.group_for_heartbeat(request.group_id, is_joining)
        self.check_not_full(change.group, request.member_id)
        member_id = request.member_id or self.new_member_id()
        if request.instance_id is None:
            member = self._dynamic(change.group, member_id, request, is_joining)
        else:
            member = self.static(
                change, member_id, request.instance_id, is_joining, epoch=request.member_epoch, owned=request.owned
            )
        updated = replace(
            member,
            instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
            rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
            rebalance_timeout_ms=(
                request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else member.rebalance_timeout_ms
            ),
            server_assignor=request.server_assignor if request.server_assignor is not None else member.server_assignor,
            subscribed_names=(
                frozenset(request.subscribed_names) if request.subscribed_names is not None else member.subscribed_names
            ),
            subscribed_regex=(
                request.subscribed_regex if request.subscribed_regex is not None else member.subscribed_regex
            ),
            client_id=request.client_id,
            client_host=request.client_host,
            classic=None,
        )
        subscribed = self._subscriptions.subscribe(change, member, updated)
        self._targets.refresh(change, subscribed.needs_epoch)
        self._targets.compute(change, now)
        updated = self._targets.reconcile(change, updated, request.owned, subscribed.has_changed, now)
        groups.keep_alive(change.group, updated, now)
        is_sent = is_joining or request.is_full or updated.assigned != member.assigned
        groups.commit(
            change,
            now,
            ticket,
            ConsumerHeartbeatResponse(
                member_id=member_id,
                member_epoch=updated.epoch,
                heartbeat_interval_ms=groups.heartbeat_interval_ms(request.group_id),
                assignment=_to_response(updated.assigned) if is_sent else None,
            ),
        )
        self._migration.converted(change, now)
        self._subscriptions.resolve_regexes(
            request.group_id,
            subscribed.brings_new_regex,
            bool(updated.subscribed_regex),
            now,
            shows_topic=request.shows_topic,
        )

    def check_not_full(self, group: ConsumerGroup, member_id: str) -> None:
        most = self._groups.settings.max_size
        if len(group.members) >= most and member_id not in group.members:
            raise PeerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    # --- finding the member ----------------------------------------

    def _dynamic(
        self, group: ConsumerGroup, member_id: str, request: ConsumerHeartbeatRequest, is_joining: bool
    ) -> ConsumerMember:
        member = group.members.get(member_id)
        if member is None:
            if not is_joining:
                raise unknown_member(group.group_id, member_id)
            return ConsumerMember(member_id)
        check_member_epoch(member, request.member_epoch, request.owned)
        return member

    def static(
        self,
        change: GroupChange,
        member_id: str,
        instance_id: str,
        is_joining: bool,
        *,
        epoch: int = JOINING_EPOCH,
        owned: Partitions | None = None,
        uses_classic: bool = False,
    ) -> ConsumerMember:
        """The member with an instance id: new, known, or replacing one that has left temporarily (KIP-345)."""
        group = change.group
        known = group.static_member(instance_id)
        if not is_joining:
            if known is None:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            check_not_fenced(known, member_id, instance_id)
            if not uses_classic:
                check_member_epoch(known, epoch, owned)
            return known
        if known is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        if not uses_classic and not known.uses_classic and known.epoch != STATIC_LEAVING_EPOCH:
            raise PeerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance"
                f" id is owned by {known.member_id} member.",
            )
        successor = replace(known, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        target = group.target_of(known.member_id)
        for meaning in removal_records(group.group_id, known.member_id):
            change.add(meaning)
        change.add(records.member_stored(group.group_id, successor))
        change.add(records.TargetStored(group.group_id, member_id, target))
        change.add(records.current_stored(group.group_id, successor))
        return successor

    # --- leaving ----------------------------------------

    def _leave(self, ticket: Ticket, request: ConsumerHeartbeatRequest, now: Now) -> None:
        groups, group_id = self._groups, request.group_id
        group = groups.groups.get(group_id)
        if group is None:
            raise groups.not_found(group_id)
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise unknown_member(group_id, request.member_id)
        else:
            member = group.static_member(request.instance_id)
            if member is None:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
            check_not_fenced(member, request.member_id, request.instance_id)
        answer = ConsumerHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.instance_id is None or request.member_epoch == LEAVING_EPOCH:
            self._migration.fence(group, (member,), now, ticket, answer)
            return
        change = GroupChange(group)
        away = replace(member, epoch=STATIC_LEAVING_EPOCH, assigned=_at_epoch_zero(member.assigned), revoking=NONE_HELD)
        change.add(records.current_stored(group_id, away))
        groups.commit(change, now, ticket, answer)

    # --- time ----------------------------------------

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """A member was silent for too long, or missed its revocation deadline."""
        group = self._groups.groups.get(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or member is None:
            return
        if key.kind is TimerKind.REBALANCE and not member.must_revoke:
            return
        if key.kind in (TimerKind.JOIN, TimerKind.SYNC) and not member.uses_classic:
            return  # it changed its protocol since
        try:
            self._migration.fence(group, (member,), now)
        except PeerError:
            # The subscriptions of the remaining members cannot be read: they cannot become a classic group.
            self._migration.remove_members(group, (member,), now)

    # --- small parts ----------------------------------------

    def new_member_id(self) -> str:
        """Of a member that did not generate its own: in the form of Kafka's ids."""
        return encode_uuid(random_id(self._rng))


def _at_epoch_zero(held: Held) -> Held:
    """The same partitions at epoch 0: the member's replacement may commit from its first epoch on."""
    return {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in held.items()}


def _to_response(held: Held) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    return tuple((topic_id, tuple(sorted(epochs))) for topic_id, epochs in held.items())
