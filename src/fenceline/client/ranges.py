"""Ranges of offsets: what is asked for, how far each is read, and the memory that all may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from fenceline.client.deadline import Deadline
from fenceline.client.epoch_history import EpochHistory, EpochStart
from fenceline.client.fetch_memory import FetchMemory
from fenceline.client.fetched import Fetched
from fenceline.errors import PeerError
from fenceline.ids import NO_EPOCH, TopicPartition
from fenceline.records.batch import iter_headers


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start_offset, end_offset_exclusive) of one partition, and what was known when the range was planned.

    leader_epoch: epoch of the position start_offset, as a checkpoint, a committed offset or ListOffsets gives it (-1:
    not known, then nothing is checked at the start). max_leader_epoch: epoch of the position end_offset_exclusive; a
    record inside the range with a newer one means that the log was rewritten since (-1: any). topic_id: the topic
    must have it. epochs: of the log when it was planned, oldest first, each with its first offset; a record of another
    epoch than the one there means the same (empty: any).
    """

    start_offset: int
    end_offset_exclusive: int
    leader_epoch: int = NO_EPOCH
    max_leader_epoch: int = NO_EPOCH
    topic_id: UUID | None = None
    epochs: tuple[EpochStart, ...] = ()


RangeSpec = OffsetRange | tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, int]


class Cursor:
    """How far one range is read."""

    __slots__ = ("epoch", "epochs", "offset", "patience", "range", "stalled_since_s", "tp", "trouble", "validated")

    def __init__(self, tp: TopicPartition, wanted: OffsetRange) -> None:
        self.tp = tp
        self.range = wanted
        self.offset = wanted.start_offset
        self.epoch = wanted.leader_epoch
        self.stalled_since_s: float | None = None
        self.patience: Deadline | None = None
        """When to give up; None while a leader serves it."""
        self.trouble: PeerError | None = None
        """Why it was last taken from a leader."""
        self.validated = wanted.leader_epoch < 0
        known = [start for start in wanted.epochs if start.offset < wanted.start_offset]
        self.epochs = (
            EpochHistory.remembered(self.offset, known) if known else EpochHistory(self.offset, wanted.leader_epoch)
        )
        """Of the log that was read, and of what the plan knows below it."""

    def take(self, piece: Fetched) -> None:
        """Go on behind a piece that was read."""
        for start in piece.epoch_starts:
            if start.offset < piece.next_offset:
                self.epochs.note(start)
        self.offset, self.epoch, self.stalled_since_s = piece.next_offset, piece.last_epoch, None

    @property
    def is_done(self) -> bool:
        return self.offset >= self.range.end_offset_exclusive


def first_of_another_epoch(planned: Sequence[EpochStart], epoch: int, piece: Fetched) -> EpochStart | None:
    """The first offset in a piece whose record is of another epoch than the plan has for it, with that epoch.

    `epoch`: of the record before the piece. Records below the first planned epoch, and those without an epoch, can not
    be told. Offsets that compaction emptied belong to no epoch.
    """
    if not planned:
        return None
    if not any(piece.start_offset < start.offset < piece.next_offset for start in planned):
        # The whole piece is planned to be of one epoch, so only the places where its own changes need a look.
        found = [EpochStart(epoch, run.start_offset) for run in piece.runs[:1]]
        if piece.epoch_starts and (not found or piece.epoch_starts[0].offset <= found[0].offset):
            found = []
        found += piece.epoch_starts
    else:
        found = [
            EpochStart(header.leader_epoch, max(header.base_offset, run.start_offset))
            for run in piece.runs
            for header in iter_headers(run.records)
        ]
    for start in found:
        expected = next((one.epoch for one in reversed(planned) if one.offset <= start.offset), NO_EPOCH)
        if start.epoch >= 0 and expected >= 0 and start.epoch != expected:
            return start
    return None


class Budget:
    """The memory of one read, and the waiting for it. `brokers`: as many as are read from at once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._memory = FetchMemory(limit_bytes)
        self._room = asyncio.Event()
        self.brokers = 1

    async def promise(self, wished_bytes: int) -> int:
        """How much a request may ask for, as soon as there is room for one: each broker has its part of the memory, and
        one part is for what the caller decodes meanwhile."""
        while not self._memory.has_room:
            self._room.clear()
            await self._room.wait()
        return self._memory.promise(min(wished_bytes, self._limit_bytes // (self.brokers + 1)))

    def redeem(self, promised_bytes: int) -> None:
        self._memory.redeem(promised_bytes)
        self._room.set()

    def keep(self, piece: Fetched) -> None:
        self._memory.keep(piece)

    def let_go(self, pieces: Iterable[Fetched]) -> None:
        """The caller has decoded these."""
        self._memory.let_go(pieces)
        self._room.set()
