"""What an audit reads of the log: the offsets of a range at which there are records, and the records of ranges.

Owns the reading while retention moves the log's start: it continues there. For offsets batch headers are read. A batch
without gaps is not decoded: its header contains its offsets. Control batches and, for read_committed, aborted
transactions have none. Only batches that compaction has thinned out are decoded. A batch with a wrong checksum is
reported as unreadable, and the reading continues after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fenceline.client.core.client_base import new_event_loop
from fenceline.client.core.errors import OffsetOutOfRangeError
from fenceline.client.core.fetched import Fetched
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import AsyncRangeReader
from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.records.batch import BatchHeader, crc_is_valid, iter_headers
from fenceline.records.decode import decode_batch
from pyspark_fenceline.auditing.ranges import merged
from pyspark_fenceline.common import connect

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Offsets = npt.NDArray[np.int64]

LogRanges = Collection[tuple[TopicPartition, int, int]]
"""Partition, start offset, end offset (exclusive)."""
NEAR: Final = 20_000
"""Gaps that are at most this many offsets apart are read together."""


@dataclass(slots=True)
class RecordRanges:
    """Ranges [start, end) at which the log has records, in ascending order, and those of unreadable batches."""

    present: list[tuple[int, int]] = field(default_factory=list)
    unreadable: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, end: int) -> None:
        if self.present and self.present[-1][1] == start:
            self.present[-1] = (self.present[-1][0], end)
        elif end > start:
            self.present.append((start, end))


def find_records(
    client: Mapping[str, str], tp: TopicPartition, ranges: Sequence[tuple[int, int]], *, isolation_level: str
) -> RecordRanges:
    """Read the log between the given offsets. Raises the brokers' errors."""
    properties = {
        "max.partition.fetch.bytes": 8 * 1024 * 1024,
        **client,
        "isolation.level": isolation_level,
        # A wrong checksum is reported here, and the reading continues after the batch.
        "check.crcs": "false",
    }
    loop = new_event_loop()
    try:
        return loop.run_until_complete(_find(properties, tp, merged(ranges, NEAR)))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _find(
    properties: Mapping[str, object], tp: TopicPartition, ranges: Sequence[tuple[int, int]]
) -> RecordRanges:
    found = RecordRanges()
    async with AsyncRangeReader(properties) as reader:
        for start, end in ranges:
            position = start
            while position < end:
                try:
                    async for piece in reader.fetch({tp: OffsetRange(position, end)}):
                        note_records(found, piece)
                        position = piece.next_offset
                        await asyncio.sleep(0)
                    break
                except OffsetOutOfRangeError as error:
                    # Retention moved the log's start meanwhile.
                    if error.log_start_offset <= position:
                        raise
                    position = error.log_start_offset
    return found


def note_records(found: RecordRanges, piece: Fetched) -> None:
    """Add the offsets of the records in a piece of the log."""
    for run in piece.runs:
        for header in iter_headers(run.records):
            start = max(header.base_offset, run.start_offset)
            end = min(header.next_offset, run.end_offset_exclusive)
            if not crc_is_valid(run.records, header):
                found.unreadable.append((start, end))
            elif header.record_count == header.last_offset_delta + 1:
                found.add(start, end)
            else:
                _note_each(found, run.records, header, start, end)


def _note_each(found: RecordRanges, records: memoryview, header: BatchHeader, start: int, end: int) -> None:
    try:
        offsets = [record.offset for record in decode_batch(records, header)]
    except FencelineError:
        found.unreadable.append((start, end))
        return
    for offset in offsets:
        if start <= offset < end:
            found.add(offset, offset + 1)


def read_log(
    client: Mapping[str, str],
    ranges: LogRanges,
    isolation_level: str = "read_uncommitted",
    *,
    include_headers: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Records of ranges in the client's columns, with epochs, without records that expire meanwhile."""
    properties = {**client, "isolation.level": isolation_level}
    waiting = list(ranges)
    while waiting:
        # One range of a partition at a time.
        now = {tp: (start, end) for tp, start, end in reversed(waiting)}
        waiting = [one for one in waiting if now[one[0]] != one[1:]]
        progress = {tp: start for tp, (start, _) in now.items()}
        try:
            yield from connect.reader(properties).read(
                now,
                progress=progress,
                include_headers=include_headers,
                include_leader_epoch=True,
                empty_headers_as_null=include_headers,
                timestamp_unit="us",
            )
        except OffsetOutOfRangeError as error:
            moved = TopicPartition(error.topic, error.partition)
            if error.log_start_offset <= progress[moved]:
                raise
            # Retention moved the log's start meanwhile.
            progress[moved] = error.log_start_offset
            waiting = [(tp, progress[tp], end) for tp, (_, end) in now.items() if progress[tp] < end] + waiting
