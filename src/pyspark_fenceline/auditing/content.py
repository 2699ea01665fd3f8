"""Compares rows without an epoch with the log's records by value.

Owns one comparison: whether a row without an epoch has the values of the log's record at its offset. Equal values prove
that the row is in the log, and it gets the record's epoch; other values prove that it is not. Where the log has no
record (compaction, a transaction marker, an unreadable batch) the row stays undecided. Timestamps are compared in
microseconds, text as bytes, and null equals null. Rows with an epoch are never compared. Changes nothing; works on
Arrow and numpy, 64k rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.log import NEAR, read_log
from pyspark_fenceline.auditing.ranges import merged
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, SAME_VALUES
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.log_columns import LOG_COLUMNS, PARTITION, TOPIC, LogColumns, log_columns
from pyspark_fenceline.common.log_epochs import existing_partitions
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, open_parquet, read_pieces

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]

CONTENT: Final = ("key", "value", "timestamp", "timestampType", "headers")
_CLIENT_NAMES: Final = {"timestampType": "timestamp_type"}
_OWN_COLUMNS: Final = frozenset({*CONTENT, *LOG_COLUMNS})


def content_columns(names: Iterable[str], what: str) -> tuple[str, ...]:
    """The columns by which a table's rows are compared. Raises `OperatorError` if they would prove nothing: a table
    with columns of its own also needs `value`, or the function that made its rows.
    """
    known = list(names)
    chosen = tuple(name for name in CONTENT if name in known)
    if "value" in chosen or (chosen and set(known) <= _OWN_COLUMNS):
        return chosen
    raise OperatorError(
        f"The rows of {what} cannot be compared with the log's records: it has no column value",
        "Pass the function that makes the table's rows from the source's columns as transform=... (in Spark).",
    )


@dataclass(frozen=True, slots=True)
class ByValues:
    """Compares with the log's records unchanged. `columns`: from `content_columns`. Sent to executors."""

    client: Mapping[str, str] = field(repr=False)
    columns: tuple[str, ...]

    def of_file(self, options: DeltaOptions, file: TableFile, columns: LogColumns) -> LogColumns:
        """The log columns of a file, with results in place of missing epochs."""
        import numpy as np

        if not (columns.epochs == -1).any():
            return columns
        epochs = columns.epochs.copy()
        parquet = open_parquet(options, file.path)
        there = [name for name in self.columns if name in parquet.schema_arrow.names]
        for start, rows in read_pieces(parquet, there):
            part = slice(start, start + rows.num_rows)
            epochs[part] = self.of_rows(rows, columns.rows(part)).epochs
        return LogColumns(columns.partitions, columns.codes, columns.offsets, np.asarray(epochs))

    def of_rows(self, rows: pa.Table, columns: LogColumns) -> LogColumns:
        """The same for rows in memory. `rows`: the columns to compare; missing columns are null."""
        import numpy as np
        import pyarrow as pa

        epochs = columns.epochs.copy()
        without = np.flatnonzero((epochs == -1) & (columns.codes >= 0) & (columns.offsets >= 0))
        wanted: dict[TopicPartition, tuple[Numbers, Numbers]] = {}
        for code in np.flatnonzero(np.bincount(columns.codes[without])).tolist():
            own = without[columns.codes[without] == code]
            if bool(np.any(np.diff(columns.offsets[own]) < 0)):
                own = own[np.argsort(columns.offsets[own], kind="stable")]
            wanted[columns.partitions[code]] = own, columns.offsets[own]
        kept = {
            name: comparable(name, rows.column(name) if name in rows.column_names else pa.nulls(rows.num_rows))
            for name in self.columns
        }
        ranges = _ranges_of(self.client, wanted)
        # A name that is the same in every row is not looked up for each row.
        constant: dict[str, Any] = {}
        if len({tp.topic for tp in wanted}) == 1:
            constant[TOPIC] = next(iter(wanted)).topic
        if len(wanted) == 1:
            constant[PARTITION] = next(iter(wanted)).partition
        for batch in read_log(self.client, ranges, include_headers="headers" in self.columns):
            in_log = log_columns({**{name: batch.column(name) for name in LOG_COLUMNS}, **constant})
            logged = {name: comparable(name, batch.column(_CLIENT_NAMES.get(name, name))) for name in self.columns}
            for code, tp in enumerate(in_log.partitions):
                there = np.flatnonzero(in_log.codes == code)
                table_rows, log_rows = _pairs(*wanted[tp], there, in_log.offsets[there])
                if not len(table_rows):
                    continue
                same = np.ones(len(table_rows), dtype=np.bool_)
                for name in self.columns:
                    same &= equal(_pick(kept[name], table_rows), _pick(logged[name], log_rows))
                found = in_log.epochs[log_rows]
                epochs[table_rows] = np.where(same, np.where(found < 0, SAME_VALUES, found), NOT_IN_LOG)
        return LogColumns(columns.partitions, columns.codes, columns.offsets, epochs)


def _ranges_of(
    client: Mapping[str, str], wanted: Mapping[TopicPartition, tuple[Numbers, Numbers]]
) -> list[tuple[TopicPartition, int, int]]:
    """Ranges of the current log that cover those of these offsets that it has."""
    import numpy as np

    if not wanted:
        return []
    cluster = connect.connect(client)
    there = existing_partitions(cluster, wanted)
    if not there:
        return []
    starts, ends = cluster.log_starts(there), cluster.log_ends(there)
    found: list[tuple[TopicPartition, int, int]] = []
    for tp in there:
        # Sorted, possibly with duplicates.
        offsets = wanted[tp][1]
        offsets = offsets[(offsets >= starts[tp]) & (offsets < ends[tp].offset)]
        if not len(offsets):
            continue
        breaks = np.flatnonzero(np.diff(offsets) > 1) + 1
        firsts = offsets[np.concatenate(([0], breaks))].tolist()
        lasts = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))].tolist()
        runs = [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
        found += [(tp, first, end) for first, end in merged(runs, NEAR)]
    return found


def _pairs(
    table_rows: Numbers, table_offsets: Numbers, log_rows: Numbers, log_offsets: Numbers
) -> tuple[Numbers, Numbers]:
    """Rows of both that have the same offset. Both are sorted by offset; the log's offsets are unique."""
    import numpy as np

    first = np.searchsorted(table_offsets, log_offsets[0])
    end = np.searchsorted(table_offsets, log_offsets[-1], side="right")
    places = np.searchsorted(log_offsets, table_offsets[first:end])
    hit = log_offsets[places] == table_offsets[first:end]
    return table_rows[first:end][hit], log_rows[places[hit]]


def _pick(column: Any, rows: Numbers) -> Any:
    import numpy as np
    import pyarrow as pa

    # Rows are mostly adjacent: then nothing is copied.
    if rows[-1] - rows[0] + 1 == len(rows) and bool(np.all(np.diff(rows) == 1)):
        return column.slice(int(rows[0]), len(rows))
    return column.take(pa.array(rows))


def comparable(name: str, column: Any) -> Any:
    """A column (an array or chunked) in the form in which the table's and the log's are compared.

    Raises `OperatorError` for a type that cannot be compared.
    """
    import pyarrow as pa

    array = column
    try:
        match name:
            case "key" | "value":
                return array.cast(pa.large_binary())
            case "timestamp" if pa.types.is_timestamp(array.type):
                return array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64())
            case "timestampType" if pa.types.is_integer(array.type):
                return array.cast(pa.int64())
            case "headers" if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
                return array
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _not_comparable(name, array.type) from error
    if pa.types.is_null(array.type):
        return array if name == "headers" else array.cast(pa.int64())
    raise _not_comparable(name, array.type)


def refuse_other_columns(differing_rows: int, other_rows: int, what: str) -> None:
    """Raises `OperatorError` if rows differ from the log and no row of the table matches it: then its columns hold
    other data than the log's of the same names, and nothing is proven about any row.
    """
    if differing_rows and not other_rows:
        raise OperatorError(
            f"None of the {differing_rows} rows of {what} has the values of the log's record at its offset: its columns"
            " key, value and timestamp hold other data, or it is a table of another topic",
            "Pass the function that makes the table's rows from the source's columns as transform=... (in Spark).",
        )


def _not_comparable(name: str, kind: Any) -> OperatorError:
    return OperatorError(
        f"Column {name} of the table is of type {kind}, which cannot be compared with the log's {name}",
        "Pass the function that makes the table's rows from the source's columns as transform=... (in Spark).",
    )


def equal(ours: Any, theirs: Any) -> npt.NDArray[np.bool_]:
    """Row-wise comparison of two columns; null equals null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(ours.type) or pa.types.is_nested(theirs.type):
        pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
        return np.fromiter((_plain(a) == _plain(b) for a, b in pairs), np.bool_, len(ours))
    if not ours.null_count and not theirs.null_count:
        return np.asarray(pc.equal(ours, theirs))
    both = pc.and_(pc.is_null(ours), pc.is_null(theirs))
    return np.asarray(pc.or_(pc.fill_null(pc.equal(ours, theirs), False), both))


def _plain(headers: Any) -> Any:
    """Headers as pairs; none and an empty list are the same."""
    return [tuple(one.values()) for one in headers or ()]
