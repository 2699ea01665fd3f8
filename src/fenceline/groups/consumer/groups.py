"""The groups of the consumer protocol of one partition: their values, pending writes and timers.

Owns how a change gets into the log: it is collected in a `GroupChange`, applied to the group at once, appended as one
batch, and undone if the log rejects it. `consumer.membership`, `consumer.classic_members` and `consumer.migration`
decide the changes. Never appends by itself (see `writes`).

Invariants: a change that a client saw is in the log; a response is sent when all writes before it are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from fenceline.groups.consumer import records
from fenceline.groups.consumer.change import GroupChange, rejected_outcome, tombstones
from fenceline.groups.consumer.model import (
    GROUP_TYPE,
    ConsumerGroup,
    ConsumerMember,
    DescribedConsumerGroup,
    DescribedConsumerMember,
)
from fenceline.groups.consumer.settings import (
    ASSIGNMENT_INTERVAL_CONFIG,
    HEARTBEAT_INTERVAL_CONFIG,
    SESSION_TIMEOUT_CONFIG,
    ConsumerSettings,
)
from fenceline.groups.consumer.topics import TopicHashes
from fenceline.groups.messages import ListedGroup, Now, Outcome, Ticket
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import Writes
from fenceline.metadata.image import ConfigResourceType, MetadataImage


@dataclass(slots=True)
class _Undo:
    """The state before a change whose write is pending."""

    group: ConsumerGroup | None
    classic: ClassicGroup | None
    is_void: bool = False
    """An earlier change was undone, and this one with it."""
    error: ErrorCode = ErrorCode.NONE
    """Why it was undone."""


class ConsumerGroups:
    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        classic: dict[str, ClassicGroup],
        foreign: AbstractSet[str],
        settings: ConsumerSettings,
        writes: Writes,
        timers: PartitionTimers,
        image: Callable[[], MetadataImage],
        hashes: TopicHashes,
    ) -> None:
        """`classic` and `foreign` (share and streams): the groups of the other kinds, for migration and names."""
        self.groups: Final = groups
        self.settings: Final = settings
        self._classic = classic
        self._foreign = foreign
        self._writes = writes
        self._timers = timers
        self._image = image
        self._hashes = hashes
        self._undos: dict[str, list[_Undo]] = {}
        self._checked_topics: dict[str, object] = {}
        """By group: the topics for which its metadata hash was last checked."""

    # --- what the cluster says ----------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self._image()

    def session_timeout_ms(self, group_id: str) -> int:
        return self.settings.session.of_group(self._configs(group_id), SESSION_TIMEOUT_CONFIG)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.settings.heartbeat.of_group(self._configs(group_id), HEARTBEAT_INTERVAL_CONFIG)

    def assignment_interval_ms(self, group_id: str) -> int:
        """The group's own, else the cluster-wide dynamic default, else this broker's file."""
        of_all = self.image.config(ConfigResourceType.BROKER, "").get(f"group.{ASSIGNMENT_INTERVAL_CONFIG}")
        interval = self.settings.assignment
        if of_all is not None:
            interval = replace(interval, default_ms=int(of_all))
        return interval.of_group(self._configs(group_id), ASSIGNMENT_INTERVAL_CONFIG)

    def _configs(self, group_id: str) -> dict[str, str]:
        return dict(self.image.config(ConfigResourceType.GROUP, group_id))

    def have_topics_changed(self, group_id: str) -> bool:
        """Whether the metadata has changed since the group's hash was last checked; the hash may be the same."""
        return self._checked_topics.get(group_id) is not self.image.topics_by_name

    def metadata_hash(self, change: GroupChange) -> int:
        """Of the topics that the group of the change subscribes to, in their current form."""
        change.checked_topics = self.image.topics_by_name
        return self._hashes.of(change.group.subscribed_topics(), self.image)

    # --- changes ----------------------------------------

    def commit(
        self, change: GroupChange, now: Now, ticket: Ticket | None = None, outcome: Outcome | None = None
    ) -> None:
        """Apply the change and write it; send `outcome` once it and all writes before it are in the log."""
        group_id = change.group.group_id
        if change.checked_topics is not None:
            self._checked_topics[group_id] = change.checked_topics
        batch = change.batch
        if not batch:
            if ticket is not None and outcome is not None:
                self.respond_when_idle(ticket, outcome, (group_id,))
            return
        undo = _Undo(self.groups.get(group_id), change.replaces)
        self._undos.setdefault(group_id, []).append(undo)
        self._put(group_id, None if change.becomes is not None else change.group)
        for meaning in change.meanings:
            if isinstance(meaning, records.CurrentStored) and undo.group is not None and change.becomes is None:
                change.group.check_step(undo.group, meaning.member_id)
            elif (
                isinstance(meaning, records.MemberStored)
                and meaning.value is None
                and meaning.member_id not in change.group.members
            ):
                self._disarm_all(group_id, meaning.member_id)
        if change.replaces is not None:
            self._classic.pop(group_id, None)
        if change.becomes is not None:
            self._classic[group_id] = change.becomes

        def on_complete(error: ErrorCode, now: Now) -> None:
            if ticket is not None and outcome is not None:
                why = error or undo.error
                self._writes.answer(ticket, rejected_outcome(outcome, why) if why else outcome)

        def on_decision(error: ErrorCode, now: Now) -> None:
            self._decided(group_id, undo, change, error, now)

        self._writes.begin(batch, on_complete, on_decision)

    def respond_when_idle(self, ticket: Ticket, outcome: Outcome, group_ids: Iterable[str]) -> None:
        """Respond once no pending write is left that the response may depend on: changes of these groups. If one of
        them is undone, the response becomes its error."""
        rests_on = [undo for group_id in group_ids for undo in self._undos.get(group_id, ())]

        def on_idle(error: ErrorCode) -> None:
            why = error or next((undo.error for undo in rests_on if undo.error), ErrorCode.NONE)
            self._writes.answer(ticket, rejected_outcome(outcome, why) if why else outcome)

        if not self._writes.when_idle(on_idle):
            self._writes.answer(ticket, outcome)

    def remove(self, group: ConsumerGroup, now: Now) -> None:
        """Delete an empty group; `removals` owns its offsets."""
        assert group.is_empty, f"group {group.group_id} has members and cannot be deleted"
        change = GroupChange(group)
        for meaning in tombstones(group):
            change.add(meaning)
        self.commit(change, now)
        self._put(group.group_id, None)

    def _decided(self, group_id: str, undo: _Undo, change: GroupChange, error: ErrorCode, now: Now) -> None:
        waiting = self._undos.get(group_id, [])
        position = next((index for index, each in enumerate(waiting) if each is undo), None)
        if position is not None:
            if error:
                undo.error = error
                # Later changes were based on this one: they are undone with it.
                for later in waiting[position + 1 :]:
                    later.is_void, later.error = True, error
                del waiting[position:]
            else:
                del waiting[position]
            if not waiting:
                self._undos.pop(group_id, None)
        if not error or undo.is_void:
            return
        self._checked_topics.pop(group_id, None)
        if change.becomes is not None and self._classic.get(group_id) is change.becomes:
            del self._classic[group_id]
        if group_id not in self._classic:
            # Otherwise it was an empty one, and a classic group has its name now.
            self._put(group_id, undo.group)
            if undo.group is not None:
                for member in undo.group.members.values():
                    self.watch(undo.group, member, now)
        if undo.classic is not None:
            self._classic[group_id] = undo.classic
        if change.on_rejected is not None:
            change.on_rejected(now)

    def _put(self, group_id: str, group: ConsumerGroup | None) -> None:
        if group is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = group
        if group is None or group.is_empty:
            self._checked_topics.pop(group_id, None)  # it refers to the metadata of that time

    # --- life and end ----------------------------------------

    def watch(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Arm the timers that remove a member that is silent, or that does not revoke its partitions."""
        if not self._timers.is_armed(TimerKind.SESSION, group.group_id, member.member_id):
            self.keep_alive(group, member, now)
        if member.must_revoke and not self._timers.is_armed(TimerKind.REBALANCE, group.group_id, member.member_id):
            deadline_ms = now.monotonic_ms + member.rebalance_timeout_ms
            self._timers.arm(TimerKind.REBALANCE, group.group_id, member.member_id, deadline_ms)

    def check(self) -> None:
        """Assert the invariants of each group, and that its members have the timers that end them."""
        for group_id, group in self.groups.items():
            group.check()
            assert group_id not in self._classic, f"group {group_id} is of two kinds"
            for member in group.members.values():
                assert self._timers.is_armed(TimerKind.SESSION, group_id, member.member_id), (
                    f"member {member.member_id} of group {group_id} has no session"
                )
                assert not member.must_revoke or self._timers.is_armed(
                    TimerKind.REBALANCE, group_id, member.member_id
                ), f"member {member.member_id} of group {group_id} may revoke without end"

    def unload(self) -> None:
        """Another broker coordinates them now."""
        self.groups.clear()
        self._undos.clear()
        self._checked_topics.clear()

    def keep_alive(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Restart the member's session timeout."""
        timeout_ms = (
            self.session_timeout_ms(group.group_id) if member.classic is None else member.classic.session_timeout_ms
        )
        self._timers.arm(TimerKind.SESSION, group.group_id, member.member_id, now.monotonic_ms + timeout_ms)

    def _disarm_all(self, group_id: str, member_id: str) -> None:
        """Cancel all timers of this member."""
        for kind in (TimerKind.SESSION, TimerKind.REBALANCE, TimerKind.JOIN, TimerKind.SYNC):
            self._timers.disarm(kind, group_id, member_id)

    # --- groups as a whole ----------------------------------------

    def listed(self) -> Iterator[ListedGroup]:
        for group in self.groups.values():
            yield ListedGroup(group.group_id, CONSUMER_PROTOCOL_TYPE, group.state.value, GROUP_TYPE)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise self.not_found(group_id)
        return DescribedConsumerGroup(
            group_id,
            group.state.value,
            group.epoch,
            group.assignment_epoch,
            group.preferred_assignor() or self.settings.assignors[0],
            tuple(
                DescribedConsumerMember(member, group.target_of(member_id))
                for member_id, member in sorted(group.members.items())
            ),
        )

    def not_found(self, group_id: str) -> PeerError:
        known = group_id in self._classic or group_id in self._foreign
        why = "is not a consumer group" if known else "not found"
        return PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
