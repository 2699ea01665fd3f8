"""Online migration of a group between the protocols, and the removal of members.

Owns the two conversions (KIP-848, online migration) and their conditions. Up: the first member of the consumer protocol
joins a classic group of consumers; its members continue, each with its last assignment. Down: the last member of the
consumer protocol leaves, and only members of the classic one remain; they rejoin.

| `group.consumer.migration.policy` | up | down |
|-----------------------------------|----|------|
| disabled                          | no | no   |
| upgrade                           | yes | no  |
| downgrade                         | no | yes  |
| bidirectional                     | yes | yes |

An empty group of either protocol does not block the other one: it is deleted, its offsets stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupMember
from fenceline.groups.classic.rebalance import Rebalance
from fenceline.groups.classic.records import group_record, group_tombstone
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer import records
from fenceline.groups.consumer.change import GroupChange, removal_records, tombstones
from fenceline.groups.consumer.embedded import (
    MalformedSubscription,
    by_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.model import ClassicMember, ConsumerGroup, ConsumerMember, Held
from fenceline.groups.messages import Now, Outcome, Partitions, Ticket
from fenceline.groups.timers import PartitionTimers, TimerKind


class Migration:
    """Of the groups of one shard."""

    __slots__ = ("_classic", "_classic_max_size", "_foreign", "_groups", "_rebalance", "_timers")

    def __init__(
        self,
        groups: ConsumerGroups,
        classic: Mapping[str, ClassicGroup],
        foreign: AbstractSet[str],
        rebalance: Rebalance,
        timers: PartitionTimers,
        classic_max_size: int,
    ) -> None:
        """`classic` and `foreign` (share and streams): the groups of the other kinds."""
        self._groups = groups
        self._classic = classic
        self._foreign = foreign
        self._rebalance = rebalance
        self._timers = timers
        self._classic_max_size = classic_max_size

    # --- up ----------------------------------------

    def group_for_heartbeat(self, group_id: str, is_joining: bool) -> GroupChange:
        """The group, a new one, or one that replaces a classic one. Raises PeerError."""
        group = self._groups.groups.get(group_id)
        if group is not None:
            return GroupChange(group)
        classic = self._classic.get(group_id)
        if classic is None and group_id not in self._foreign:
            if not is_joining:
                raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return GroupChange(ConsumerGroup(group_id))
        if classic is None or not is_joining:
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if classic.state is GroupState.EMPTY:
            return GroupChange(ConsumerGroup(group_id), first=[group_tombstone(group_id)], replaces=classic)
        self._check_upgrade(classic)
        return self._upgraded(classic)

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        settings = self._groups.settings
        if not settings.migration_policy.allows_upgrade:
            why = "online upgrade is disabled"
        elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            why = "the group does not use the consumer embedded protocol"
        elif len(classic.members) > settings.max_size:
            why = "the group size exceeds the consumer group maximum size"
        else:
            return
        raise _not_upgraded(classic.group_id, f"{why}.")

    def _upgraded(self, classic: ClassicGroup) -> GroupChange:
        """The same members with their last assignments, at the classic group's generation."""
        group_id, image = classic.group_id, self._groups.image
        members: list[tuple[ConsumerMember, Partitions]] = []
        for member in classic.members.values():
            try:
                wants = read_subscription(_metadata(member, classic.protocol_name))
                has = read_assignment(member.assignment)
            except MalformedSubscription:
                raise _not_upgraded(group_id, "the embedded consumer protocol is malformed.") from None
            if has.user_data:
                raise _not_upgraded(
                    group_id,
                    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default"
                    " assignor before re-attempting the upgrade.",
                )
            target = by_id(has.partitions, image)
            members.append((_upgraded_member(member, classic.generation, wants.topics, wants.rack_id, target), target))
        change = GroupChange(ConsumerGroup(group_id), first=[group_tombstone(group_id)], replaces=classic)
        for upgraded, _ in members:
            change.add(records.member_stored(group_id, upgraded))
        found = self._groups.metadata_hash(change)
        change.add(records.EpochStored(group_id, records.EpochValue(classic.generation, found)))
        for upgraded, target in members:
            change.add(records.TargetStored(group_id, upgraded.member_id, target))
        change.add(records.TargetEpochStored(group_id, records.TargetEpochValue(classic.generation, 0)))
        for upgraded, _ in members:
            change.add(records.current_stored(group_id, upgraded))
        return change

    def converted(self, change: GroupChange, now: Now) -> None:
        """The change that replaces a classic group is pending: its waiting members are asked to rejoin."""
        classic = change.replaces
        if classic is None or not classic.members:
            return
        rebalance, timers = self._rebalance, self._timers
        for kind in (TimerKind.JOIN, TimerKind.SYNC):
            timers.disarm(kind, classic.group_id)
        for pending in classic.pending_joins:
            timers.disarm(TimerKind.SESSION, classic.group_id, pending)
        for member in classic.members.values():
            rebalance.fail_parked_requests(classic, member, ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            rebalance.keep_alive(classic, member, now)

        def on_rejected(then: Now) -> None:
            if classic.state is GroupState.PREPARING_REBALANCE:
                delay_ms = then.monotonic_ms + classic.rebalance_timeout_ms
                timers.arm(TimerKind.JOIN, classic.group_id, "", delay_ms)
            elif classic.state is GroupState.COMPLETING_REBALANCE:
                rebalance.prepare(classic, then)

        change.on_rejected = on_rejected

    # --- out, and down ----------------------------------------

    def fence(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerMember],
        now: Now,
        ticket: Ticket | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """Remove members that leave or are removed. Raises PeerError if the subscriptions of the others cannot be
        read."""
        if self._may_downgrade(group, members):
            left = [member for member in group.members.values() if member not in members]
            self.downgrade(GroupChange(group), left, now, rebalances=True, ticket=ticket, outcome=outcome)
        else:
            self.remove_members(group, members, now, ticket, outcome)

    def remove_members(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerMember],
        now: Now,
        ticket: Ticket | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """Remove members; the group keeps its protocol."""
        groups, group_id = self._groups, group.group_id
        change = GroupChange(group)
        for member in members:
            for meaning in removal_records(group_id, member.member_id):
                change.add(meaning)
        for regex in sorted({member.subscribed_regex for member in members if member.subscribed_regex}):
            if not change.group.subscribers_of(regex):
                change.add(records.RegexStored(group_id, regex, None))
        found = groups.metadata_hash(change)
        change.add(records.EpochStored(group_id, records.EpochValue(change.group.epoch + 1, found)))
        groups.commit(change, now, ticket, outcome)

    def _may_downgrade(self, group: ConsumerGroup, going: Collection[ConsumerMember]) -> bool:
        left = [member for member in group.members.values() if member not in going]
        return (
            bool(left)
            and all(member.uses_classic for member in left)
            and not all(member.uses_classic for member in going)
            and self._allows_downgrade(len(left))
        )

    def may_downgrade_with(self, group: ConsumerGroup, replaced: ConsumerMember | None) -> bool:
        """Whether only classic members are left when a static one returns with the classic protocol."""
        return (
            replaced is not None
            and not replaced.uses_classic
            and all(member.uses_classic for member in group.members.values() if member != replaced)
            and self._allows_downgrade(len(group.members))
        )

    def _allows_downgrade(self, size: int) -> bool:
        return self._groups.settings.migration_policy.allows_downgrade and size <= self._classic_max_size

    def downgrade(
        self,
        change: GroupChange,
        left: Collection[ConsumerMember],
        now: Now,
        *,
        rebalances: bool,
        ticket: Ticket | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """The remaining members become a classic group, with the group's epoch as its generation."""
        groups, group = self._groups, change.group
        rebalance = self._rebalance
        classic = self._classic_of(group, left, now)
        for meaning in tombstones(group):
            change.add(meaning)
        change.last = [group_record(classic)]
        change.becomes = classic
        change.on_rejected = lambda then: rebalance.unload(classic, then)
        groups.commit(change, now, ticket, outcome)
        for member in classic.members.values():
            rebalance.keep_alive(classic, member, now)
        if rebalances:
            rebalance.prepare(classic, now)

    def _classic_of(self, group: ConsumerGroup, left: Collection[ConsumerMember], now: Now) -> ClassicGroup:
        classic = ClassicGroup(
            group.group_id,
            now.wall_ms,
            state=GroupState.STABLE,
            previous_state=GroupState.EMPTY,
            generation=group.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
        )
        for each in sorted(left, key=lambda member: member.member_id):
            assert each.classic is not None, "only members of the classic protocol are left"
            classic.add(
                ClassicGroupMember(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_timeout_ms,
                    each.classic.session_timeout_ms,
                    each.classic.protocols,
                )
            )
        classic.protocol_name = classic.select_protocol()
        classic.subscribed_topics = classic.read_subscriptions()
        for member in classic.members.values():
            target = group.target_of(member.member_id)
            try:
                version = read_subscription(member.metadata(classic.protocol_name)).version
            except MalformedSubscription:
                raise PeerError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Cannot downgrade the classic group {group.group_id}: a subscription cannot be read.",
                ) from None
            member.assignment = write_assignment(target, self._groups.image, version)
        return classic


def _metadata(member: ClassicGroupMember, protocol_name: str | None) -> bytes:
    """Its subscription in the group's protocol; in its own first one if it has joined with others since."""
    return dict(member.protocols).get(protocol_name or "", member.protocols[0][1])


def _not_upgraded(group_id: str, why: str) -> PeerError:
    return PeerError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {why}"
    )


def _upgraded_member(
    member: ClassicGroupMember, generation: int, topics: tuple[str, ...], rack_id: str | None, target: Partitions
) -> ConsumerMember:
    held: Held = {topic_id: dict.fromkeys(partitions, generation) for topic_id, partitions in target.items()}
    return ConsumerMember(
        member.member_id,
        generation,
        generation,
        instance_id=member.group_instance_id,
        rack_id=rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_names=frozenset(topics),
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
        assigned=held,
    )
