"""Offset ranges of a read: their definition, their progress, and their shared memory limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fenceline.client.core.deadline import Deadline
from fenceline.client.core.epoch_history import EpochHistory, EpochStart
from fenceline.client.core.fetch_memory import FetchMemory
from fenceline.client.core.fetched import Fetched
from fenceline.errors import PeerError
from fenceline.ids import NO_EPOCH, TopicPartition
from fenceline.records.batch import iter_headers


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start_offset, end_offset_exclusive) of one partition, and the epochs known when the range was planned.

    leader_epoch: epoch of the position start_offset, from a checkpoint, a committed offset or ListOffsets (-1: unknown,
    the start is not validated). max_leader_epoch: epoch of the position end_offset_exclusive; a record in the range
    with a newer epoch shows that the log was rewritten (-1: not checked). topic_id: the expected topic id. epochs: of
    the log when it was planned, oldest first, each with its start offset; a record with another epoch shows the same
    (empty: not checked).
    """

    start_offset: int
    end_offset_exclusive: int
    leader_epoch: int = NO_EPOCH
    max_leader_epoch: int = NO_EPOCH
    topic_id: UUID | None = None
    epochs: tuple[EpochStart, ...] = ()


RangeSpec = OffsetRange | tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, int]


class RangeCursor:
    """The progress of one range."""

    __slots__ = (
        "epoch",
        "epochs",
        "last_error",
        "leader_deadline",
        "needs_more_bytes",
        "offset",
        "range",
        "stalled_since_s",
        "tp",
        "validated",
    )

    def __init__(self, tp: TopicPartition, wanted: OffsetRange) -> None:
        self.tp = tp
        self.range = wanted
        self.offset = wanted.start_offset
        self.epoch = wanted.leader_epoch
        self.stalled_since_s: float | None = None
        self.leader_deadline: Deadline | None = None
        """The deadline for finding a leader; None while a leader serves the range."""
        self.needs_more_bytes = False
        """The last response had no complete batch, although the log goes on: its size limit was too small."""
        self.last_error: PeerError | None = None
        """The last error for which the range changed its leader."""
        self.validated = wanted.leader_epoch < 0
        known = [start for start in wanted.epochs if start.offset < wanted.start_offset]
        self.epochs = (
            EpochHistory.remembered(self.offset, known) if known else EpochHistory(self.offset, wanted.leader_epoch)
        )
        """The epochs of the records read, and those of the plan below them."""

    def advance(self, piece: Fetched) -> None:
        """Advance behind a piece that was read."""
        for start in piece.epoch_starts:
            if start.offset < piece.next_offset:
                self.epochs.note(start)
        self.offset, self.epoch, self.stalled_since_s = piece.next_offset, piece.last_epoch, None

    @property
    def is_done(self) -> bool:
        return self.offset >= self.range.end_offset_exclusive


def first_epoch_mismatch(planned: Sequence[EpochStart], epoch: int, piece: Fetched) -> EpochStart | None:
    """The first record in a piece whose epoch differs from the planned one: its offset and epoch.

    `epoch`: of the record before the piece. Records below the first planned epoch, and those without an epoch, are not
    checked. Offsets that compaction removed have no epoch.
    """
    if not planned:
        return None
    if not piece.epoch_starts and planned[-1].offset <= piece.start_offset and planned[-1].epoch == epoch:
        return None  # all of it is of the epoch that is planned for all of it: nearly always
    if not any(piece.start_offset < start.offset < piece.next_offset for start in planned):
        # The piece is planned to be of one epoch, so only its own epoch changes must be checked.
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


class ExpectedSizes:
    """How many bytes the records of a range have, by what was read of its topic before.

    A broker fills a response up to its size limit, so the short range of a micro-batch would bring megabytes of records
    behind it. Never below one batch of the topic: a leader returns the first batch of a response whatever the limit,
    but not those of the other partitions.
    """

    _MARGIN: Final = 1.25

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._known: dict[str, tuple[float, int]] = {}
        """By topic: bytes of a record, and of the largest batch so far."""

    def note(self, piece: Fetched) -> None:
        if piece.record_count:
            _, largest = self._known.get(piece.topic, (0.0, 0))
            self._known[piece.topic] = (
                piece.size_bytes / piece.record_count,
                max(largest, piece.largest_batch_bytes),
            )

    def limit_of(self, cursor: RangeCursor) -> int:
        """The size limit of the next Fetch, at most that of the configuration."""
        known = self._known.get(cursor.tp.topic)
        if known is None or cursor.needs_more_bytes:
            return self._limit_bytes
        record_bytes, batch_bytes = known
        rest = cursor.range.end_offset_exclusive - cursor.offset
        return min(self._limit_bytes, int(rest * record_bytes * self._MARGIN) + batch_bytes)


class Budget:
    """The memory limit of one read. `brokers`: the number of brokers that it fetches from."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._memory = FetchMemory(limit_bytes)
        self._room = asyncio.Event()
        self.brokers = 1

    async def reserve(self, requested_bytes: int) -> int:
        """Wait for free memory and reserve it for a request; returns the maximum response size. Each broker gets an
        equal share, and one share is for the pieces that the caller decodes meanwhile."""
        while not self._memory.has_room:
            self._room.clear()
            await self._room.wait()
        return self._memory.reserve(min(requested_bytes, self._limit_bytes // (self.brokers + 1)))

    def release_reservation(self, reserved_bytes: int) -> None:
        self._memory.release_reservation(reserved_bytes)
        self._room.set()

    def hold(self, piece: Fetched) -> None:
        self._memory.hold(piece)

    def release(self, pieces: Iterable[Fetched]) -> None:
        """Release pieces that the caller has decoded."""
        self._memory.release(pieces)
        self._room.set()
