"""Who is in a group of the consumer protocol: ConsumerGroupHeartbeat (KIP-848), static members, what time does.

Owns the rules as Kafka 4.3.1 ships them. One request does everything: it joins, lives, subscribes, says what it uses
and is told what to use. Steps of a heartbeat, each of which may add records to the one change that is written at the
end:

    1. the member is found, made, or takes the place of a static one; its subscription is stored where it changed
    2. the group's epoch goes up when a subscription or the topics have changed
    3. a target is computed when the group's epoch is ahead of it, at most once an interval (KIP-1263)
    4. the member takes its next step towards the target (`consumer_reconcile`)

| member epoch told | known member                                    | nobody                                |
|-------------------|-------------------------------------------------|---------------------------------------|
| 0                 | joins anew, its partitions are still its own    | joins; the group is made, or upgraded |
| its own           | lives                                           | UNKNOWN_MEMBER_ID                     |
| the one before    | lives, when what it uses is part of what it has | UNKNOWN_MEMBER_ID                     |
| any other         | FENCED_MEMBER_EPOCH                             | UNKNOWN_MEMBER_ID                     |
| -1                | leaves                                          | UNKNOWN_MEMBER_ID                     |
| -2, static only   | its place is kept for its session               | UNKNOWN_MEMBER_ID                     |
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import consumer_records as records
from fenceline.groups.clock import Now
from fenceline.groups.consumer_assignors import MemberWish
from fenceline.groups.consumer_change import Change
from fenceline.groups.consumer_checks import refuse_epoch, refuse_fenced, unknown_member
from fenceline.groups.consumer_messages import ConsumerHeartbeatAnswer, ConsumerHeartbeatRequest
from fenceline.groups.consumer_model import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    NONE_HELD,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Held,
    MemberState,
    Partitions,
    ResolvedRegex,
)
from fenceline.groups.consumer_reconcile import Aim, next_step
from fenceline.groups.consumer_regex import topic_regex
from fenceline.groups.consumer_regex_automaton import InvalidRegex
from fenceline.groups.consumer_topics import topic_ids
from fenceline.groups.consumer_uniform import ASSIGNORS
from fenceline.groups.messages import Ticket
from fenceline.groups.timers import TimerKind

if TYPE_CHECKING:
    from fenceline.groups.consumer_groups import ConsumerGroups

REGEX_REFRESH_PAUSE_MS: Final = 10_000
"""Between two looks for the topics of a group's regular expressions."""


class ConsumerMembership:
    """The heartbeats of one shard. They raise PeerError before anything has changed."""

    __slots__ = ("_groups", "_new_topics_at")

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._new_topics_at = -1

    def on_topics_created(self, version: int) -> None:
        """The metadata of this version has topics that regular expressions may match."""
        self._new_topics_at = version

    # --- the heartbeat ----------------------------------------

    def heartbeat(self, ticket: Ticket, request: ConsumerHeartbeatRequest, now: Now) -> None:
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            self._leave(ticket, request, now)
            return
        groups = self._groups
        is_joining = request.member_epoch == JOINING_EPOCH
        change = groups.migration.group_for_heartbeat(request.group_id, is_joining)
        self.refuse_when_full(change.group, request.member_id)
        member_id = request.member_id or new_member_id(groups)
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
        subscribed = self.subscribe(change, member, updated, now)
        self.refresh(change, subscribed.needs_epoch)
        self.compute_target(change, now)
        updated = self.reconcile(change, updated, request.owned, subscribed.has_changed, now)
        groups.arm(TimerKind.SESSION, request.group_id, member_id, now, groups.session_timeout_ms(request.group_id))
        is_told = is_joining or request.is_full or updated.assigned != member.assigned
        groups.commit(
            change,
            now,
            ticket,
            ConsumerHeartbeatAnswer(
                member_id=member_id,
                member_epoch=updated.epoch,
                heartbeat_interval_ms=groups.heartbeat_interval_ms(request.group_id),
                assignment=_told(updated.assigned) if is_told else None,
            ),
        )
        groups.migration.converted(change, now)
        self._look_for_topics(request.group_id, subscribed.brings_new_regex, bool(updated.subscribed_regex), now)

    def refuse_when_full(self, group: ConsumerGroup, member_id: str) -> None:
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
        refuse_epoch(member, request.member_epoch, request.owned)
        return member

    def static(
        self,
        change: Change,
        member_id: str,
        instance_id: str,
        is_joining: bool,
        *,
        epoch: int = JOINING_EPOCH,
        owned: Partitions | None = None,
        uses_classic: bool = False,
    ) -> ConsumerMember:
        """The member of an instance id: new, known, or in the place of one that has left for a while (KIP-345)."""
        group = change.group
        known = group.static_member(instance_id)
        if not is_joining:
            if known is None:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            refuse_fenced(known, member_id, instance_id)
            if not uses_classic:
                refuse_epoch(known, epoch, owned)
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
        for meaning in gone(group.group_id, known.member_id):
            change.add(meaning)
        change.add(records.member_stored(group.group_id, successor))
        change.add(records.TargetStored(group.group_id, member_id, target))
        change.add(records.current_stored(group.group_id, successor))
        return successor

    # --- subscriptions ----------------------------------------

    def subscribe(self, change: Change, member: ConsumerMember, updated: ConsumerMember, now: Now) -> _Subscribed:
        """Store who the member is now, and what follows for the group's regular expressions."""
        if updated != member:
            self._check_regex(change.group, member, updated)
        # As it was before this member: who else subscribes to an expression.
        before = change.group
        if updated != member:
            change.add(records.member_stored(before.group_id, updated))
        names_changed = updated.subscribed_names != member.subscribed_names
        old, new = member.subscribed_regex, updated.subscribed_regex
        if old == new:
            return _Subscribed(names_changed, names_changed, False)
        if old and before.subscribers_of(old) == 1:
            change.add(records.RegexStored(before.group_id, old, None))
        if not new:
            return _Subscribed(True, True, False)
        is_new = before.subscribers_of(new) == 0
        is_resolved = not is_new and new in before.regexes
        return _Subscribed(True, names_changed or is_resolved, is_new)

    @staticmethod
    def _check_regex(group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember) -> None:
        regex = updated.subscribed_regex
        if not regex or regex == member.subscribed_regex or group.subscribers_of(regex):
            return
        try:
            topic_regex(regex)
        except InvalidRegex as error:
            raise PeerError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
            ) from None

    def _look_for_topics(self, group_id: str, brings_new_regex: bool, uses_regex: bool, now: Now) -> None:
        """Find the topics of the group's regular expressions where that is due; they are a change of their own."""
        groups = self._groups
        group = groups.groups.get(group_id)
        if group is None or not (brings_new_regex or uses_regex or group.regexes):
            return
        wanted = {member.subscribed_regex for member in group.members.values() if member.subscribed_regex}
        if not wanted:
            return
        last = next(iter(group.regexes.values()), None)
        last_ms = None if last is None else last.timestamp_ms
        if last_ms is not None and now.wall_ms <= last_ms + REGEX_REFRESH_PAUSE_MS:
            return
        is_due = (
            brings_new_regex
            or len(wanted) != len(group.regexes)
            or (last.version if last is not None else 0) < self._new_topics_at
            or (last_ms is not None and now.wall_ms > last_ms + groups.settings.regex_refresh_interval_ms)
        )
        if not is_due:
            return
        image = groups.image
        change = Change(group)
        needs_epoch = False
        for regex in sorted(wanted):
            try:
                matches = topic_regex(regex).matches
            except InvalidRegex:
                # Another release took it: it matches nothing here.
                found: frozenset[str] = frozenset()
            else:
                found = frozenset(name for name in image.topics_by_name if matches(name))
            known = group.regexes.get(regex)
            needs_epoch |= found != (frozenset() if known is None else known.topics)
            change.add(records.RegexStored(group_id, regex, ResolvedRegex(found, max(image.offset, 0), now.wall_ms)))
        self._raise_epoch(change, needs_epoch)
        groups.commit(change, now)

    # --- epochs and targets ----------------------------------------

    def refresh(self, change: Change, needs_epoch: bool) -> None:
        """Raise the group's epoch when a subscription has changed, or its topics."""
        if needs_epoch or self._groups.has_news_of_topics(change.group.group_id):
            self._raise_epoch(change, needs_epoch)
            if change.group.has_old_metadata:
                change.add(records.OldMetadataStored(change.group.group_id, exists=False))

    def _raise_epoch(self, change: Change, needs_epoch: bool) -> None:
        group = change.group
        found = self._groups.metadata_hash(change)
        if needs_epoch or found != group.metadata_hash:
            change.add(records.EpochStored(group.group_id, records.EpochValue(group.epoch + 1, found)))

    def compute_target(self, change: Change, now: Now) -> None:
        """Ask the assignor where the group is ahead of its target, unless it was asked just now."""
        group = change.group
        if group.epoch <= group.assignment_epoch:
            return
        groups = self._groups
        interval_ms = groups.assignment_interval_ms(group.group_id)
        if group.assigned_at_ms and interval_ms and now.wall_ms < group.assigned_at_ms + interval_ms:
            return
        settings, image = groups.settings, groups.image
        name = group.preferred_assignor()
        assignor = ASSIGNORS[name if name in settings.assignors else settings.assignors[0]]
        wishes = [
            MemberWish(
                member_id,
                member.instance_id,
                frozenset(topic_ids(group.subscription_of(member), image)),
                group.target_of(member_id),
            )
            for member_id, member in sorted(group.members.items())
        ]
        counts = {topic_id: len(image.topics_by_id[topic_id].partitions) for wish in wishes for topic_id in wish.topics}
        target = assignor(wishes, counts, group.is_homogeneous())
        for wish in wishes:
            share = target.get(wish.member_id, {})
            if group.target.get(wish.member_id) != share:
                change.add(records.TargetStored(group.group_id, wish.member_id, share))
        change.add(records.TargetEpochStored(group.group_id, records.TargetEpochValue(group.epoch, now.wall_ms)))

    def reconcile(
        self,
        change: Change,
        member: ConsumerMember,
        owned: Partitions | None,
        subscription_changed: bool,
        now: Now,
    ) -> ConsumerMember:
        """The member's next step; it has its rebalance timeout to give up what it must."""
        group, groups = change.group, self._groups
        after = next_step(
            member,
            Aim(
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
        change.add(records.current_stored(group.group_id, after))
        if not after.uses_classic:
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                groups.arm(TimerKind.REBALANCE, group.group_id, after.member_id, now, after.rebalance_timeout_ms)
            else:
                groups.shard.disarm(TimerKind.REBALANCE, group.group_id, after.member_id)
        return after

    # --- leaving ----------------------------------------

    def _leave(self, ticket: Ticket, request: ConsumerHeartbeatRequest, now: Now) -> None:
        groups, group_id = self._groups, request.group_id
        group = groups.groups.get(group_id)
        if group is None:
            groups.describe(group_id)  # says why not
            raise AssertionError("it is none")
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise unknown_member(group_id, request.member_id)
        else:
            member = group.static_member(request.instance_id)
            if member is None:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
            refuse_fenced(member, request.member_id, request.instance_id)
        answer = ConsumerHeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.instance_id is None or request.member_epoch == LEAVING_EPOCH:
            groups.migration.fence(group, (member,), now, ticket, answer)
            return
        change = Change(group)
        away = replace(member, epoch=STATIC_LEAVING_EPOCH, assigned=_since_always(member.assigned), revoking=NONE_HELD)
        change.add(records.current_stored(group_id, away))
        groups.commit(change, now, ticket, answer)

    # --- small parts ----------------------------------------

    def keep_alive(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """The session begins anew."""
        timeout_ms = (
            self._groups.session_timeout_ms(group.group_id)
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self._groups.arm(TimerKind.SESSION, group.group_id, member.member_id, now, timeout_ms)


class _Subscribed:
    """What came of storing a member's subscription."""

    __slots__ = ("brings_new_regex", "has_changed", "needs_epoch")

    def __init__(self, has_changed: bool, needs_epoch: bool, brings_new_regex: bool) -> None:
        self.has_changed = has_changed
        self.needs_epoch = needs_epoch
        """Not for an expression whose topics are not known yet: they raise the epoch when they are."""
        self.brings_new_regex = brings_new_regex


def gone(group_id: str, member_id: str) -> list[records.ConsumerMeaning]:
    """The records with which a member goes, in their order."""
    return [
        records.CurrentStored(group_id, member_id, None),
        records.TargetStored(group_id, member_id, None),
        records.MemberStored(group_id, member_id, None),
    ]


def new_member_id(groups: ConsumerGroups) -> str:
    """For a client that did not make one: in the form of Kafka's ids, which never begin with a dash."""
    while True:
        raw = groups.shard.random_bits(128).to_bytes(16)
        text = urlsafe_b64encode(raw).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _since_always(held: Held) -> Held:
    """The same partitions at epoch 0: whoever comes in the member's place may commit from its first epoch on."""
    return {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in held.items()}


def _told(held: Held) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    return tuple((topic_id, tuple(sorted(epochs))) for topic_id, epochs in held.items())
