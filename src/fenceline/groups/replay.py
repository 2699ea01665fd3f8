"""Rebuilds the state of a partition of `__consumer_offsets` from its records.

Owns the effect of each record; `records` owns the encoding. Sends no response and arms no timer: that begins after the
replay.

Nearly all records are offsets of known groups and topics, in one shape: those are applied without decoding each field
(`GroupReplay`), and a batch that is one commit of many partitions is applied as a unit, so that a million of them load
within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Protocol

from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.classic.records import GroupStored, restored
from fenceline.groups.consumer.records import EpochStored
from fenceline.groups.consumer.replay import applied
from fenceline.groups.messages import Now
from fenceline.groups.offsets.offsets import PartitionOffsets
from fenceline.groups.offsets.packed import are_packed, is_not_below, is_packed
from fenceline.groups.offsets.records import (
    OffsetCommitted,
    decode_slot,
    is_offset_key,
    partition_of_key,
    partitions_of_keys,
)
from fenceline.groups.records import ForeignGroup, Meaning, Unserved, decode
from fenceline.groups.state import ShardState

_PARTITION_BYTES: Final = 4
"""An offset's key ends with its partition; the bytes before name the group and the topic."""
_KEY: Final = attrgetter("key")
_VALUE: Final = attrgetter("value")
_MANY: Final = 16
"""Minimum number of records in a batch to check them all together."""


class KeyAndValue(Protocol):
    """One record of a log."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class GroupReplay:
    """Of one partition's log, batch by batch."""

    __slots__ = ("_known", "_state")

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._known: dict[bytes, PartitionOffsets] = {}
        """By an offset's key without its partition: the mapping it belongs to. Its group exists."""

    def batch(self, batch: Sequence[KeyAndValue], now: Now, transaction_of: int | None = None) -> None:
        """Apply the records of one batch; `transaction_of` is the producer id of a transactional one."""
        if transaction_of is not None or self._state.offsets.has_open_transactions:
            for record in batch:  # the later one counts: offsets are numbered
                self._apply_one(record.key, record.value, now, transaction_of)
            return
        if len(batch) >= _MANY and self._apply_commit(batch, now):
            return
        known, partition_of = self._known, partition_of_key
        for record in batch:
            key, value = record.key, record.value
            if key is None or value is None or not is_packed(value):
                self._apply_one(key, value, now, None)
                continue
            partitions = known.get(key[:-_PARTITION_BYTES])
            if partitions is None:
                if not is_offset_key(key):
                    self._apply_one(key, value, now, None)
                    continue
                partitions = self._find_topic(key, now)
            index = partition_of(key)
            before = partitions.get(index)
            if before is None or (isinstance(before, bytes) and is_not_below(before, value)):
                partitions[index] = value
            else:
                self._apply_one(key, value, now, None)

    def _apply_commit(self, batch: Sequence[KeyAndValue], now: Now) -> bool:
        """Apply a batch of packed offsets of one group and topic. Returns whether it is such a batch of new ones."""
        keys, values = list(map(_KEY, batch)), list(map(_VALUE, batch))
        if None in keys or None in values or not is_offset_key(keys[0]) or not are_packed(values):
            return False
        indexes = partitions_of_keys(keys)
        if indexes is None:
            return False
        found = dict(zip(indexes, values, strict=True))
        partitions = self._known.get(keys[0][:-_PARTITION_BYTES])
        if len(found) != len(batch) or not (partitions is None or partitions.keys().isdisjoint(found)):
            return False
        if partitions is None:
            partitions = self._find_topic(keys[0], now)
            if not partitions.keys().isdisjoint(found):
                return False
        partitions.update(found)
        return True

    def _find_topic(self, key: bytes, now: Now) -> PartitionOffsets:
        """Look up a group's topic by the first of its offsets."""
        slot = decode_slot(key)
        _create_group(self._state, slot.group_id, now)
        partitions = self._known[key[:-_PARTITION_BYTES]] = self._state.offsets.partition_offsets(slot)
        return partitions

    def _apply_one(self, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None) -> None:
        meaning = replay_record(self._state, key, value, now, transaction_of)
        match meaning:
            case OffsetCommitted(slot, committed):
                assert key is not None, "the record has been decoded"
                if not is_offset_key(key):
                    self._known.clear()  # from before Kafka 0.9: the same slots under other keys
                elif committed is None:
                    self._known.pop(key[:-_PARTITION_BYTES], None)
                elif value is not None and not self._state.offsets.has_open_transactions:
                    self._state.offsets.pack(slot, value)
            case GroupStored(_, None) | ForeignGroup() | EpochStored(_, None):
                # The next offset of a deleted group creates it again.
                self._known.clear()


def replay_record(
    state: ShardState, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None
) -> Meaning:
    """Apply one record of the log; `transaction_of` is the producer id of a transactional batch. Returns its meaning.

    Raises InternalError on an unreadable record: the resulting state would be wrong.
    """
    meaning = decode(key, value)
    match meaning:
        case OffsetCommitted(slot, None):
            state.offsets.put(slot, None)
        case OffsetCommitted(slot, committed) if committed is not None:
            _create_group(state, slot.group_id, now)
            if transaction_of is None:
                state.offsets.put(slot, committed)
            else:
                state.offsets.put_open(transaction_of, slot, committed)
        case GroupStored(group_id, stored):
            if stored is None:
                state.classic.pop(group_id, None)
            else:
                state.classic[group_id] = restored(group_id, stored)
                state.consumer.pop(group_id, None)
        case ForeignGroup(group_id, exists):
            state.skipped_record_count += 1
            if exists:
                state.foreign.add(group_id)
                state.classic.pop(group_id, None)
            else:
                state.foreign.discard(group_id)
        case Unserved():
            state.skipped_record_count += 1
        case OffsetCommitted():
            raise AssertionError("all other meanings have their cases")
        case _:
            after = applied(state.consumer.get(meaning.group_id), meaning)
            if after is None:
                state.consumer.pop(meaning.group_id, None)
            else:
                state.consumer[meaning.group_id] = after
                # A group without members that exists for its offsets, which came first.
                state.classic.pop(meaning.group_id, None)
    return meaning


def _create_group(state: ShardState, group_id: str, now: Now) -> None:
    """A group with offsets exists, at least as a simple one."""
    if not state.has_group(group_id):
        state.classic[group_id] = ClassicGroup(group_id, now.wall_ms)
