"""Deletions from one partition of `__consumer_offsets`: groups and offsets, by request or past their retention.

Owns their tombstones, and how many are written or checked at a time. `expiry` decides what has expired; a group of the
consumer protocol writes its own tombstones (`consumer.groups`). Restores whatever the log refused to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode
from fenceline.groups import records
from fenceline.groups.classic.model import Group
from fenceline.groups.classic.states import GroupState, Step
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.messages import DeleteGroupsResponse, Now, Ticket
from fenceline.groups.offsets.expiry import expired, expired_of_consumers
from fenceline.groups.offsets.offsets import OffsetSlot
from fenceline.groups.timers import TimerKind
from fenceline.groups.writes import OnComplete, no_callback

if TYPE_CHECKING:
    from fenceline.groups.shard import Shard

_MAX_TOMBSTONES: Final = 5_000
"""Per batch; the log rejects a batch larger than the topic's max.message.bytes."""
_OFFSETS_A_LOOK: Final = 5_000
_CHECK_PAUSE_MS: Final = 20
"""Pause between two rounds of retention checks, so that others can run."""


class Removals:
    """Of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._to_check: list[str] = []
        """Groups still to be checked in this round, the next one last."""

    def write_tombstones(self, slots: Sequence[OffsetSlot], groups: Sequence[Group], on_complete: OnComplete) -> None:
        """Remove offsets, then complete groups, in one batch if possible; `on_complete` is called for the last one.
        Deletions that the log rejects are undone."""
        shard = self._shard

        def on_decision(error: ErrorCode, now: Now) -> None:
            for group in groups:
                if error is ErrorCode.NONE:
                    group.transition(Step.REMOVED, now.wall_ms)
                elif not shard.has_group(group.group_id):
                    shard.groups[group.group_id] = group

        while len(slots) > _MAX_TOMBSTONES:
            some, slots = slots[:_MAX_TOMBSTONES], slots[_MAX_TOMBSTONES:]
            self._drop_slots(some, shard.writes.begin([records.offset_tombstone(slot) for slot in some], no_callback))
        batch = [records.offset_tombstone(slot) for slot in slots]
        batch.extend(records.group_tombstone(group.group_id) for group in groups)
        self._drop_slots(slots, shard.writes.begin(batch, on_complete, on_decision))
        for group in groups:
            del shard.groups[group.group_id]

    def delete_groups(self, ticket: Ticket, group_ids: Sequence[str], now: Now) -> None:
        """All groups that can be deleted, with all their offsets, in one batch."""
        shard = self._shard
        results: list[tuple[str, ErrorCode]] = []
        doomed: list[Group] = []
        going: list[ConsumerGroup] = []
        for group_id in group_ids:
            group = shard.groups.get(group_id)
            consumer_group = shard.consumers.groups.get(group_id)
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
            shard.answer(ticket, DeleteGroupsResponse(tuple(results)))
            return

        def on_complete(error: ErrorCode, now: Now) -> None:
            shard.answer(ticket, DeleteGroupsResponse(tuple((name, error or code) for name, code in results)))

        names = [*(each.group_id for each in doomed), *(each.group_id for each in going)]
        slots = [slot for name in names for slot in self._all_slots(name)]
        if not going:
            self.write_tombstones(slots, doomed, on_complete)
            return
        if slots or doomed:
            self.write_tombstones(slots, doomed, no_callback)
        for consumer_group in going:
            shard.consumers.remove(consumer_group, now)
        shard.consumers.respond_when_idle(ticket, DeleteGroupsResponse(tuple(results)), names)

    def arm_expiry(self, now: Now) -> None:
        """The next round begins in `offsets.retention.check.interval.ms`."""
        interval_ms = self._shard.settings.offsets_retention_check_interval_ms
        self._shard.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def expire_some(self, now: Now) -> None:
        """Remove what is past its retention (KIP-211), for a limited number of offsets at a time."""
        shard = self._shard
        if not self._to_check:
            self._to_check = [*shard.consumers.groups, *reversed(shard.groups)]
        some: list[Group] = []
        consumers: list[ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while self._to_check and left > 0:
            group_id = self._to_check.pop()
            group, consumer_group = shard.groups.get(group_id), shard.consumers.groups.get(group_id)
            if group is not None:
                some.append(group)
            elif consumer_group is not None:
                consumers.append(consumer_group)
            left -= 1 + shard.offsets.count(group_id)
        slots, doomed = expired(some, shard.offsets, shard.settings.offsets_retention_ms, now)
        consumer_slots, going = expired_of_consumers(consumers, shard.offsets, shard.settings.offsets_retention_ms, now)
        slots.extend(consumer_slots)
        if slots or doomed:
            self.write_tombstones(slots, doomed, no_callback)
        for consumer_group in going:
            shard.consumers.remove(consumer_group, now)
        if self._to_check:
            shard.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + _CHECK_PAUSE_MS)
        else:
            self.arm_expiry(now)

    def _drop_slots(self, slots: Sequence[OffsetSlot], write_id: int) -> None:
        for slot in slots:
            self._shard.offsets.put(slot, None, write_id)

    def _all_slots(self, group_id: str) -> list[OffsetSlot]:
        offsets = self._shard.offsets
        return sorted({slot for slot, _ in offsets.slots(group_id)} | offsets.open_slots(group_id))
