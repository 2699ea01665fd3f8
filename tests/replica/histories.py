"""Logs in memory that know their epochs, and histories of leaders that write to them.

A record is its epoch: two logs hold the same record at an offset exactly where they hold the same epoch there, since
one leader writes in an epoch (log matching).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from fenceline.errors import ErrorCode
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.wire.fetch import FetchedPartition, FetchPartition


@dataclass
class MemoryLog:
    """`records[i]` is the epoch of the record at `log_start_offset + i`."""

    records: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    epochs: EpochCache = field(default_factory=EpochCache)
    unflushed_messages: int = 0
    complete_from: CompleteFrom = field(default_factory=CompleteFrom)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    @property
    def latest_epoch_start(self) -> int:
        return self.epochs.latest_start

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def last_deleted_epoch_is(self, epoch: int) -> bool:
        return self.epochs.last_deleted_epoch_is(epoch)

    def append(self, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            self.epochs.assign(epoch, self.log_end_offset)
            self.records.append(epoch)

    def lead(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.log_end_offset)

    def cut_to(self, offset: int) -> list[int]:
        """Returns the truncated records."""
        keep = max(0, offset - self.log_start_offset)
        gone = self.records[keep:]
        del self.records[keep:]
        self.epochs.truncate_from_end(min(offset, self.log_end_offset))
        return gone

    def begin_anew(self, offset: int) -> list[int]:
        gone, self.records, self.log_start_offset = self.records, [], offset
        self.epochs.clear()
        return gone

    def forget_below(self, offset: int) -> None:
        """Retention."""
        if offset > self.log_start_offset:
            del self.records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def common_end(self, other: MemoryLog) -> int:
        """Up to where (exclusive) the two hold the same records; both start alike or one has deleted its first
        records.
        """
        offset = max(self.log_start_offset, other.log_start_offset)
        end = min(self.log_end_offset, other.log_end_offset)
        while offset < end and self.at(offset) == other.at(offset):
            offset += 1
        return min(offset, end)

    def at(self, offset: int) -> int:
        return self.records[offset - self.log_start_offset]


def answer(log: MemoryLog, leader_epoch: int, asked: FetchPartition, *, at_most: int = 100) -> FetchedPartition:
    """A leader's response (`epochs.md E2`, `E8-E11`); one byte of `records` is one record, its epoch."""
    blank = FetchedPartition(None, asked.topic_id, asked.index, high_watermark=0, log_start_offset=log.log_start_offset)
    if asked.current_leader_epoch != leader_epoch:
        is_old = asked.current_leader_epoch < leader_epoch
        return blank._replace(error_code=ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    out_of_range = blank._replace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    if asked.last_fetched_epoch >= 0:
        epoch, end = log.end_offset_for_epoch(asked.last_fetched_epoch)
        if end == -1 or asked.fetch_offset < log.log_start_offset:
            return out_of_range
        if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
            return blank._replace(diverging_epoch=(epoch, end), records=b"")
    if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
        return out_of_range
    first = asked.fetch_offset - log.log_start_offset
    return blank._replace(records=bytes(log.records[first : first + at_most]))


def histories(rng: Random, replicas: int, elections: int) -> tuple[list[MemoryLog], int]:
    """Logs left by a random history of leaders, including unclean elections, and the last epoch.

    Each leader writes some records; some replicas fetch some of them, after truncating their logs to the common
    records.
    """
    logs = [MemoryLog() for _ in range(replicas)]
    epoch = -1
    for _ in range(elections):
        epoch += rng.randint(1, 2)
        leader = rng.choice(logs)
        leader.lead(epoch)
        leader.append([epoch] * rng.choice((0, 0, 1, 2, 5)))
        for log in logs:
            if log is not leader and rng.random() < 0.5:
                shared = log.common_end(leader)
                if shared < leader.log_start_offset:
                    continue
                log.cut_to(shared)
                log.append(leader.records[shared - leader.log_start_offset :][: rng.randint(0, 6)])
    return logs, epoch
