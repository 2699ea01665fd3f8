"""Parquet files of a Delta table, written by one task.

Owns file names, the split by partition values, and the statistics of each AddAction (`pyspark.md S22`). A written file
is not in the table yet: only the driver's commit adds it, so a task may die at any point. Names are unique for every
attempt; Delta's vacuum removes the files of failed attempts.
"""

from __future__ import annotations

import datetime
import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.log_columns import (
    LOG_COLUMNS,
    ColumnSpan,
    LogColumns,
    batch_columns,
    log_columns,
    merged,
    spans_of,
    tracked,
)
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.schema import TableShape

if TYPE_CHECKING:
    import pyarrow as pa

_STATISTICS_COLUMNS: Final = 32
_LONGEST_TEXT: Final = 256
_OPEN_FILES: Final = 64
_OPEN_LOCAL_FILES: Final = 512
"""An upload to an object store buffers megabytes in memory, a local file almost nothing."""
_SAMPLED_ROWS: Final = 256
_ROWS_OF_A_RUN: Final = 256
"""Runs of one partition's rows that are longer than this on average are sliced; shorter ones are copied."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file. `path` is relative to the table; `statistics` is the AddAction's JSON; `spans` are the log
    records of its rows, if the table is tracked.
    """

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None]
    modified_ms: int
    record_count: int
    statistics: str
    spans: tuple[ColumnSpan, ...] = ()


def file_system(options: DeltaOptions) -> Any:
    """A pyarrow file system whose root is the table."""
    from pyarrow import fs

    if "://" not in options.path:
        local = fs.LocalFileSystem()
        try:
            local.create_dir(options.path, recursive=True)
        except OSError as error:
            raise OperatorError(
                f"The directory of the Delta table at {options.path} cannot be created: {error}",
                "Check the path; Spark's Python processes must be able to write there, on every machine.",
            ) from error
        return fs.SubTreeFileSystem(options.path, local)
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(options.path, dict(options.storage or {})))


@dataclass(slots=True)
class _OpenFile:
    path: str
    sink: Any
    writer: Any
    partition_values: Mapping[str, str | None]
    metadata: list[Any]
    record_count: int = 0
    columns_with_nan: set[str] = field(default_factory=set)
    spans: list[ColumnSpan] = field(default_factory=list)


class FileWriter:
    """Writes the record batches of one task, in any order of partition values."""

    def __init__(
        self,
        options: DeltaOptions,
        shape: TableShape,
        schema: pa.Schema,
        required: Iterable[str],
        *,
        task_number: int,
        is_tracked: bool = False,
    ) -> None:
        """`schema`: of the files (see `delta.schema.file_schema`). `required`: columns that must not be null.
        `is_tracked`: record the log records of the rows; every row must then have the log's columns.
        """
        self._options = options
        self._shape = shape
        self._schema = schema
        self._required = frozenset(required)
        self._task_number = task_number
        self._is_tracked = is_tracked and tracked(shape.column_names)
        self._files: dict[tuple[str | None, ...], _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._file_system = file_system(options)
        self._dictionary: bool | list[str] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. `batch` has the DataFrame's columns, in its order."""
        import pyarrow as pa

        if batch.num_rows == 0:
            return
        by_name = dict(zip(self._shape.column_names, batch.columns, strict=True))
        for name in self._required & by_name.keys():
            if by_name[name].null_count:
                raise OperatorError(
                    f"Column {name} must not be null in the Delta table at {self._options.path}, but has nulls here"
                )
        columns = [
            column if column.type == wanted.type else column.cast(wanted.type)
            for wanted, column in ((wanted, by_name[wanted.name]) for wanted in self._schema)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        values = [_partition_texts(by_name[name]) for name in self._shape.partition_by]
        records = log_columns(batch_columns(batch, self._shape.column_names)) if self._is_tracked else None
        for key, chosen in _groups(values, batch.num_rows):
            self._write_to(key, _pick(rows, chosen), [] if records is None else _spans(records, chosen))

    def finish(self) -> list[DataFile]:
        """Close all files and return them, in the order they were closed."""
        for key in list(self._files):
            self._close(key)
        return self._finished

    def discard(self) -> None:
        """After a failure of the task: delete all files, ignoring errors."""
        for file in self._files.values():
            _quietly(file.writer.close)
            _quietly(file.sink.close)
        paths = [file.path for file in self._files.values()] + [file.path for file in self._finished]
        self._files.clear()
        self._finished.clear()
        delete_files(self._options, paths)

    def _write_to(self, key: tuple[str | None, ...], rows: pa.Table, spans: list[ColumnSpan]) -> None:
        file = self._files.get(key)
        if file is None:
            if self._dictionary is None:
                self._dictionary = dictionary_columns(rows)
            if len(self._files) >= (_OPEN_FILES if "://" in self._options.path else _OPEN_LOCAL_FILES):
                self._close(max(self._files, key=lambda k: self._files[k].record_count))
            file = self._files[key] = self._open(key)
        file.writer.write_table(rows)
        file.record_count += rows.num_rows
        file.spans = merged([*file.spans, *spans])
        add_nan_columns(file.columns_with_nan, rows)
        if file.sink.tell() >= self._options.target_file_size_bytes:
            self._close(key)

    def _open(self, key: tuple[str | None, ...]) -> _OpenFile:
        import pyarrow.parquet as pq

        values = dict(zip(self._shape.partition_by, key, strict=True))
        folder = "".join(f"{_safe(name)}={_safe(value)}/" for name, value in values.items())
        codec = self._options.compression
        suffix = "parquet" if codec == "none" else f"{codec}.parquet"
        path = f"{folder}part-{self._task_number:05d}-{uuid.uuid4()}-c000.{suffix}"
        if folder and "://" not in self._options.path:
            self._file_system.create_dir(folder, recursive=True)
        sink = self._file_system.open_output_stream(path)
        metadata: list[Any] = []
        writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=codec,
            store_schema=False,
            metadata_collector=metadata,
            version="2.6",
            use_dictionary=True if self._dictionary is None else self._dictionary,
        )
        return _OpenFile(path, sink, writer, values, metadata)

    def _close(self, key: tuple[str | None, ...]) -> None:
        file = self._files.pop(key)
        file.writer.close()
        size_bytes = file.sink.tell()
        file.sink.close()
        self._finished.append(
            DataFile(
                path=file.path,
                size_bytes=size_bytes,
                partition_values=file.partition_values,
                modified_ms=time.time_ns() // 1_000_000,
                record_count=file.record_count,
                statistics=statistics_of(file.metadata[0], file.record_count, file.columns_with_nan, self._schema),
                spans=tuple(file.spans),
            )
        )


def delete_files(options: DeltaOptions, paths: Iterable[str]) -> None:
    """Delete files that no commit will add. Files that cannot be deleted are left to vacuum."""
    wanted = list(paths)
    if not wanted:
        return
    root = file_system(options)
    for path in wanted:
        _quietly(lambda path=path: root.delete_file(path))


def _quietly(work: Any) -> None:
    import contextlib

    with contextlib.suppress(Exception):
        work()


def _safe(text: str | None) -> str:
    """A readable part of a path; readers use the AddAction's partition values."""
    return "__HIVE_DEFAULT_PARTITION__" if text is None else re.sub(r"[^A-Za-z0-9_.\-]", "_", text)[:64]


def _partition_texts(column: pa.Array) -> pa.Array:
    """Partition values as Delta writes them: text, with the empty text as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        texts = pc.strftime(column, "%Y-%m-%d %H:%M:%S")
    elif pa.types.is_floating(kind):
        texts = pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    else:
        texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


_Rows = Any
"""Which rows of a batch: a list of slices (start, end) of it, or an Arrow array of numbers."""


def _groups(columns: Sequence[pa.Array], row_count: int) -> Iterable[tuple[tuple[str | None, ...], _Rows]]:
    """The rows of each combination of values. Rows of one partition are mostly adjacent: then they are slices."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns:
        yield (), [(0, row_count)]
        return
    codes: Any = None
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        own = encoded.indices.cast(pa.int64())
        codes = own if codes is None else pc.add(pc.multiply(codes, len(encoded.dictionary)), own)
    ends = pc.run_end_encode(codes, run_end_type=pa.int64()).run_ends.to_pylist()
    if len(ends) * _ROWS_OF_A_RUN <= row_count or len(ends) == 1:
        slices: dict[int, list[tuple[int, int]]] = {}
        start = 0
        for end in ends:
            slices.setdefault(codes[start].as_py(), []).append((start, end))
            start = end
        for parts in slices.values():
            yield tuple(column[parts[0][0]].as_py() for column in columns), parts
        return
    order = pc.sort_indices(codes)
    ends = pc.run_end_encode(codes.take(order), run_end_type=pa.int64()).run_ends.to_pylist()
    start = 0
    for end in ends:
        rows = order.slice(start, end - start)
        yield tuple(column[rows[0].as_py()].as_py() for column in columns), rows
        start = end


def _pick(rows: pa.RecordBatch, chosen: _Rows) -> pa.Table:
    import pyarrow as pa

    if isinstance(chosen, list):
        return pa.Table.from_batches([rows.slice(start, end - start) for start, end in chosen])
    return pa.Table.from_batches([rows.take(chosen)])


def _spans(records: LogColumns, chosen: _Rows) -> list[ColumnSpan]:
    import numpy as np

    parts = [slice(start, end) for start, end in chosen] if isinstance(chosen, list) else [np.asarray(chosen)]
    return merged(span for part in parts for span in spans_of(records.rows(part)))


def dictionary_columns(rows: pa.Table) -> bool | list[str]:
    """The columns that benefit from a dictionary, by their first rows: building one of distinct values takes half of
    the time of writing a file. True (all) with nested columns, whose parts have other names.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if any(pa.types.is_nested(column.type) for column in rows.schema):
        return True
    first = rows.slice(0, _SAMPLED_ROWS)
    found = []
    for name, column in zip(rows.column_names, first.columns, strict=True):
        if len(column) < _SAMPLED_ROWS or pc.count_distinct(column).as_py() <= _SAMPLED_ROWS // 2:
            found.append(name)
    return found


def add_nan_columns(found: set[str], rows: pa.Table | pa.RecordBatch) -> None:
    """Add the names of the columns that contain NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for wanted, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_floating(wanted.type) and wanted.name not in found and pc.any(pc.is_nan(column)).as_py():
            found.add(wanted.name)


def statistics_of(metadata: Any, record_count: int, columns_with_nan: set[str], schema: pa.Schema) -> str:
    """Delta's statistics from the Parquet footer: row count, nulls, smallest and largest value of plain columns.

    A column with NaN has no bounds: Delta orders NaN above every number, Parquet ignores it. Nor has a column without
    statistics in some row group, as in files of other writers.
    """
    top_level = {field.name for field in schema}
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unbounded = set(columns_with_nan)
    uncounted: set[str] = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            name = column.path_in_schema
            if index >= _STATISTICS_COLUMNS and name not in LOG_COLUMNS:
                continue
            statistics = column.statistics
            if name not in top_level:
                continue
            if statistics is None or not statistics.has_null_count:
                uncounted.add(name)
            else:
                nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics is None:
                unbounded.add(name)
                continue
            if statistics.num_values == 0:
                continue
            if not statistics.has_min_max or not _is_comparable(statistics.min) or not _is_comparable(statistics.max):
                unbounded.add(name)
                continue
            smallest[name] = min(smallest.get(name, statistics.min), statistics.min)
            largest[name] = max(largest.get(name, statistics.max), statistics.max)
    return json.dumps(
        {
            "numRecords": record_count,
            "minValues": {name: _json_value(value) for name, value in smallest.items() if name not in unbounded},
            "maxValues": {name: _json_value(value) for name, value in largest.items() if name not in unbounded},
            "nullCount": {name: count for name, count in nulls.items() if name not in uncounted},
        }
    )


def _is_comparable(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return isinstance(value, int | float | datetime.date | datetime.datetime)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text + "Z" if value.tzinfo is not None else text
    return value.isoformat() if isinstance(value, datetime.date) else value
