"""Deletions from one partition of `__consumer_offsets`: groups and offsets, by request or past their retention
(KIP-211).

Owns their tombstones, how many are written or checked at a time, and which offsets and groups have expired. A group of
the consumer protocol writes its own tombstones (`consumer.groups`); those of deleted topics are in `deleted_topics`.
Restores whatever the log refused to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.classic.records import group_tombstone
from fenceline.groups.classic.states import GroupState, Step
from fenceline.groups.consumer.change import rejected_outcome
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.messages import DeleteGroupsResponse, DeleteOffsetsRequest, DeleteOffsetsResponse, Now, Ticket
from fenceline.groups.offsets.offsets import OffsetSlot, OffsetStore, is_expired
from fenceline.groups.offsets.records import offset_tombstone
from fenceline.groups.settings import GroupSettings
from fenceline.groups.state import ShardState
from fenceline.groups.timers import PartitionTimers, TimerKind
from fenceline.groups.writes import OnComplete, Writes, no_callback

_MAX_TOMBSTONES: Final = 5_000
"""Per batch; the log rejects a batch larger than the topic's max.message.bytes."""
_OFFSETS_A_LOOK: Final = 5_000
_CHECK_PAUSE_MS: Final = 20
"""Pause between two rounds of retention checks, so that others can run."""


class Removals:
    """Of one shard."""

    def __init__(
        self,
        state: ShardState,
        settings: GroupSettings,
        consumers: ConsumerGroups,
        writes: Writes,
        timers: PartitionTimers,
    ) -> None:
        self._state = state
        self._settings = settings
        self._consumers = consumers
        self._writes = writes
        self._timers = timers
        self._to_check: list[str] = []
        """Groups still to be checked in this round, the next one last."""

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
        """Remove what is past its retention (KIP-211), for a limited number of offsets at a time."""
        state, retention_ms = self._state, self._settings.offsets_retention_ms
        if not self._to_check:
            self._to_check = [*state.consumer, *reversed(state.classic)]
        slots: list[OffsetSlot] = []
        doomed: list[ClassicGroup | ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while self._to_check and left > 0:
            group_id = self._to_check.pop()
            left -= 1 + state.offsets.count(group_id)
            group = state.classic.get(group_id) or state.consumer.get(group_id)
            if group is None:
                continue
            found, keeps_some = _expired_slots(group, state.offsets, retention_ms, now)
            slots.extend(found)
            if group.is_empty and not keeps_some and not state.offsets.has_open_transaction(group_id):
                doomed.append(group)
        self._remove(slots, *_by_kind(doomed), now)
        if self._to_check:
            self._timers.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + _CHECK_PAUSE_MS)
        else:
            self.arm_expiry(now)

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


def _expired_slots(
    group: ClassicGroup | ConsumerGroup, offsets: OffsetStore, retention_ms: int, now: Now
) -> tuple[list[OffsetSlot], bool]:
    """The expired offsets of a group, and whether it has any other. Retention counts from the commit of each, or from
    when the group became empty."""
    if not offsets.has_any(group.group_id):
        return [], False
    since_empty_ms = None
    is_subscribed_to: Callable[[str], bool]
    if isinstance(group, ConsumerGroup):
        is_subscribed_to = group.subscribed_topics().__contains__
    else:
        is_subscribed_to = group.is_subscribed_to
        if group.protocol_type is None:
            pass  # a simple group
        elif group.is_empty:
            since_empty_ms = group.state_since_ms if group.state_since_ms >= 0 else None
        elif not (group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None):
            return [], True
    found, keeps_some = [], False
    for slot, value in offsets.slots(group.group_id):
        if (
            not is_subscribed_to(slot.topic)
            and not offsets.is_unstable(slot)
            and is_expired(
                value,
                base_timestamp_ms=value.commit_timestamp_ms if since_empty_ms is None else since_empty_ms,
                now_ms=now.wall_ms,
                retention_ms=retention_ms,
            )
        ):
            found.append(slot)
        else:
            keeps_some = True
    return found, keeps_some
