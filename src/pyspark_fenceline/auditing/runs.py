"""From rows to runs: the offsets that a table holds, as ranges.

Owns the first step of an audit. Rows become runs of consecutive offsets of one partition and epoch, split at bucket
boundaries, so that the second step can judge each bucket independently. A table without gaps has a few runs per file,
whatever its size. Offsets that occur twice are in two runs. Uses Arrow and numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_fenceline.common.log_columns import LOG_COLUMNS, LogColumns, log_columns
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Offsets = npt.NDArray[np.int64]

NOT_IN_LOG: Final = -2
"""Instead of the epoch of a row without one: the log's record at its offset has other values."""
SAME_VALUES: Final = -3
"""Instead of the epoch of a row without one: the log's record has the same values, but the brokers keep no epochs."""
Refine = Callable[[TableFile, LogColumns], LogColumns]
"""Completes the log columns of a file: adds the epochs found by value, and removes deleted rows."""
RefineRows = Callable[["pa.Table", LogColumns], LogColumns]
"""The same for rows in memory."""
_ROWS_AT_ONCE: Final = 500_000

RUNS_DDL: Final = "topic string, partition int, bucket long, first_offset long, end_offset long, epoch int"
"""Offsets `first_offset` to `end_offset` (exclusive), each in one row of `epoch` (-1: none; or one of the above).
Rows without an offset or a partition are counted in one with a null topic: `end_offset` is their number.
"""


def runs_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("bucket", pa.int64()),
            ("first_offset", pa.int64()),
            ("end_offset", pa.int64()),
            ("epoch", pa.int32()),
        ]
    )


def runs_of(columns: LogColumns, bucket_size: int) -> pa.RecordBatch:
    """The runs of some rows, sorted by offset within a partition."""
    import numpy as np
    import pyarrow as pa

    codes, offsets, epochs = columns.codes, columns.offsets, columns.epochs
    unplaced = (codes < 0) | (offsets < 0)
    lost = int(unplaced.sum())
    if lost:
        codes, offsets, epochs = codes[~unplaced], offsets[~unplaced], epochs[~unplaced]
    is_sorted = bool(np.all((codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & (offsets[1:] >= offsets[:-1]))))
    if not is_sorted:
        order = np.lexsort((epochs, offsets, codes))
        codes, offsets, epochs = codes[order], offsets[order], epochs[order]
    if bool(np.any((codes[1:] == codes[:-1]) & (offsets[1:] == offsets[:-1]))):
        order = _separate_duplicates(codes, offsets, epochs)
        codes, offsets, epochs = codes[order], offsets[order], epochs[order]
    breaks = (
        (codes[1:] != codes[:-1])
        | (epochs[1:] != epochs[:-1])
        | (offsets[1:] != offsets[:-1] + 1)
        | (offsets[1:] % bucket_size == 0)
    )
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1)) if len(codes) else np.zeros(0, dtype=np.int64)
    lasts = np.concatenate((starts[1:] - 1, [len(codes) - 1])) if len(codes) else starts
    topics = [tp.topic for tp in columns.partitions]
    numbers = np.array([tp.partition for tp in columns.partitions], dtype=np.int32)
    run_codes = codes[starts]
    named = pa.DictionaryArray.from_arrays(pa.array(run_codes, pa.int64()), pa.array(topics, pa.string()))
    batch = pa.RecordBatch.from_arrays(
        [
            named.cast(pa.string()),
            pa.array(numbers[run_codes] if len(numbers) else np.zeros(0, dtype=np.int32)),
            pa.array(offsets[starts] // bucket_size),
            pa.array(offsets[starts]),
            pa.array(offsets[lasts] + 1),
            pa.array(epochs[starts].astype(np.int32)),
        ],
        schema=runs_schema(),
    )
    if not lost:
        return batch
    row = pa.RecordBatch.from_pydict(
        {
            "topic": [None],
            "partition": [None],
            "bucket": [-1],
            "first_offset": [0],
            "end_offset": [lost],
            "epoch": [-1],
        },
        schema=runs_schema(),
    )
    return pa.Table.from_batches([batch, row]).combine_chunks().to_batches()[0]


def _separate_duplicates(codes: Offsets, offsets: Offsets, epochs: Offsets) -> Offsets:
    """An order that puts rows of one offset into separate runs, as when each record became several rows."""
    import numpy as np

    order = np.lexsort((offsets, epochs, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(offsets[order]) == 0) & (np.diff(epochs[order]) == 0)
    places = np.arange(len(order))
    firsts = np.concatenate(([True], ~same))
    ranks = places - np.maximum.accumulate(np.where(firsts, places, 0))
    return order[np.lexsort((offsets[order], ranks, epochs[order], codes[order]))]


def runs_of_files(
    options: DeltaOptions, files: Sequence[TableFile], bucket_size: int, refine: Refine | None = None
) -> Iterator[pa.RecordBatch]:
    """The runs of files; four columns of each are read, or two if the partition is in the file's bounds."""
    for file in files:
        columns = read_log_columns(options, file)
        yield runs_of(columns if refine is None else refine(file, columns), bucket_size)


def runs_of_batches(
    batches: Iterator[pa.RecordBatch], bucket_size: int, refine: RefineRows | None = None
) -> Iterator[pa.RecordBatch]:
    """The runs of a DataFrame's rows. `batches` have the columns of `LOG_COLUMNS`, and those that `refine` uses."""
    for rows in batches if refine is None else _merged_batches(batches):
        columns: dict[str, Any] = {name: rows.column(name) for name in LOG_COLUMNS}
        found = log_columns(columns)
        yield runs_of(found if refine is None else refine(rows, found), bucket_size)


def _merged_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches of at least `_ROWS_AT_ONCE` rows, so that the log is read in fewer requests."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
