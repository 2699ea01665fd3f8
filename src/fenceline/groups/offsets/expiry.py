"""Which offsets and groups are past their retention (KIP-211).

Owns the rule alone: removes nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fenceline.groups.classic.model import Group
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.messages import Now
from fenceline.groups.offsets.offsets import OffsetSlot, OffsetStore, is_expired


def expired(
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


def expired_of_consumers(
    groups: Iterable[ConsumerGroup], offsets: OffsetStore, retention_ms: int, now: Now
) -> tuple[list[OffsetSlot], list[ConsumerGroup]]:
    """As `expired`, for groups of the consumer protocol: retention of unsubscribed topics counts from the commit."""
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
