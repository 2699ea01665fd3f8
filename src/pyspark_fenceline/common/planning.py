"""From offset ranges to Spark tasks.

Owns splitting (`minPartitions`, `maxRecordsPerPartition`) and packing: each further Spark partition costs about 30 ms
a batch (`pyspark.md S18`), so small ranges share a task until it holds work of about that size. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition

RECORDS_WORTH_A_TASK: Final = 32_768
"""Fewer records than this are decoded in less time than Spark needs to run one more task."""


class PlannedRange(NamedTuple):
    """Records `start_offset <= offset < end_offset_exclusive` of one partition.

    `start_epoch`: epoch of the record before the range, `end_epoch`: of the last one in it (-1: unknown). `epochs`: of
    the log when it was planned, below the range's end, oldest first (empty: unknown); fetched records are checked
    against them.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset_exclusive: int
    start_epoch: int = -1
    end_epoch: int = -1
    epochs: tuple[EpochStart, ...] = ()

    @property
    def record_count(self) -> int:
        """Upper bound: compaction and transaction markers leave gaps."""
        return self.end_offset_exclusive - self.start_offset

    def starting_at(self, offset: int) -> PlannedRange:
        """The rest of the range from an offset on."""
        if offset == self.start_offset:
            return self
        before = [start.epoch for start in self.epochs if start.offset < offset]
        return self._replace(start_offset=offset, start_epoch=before[-1] if before else -1)

    def ending_at(self, offset: int) -> PlannedRange:
        """The range up to an offset (exclusive)."""
        if offset == self.end_offset_exclusive:
            return self
        below = tuple(start for start in self.epochs if start.offset < offset)
        # Without known epochs the last one is still an upper bound.
        epoch = below[-1].epoch if below else -1 if self.epochs else self.end_epoch
        return self._replace(end_offset_exclusive=offset, end_epoch=epoch, epochs=below)


Task = tuple[PlannedRange, ...]


def plan_tasks(
    ranges: Sequence[PlannedRange],
    *,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[Task]:
    """Split and pack ranges into tasks. Every record of `ranges` is in exactly one task; empty ranges are dropped."""
    wanted = [one for one in ranges if one.record_count > 0]
    if not wanted:
        return []
    if max_records_per_partition is not None:
        wanted = [piece for one in wanted for piece in split(one, -(-one.record_count // max_records_per_partition))]
    if min_partitions is not None and len(wanted) < min_partitions:
        wanted = _split_large(wanted, min_partitions)
    return _pack(wanted, min_partitions or 1, max_partitions, max_records_per_partition)


def split(one: PlannedRange, parts: int) -> list[PlannedRange]:
    """Split a range into `parts` pieces of nearly equal size (fewer if it has fewer records)."""
    parts = max(1, min(parts, one.record_count))
    pieces: list[PlannedRange] = []
    start = one.start_offset
    for part in range(parts):
        end = one.start_offset + one.record_count * (part + 1) // parts
        pieces.append(one.starting_at(start).ending_at(end))
        start = end
    return pieces


def _split_large(ranges: Sequence[PlannedRange], min_partitions: int) -> list[PlannedRange]:
    """Give every range one task, and each further one to the range whose pieces are largest."""
    parts = [1] * len(ranges)
    heap: list[tuple[float, int]] = [(-one.record_count, index) for index, one in enumerate(ranges)]
    heapify(heap)
    total = min(min_partitions, sum(one.record_count for one in ranges))
    for _ in range(total - len(ranges)):
        _, index = heap[0]
        parts[index] += 1
        heapreplace(heap, (-(ranges[index].record_count / parts[index]), index))
    return [piece for one, count in zip(ranges, parts, strict=True) for piece in split(one, count)]


def _pack(ranges: Sequence[PlannedRange], min_tasks: int, max_tasks: int | None, max_records: int | None) -> list[Task]:
    total = sum(one.record_count for one in ranges)
    count = max(min_tasks, -(-total // RECORDS_WORTH_A_TASK))
    if max_records is not None:
        count = max(count, -(-total // max_records))
    if max_tasks is not None:
        count = min(count, max_tasks)
    if count >= len(ranges):
        return [(one,) for one in ranges]
    # Largest first into the emptiest task: no task exceeds another by more than one range.
    tasks: list[list[PlannedRange]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for one in sorted(ranges, key=lambda r: (-r.record_count, r.topic_partition, r.start_offset)):
        load, index = loads[0]
        if max_tasks is None and max_records is not None and load and load + one.record_count > max_records:
            tasks.append([one])
            continue
        tasks[index].append(one)
        heapreplace(loads, (load + one.record_count, index))
    return [tuple(sorted(task, key=lambda r: (r.topic_partition, r.start_offset))) for task in tasks if task]
