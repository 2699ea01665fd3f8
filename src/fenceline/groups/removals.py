"""Deletions from one partition of `__consumer_offsets`: groups and offsets, by request or past their retention.

Owns their tombstones, and how many are written or checked at a time. `expiry` decides what has expired; a group of the
consumer protocol writes its own tombstones (`consumer_groups`). Restores whatever the log refused to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode
from fenceline.groups import records
from fenceline.groups.clock import Now
from fenceline.groups.consumer_model import ConsumerGroup
from fenceline.groups.expiry import expired, expired_of_consumers
from fenceline.groups.messages import DeleteGroupsAnswer, Ticket
from fenceline.groups.model import Group
from fenceline.groups.offsets import OffsetSlot
from fenceline.groups.states import GroupState, Step
from fenceline.groups.timers import TimerKind
from fenceline.groups.writes import Settled, nobody

if TYPE_CHECKING:
    from fenceline.groups.shard import Shard

_MAX_TOMBSTONES: Final = 5_000
"""Per batch; the log rejects a batch larger than the topic's max.message.bytes."""
_OFFSETS_A_LOOK: Final = 5_000
_LOOK_AGAIN_MS: Final = 20
"""Pause between two rounds of retention checks, so that others can run."""


class Removals:
    """Of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._to_look_at: list[str] = []
        """Groups still to be checked in this round, the next one last."""

    def write_tombstones(self, slots: Sequence[OffsetSlot], groups: Sequence[Group], settled: Settled) -> None:
        """Remove offsets, then complete groups, in one batch if possible; `settled` is called for the last one.
        Deletions that the log rejects are undone."""
        shard = self._shard

        def decided(error: ErrorCode, now: Now) -> None:
            for group in groups:
                if error is ErrorCode.NONE:
                    group.take(Step.REMOVED, now.wall_ms)
                elif not shard.has_group(group.group_id):
                    shard.groups[group.group_id] = group

        while len(slots) > _MAX_TOMBSTONES:
            some, slots = slots[:_MAX_TOMBSTONES], slots[_MAX_TOMBSTONES:]
            self._drop_slots(some, shard.writes.begin([records.offset_tombstone(slot) for slot in some], nobody))
        batch = [records.offset_tombstone(slot) for slot in slots]
        batch.extend(records.group_tombstone(group.group_id) for group in groups)
        self._drop_slots(slots, shard.writes.begin(batch, settled, decided))
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
            shard.answer(ticket, DeleteGroupsAnswer(tuple(results)))
            return

        def settled(error: ErrorCode, now: Now) -> None:
            shard.answer(ticket, DeleteGroupsAnswer(tuple((name, error or code) for name, code in results)))

        names = [*(each.group_id for each in doomed), *(each.group_id for each in going)]
        slots = [slot for name in names for slot in self._all_slots(name)]
        if not going:
            self.write_tombstones(slots, doomed, settled)
            return
        if slots or doomed:
            self.write_tombstones(slots, doomed, nobody)
        for consumer_group in going:
            shard.consumers.remove(consumer_group, now)
        shard.consumers.answer_settled(ticket, DeleteGroupsAnswer(tuple(results)), names)

    def arm_expiry(self, now: Now) -> None:
        """The next round begins in `offsets.retention.check.interval.ms`."""
        interval_ms = self._shard.settings.offsets_retention_check_interval_ms
        self._shard.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def expire_some(self, now: Now) -> None:
        """Remove what is past its retention (KIP-211), for a limited number of offsets at a time."""
        shard = self._shard
        if not self._to_look_at:
            self._to_look_at = [*shard.consumers.groups, *reversed(shard.groups)]
        some: list[Group] = []
        consumers: list[ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while self._to_look_at and left > 0:
            group_id = self._to_look_at.pop()
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
            self.write_tombstones(slots, doomed, nobody)
        for consumer_group in going:
            shard.consumers.remove(consumer_group, now)
        if self._to_look_at:
            shard.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + _LOOK_AGAIN_MS)
        else:
            self.arm_expiry(now)

    def _drop_slots(self, slots: Sequence[OffsetSlot], write_id: int) -> None:
        for slot in slots:
            self._shard.offsets.put(slot, None, write_id)

    def _all_slots(self, group_id: str) -> list[OffsetSlot]:
        offsets = self._shard.offsets
        return sorted({slot for slot, _ in offsets.slots(group_id)} | offsets.open_slots(group_id))
