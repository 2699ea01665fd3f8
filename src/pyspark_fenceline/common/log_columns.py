"""The partition, epoch and offsets of a table's rows.

Owns the names of the four columns that make rows comparable with a log, and spans: bounds of many rows of one partition
and epoch. A reader of logs returns rows in runs, so a batch of 64k rows has only a few spans. No Python object is
created per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

TOPIC, PARTITION, OFFSET, LEADER_EPOCH = "topic", "partition", "offset", "leader_epoch"
LOG_COLUMNS: Final = (TOPIC, PARTITION, OFFSET, LEADER_EPOCH)


class ColumnSpan(NamedTuple):
    """Rows of one partition and epoch (-1: rows without one); both offsets are inclusive."""

    topic: str
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    row_count: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Rows `start` to `end` (exclusive) of some columns, all of one partition."""

    topic_partition: TopicPartition
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The log columns of some rows, as arrays of one length. `codes` are indexes into `partitions`, -1 for rows without
    a partition. Null offsets and epochs are -1.
    """

    partitions: tuple[TopicPartition, ...]
    codes: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self, chosen: slice | npt.NDArray[np.int64]) -> LogColumns:
        """Some of the rows."""
        return LogColumns(self.partitions, self.codes[chosen], self.offsets[chosen], self.epochs[chosen])

    def runs(self) -> Iterator[ColumnRun]:
        """Runs of adjacent rows of one partition."""
        for start, end in _runs(self.codes):
            code = int(self.codes[start])
            if code >= 0:
                yield ColumnRun(self.partitions[code], start, end)


def log_columns(columns: Mapping[str, Any]) -> LogColumns:
    """`columns`: Arrow arrays by the names of `LOG_COLUMNS`; a plain value is a constant column.

    Raises `OperatorError` for a column of another type.
    """
    import numpy as np
    import pyarrow as pa

    size = max((len(c) for c in columns.values() if hasattr(c, "__len__") and not isinstance(c, str)), default=0)
    offsets, epochs = _numbers(columns[OFFSET], size), _numbers(columns[LEADER_EPOCH], size)
    if size and epochs.min() < -1:
        # No leader has such an epoch, and values below -1 have a special meaning in an audit.
        epochs = np.maximum(epochs, -1)
    if isinstance(columns[TOPIC], str) and isinstance(columns[PARTITION], int):
        only = TopicPartition(columns[TOPIC], columns[PARTITION])
        return LogColumns((only,) if size else (), np.zeros(size, dtype=np.int64), offsets, epochs)
    topic_values, topic_codes = _dictionary(columns[TOPIC], pa.string(), size)
    partition_values, partition_codes = _dictionary(columns[PARTITION], pa.int64(), size)
    width = max(len(partition_values), 1)
    combined = np.where((topic_codes < 0) | (partition_codes < 0), -1, topic_codes * width + partition_codes)
    found = np.flatnonzero(np.bincount(combined[combined >= 0]))
    partitions = tuple(
        TopicPartition(topic_values[code // width], partition_values[code % width]) for code in found.tolist()
    )
    codes = np.where(combined < 0, -1, np.searchsorted(found, combined)).astype(np.int64)
    return LogColumns(partitions, codes, offsets, epochs)


def _dictionary(column: Any, kind: Any, size: int) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Distinct values and the number of each row's; -1 for null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None or isinstance(column, str | int):
        return ([], np.full(size, -1)) if column is None else ([column], np.zeros(size, dtype=np.int64))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    try:
        if not pa.types.is_dictionary(column.type):
            # Encoding a few runs is cheaper than hashing every row.
            encoded = pc.run_end_encode(column.cast(kind), run_end_type=pa.int64())
            ends, values = np.asarray(encoded.run_ends), encoded.values.dictionary_encode()
            starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
            codes = np.asarray(values.indices.fill_null(-1)).astype(np.int64)
            return values.dictionary.to_pylist(), np.repeat(codes, ends - starts)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unusable(error) from error
    codes = np.asarray(column.indices.fill_null(-1)).astype(np.int64)
    return column.dictionary.cast(kind).to_pylist(), codes


def _numbers(column: Any, size: int) -> npt.NDArray[np.int64]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None or isinstance(column, int):
        return np.full(size, -1 if column is None else column, dtype=np.int64)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    try:
        numbers = column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unusable(error) from error
    return np.asarray(pc.fill_null(numbers, -1) if numbers.null_count else numbers)


def _unusable(error: Exception) -> OperatorError:
    return OperatorError(
        f"The columns {', '.join(LOG_COLUMNS)} cannot be compared with the log: {error}",
        "topic must be a string, the others integers, as format('fenceline') with includeLeaderEpoch returns them.",
    )


def _runs(codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    import numpy as np

    if not len(codes):
        return
    ends = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    start = 0
    for end in [*ends.tolist(), len(codes)]:
        yield start, end
        start = end


def spans_of(columns: LogColumns, *, complete: bool = True) -> list[ColumnSpan]:
    """The bounds of all rows, one span for each partition and epoch. Rows without a partition or offset raise
    `OperatorError`, or are ignored without `complete`.
    """
    import numpy as np

    codes, offsets, epochs = columns.codes, columns.offsets, columns.epochs
    unplaced = (codes < 0) | (offsets < 0)
    if unplaced.any():
        if complete:
            raise OperatorError(
                "A row has no topic, partition or offset, so it cannot be compared with the log",
                "Filter such rows out, or remove kafka.bootstrap.servers to write without comparison.",
            )
        codes, offsets, epochs = codes[~unplaced], offsets[~unplaced], epochs[~unplaced]
    if not len(codes):
        return []
    changes = np.flatnonzero((codes[1:] != codes[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    if len(changes) > len(codes) // 4 + 16:
        order = np.lexsort((epochs, codes))
        codes, offsets, epochs = codes[order], offsets[order], epochs[order]
        changes = np.flatnonzero((codes[1:] != codes[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    starts = np.concatenate(([0], changes))
    counts = np.diff(np.concatenate((starts, [len(codes)])))
    lows, highs = np.minimum.reduceat(offsets, starts), np.maximum.reduceat(offsets, starts)
    return merged(
        ColumnSpan(columns.partitions[code].topic, columns.partitions[code].partition, epoch, low, high, count)
        for code, epoch, low, high, count in zip(
            codes[starts].tolist(),
            epochs[starts].tolist(),
            lows.tolist(),
            highs.tolist(),
            counts.tolist(),
            strict=True,
        )
    )


def merged(spans: Iterable[ColumnSpan]) -> list[ColumnSpan]:
    """One span for each partition and epoch."""
    found: dict[tuple[str, int, int], ColumnSpan] = {}
    for span in spans:
        key = (span.topic, span.partition, span.epoch)
        known = found.get(key)
        if known is None:
            found[key] = span
            continue
        found[key] = span._replace(
            first_offset=min(known.first_offset, span.first_offset),
            last_offset=max(known.last_offset, span.last_offset),
            row_count=known.row_count + span.row_count,
        )
    return [found[key] for key in sorted(found)]


def bounds(spans: Iterable[ColumnSpan]) -> dict[TopicPartition, tuple[int, int]]:
    """First and last offset of each partition."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for span in spans:
        tp = span.topic_partition
        low, high = found.get(tp, (span.first_offset, span.last_offset))
        found[tp] = min(low, span.first_offset), max(high, span.last_offset)
    return found


def tracked(names: Iterable[str]) -> bool:
    """Whether columns of these names make rows comparable with a log."""
    return set(LOG_COLUMNS) <= set(names)


def missing_columns(names: Iterable[str]) -> list[str]:
    known = set(names)
    return [name for name in LOG_COLUMNS if name not in known]


def batch_columns(batch: pa.RecordBatch, names: Iterable[str]) -> dict[str, Any]:
    """The log's columns of a batch whose columns have these names."""
    by_name = dict(zip(names, batch.columns, strict=True))
    return {name: by_name[name] for name in LOG_COLUMNS}
