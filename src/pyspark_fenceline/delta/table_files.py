"""A Delta table and its files, with bounds to select the relevant ones.

Owns opening a table, and the reading of its file list and of the rows and columns of files. Bounds come from the
partition values and from the statistics in the table's log; a file without them may hold anything. Never changes
anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import (
    LEADER_EPOCH,
    LOG_COLUMNS,
    OFFSET,
    PARTITION,
    TOPIC,
    LogColumns,
    log_columns,
)
from pyspark_fenceline.common.log_matching import AFTER_ALL
from pyspark_fenceline.delta.files import file_system
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.properties import DELETION_VECTORS, is_set
from pyspark_fenceline.delta.state import TableState, read_state

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

Bounds = tuple[Any, Any] | None
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""delta-rs colours the answers of an object store."""
PIECE_ROWS: Final = 500_000
PIECE_BYTES: Final = 64 << 20
"""Limit of a piece with more than one row group, uncompressed."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table. `path`: relative to it, decoded. Bounds are (smallest, largest), None where unknown."""

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None]
    record_count: int | None = None
    topics: Bounds = None
    partitions: Bounds = None
    offsets: Bounds = None
    epochs: Bounds = None
    has_null_epochs: bool = True

    @property
    def only_partition(self) -> TopicPartition | None:
        """The only partition of the file's rows, None if its bounds do not prove that there is only one."""
        if self.topics is None or self.partitions is None:
            return None
        is_one = self.topics[0] == self.topics[1] and self.partitions[0] == self.partitions[1]
        return TopicPartition(self.topics[0], int(self.partitions[0])) if is_one else None

    def may_hold(self, tp: TopicPartition) -> bool:
        return (self.topics is None or self.topics[0] <= tp.topic <= self.topics[1]) and (
            self.partitions is None or self.partitions[0] <= tp.partition <= self.partitions[1]
        )

    def may_hold_offsets(self, first: int, last: int) -> bool:
        return self.offsets is None or (self.offsets[0] <= last and first <= self.offsets[1])


def open_table(options: DeltaOptions) -> DeltaTable | None:
    """The table at the path, or None if there is none. Raises `OperatorError` if it cannot be opened."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if os.path.isfile(options.path):
        raise OperatorError(f"{options.path} is a file, not a Delta table", "Choose the path of a directory.")
    try:
        return DeltaTable(options.path, storage_options=dict(options.storage) if options.storage else None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise OperatorError(
            f"The Delta table at {options.path} cannot be opened: {_COLOURS.sub('', str(error)).strip()}",
            "Check the path and, for an object store, the options storage.*.",
        ) from error


def table_files(table: DeltaTable, *, reads_vectors: bool = False) -> list[TableFile]:
    """All files of the table's version. Raises `OperatorError` for column mapping and, without `reads_vectors`, for
    deletion vectors.
    """
    import pyarrow as pa

    _refuse_unsupported_features(table, reads_vectors=reads_vectors)
    actions = pa.table(table.get_add_actions(flatten=True))
    names = set(actions.column_names)
    partition_by = tuple(table.metadata().partition_columns)
    wanted = [
        name
        for column in LOG_COLUMNS
        for name in (f"partition.{column}", f"min.{column}", f"max.{column}", f"null_count.{column}")
        if name in names
    ]
    partition_columns = [f"partition.{name}" for name in partition_by if f"partition.{name}" in names]
    chosen = ["path", "size_bytes", "num_records", *dict.fromkeys([*wanted, *partition_columns])]
    rows = actions.select([name for name in chosen if name in names]).to_pylist()
    return [_file(row, partition_by) for row in rows]


def _file(row: Mapping[str, Any], partition_by: Iterable[str]) -> TableFile:
    values = {name: row.get(f"partition.{name}") for name in partition_by}

    def bounds(column: str) -> Bounds:
        if column in values:
            return None if values[column] is None else (values[column], values[column])
        low, high = row.get(f"min.{column}"), row.get(f"max.{column}")
        # A column with nulls only has no bounds either; then any bounds are correct.
        return None if low is None or high is None else (low, high)

    nulls = row.get(f"null_count.{LEADER_EPOCH}")
    return TableFile(
        # A URI in the table's log; a commit encodes it again.
        path=unquote(row["path"]),
        size_bytes=int(row["size_bytes"]),
        partition_values={name: _text(value) for name, value in values.items()},
        record_count=row.get("num_records"),
        topics=bounds(TOPIC),
        partitions=bounds(PARTITION),
        offsets=bounds(OFFSET),
        epochs=bounds(LEADER_EPOCH),
        has_null_epochs=nulls is None or nulls > 0,
    )


def _text(value: Any) -> str | None:
    """A partition value as the table's log writes it."""
    import datetime

    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime.datetime():
            return value.replace(tzinfo=None).strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def _refuse_unsupported_features(table: DeltaTable, *, reads_vectors: bool) -> None:
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise OperatorError(
            f"The table's columns are mapped by {mapping}: files with other column names are not supported",
            "Pass a DataFrame to audit.",
        )
    if not reads_vectors and _has_deletion_vectors(table):
        raise OperatorError(
            "The table has deletion vectors, which are not supported here",
            "Rewrite the files first (in Delta: REORG TABLE ... APPLY (PURGE)), or pass a DataFrame to audit.",
        )


def _has_deletion_vectors(table: DeltaTable) -> bool:
    return "deletionVectors" in (table.protocol().reader_features or ()) and bool(
        table.deletion_vectors().read_all().num_rows
    )


def refuse_deletion_vectors(table: DeltaTable, path: str) -> None:
    """For a write that removes rows from the table. Raises `OperatorError` if files have deletion vectors, or may get
    some while a query runs: a commit that removes such a file must name its vector, which delta-rs cannot do.
    """
    is_on = is_set(table, DELETION_VECTORS)
    if not is_on and not _has_deletion_vectors(table):
        return
    what = "writes deletion vectors (delta.enableDeletionVectors)" if is_on else "has deletion vectors"
    raise OperatorError(
        f"The Delta table at {path} {what}, so this write cannot remove rows from it",
        "Set the table's property delta.enableDeletionVectors to false and run REORG TABLE ... APPLY (PURGE) with "
        "Delta's own writer, or write without comparison: without 'kafka.*', 'upsertKeys' and overwriting.",
    )


def open_parquet(options: DeltaOptions, path: str) -> Any:
    """A `ParquetFile` of the table."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(open_file(options, path))


def open_file(options: DeltaOptions, path: str) -> Any:
    """A file of the table, opened for random access. Its path may be escaped in the table's log."""
    root = file_system(options)
    try:
        return root.open_input_file(path)
    except FileNotFoundError:
        if unquote(path) == path:
            raise
        return root.open_input_file(unquote(path))


def read_pieces(parquet: Any, names: Sequence[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
    """The rows of an open file with the number of the first one, in pieces of whole row groups and limited size.
    `names`: the columns to read, None for all.
    """
    start, groups, size, size_bytes = 0, list[int](), 0, 0
    for group in range(parquet.num_row_groups):
        known = parquet.metadata.row_group(group)
        if groups and (size + known.num_rows > PIECE_ROWS or size_bytes + known.total_byte_size > PIECE_BYTES):
            yield start, parquet.read_row_groups(groups, columns=names)
            start, groups, size, size_bytes = start + size, [], 0, 0
        groups.append(group)
        size += known.num_rows
        size_bytes += known.total_byte_size
    if groups:
        yield start, parquet.read_row_groups(groups, columns=names)


def rows_of_file(
    options: DeltaOptions,
    path: str,
    partition_values: Mapping[str, str | None],
    target: pa.Schema,
    constants: Mapping[str, pa.Scalar] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The file's rows in the columns of `target`; missing columns are partition values, `constants`, or null."""
    import pyarrow as pa

    inside = [field for field in target if field.name in partition_values]
    same = {field.name: partition_value(partition_values[field.name], field.type) for field in inside}
    same |= constants or {}
    for batch in open_parquet(options, path).iter_batches():
        columns = [
            batch.column(wanted.name).cast(wanted.type)
            if wanted.name in batch.schema.names
            else pa.repeat(same.get(wanted.name, pa.scalar(None, wanted.type)), batch.num_rows)
            for wanted in target
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Parse a partition value of the table's log: timestamps without a zone are UTC."""
    import pyarrow as pa

    value = pa.scalar(text, pa.string())
    return value.cast(pa.timestamp("us")).cast(kind) if pa.types.is_timestamp(kind) else value.cast(kind)


def end_offsets(files: Iterable[TableFile], wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """An offset above all rows, by the files' bounds: for partitions with their own files, and for those of `wanted`
    that other files may hold.
    """
    ends: dict[TopicPartition, int] = {}
    for file in files:
        only = file.only_partition
        last = file.offsets[1] if file.offsets is not None else AFTER_ALL
        for tp in [only] if only is not None else [tp for tp in wanted if file.may_hold(tp)]:
            ends[tp] = max(ends.get(tp, 0), last + 1)
    return ends


def compared_epochs(
    options: DeltaOptions, table: DeltaTable, state: TableState | None = None
) -> dict[TopicPartition, int]:
    """The partitions of the table's rows, each with the leader epoch that they were last compared with (-1: never, or
    another writer has committed since). `state`: of the table's newest commit, if known.
    """
    state = state or read_state(table)
    if state is not None:
        return {tp: known.leader_epoch for tp, known in state.partitions.items()}
    found: set[TopicPartition] = set()
    for file in table_files(table):
        only = file.only_partition
        found.update(read_log_columns(options, file).partitions if only is None else [only])
    return dict.fromkeys(sorted(found), -1)


_NUMBERS: Final = (PARTITION, OFFSET, LEADER_EPOCH)


def read_log_columns(options: DeltaOptions, file: TableFile) -> LogColumns:
    """The log columns of one file; no other column is read."""
    parquet = open_parquet(options, file.path)
    inside = set(parquet.schema_arrow.names)
    wanted = [name for name in LOG_COLUMNS if name in inside]
    table = parquet.read(columns=wanted)
    columns: dict[str, Any] = {}
    for name in LOG_COLUMNS:
        if name in inside:
            columns[name] = table.column(name)
        elif name in file.partition_values:
            text = file.partition_values[name]
            columns[name] = text if text is None or name not in _NUMBERS else int(text)
        else:
            columns[name] = None
    return log_columns(columns)
