"""Committed offsets of the groups of one shard. Owns values, their undo and their expiry rule; never appends.

A write changes the store when it is handed to the log and is undone when the log refuses it; `Undo` remembers what was
there before. What is visible to a plain OffsetFetch is the state without the writes that are still under way.
Offsets inside an open transaction wait beside the store until the transaction's marker is read (`formats.md F7`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias
from uuid import UUID

from fenceline.ids import ZERO_UUID


class OffsetSlot(NamedTuple):
    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """-1: the broker's retention decides."""
    topic_id: UUID = ZERO_UUID
    """ZERO_UUID: committed by name only."""
    order: int = 0
    """Position among the writes of the shard; later commits have higher ones."""

    def belongs_to(self, topic_id: UUID) -> bool:
        """Whether it was stored for this topic, not for an older one of the same name (since_4_0.md K32)."""
        return ZERO_UUID in (topic_id, self.topic_id) or topic_id == self.topic_id


PartitionOffsets: TypeAlias = dict[int, CommittedOffset]
Undo: TypeAlias = dict[OffsetSlot, CommittedOffset | None]
"""What a write replaced; None where there was nothing."""


class OffsetStore:
    __slots__ = ("_by_group", "_next_order", "_open", "_undos")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, PartitionOffsets]] = {}
        self._undos: dict[int, Undo] = {}
        self._open: dict[int, dict[OffsetSlot, CommittedOffset]] = {}
        self._next_order = 1

    # --- reading ----------------------------------------

    def latest(self, slot: OffsetSlot) -> CommittedOffset | None:
        """The value including writes under way."""
        topics = self._by_group.get(slot.group_id)
        partitions = topics.get(slot.topic) if topics else None
        return partitions.get(slot.partition) if partitions else None

    def committed(self, slot: OffsetSlot) -> CommittedOffset | None:
        """The value without writes under way."""
        for undo in self._undos.values():
            if slot in undo:
                return undo[slot]
        return self.latest(slot)

    def slots(self, group_id: str) -> Iterator[tuple[OffsetSlot, CommittedOffset]]:
        """Everything stored for a group, writes under way included."""
        for topic, partitions in self._by_group.get(group_id, {}).items():
            for partition, value in partitions.items():
                yield OffsetSlot(group_id, topic, partition), value

    def all_slots(self) -> Iterator[tuple[OffsetSlot, CommittedOffset]]:
        """Everything stored, writes under way included; not to be changed meanwhile."""
        for group_id in self._by_group:
            yield from self.slots(group_id)

    def committed_slots(self, group_id: str) -> Iterator[tuple[OffsetSlot, CommittedOffset]]:
        """Everything committed for a group."""
        known = {slot for slot, _ in self.slots(group_id)}
        for undo in self._undos.values():
            known.update(slot for slot in undo if slot.group_id == group_id)
        for slot in sorted(known):
            value = self.committed(slot)
            if value is not None:
                yield slot, value

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def has_open_transaction(self, group_id: str) -> bool:
        return any(slot.group_id == group_id for pending in self._open.values() for slot in pending)

    def is_unstable(self, slot: OffsetSlot) -> bool:
        """An open transaction may still change it."""
        return any(slot in pending for pending in self._open.values())

    def open_slots(self, group_id: str) -> set[OffsetSlot]:
        return {slot for pending in self._open.values() for slot in pending if slot.group_id == group_id}

    def on_partitions(self, partitions: set[tuple[str, int]]) -> list[OffsetSlot]:
        """Every slot of these topic partitions, in open transactions too."""
        found = {
            OffsetSlot(group_id, topic, partition)
            for group_id, topics in self._by_group.items()
            for topic, offsets in topics.items()
            for partition in offsets
            if (topic, partition) in partitions
        }
        found.update(
            slot for pending in self._open.values() for slot in pending if (slot.topic, slot.partition) in partitions
        )
        return sorted(found)

    # --- writing ----------------------------------------

    def put(self, slot: OffsetSlot, value: CommittedOffset | None, write_id: int | None = None) -> None:
        """Set or (None) remove a value. With a write id it can be undone until `settle`."""
        if write_id is not None:
            self._undos.setdefault(write_id, {}).setdefault(slot, self.latest(slot))
        if value is None:
            self._drop(slot)
            for pending in self._open.values():
                pending.pop(slot, None)
            return
        self._store(slot, value._replace(order=self._take_order()))

    def settle(self, write_id: int) -> None:
        """The write is committed."""
        self._undos.pop(write_id, None)

    def undo(self, write_id: int) -> None:
        """The log refused the write: what it replaced is back, unless a later write replaced it again."""
        refused = self._undos.pop(write_id, {})
        for slot, before in refused.items():
            later = next(
                (undo for other, undo in sorted(self._undos.items()) if other > write_id and slot in undo), None
            )
            if later is not None:
                later[slot] = before
            elif before is None:
                self._drop(slot)
            else:
                self._store(slot, before)

    def put_open(self, producer_id: int, slot: OffsetSlot, value: CommittedOffset) -> None:
        """An offset inside a transaction of this producer."""
        self._open.setdefault(producer_id, {})[slot] = value._replace(order=self._take_order())

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The marker of the transaction was read; an offset that was committed plainly after it stays."""
        for slot, value in self._open.pop(producer_id, {}).items():
            current = self.latest(slot)
            if committed and (current is None or current.order < value.order):
                self._store(slot, value)

    def _take_order(self) -> int:
        order = self._next_order
        self._next_order += 1
        return order

    def _store(self, slot: OffsetSlot, value: CommittedOffset) -> None:
        self._by_group.setdefault(slot.group_id, {}).setdefault(slot.topic, {})[slot.partition] = value

    def _drop(self, slot: OffsetSlot) -> None:
        topics = self._by_group.get(slot.group_id)
        partitions = topics.get(slot.topic) if topics else None
        if topics is None or partitions is None:
            return
        partitions.pop(slot.partition, None)
        if not partitions:
            del topics[slot.topic]
        if not topics:
            del self._by_group[slot.group_id]


def is_expired(value: CommittedOffset, *, base_timestamp_ms: int, now_ms: int, retention_ms: int) -> bool:
    """An explicit expiry time (commits of v2-4) wins over the broker's retention, counted from the base timestamp."""
    if value.expire_timestamp_ms >= 0:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - base_timestamp_ms >= retention_ms
