"""The committed offsets of deleted topics, in one partition of `__consumer_offsets`: their tombstones, some at a time.

Owns which offsets those are, and when all of them are gone. From the deletion on they count as absent (`OffsetStore`);
the tombstones follow in passes over the groups with offsets, each in as many looks as it needs.

An offset belongs to a deleted topic by its topic id, so one that is committed for a new topic of the same name, while
a pass goes on, is kept, and so is its slot: a tombstone would delete the new offset as well. Another pass comes later
for slots that an open transaction or a pending write shares in that way, and for tombstones that the log rejected.

A coordinator that is replaced, or ends, leaves a pass undone. So each load is followed by a pass that compares with the
metadata: an offset of a topic that does not exist, or of another id than the topic of its name, was committed for a
deleted one. That is safe because no coordinator accepts a commit for a topic that its metadata does not have, and the
next one's metadata is newer. An offset without a topic id, as Apache Kafka stores them for requests before version 10,
cannot be told from one of a new topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.groups.messages import Now
from fenceline.groups.offsets.offsets import OffsetSlot
from fenceline.groups.offsets.records import offset_tombstone
from fenceline.groups.state import ShardState
from fenceline.groups.writes import Writes, no_callback
from fenceline.ids import ZERO_UUID
from fenceline.metadata.image import MetadataImage

LOOKS: Final = 5_000
"""Offsets to look at before others have their turn: a millisecond or two."""
_LOOKS_OF_TOMBSTONE: Final = 20
"""What a tombstone costs, with the receipt of a loss: 250 of them take some 5 ms."""
_LOOKS_OF_GROUP: Final = 5
_RETRY_MS: Final = 5_000
"""Pause before the next pass, if something is left that could not be deleted."""


class DeletedTopics:
    """Of one shard."""

    def __init__(self, state: ShardState, writes: Writes, image: Callable[[], MetadataImage]) -> None:
        self._state = state
        self._writes = writes
        self._image = image
        self._to_look_at: list[str] | None = None
        """Groups that are left in this pass, the next one last; None between passes."""
        self._due_ms: int | None = None
        """When the next pass may begin; None if none is needed."""
        self._compares = False
        """Whether this pass or the next one looks for topics that the metadata does not have."""
        self._undecided = 0
        """Batches of tombstones that the log has not decided on."""

    def deleted(self, topics: Iterable[tuple[str, UUID]]) -> None:
        """Topics, by name and id, were deleted."""
        for name, topic_id in topics:
            for each in (topic_id, ZERO_UUID):
                self._state.offsets.mark_deleted(name, each)
        self._due_ms = 0

    def loaded(self, deleted: Iterable[tuple[str, UUID]]) -> None:
        """The load is complete; these topics were deleted meanwhile."""
        self.deleted(deleted)
        self._compares = True

    def due_ms(self) -> int | None:
        """Monotonic time from when on `look` has something to do; None if it has not."""
        if self._undecided:
            return None  # so that not all moments have a pending write: a fetch of stable offsets waits for one without
        return 0 if self._to_look_at is not None else self._due_ms

    def look(self, left: int, now: Now) -> int:
        """Go on, for so many looks and little more. Returns how many are left."""
        at_ms = self.due_ms()
        if at_ms is None or at_ms > now.monotonic_ms:
            return left
        offsets = self._state.offsets
        if self._to_look_at is None:
            self._to_look_at, self._due_ms = offsets.group_ids[::-1], None
            if self._compares:
                self._compare(offsets.open_topic_ids())
        slots: list[OffsetSlot] = []
        while self._to_look_at and left > 0:
            group_id = self._to_look_at[-1]
            if self._compares:
                self._compare(offsets.topic_ids(group_id))
            most = max(left // _LOOKS_OF_TOMBSTONE, 1)
            found, is_left = offsets.deleted_slots(group_id, most)
            slots += found
            left -= _LOOKS_OF_GROUP + offsets.count(group_id) + _LOOKS_OF_TOMBSTONE * len(found)
            if len(found) == most:
                left = 0
                break  # it may have more
            self._to_look_at.pop()
            self._retry_later(is_left, now)
        self._write(slots)
        if left > 0:
            most = max(left // _LOOKS_OF_TOMBSTONE, 1)
            found, is_left = offsets.deleted_open_slots(most)
            self._write(found)
            if len(found) == most:
                return 0  # there may be more
            self._to_look_at, self._compares = None, False
            self._retry_later(is_left, now)
            self._forget_if_done()
        return left

    def _compare(self, known: Iterable[tuple[str, set[UUID]]]) -> None:
        """With the metadata; `known` are ids of topics by name."""
        image = self._image()
        if image.offset < 0:
            return  # there is none yet
        for name, ids in known:
            topic = image.topics_by_name.get(name)
            for each in ids:
                if topic is None or each not in (topic.id, ZERO_UUID):
                    self._state.offsets.mark_deleted(name, each)

    def _write(self, slots: list[OffsetSlot]) -> None:
        if not slots:
            return
        self._undecided += 1
        write_id = self._writes.begin([offset_tombstone(slot) for slot in slots], no_callback, self._decided)
        for slot in slots:
            self._state.offsets.put(slot, None, write_id)

    def _decided(self, error: ErrorCode, now: Now) -> None:
        self._undecided -= 1
        if error:
            # Everything is looked at again, but not at once: the log will hardly accept more.
            self._to_look_at, self._due_ms = None, now.monotonic_ms + _RETRY_MS
        self._forget_if_done()

    def _retry_later(self, is_left: bool, now: Now) -> None:
        if is_left and self._due_ms is None:
            self._due_ms = now.monotonic_ms + _RETRY_MS

    def _forget_if_done(self) -> None:
        if self._to_look_at is None and self._due_ms is None and not self._undecided:
            self._state.offsets.forget_deleted()
