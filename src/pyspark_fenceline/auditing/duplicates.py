"""Distinguishes duplicate rows from several rows made from one record.

Owns the second check of offsets that are in more than one row. With the columns that identify rows of one record
(`row_key`), rows that are equal in them are duplicates; without them only rows that are equal in every column are. The
first of equal rows is kept, in the order of file names. Rows of different epochs are never duplicates. Works on the
affected files, one range of offsets at a time. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.judge import ORDER, TableFinding, TableFindingKind, as_columns
from pyspark_fenceline.auditing.ranges import Range, runs_in
from pyspark_fenceline.auditing.runs import Refine
from pyspark_fenceline.common.log_columns import LOG_COLUMNS
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, open_parquet, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]

_CHUNK_OFFSETS: Final = 1_000_000
"""Offsets whose rows are in memory at a time."""


def duplicates_by_key(
    findings: pa.Table,
    options: DeltaOptions,
    files: Sequence[TableFile],
    row_key: Sequence[str] | None,
    refine: Refine | None,
    *,
    has_vectors: bool,
) -> pa.Table:
    """`findings` with duplicates by `row_key` in place of offsets that are in more than one row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if has_vectors:
        raise OperatorError(
            "A table with deletion vectors cannot be audited by row_key",
            "Rewrite its files first (in Delta: REORG TABLE ... APPLY (PURGE)), or pass a DataFrame to audit.",
        )
    is_twice = pc.equal(findings["kind"], str(TableFindingKind.DUPLICATE))
    masks = repeated_rows(options, files, finding_ranges(findings.filter(is_twice).to_pylist()), row_key, refine)
    offsets: dict[TopicPartition, list[npt.NDArray[np.int64]]] = {}
    for file in files:
        if file.path in masks and masks[file.path].any():
            columns = read_log_columns(options, file)
            for code, tp in enumerate(columns.partitions):
                offsets.setdefault(tp, []).append(columns.offsets[masks[file.path] & (columns.codes == code)])
    again: list[tuple[str, int, TableFinding]] = []
    for tp, each in offsets.items():
        found, counts = np.unique(np.concatenate(each), return_counts=True)
        for start, end in runs_in(found):
            rows = int(counts[np.searchsorted(found, start) : np.searchsorted(found, end)].sum())
            detail = f"rows with the same {', '.join(row_key or ())}"
            again.append(
                (tp.topic, tp.partition, TableFinding(TableFindingKind.DUPLICATE, start, end, rows, (), detail))
            )
    made = pa.table(as_columns(again), schema=findings.schema)
    return pa.concat_tables([findings.filter(pc.invert(is_twice)), made]).sort_by(list(ORDER))


def finding_ranges(findings: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, list[Range]]:
    """The offsets of findings of one kind."""
    found: dict[TopicPartition, list[Range]] = {}
    for row in findings:
        place = TopicPartition(row["topic"], row["partition"])
        found.setdefault(place, []).append((row["start_offset"], row["end_offset_exclusive"]))
    return found


def repeated_rows(
    options: DeltaOptions,
    files: Sequence[TableFile],
    ranges: Mapping[TopicPartition, Sequence[Range]],
    row_key: Sequence[str] | None,
    refine: Refine | None = None,
) -> dict[str, Mask]:
    """Masks, by file, of the rows in these ranges that repeat an earlier one. `row_key`: None for every column.

    Raises `OperatorError` for a column that the files do not have.
    """
    import numpy as np

    masks: dict[str, Mask] = {}
    names: list[str] | None = None if row_key is None else [name for name in row_key if name not in LOG_COLUMNS]
    ordered = sorted(files, key=lambda one: one.path)
    for tp, start, end in _chunks(ranges):
        concerned = [file for file in ordered if file.may_hold(tp) and file.may_hold_offsets(start, end - 1)]
        seen: list[pa.Table] = []
        for number, file in enumerate(concerned):
            columns = read_log_columns(options, file)
            columns = columns if refine is None else refine(file, columns)
            if file.path not in masks:
                masks[file.path] = np.zeros(len(columns), dtype=np.bool_)
            if tp not in columns.partitions:
                continue
            own = columns.codes == columns.partitions.index(tp)
            inside = own & (columns.offsets >= start) & (columns.offsets < end)
            inside &= _in_ranges(columns.offsets, ranges[tp])
            rows = np.flatnonzero(inside)
            if len(rows):
                seen.append(_keys(options, file, names, columns.epochs, columns.offsets, rows, number))
        for number, row in _repeated(seen):
            masks[concerned[number].path][row] = True
    return masks


def _chunks(ranges: Mapping[TopicPartition, Sequence[Range]]) -> Iterator[tuple[TopicPartition, int, int]]:
    for tp, each in sorted(ranges.items()):
        reached = -1
        for start, end in sorted(each):
            position = max(start, reached)
            while position < end:
                reached = position + _CHUNK_OFFSETS
                yield tp, position, reached
                position = reached


def _in_ranges(offsets: npt.NDArray[np.int64], ranges: Sequence[Range]) -> Mask:
    import numpy as np

    inside = np.zeros(len(offsets), dtype=np.bool_)
    ordered = sorted(ranges)
    starts, ends = np.array([one[0] for one in ordered]), np.array([one[1] for one in ordered])
    places = np.searchsorted(starts, offsets, side="right") - 1
    known = places >= 0
    inside[known] = offsets[known] < np.maximum.accumulate(ends)[places[known]]
    return inside


def _keys(
    options: DeltaOptions,
    file: TableFile,
    names: Sequence[str] | None,
    epochs: Any,
    offsets: Any,
    rows: npt.NDArray[np.int64],
    number: int,
) -> pa.Table:
    """The columns that identify these rows, under the same names for all files."""
    import pyarrow as pa

    parquet = open_parquet(options, file.path)
    there = parquet.schema_arrow.names
    wanted = sorted(name for name in there if name not in LOG_COLUMNS) if names is None else list(names)
    chosen = [name for name in wanted if name in there]
    lacking = [name for name in wanted if name not in there and name not in file.partition_values]
    if names is not None and lacking:
        raise OperatorError(
            f"The files of the Delta table at {options.path} have no column {', '.join(lacking)}",
            "Name columns of the table that identify the rows of one record.",
        )
    table = parquet.read(columns=chosen).take(pa.array(rows))
    columns: dict[str, Any] = {"_offset": pa.array(offsets[rows]), "_epoch": pa.array(epochs[rows])}
    for name in chosen:
        columns[name] = _hashable(table.column(name))
    for name in file.partition_values.keys() - set(LOG_COLUMNS):
        if names is None or name in names:
            columns[name] = pa.array([file.partition_values[name]] * len(rows), pa.string())
    columns["_file"] = pa.array([number] * len(rows), pa.int32())
    columns["_row"] = pa.array(rows)
    return pa.table(columns)


def _hashable(column: Any) -> Any:
    """Lists, structs and maps as text: Arrow does not group by them."""
    import pyarrow as pa

    if not pa.types.is_nested(column.type):
        return column
    return pa.array([repr(value) for value in column.to_pylist()], pa.string())


def _repeated(parts: Sequence[pa.Table]) -> Iterable[tuple[int, int]]:
    """File number and row number of each repeated row."""
    import numpy as np
    import pyarrow as pa

    if not parts:
        return []
    rows = pa.concat_tables(parts, promote_options="permissive")
    rows = rows.append_column("_place", pa.array(np.arange(rows.num_rows)))
    keys = [name for name in rows.column_names if name not in ("_file", "_row", "_place")]
    first = np.asarray(rows.group_by(keys).aggregate([("_place", "min")])["_place_min"].combine_chunks())
    again = np.ones(rows.num_rows, dtype=np.bool_)
    again[first] = False
    chosen = rows.filter(pa.array(again))
    return list(zip(chosen["_file"].to_pylist(), chosen["_row"].to_pylist(), strict=True))
