"""Deletions from one partition of `__consumer_offsets`: groups and offsets, by request or past their retention
(KIP-211).

Owns their tombstones, how many are written or checked at a time, and which offsets and groups have expired. A group of
the consumer protocol writes its own tombstones (`consumer.groups`); those of deleted topics are in `deleted_topics`.
Restores whatever the log refused to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.classic.records import group_tombstone
from fenceline.groups.classic.states import GroupState, Step
from fenceline.groups.consumer.change import rejected_outcome
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.messages import DeleteGroupsResponse, DeleteOffsetsRequest, DeleteOffsetsResponse, Now, Ticket
from fenceline.groups.offsets.offsets import OffsetSlot, expires_at
from fenceline.groups.offsets.records import offset_tombstone
from fenceline.groups.settings import GroupSettings
from fenceline.groups.state import ShardState
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import OnComplete, Writes, no_callback

_MAX_TOMBSTONES: Final = 5_000
"""Per batch; the log rejects a batch larger than the topic's max.message.bytes."""
_OFFSETS_A_LOOK: Final = 100
"""Of retention checks. To look at one takes 2 to 4 us, to remove it 10 to 15 us."""
_CHECK_PAUSE_MS: Final = 20
"""Pause between two looks of all shards, so that others can run."""


class RetentionRounds:
    """Of all shards of a coordinator: how many are in a round of retention checks. They share the time."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def pause_ms(self) -> int:
        """Between two looks of one shard."""
        return _CHECK_PAUSE_MS * self.count


@dataclass(slots=True)
class _Look:
    """How far the retention check of a group is."""

    group_id: str
    left: list[tuple[str, list[int]]]
    """Topics, and their partitions, that are still to be looked at."""
    keeps_some: bool = False
    earliest_ms: int = 2**63 - 1
    """When the first of the offsets that are kept may expire, as wall time."""


class _Rule(NamedTuple):
    """When offsets of a group expire: not those of subscribed topics."""

    is_subscribed_to: Callable[[str], bool]
    since_empty_ms: int | None
    """Retention counts from then on, if not None, and not from the commit of each."""


class Removals:
    """Of one shard."""

    def __init__(
        self,
        state: ShardState,
        settings: GroupSettings,
        consumers: ConsumerGroups,
        writes: Writes,
        timers: PartitionTimers,
        rounds: RetentionRounds,
    ) -> None:
        self._state = state
        self._settings = settings
        self._consumers = consumers
        self._writes = writes
        self._timers = timers
        self._rounds = rounds
        self._is_in_round = False
        self._to_check: list[str] = []
        """Groups still to be checked in this round, the next one last."""
        self._look: _Look | None = None
        """Of the group that is being checked."""

    def write_tombstones(
        self, slots: Sequence[OffsetSlot], groups: Sequence[ClassicGroup], on_complete: OnComplete
    ) -> None:
        """Remove offsets, then complete groups, in one batch if possible; `on_complete` is called for the last one.
        Deletions that the log rejects are undone."""

        assert all(group.is_empty for group in groups), "only groups without members are deleted"

        def on_decision(error: ErrorCode, now: Now) -> None:
            for group in groups:
                if error is ErrorCode.NONE:
                    group.transition(Step.REMOVED, now.wall_ms)
                elif not self._state.has_group(group.group_id):
                    self._state.classic[group.group_id] = group

        while len(slots) > _MAX_TOMBSTONES:
            some, slots = slots[:_MAX_TOMBSTONES], slots[_MAX_TOMBSTONES:]
            self._drop_slots(some, self._writes.begin([offset_tombstone(slot) for slot in some], no_callback))
        batch = [offset_tombstone(slot) for slot in slots]
        batch.extend(group_tombstone(group.group_id) for group in groups)
        self._drop_slots(slots, self._writes.begin(batch, on_complete, on_decision))
        for group in groups:
            del self._state.classic[group.group_id]

    def delete_offsets(self, ticket: Ticket, request: DeleteOffsetsRequest, now: Now) -> None:
        group: ClassicGroup | ConsumerGroup | None = self._state.consumer.get(request.group_id)
        if group is None:
            group = self._classic_for_delete(request.group_id)
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, _ in request.partitions
        )
        slots = [
            slot
            for (topic, partition), error in zip(request.partitions, errors, strict=True)
            if error is ErrorCode.NONE
            for slot in (OffsetSlot(request.group_id, topic, partition),)
            if self._state.offsets.latest(slot) is not None or self._state.offsets.is_unstable(slot)
        ]
        if not slots:
            self._writes.answer(ticket, DeleteOffsetsResponse(errors=errors))
            return

        def on_complete(error: ErrorCode, now: Now) -> None:
            self._writes.answer(ticket, DeleteOffsetsResponse(error) if error else DeleteOffsetsResponse(errors=errors))

        self.write_tombstones(slots, (), on_complete)

    def _classic_for_delete(self, group_id: str) -> ClassicGroup:
        group = self._state.classic.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise PeerError(ErrorCode.NON_EMPTY_GROUP)
        return group

    def delete_groups(self, ticket: Ticket, group_ids: Sequence[str], now: Now) -> None:
        """All groups that can be deleted, with all their offsets, in one batch."""
        results: list[tuple[str, ErrorCode]] = []
        doomed: list[ClassicGroup | ConsumerGroup] = []
        for group_id in group_ids:
            group = self._state.consumer.get(group_id) or self._state.classic.get(group_id)
            if group is None or (isinstance(group, ClassicGroup) and group.state is GroupState.DEAD):
                results.append((group_id, ErrorCode.GROUP_ID_NOT_FOUND))
            elif not group.is_empty:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            else:
                results.append((group_id, ErrorCode.NONE))
                doomed.append(group)
        outcome = DeleteGroupsResponse(tuple(results))
        if not doomed:
            self._writes.answer(ticket, outcome)
            return
        classic, consumer = _by_kind(doomed)
        names = [each.group_id for each in classic] + [each.group_id for each in consumer]
        slots = [slot for name in names for slot in self._all_slots(name)]
        if not consumer:
            self.write_tombstones(
                slots,
                classic,
                lambda error, _: self._writes.answer(ticket, rejected_outcome(outcome, error) if error else outcome),
            )
            return
        self._remove(slots, classic, consumer, now)
        self._consumers.respond_when_idle(ticket, outcome, names)

    def _remove(
        self, slots: Sequence[OffsetSlot], classic: Sequence[ClassicGroup], consumer: Sequence[ConsumerGroup], now: Now
    ) -> None:
        if slots or classic:
            self.write_tombstones(slots, classic, no_callback)
        for group in consumer:
            self._consumers.remove(group, now)

    def arm_expiry(self, now: Now) -> None:
        """The next round begins in `offsets.retention.check.interval.ms`."""
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._timers.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def expire_some(self, now: Now) -> None:
        """Remove what is past its retention (KIP-211), for a limited number of offsets at a time. Groups of which no
        offset can have expired since the last look are passed over."""
        state = self._state
        if not self._is_in_round:
            self._is_in_round = True
            self._rounds.count += 1
            self._to_check = [*state.consumer, *reversed(state.classic)]
        slots: list[OffsetSlot] = []
        doomed: list[ClassicGroup | ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while left > 0 and (self._look is not None or self._to_check):
            if self._look is None:
                left -= 1
                self._look = self._begin_look(self._to_check.pop(), now)
                continue
            look = self._look
            group = state.classic.get(look.group_id) or state.consumer.get(look.group_id)
            if group is not None:
                left -= self._look_at_some(look, group, left, slots, now)
            if group is None or not look.left:
                self._look = None
                if group is not None and self._is_doomed(look, group, slots):
                    doomed.append(group)
        self._remove(slots, *_by_kind(doomed), now)
        if self._to_check or self._look is not None:
            self._timers.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + self._rounds.pause_ms)
        else:
            self.end_round()
            self.arm_expiry(now)

    def end_round(self) -> None:
        """It is over, or the shard is unloaded."""
        self._rounds.count -= self._is_in_round
        self._is_in_round = False

    def _begin_look(self, group_id: str, now: Now) -> _Look | None:
        """None if none of its offsets can have expired."""
        offsets = self._state.offsets
        return _Look(group_id, offsets.begin_look(group_id)) if offsets.may_expire(group_id, now.wall_ms) else None

    def _look_at_some(
        self, look: _Look, group: ClassicGroup | ConsumerGroup, most: int, expired: list[OffsetSlot], now: Now
    ) -> int:
        """Add expired offsets of the group. Returns how many were looked at, at most so many."""
        offsets, retention_ms, looked_at = self._state.offsets, self._settings.offsets_retention_ms, 0
        rule = _rule_of(group)
        if rule is None:
            look.left.clear()
            look.keeps_some, look.earliest_ms = True, 0  # its members may leave
            return 0
        while look.left and looked_at < most:
            topic, partitions = look.left[-1]
            is_subscribed = rule.is_subscribed_to(topic)
            while partitions and looked_at < most:
                slot = OffsetSlot(look.group_id, topic, partitions.pop())
                looked_at += 1
                value = offsets.latest(slot)
                if value is None:
                    continue
                expires_ms = expires_at(value, rule.since_empty_ms, retention_ms)
                if now.wall_ms >= expires_ms and not is_subscribed and not offsets.is_unstable(slot):
                    expired.append(slot)
                else:
                    look.keeps_some = True
                    # It counts from its commit again when the group has members.
                    look.earliest_ms = min(look.earliest_ms, expires_ms, expires_at(value, None, retention_ms))
            if not partitions:
                look.left.pop()
        return looked_at

    def _is_doomed(self, look: _Look, group: ClassicGroup | ConsumerGroup, expired: Sequence[OffsetSlot]) -> bool:
        """Whether the group goes with these offsets: they are its last. If removals of others are not decided yet, the
        next round removes it; so it does if one was committed while the group was looked at."""
        offsets = self._state.offsets
        if look.keeps_some:
            if look.earliest_ms:
                offsets.none_expires_before(look.group_id, look.earliest_ms)
            return False
        return (
            group.is_empty
            and offsets.count(look.group_id) == sum(slot.group_id == look.group_id for slot in expired)
            and not offsets.has_open_transaction(look.group_id)
            and not offsets.has_pending_writes(look.group_id)
        )

    def _drop_slots(self, slots: Sequence[OffsetSlot], write_id: int) -> None:
        for slot in slots:
            self._state.offsets.put(slot, None, write_id)

    def _all_slots(self, group_id: str) -> list[OffsetSlot]:
        offsets = self._state.offsets
        return sorted({slot for slot, _ in offsets.slots(group_id)} | offsets.open_slots(group_id))


def _by_kind(groups: Sequence[ClassicGroup | ConsumerGroup]) -> tuple[list[ClassicGroup], list[ConsumerGroup]]:
    return [each for each in groups if isinstance(each, ClassicGroup)], [
        each for each in groups if isinstance(each, ConsumerGroup)
    ]


def _rule_of(group: ClassicGroup | ConsumerGroup) -> _Rule | None:
    """None if no offset of the group expires."""
    if isinstance(group, ConsumerGroup):
        return _Rule(group.subscribed_topics().__contains__, None)
    if group.protocol_type is None:  # a simple group
        return _Rule(group.is_subscribed_to, None)
    if group.is_empty:
        return _Rule(group.is_subscribed_to, group.state_since_ms if group.state_since_ms >= 0 else None)
    if group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        return _Rule(group.is_subscribed_to, None)
    return None
