"""Deletions from one partition of `__consumer_offsets`: groups and offsets, by request or past their retention
(KIP-211).

Owns their tombstones, how many are written or checked at a time, and which offsets and groups have expired. A group of
the consumer protocol writes its own tombstones (`consumer.groups`). Restores whatever the log refused to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import Group
from fenceline.groups.classic.records import group_tombstone
from fenceline.groups.classic.states import GroupState, Step
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

    def write_tombstones(self, slots: Sequence[OffsetSlot], groups: Sequence[Group], on_complete: OnComplete) -> None:
        """Remove offsets, then complete groups, in one batch if possible; `on_complete` is called for the last one.
        Deletions that the log rejects are undone."""

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
        group: Group | ConsumerGroup | None = self._state.consumer.get(request.group_id)
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

    def _classic_for_delete(self, group_id: str) -> Group:
        group = self._state.classic.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise PeerError(ErrorCode.NON_EMPTY_GROUP)
        return group

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]], now: Now) -> None:
        """The topics were deleted: these offsets are useless."""
        slots = self._state.offsets.on_partitions(set(partitions))
        if slots:
            self.write_tombstones(slots, (), no_callback)

    def delete_groups(self, ticket: Ticket, group_ids: Sequence[str], now: Now) -> None:
        """All groups that can be deleted, with all their offsets, in one batch."""
        results: list[tuple[str, ErrorCode]] = []
        doomed: list[Group] = []
        going: list[ConsumerGroup] = []
        for group_id in group_ids:
            group = self._state.classic.get(group_id)
            consumer_group = self._state.consumer.get(group_id)
            if consumer_group is not None and not consumer_group.is_empty:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            elif consumer_group is not None:
                results.append((group_id, ErrorCode.NONE))
                going.append(consumer_group)
            elif group is None or group.state is GroupState.DEAD:
                results.append((group_id, ErrorCode.GROUP_ID_NOT_FOUND))
            elif group.state is not GroupState.EMPTY:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            else:
                results.append((group_id, ErrorCode.NONE))
                doomed.append(group)
        if not doomed and not going:
            self._writes.answer(ticket, DeleteGroupsResponse(tuple(results)))
            return

        def on_complete(error: ErrorCode, now: Now) -> None:
            self._writes.answer(ticket, DeleteGroupsResponse(tuple((name, error or code) for name, code in results)))

        names = [*(each.group_id for each in doomed), *(each.group_id for each in going)]
        slots = [slot for name in names for slot in self._all_slots(name)]
        if not going:
            self.write_tombstones(slots, doomed, on_complete)
            return
        if slots or doomed:
            self.write_tombstones(slots, doomed, no_callback)
        for consumer_group in going:
            self._consumers.remove(consumer_group, now)
        self._consumers.respond_when_idle(ticket, DeleteGroupsResponse(tuple(results)), names)

    def arm_expiry(self, now: Now) -> None:
        """The next round begins in `offsets.retention.check.interval.ms`."""
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._timers.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def expire_some(self, now: Now) -> None:
        """Remove what is past its retention (KIP-211), for a limited number of offsets at a time."""
        if not self._to_check:
            self._to_check = [*self._state.consumer, *reversed(self._state.classic)]
        some: list[Group] = []
        consumers: list[ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while self._to_check and left > 0:
            group_id = self._to_check.pop()
            group, consumer_group = self._state.classic.get(group_id), self._state.consumer.get(group_id)
            if group is not None:
                some.append(group)
            elif consumer_group is not None:
                consumers.append(consumer_group)
            left -= 1 + self._state.offsets.count(group_id)
        slots, doomed = _expired(some, self._state.offsets, self._settings.offsets_retention_ms, now)
        consumer_slots, going = _expired_of_consumers(
            consumers, self._state.offsets, self._settings.offsets_retention_ms, now
        )
        slots.extend(consumer_slots)
        if slots or doomed:
            self.write_tombstones(slots, doomed, no_callback)
        for consumer_group in going:
            self._consumers.remove(consumer_group, now)
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


# --- retention ----------------------------------------


def _expired(
    groups: Iterable[Group], offsets: OffsetStore, retention_ms: int, now: Now
) -> tuple[list[OffsetSlot], list[Group]]:
    """Of classic groups: expired offsets, and empty groups without any other offset."""
    slots: list[OffsetSlot] = []
    doomed: list[Group] = []
    for group in groups:
        if offsets.has_any(group.group_id):
            found, keeps_some = _expired_slots(group, offsets, retention_ms, now)
            slots.extend(found)
            if keeps_some:
                continue
        if group.state is GroupState.EMPTY and not offsets.has_open_transaction(group.group_id):
            doomed.append(group)
    return slots, doomed


def _expired_of_consumers(
    groups: Iterable[ConsumerGroup], offsets: OffsetStore, retention_ms: int, now: Now
) -> tuple[list[OffsetSlot], list[ConsumerGroup]]:
    """As `_expired`, for groups of the consumer protocol: retention of unsubscribed topics counts from the commit."""
    slots: list[OffsetSlot] = []
    doomed: list[ConsumerGroup] = []
    for group in groups:
        subscribed = group.subscribed_topics()
        found, keeps_some = _past(offsets, group.group_id, subscribed.__contains__, None, retention_ms, now)
        slots.extend(found)
        if group.is_empty and not keeps_some and not offsets.has_open_transaction(group.group_id):
            doomed.append(group)
    return slots, doomed


def _expired_slots(group: Group, offsets: OffsetStore, retention_ms: int, now: Now) -> tuple[list[OffsetSlot], bool]:
    """The slots to remove, and whether any stays."""
    since_empty_ms = None
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            since_empty_ms = group.state_since_ms if group.state_since_ms >= 0 else None
        elif not (group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None):
            return [], True
    return _past(offsets, group.group_id, group.is_subscribed_to, since_empty_ms, retention_ms, now)


def _past(
    offsets: OffsetStore,
    group_id: str,
    is_subscribed_to: Callable[[str], bool],
    since_empty_ms: int | None,
    retention_ms: int,
    now: Now,
) -> tuple[list[OffsetSlot], bool]:
    """The expired slots of a group, and whether there is any other. `since_empty_ms`: start of the retention time;
    None: from the commit of each."""
    found, keeps_some = [], False
    for slot, value in offsets.slots(group_id):
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
