"""Committed offsets of the groups of one shard. Owns values, their undo and their expiry rule; never appends.

A write changes the store when it is passed to the log and is undone if the log rejects it; `Undo` holds the replaced
values. With thousands of pending writes, reading one slot costs the same. A plain OffsetFetch sees the state without
pending writes. Committed values are kept packed if possible (`packed`). Offsets of an open transaction are kept
separately until its marker is written or read (`transactions.md X50`).

An offset of a deleted topic counts as absent from `mark_deleted` on, long before its tombstone is written; one that was
committed for a new topic of the same name has another topic id and is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.groups.messages import CommittedPosition, CommittedRewind
from fenceline.groups.offsets.packed import is_packed, pack, topic_id_of, unpack
from fenceline.groups.offsets.rewinds import shows_truncation, step_back
from fenceline.ids import ZERO_UUID


class OffsetSlot(NamedTuple):
    group_id: str
    topic: str
    partition: int


class StoredOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """-1: the broker's retention applies."""
    topic_id: UUID = ZERO_UUID
    """ZERO_UUID: committed by name only."""
    order: int = 0
    """Position among the writes of the shard; later commits have higher ones."""
    rewound: CommittedRewind | None = None
    """The last time that this position moved back because the log was truncated; not stored, see `rewinds`."""

    def belongs_to(self, topic_id: UUID) -> bool:
        """Whether it was stored for this topic, not for an older one of the same name (since_4_0.md K32)."""
        here, there = self.topic_id.int, topic_id.int  # a request has a thousand: comparing the objects takes longer
        return not here or not there or here == there

    def step_from(self, before: StoredOffset | None) -> CommittedRewind | None:
        """The backward step from an earlier commit, if this is one."""
        if before is None or self.offset >= before.offset:
            return None
        return step_back(
            (before.offset, before.leader_epoch, before.topic_id),
            (self.offset, self.leader_epoch, self.topic_id),
            self.commit_timestamp_ms,
        )

    def after(self, before: StoredOffset | None, order: int) -> StoredOffset:
        """As the next value of its slot."""
        rewound = self.rewound
        if before is not None and before.belongs_to(self.topic_id):
            step = self.step_from(before)
            rewound = step if step is not None and shows_truncation(step) else rewound or before.rewound
        if rewound is self.rewound and order == self.order:
            return self
        # `_replace` takes four times as long.
        return StoredOffset(
            self.offset,
            self.leader_epoch,
            self.metadata,
            self.commit_timestamp_ms,
            self.expire_timestamp_ms,
            self.topic_id,
            order,
            rewound,
        )


PartitionOffsets: TypeAlias = dict[int, "StoredOffset | bytes"]
"""By partition; bytes are packed ones."""
Undo: TypeAlias = dict[OffsetSlot, StoredOffset | None]
"""The values that a write replaced; None if there was none."""
OpenUndo: TypeAlias = list[tuple[int, OffsetSlot, "StoredOffset | None"]]
"""What a write replaced in open transactions: the producer id, and the value before or None. Oldest first."""
Marked: TypeAlias = Callable[[OffsetSlot, "StoredOffset | None", StoredOffset], StoredOffset]
"""(slot, value before, value) -> the value, with its rewind mark."""


def _unmarked(_slot: OffsetSlot, _before: StoredOffset | None, value: StoredOffset) -> StoredOffset:
    return value


_AGAIN: Final = -1
"""Earlier than any time: the next retention check looks at the group."""


class OffsetStore:
    __slots__ = (
        "_by_group",
        "_deleted",
        "_dropped",
        "_expires_ms",
        "_next_order",
        "_open",
        "_open_undos",
        "_pending_writes",
        "_readers",
        "_undos",
    )

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, PartitionOffsets]] = {}
        self._undos: dict[int, Undo] = {}
        self._pending_writes: dict[str, dict[OffsetSlot, list[int]]] = {}
        """By group: the writes that have an undo for a slot, oldest first."""
        self._readers: dict[str, int] = {}
        """By topic: how many groups have stored offsets of it."""
        self._open: dict[int, dict[OffsetSlot, StoredOffset]] = {}
        """By producer id. No empty ones."""
        self._open_undos: dict[int, OpenUndo] = {}
        self._next_order = 1
        self._deleted: dict[str, set[UUID]] = {}
        """By name: the ids of deleted topics that may have offsets here; ZERO_UUID for those without an id."""
        self._dropped: list[CommittedPosition] = []
        self._expires_ms: dict[str, int] = {}
        """By group that was looked at: none of its offsets expires before that wall time. `_AGAIN` if that is not true
        any more."""

    # --- reading ----------------------------------------

    def latest(self, slot: OffsetSlot) -> StoredOffset | None:
        """The value including pending writes."""
        topics = self._by_group.get(slot.group_id)
        partitions = topics.get(slot.topic) if topics else None
        value = partitions.get(slot.partition) if partitions else None
        return unpacked(value) if isinstance(value, bytes) else value

    def committed(self, slot: OffsetSlot) -> StoredOffset | None:
        """The value without pending writes; None for one of a deleted topic."""
        slots = self._pending_writes.get(slot.group_id)
        writes = slots.get(slot) if slots else None
        value = self._undos[writes[0]][slot] if writes else self.latest(slot)
        return None if self._deleted and self._is_deleted(slot, value) else value

    def slots(self, group_id: str, only: Collection[str] | None = None) -> Iterator[tuple[OffsetSlot, StoredOffset]]:
        """Everything stored for a group, pending writes included; of these topics only, if given."""
        topics = self._by_group.get(group_id, {})
        for topic in topics if only is None else [topic for topic in only if topic in topics]:
            for partition, value in topics[topic].items():
                yield OffsetSlot(group_id, topic, partition), unpacked(value) if isinstance(value, bytes) else value

    def committed_slots(self, group_id: str) -> Iterator[tuple[OffsetSlot, StoredOffset]]:
        """Everything committed for a group."""
        known = {slot for slot, _ in self.slots(group_id)}
        known.update(self._pending_writes.get(group_id, ()))
        for slot in sorted(known):
            value = self.committed(slot)
            if value is not None:
                yield slot, value

    @property
    def topics(self) -> Collection[str]:
        """Of which groups have stored offsets. For use at once."""
        return self._readers.keys()

    @property
    def group_ids(self) -> list[str]:
        """Of groups that have stored offsets."""
        return list(self._by_group)

    @property
    def has_open_transactions(self) -> bool:
        return bool(self._open)

    def count(self, group_id: str) -> int:
        """How many offsets a group has stored."""
        return sum(len(partitions) for partitions in self._by_group.get(group_id, {}).values())

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def has_open_transaction(self, group_id: str) -> bool:
        return any(slot.group_id == group_id for pending in self._open.values() for slot in pending)

    def is_unstable(self, slot: OffsetSlot) -> bool:
        """Whether an open transaction may still change it."""
        return any(slot in pending and not self._is_deleted(slot, pending[slot]) for pending in self._open.values())

    def open_slots(self, group_id: str) -> set[OffsetSlot]:
        return {slot for pending in self._open.values() for slot in pending if slot.group_id == group_id}

    # --- retention ----------------------------------------

    def begin_look(self, group_id: str) -> list[tuple[str, list[int]]]:
        """The topics of which a group has stored offsets, and their partitions, for a look at all of them."""
        self._expires_ms.pop(group_id, None)
        return [(topic, list(partitions)) for topic, partitions in self._by_group.get(group_id, {}).items()]

    def may_expire(self, group_id: str, now_ms: int) -> bool:
        """Whether one of its offsets can have expired by then, as far as is known."""
        return now_ms >= self._expires_ms.get(group_id, 0)

    def none_expires_before(self, group_id: str, at_ms: int) -> None:
        """The look is done. Whatever is committed later expires later; `_store` and `undo` know the exceptions."""
        self._expires_ms.setdefault(group_id, at_ms)

    def has_pending_writes(self, group_id: str) -> bool:
        return group_id in self._pending_writes

    # --- deleted topics ----------------------------------------

    def mark_deleted(self, topic: str, topic_id: UUID) -> None:
        """The offsets of this topic count as absent from now on. ZERO_UUID: those that have no topic id."""
        self._deleted.setdefault(topic, set()).add(topic_id)

    def forget_deleted(self) -> None:
        """No offset of a deleted topic is left."""
        self._deleted.clear()

    def pop_dropped(self) -> list[CommittedPosition]:
        """Offsets of deleted topics that were removed, or replaced by those of new ones, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def topic_ids(self, group_id: str) -> list[tuple[str, set[UUID]]]:
        """By topic: the ids for which a group has stored offsets, ZERO_UUID among them."""
        return [
            (topic, set(map(_id_of, partitions.values())))
            for topic, partitions in self._by_group.get(group_id, {}).items()
        ]

    def open_topic_ids(self) -> list[tuple[str, set[UUID]]]:
        """As `topic_ids`, of the offsets in open transactions of all groups."""
        return [(slot.topic, {value.topic_id}) for pending in self._open.values() for slot, value in pending.items()]

    def deleted_slots(self, group_id: str, most: int) -> tuple[list[OffsetSlot], bool]:
        """Some slots of a group that have nothing but offsets of deleted topics, and whether others are left: there are
        more than `most`, or a pending write or an open transaction has an offset for the same slot."""
        if not self._deleted:
            return [], False
        topics = self._by_group.get(group_id, {})
        found: list[OffsetSlot] = []
        is_left = False
        for topic in [each for each in self._deleted if each in topics]:
            ids = self._deleted[topic]
            for partition, value in topics[topic].items():
                if _id_of(value) not in ids:
                    continue
                if len(found) == most:
                    return found, True
                slot = OffsetSlot(group_id, topic, partition)
                if self._open and self._is_in_use(slot):
                    is_left = True
                else:
                    found.append(slot)
        return found, is_left or self._may_return(group_id)

    def _may_return(self, group_id: str) -> bool:
        """Whether an offset of a deleted topic comes back if a pending write is rejected."""
        return any(
            slot.topic in self._deleted and any(self._is_deleted(slot, self._undos[each][slot]) for each in writes)
            for slot, writes in self._pending_writes.get(group_id, {}).items()
        )

    def deleted_open_slots(self, most: int) -> tuple[list[OffsetSlot], bool]:
        """As `deleted_slots`, for the offsets in open transactions of all groups."""
        every = {
            slot: None
            for pending in self._open.values()
            for slot, value in pending.items()
            if self._is_deleted(slot, value)
        }
        found = [slot for slot in every if not self._is_in_use(slot)]
        return found[:most], len(found) > most or len(found) < len(every)

    def _is_in_use(self, slot: OffsetSlot) -> bool:
        """Whether it has an offset of a topic that was not deleted. A tombstone would delete that as well."""
        values = [self.latest(slot), *(pending[slot] for pending in self._open.values() if slot in pending)]
        return any(value is not None and not self._is_deleted(slot, value) for value in values)

    def _is_deleted(self, slot: OffsetSlot, value: StoredOffset | None) -> bool:
        return value is not None and value.topic_id in self._deleted.get(slot.topic, ())

    # --- writing ----------------------------------------

    def put(
        self,
        slot: OffsetSlot,
        value: StoredOffset | None,
        write_id: int | None = None,
        *,
        marked: Marked = _unmarked,
    ) -> CommittedRewind | None:
        """Set or (None) remove a value, whose order is assigned if it has none. With a write id it can be undone until
        `confirm`. `marked` adds a rewind mark. Returns the mark, if it is a new one."""
        before = self._replaced_by(slot, value, write_id)
        if value is None:
            self._drop(slot)
            for producer_id in [each for each, pending in self._open.items() if slot in pending]:
                self._set_open(producer_id, slot, None, write_id)
            return None
        return self._store_after(slot, before, marked(slot, before, value), value.order or self.assign_order())

    def _store_after(
        self, slot: OffsetSlot, before: StoredOffset | None, value: StoredOffset, order: int
    ) -> CommittedRewind | None:
        """Returns the value's rewind mark, if it is a new one."""
        stored = value.after(before, order)
        self._store(slot, stored)
        rewound = stored.rewound
        assert rewound is None or rewound.to_offset < rewound.from_offset, "a rewind goes back"
        return rewound if before is None or rewound is not before.rewound else None

    def _replaced_by(self, slot: OffsetSlot, value: StoredOffset | None, write_id: int | None) -> StoredOffset | None:
        """The value that a write replaces, which is kept for its undo."""
        before = self.latest(slot)
        if write_id is not None:
            if before is not None and (
                self._is_deleted(slot, before) or (value is not None and not before.belongs_to(value.topic_id))
            ):
                self._dropped.append(CommittedPosition(*slot, before.offset, before.leader_epoch, before.topic_id))
            undo = self._undos.setdefault(write_id, {})
            if slot not in undo:
                undo[slot] = before
                self._pending_writes.setdefault(slot.group_id, {}).setdefault(slot, []).append(write_id)
        return before

    def confirm(self, write_id: int) -> None:
        """The write is committed."""
        self._open_undos.pop(write_id, None)
        for slot in self._undos.pop(write_id, ()):
            if self._forget_pending(slot, write_id) is None and not self._open:
                self._pack_committed(slot)

    def _pack_committed(self, slot: OffsetSlot) -> None:
        partitions = self._by_group.get(slot.group_id, {}).get(slot.topic, {})
        value = partitions.get(slot.partition)
        if (
            isinstance(value, StoredOffset)
            and value.rewound is None
            and not value.metadata
            and value.expire_timestamp_ms == -1
        ):
            packed = pack(value.offset, value.leader_epoch, value.commit_timestamp_ms, value.topic_id)
            partitions[slot.partition] = packed

    def undo(self, write_id: int) -> None:
        """The log rejected the write: restore the values it replaced, unless a later write replaced them again."""
        for producer_id, slot, value in reversed(self._open_undos.pop(write_id, ())):
            self._set_open(producer_id, slot, value, None)
        for slot, before in self._undos.pop(write_id, {}).items():
            later = self._forget_pending(slot, write_id)
            if later is not None:
                self._undos[later][slot] = before
            elif before is None:
                self._drop(slot)
            else:
                self._store(slot, before)
                self._expires_ms[slot.group_id] = _AGAIN

    def _forget_pending(self, slot: OffsetSlot, write_id: int) -> int | None:
        """Remove this write's undo. Returns the next write that has one for the slot."""
        slots = self._pending_writes[slot.group_id]
        writes = slots[slot]
        position = writes.index(write_id)
        del writes[position]
        if position < len(writes):
            return writes[position]
        if not writes:
            del slots[slot]
            if not slots:
                del self._pending_writes[slot.group_id]
        return None

    # --- loading ----------------------------------------

    def partition_offsets(self, slot: OffsetSlot) -> PartitionOffsets:
        """The mapping that holds the offsets of the slot's group and topic, for the caller to add to. It stays the same
        object until its last offset is removed."""
        topics = self._by_group.setdefault(slot.group_id, {})
        partitions = topics.get(slot.topic)
        if partitions is None:
            partitions = topics[slot.topic] = {}
            self._readers[slot.topic] = self._readers.get(slot.topic, 0) + 1
        return partitions

    def pack(self, slot: OffsetSlot, value: bytes) -> None:
        """Store the slot's offset, packed from this record's value if possible."""
        partitions = self._by_group[slot.group_id][slot.topic]
        stored = partitions[slot.partition]
        if isinstance(stored, StoredOffset) and stored.rewound is None and is_packed(value):
            partitions[slot.partition] = value

    # --- transactions ----------------------------------------

    def put_open(self, producer_id: int, slot: OffsetSlot, value: StoredOffset, write_id: int | None = None) -> None:
        """An offset inside a transaction of this producer. With a write id it can be undone until `confirm`."""
        self._set_open(producer_id, slot, value._replace(order=self.assign_order()), write_id)

    def end_transaction(
        self,
        producer_id: int,
        *,
        committed: bool,
        write_id: int | None = None,
        marked: Marked = _unmarked,
    ) -> list[tuple[OffsetSlot, CommittedRewind]]:
        """The transaction's end: its offsets become visible or are dropped; one committed after them without a
        transaction stays (`transactions.md X50`). With a write id it can be undone until `confirm`. `marked` adds a
        rewind mark to a value. Returns the new rewind marks."""
        rewinds: list[tuple[OffsetSlot, CommittedRewind]] = []
        for slot, value in list(self._open.get(producer_id, {}).items()):
            self._set_open(producer_id, slot, None, write_id)
            if not committed:
                continue
            current = self.latest(slot)
            if current is not None and current.order >= value.order:
                continue
            before = self._replaced_by(slot, value, write_id)
            rewound = self._store_after(slot, before, marked(slot, before, value), value.order)
            if rewound is not None:
                rewinds.append((slot, rewound))
        return rewinds

    def _set_open(self, producer_id: int, slot: OffsetSlot, value: StoredOffset | None, write_id: int | None) -> None:
        pending = self._open.setdefault(producer_id, {})
        if write_id is not None:
            self._open_undos.setdefault(write_id, []).append((producer_id, slot, pending.get(slot)))
        if value is None:
            pending.pop(slot, None)
        else:
            pending[slot] = value
        if not pending:
            del self._open[producer_id]

    def check(self) -> None:
        """Assert that each pending write can be undone, slot by slot."""
        pending = {
            (slot, write_id)
            for slots in self._pending_writes.values()
            for slot, writes in slots.items()
            for write_id in writes
        }
        assert all(self._open.values()), "no producer without pending offsets is kept"
        assert pending == {(slot, write_id) for write_id, undo in self._undos.items() for slot in undo}, (
            "a pending write and what it replaced belong together"
        )

    def assign_order(self) -> int:
        """For the next value."""
        order = self._next_order
        self._next_order += 1
        return order

    def _store(self, slot: OffsetSlot, value: StoredOffset) -> None:
        self.partition_offsets(slot)[slot.partition] = value
        if value.expire_timestamp_ms >= 0:
            self._expires_ms[slot.group_id] = _AGAIN

    def _drop(self, slot: OffsetSlot) -> None:
        topics = self._by_group.get(slot.group_id)
        partitions = topics.get(slot.topic) if topics else None
        if topics is None or partitions is None:
            return
        partitions.pop(slot.partition, None)
        if not partitions:
            del topics[slot.topic]
            self._readers[slot.topic] -= 1
            if not self._readers[slot.topic]:
                del self._readers[slot.topic]
        if not topics:
            del self._by_group[slot.group_id]
            self._expires_ms.pop(slot.group_id, None)


def _id_of(value: StoredOffset | bytes) -> UUID:
    return topic_id_of(value) if isinstance(value, bytes) else value.topic_id


def unpacked(value: bytes) -> StoredOffset:
    """The offset of packed bytes."""
    offset, leader_epoch, commit_ms, topic_id = unpack(value)
    return StoredOffset(offset, leader_epoch, "", commit_ms, -1, topic_id)


def expires_at(value: StoredOffset, since_ms: int | None, retention_ms: int) -> int:
    """The wall time from which it has expired. An explicit one (commits of v2-4) takes precedence over the broker's
    retention, which counts from `since_ms`, or from its commit."""
    if value.expire_timestamp_ms >= 0:
        return value.expire_timestamp_ms
    return (value.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
