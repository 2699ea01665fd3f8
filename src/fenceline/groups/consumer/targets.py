"""Group epochs and target assignments of groups of the consumer protocol, and the steps of members towards them.

Owns when the epoch is raised and a target is computed, at most once per interval (KIP-1263). The assignors
(`consumer.assignors`, `consumer.uniform`) compute the target, `consumer.reconcile` a member's next step. Never changes
membership or subscriptions.
"""

from __future__ import annotations

from fenceline.groups.consumer import records
from fenceline.groups.consumer.assignors import MemberSubscription
from fenceline.groups.consumer.change import GroupChange
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.model import ConsumerMember, MemberState
from fenceline.groups.consumer.reconcile import StepContext, next_step
from fenceline.groups.consumer.topics import topic_ids
from fenceline.groups.consumer.uniform import ASSIGNORS
from fenceline.groups.messages import Now, Partitions
from fenceline.groups.timers import PartitionTimers, TimerKind


class TargetAssignments:
    """Of the groups of one shard."""

    __slots__ = ("_groups", "_timers")

    def __init__(self, groups: ConsumerGroups, timers: PartitionTimers) -> None:
        self._groups = groups
        self._timers = timers

    def refresh(self, change: GroupChange, needs_epoch: bool) -> None:
        """Raise the group's epoch if a subscription has changed, or its topics."""
        if needs_epoch or self._groups.have_topics_changed(change.group.group_id):
            self.raise_epoch(change, needs_epoch)
            if change.group.has_old_metadata:
                change.add(records.OldMetadataStored(change.group.group_id, exists=False))

    def raise_epoch(self, change: GroupChange, needs_epoch: bool) -> None:
        """By one, if `needs_epoch` or if the topics no longer match the group's hash."""
        group = change.group
        found = self._groups.metadata_hash(change)
        if needs_epoch or found != group.metadata_hash:
            change.add(records.EpochStored(group.group_id, records.EpochValue(group.epoch + 1, found)))

    def compute(self, change: GroupChange, now: Now) -> None:
        """Compute the target if the group epoch is ahead of it, unless the interval has not passed."""
        group = change.group
        if group.epoch <= group.assignment_epoch:
            return
        groups = self._groups
        # A wall clock that was set back must not make the group wait until it has caught up.
        since_ms = now.wall_ms - group.assigned_at_ms
        if group.assigned_at_ms and 0 <= since_ms < groups.assignment_interval_ms(group.group_id):
            return
        settings, image = groups.settings, groups.image
        name = group.preferred_assignor()
        assignor = ASSIGNORS[name if name in settings.assignors else settings.assignors[0]]
        members = [
            MemberSubscription(
                member_id,
                member.instance_id,
                frozenset(topic_ids(group.subscription_of(member), image)),
                group.target_of(member_id),
            )
            for member_id, member in sorted(group.members.items())
        ]
        counts = {
            topic_id: len(image.topics_by_id[topic_id].partitions) for member in members for topic_id in member.topics
        }
        target = assignor(members, counts, group.is_homogeneous())
        given = [(topic_id, one) for share in target.values() for topic_id, ones in share.items() for one in ones]
        assert len(given) == len(set(given)), f"group {group.group_id}: a partition is assigned twice"
        for member in members:
            share = target.get(member.member_id, {})
            if group.target.get(member.member_id) != share:
                change.add(records.TargetStored(group.group_id, member.member_id, share))
        change.add(records.TargetEpochStored(group.group_id, records.TargetEpochValue(group.epoch, now.wall_ms)))

    def reconcile(
        self,
        change: GroupChange,
        member: ConsumerMember,
        owned: Partitions | None,
        subscription_changed: bool,
        now: Now,
    ) -> ConsumerMember:
        """The member's next step; it has its rebalance timeout to revoke partitions."""
        group, groups = change.group, self._groups
        after = next_step(
            member,
            StepContext(
                group.assignment_epoch,
                group.target_of(member.member_id),
                lambda: topic_ids(group.subscription_of(member), groups.image),
                lambda topic_id, partition: (topic_id, partition) in group.owners,
                owned,
                subscription_changed,
            ),
        )
        if after == member:
            return member
        assert all(
            group.owners.get((topic_id, partition), member.member_id) == member.member_id
            for topic_id, partitions in after.assigned.items()
            for partition in partitions
        ), f"member {member.member_id} of group {group.group_id} gets a partition that another one still owns"
        change.add(records.current_stored(group.group_id, after))
        if not after.uses_classic:
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                deadline_ms = now.monotonic_ms + after.rebalance_timeout_ms
                self._timers.arm(TimerKind.REBALANCE, group.group_id, after.member_id, deadline_ms)
            else:
                self._timers.disarm(TimerKind.REBALANCE, group.group_id, after.member_id)
        return after
