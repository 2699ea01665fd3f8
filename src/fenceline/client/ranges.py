"""Ranges of offsets: what is asked for, how far each is read, and the memory that all may hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from fenceline.ids import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start_offset, end_offset_exclusive) of one partition, and what was known when the range was planned.

    leader_epoch: epoch of the position start_offset, as a checkpoint, a committed offset or ListOffsets gives it (-1:
    not known, then nothing is checked at the start). max_leader_epoch: epoch of the position end_offset_exclusive; a
    record inside the range with a newer one means that the log was rewritten since (-1: any). topic_id: the topic
    must have it.
    """

    start_offset: int
    end_offset_exclusive: int
    leader_epoch: int = NO_EPOCH
    max_leader_epoch: int = NO_EPOCH
    topic_id: UUID | None = None


RangeSpec = OffsetRange | tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, int]


class Cursor:
    """How far one range is read."""

    __slots__ = ("epoch", "offset", "range", "stalled_since_s", "tp", "validated")

    def __init__(self, tp: TopicPartition, wanted: OffsetRange) -> None:
        self.tp = tp
        self.range = wanted
        self.offset = wanted.start_offset
        self.epoch = wanted.leader_epoch
        self.stalled_since_s: float | None = None
        self.validated = wanted.leader_epoch < 0

    @property
    def is_done(self) -> bool:
        return self.offset >= self.range.end_offset_exclusive


class Budget:
    """Bytes that were fetched and not yet taken by the caller."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def take(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes >= self._limit_bytes:
            self._room.clear()

    def give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        if self._held_bytes < self._limit_bytes:
            self._room.set()
