"""Copies a file of a Delta table without some of its rows, or with missing epochs added.

Owns the copy: the same columns, the same partition values, a new name, new statistics. It reads some row groups at a
time, so memory does not grow with the file; if only epochs are added, pages are copied unchanged (`parquet_column`).
The old file is not changed: only a commit removes it from the table, and vacuum from the disk.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_fenceline.common.log_columns import LEADER_EPOCH, LOG_COLUMNS, ColumnSpan, log_columns, merged, spans_of
from pyspark_fenceline.delta.files import DataFile, add_nan_columns, file_system, statistics_of
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.parquet_column import with_column
from pyspark_fenceline.delta.table_files import open_file, open_parquet, read_pieces

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


def rewrite(
    options: DeltaOptions,
    path: str,
    partition_values: Mapping[str, str | None],
    keep: npt.NDArray[np.bool_],
) -> DataFile:
    """Write the rows of `path` for which `keep` is true, in their order, to a new file beside it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = open_parquet(options, path)
    schema = pa.schema([field.remove_metadata() for field in source.schema_arrow])
    codec = options.compression
    target = _new_name(path, codec)
    sink = file_system(options).open_output_stream(target)
    metadata: list[Any] = []
    nan: set[str] = set()
    spans: list[ColumnSpan] = []
    is_tracked = set(LOG_COLUMNS) <= {*schema.names, *partition_values}
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        store_schema=False,
        metadata_collector=metadata,
        version="2.6",
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
        use_dictionary=_with_dictionaries(source, schema),
    )
    kept = 0
    for start, piece in read_pieces(source):
        mask = keep[start : start + piece.num_rows]
        if not mask.any():
            continue
        rows = (piece if mask.all() else piece.filter(pa.array(mask))).cast(schema)
        writer.write_table(rows)
        kept += rows.num_rows
        add_nan_columns(nan, rows)
        if is_tracked:
            columns = {n: rows.column(n) if n in schema.names else partition_values[n] for n in LOG_COLUMNS}
            if isinstance(columns["partition"], str):
                columns["partition"] = int(columns["partition"])
            spans += spans_of(log_columns(columns), complete=False)
    writer.close()
    size_bytes = sink.tell()
    sink.close()
    return DataFile(
        path=target,
        size_bytes=size_bytes,
        partition_values=partition_values,
        modified_ms=time.time_ns() // 1_000_000,
        record_count=kept,
        statistics=statistics_of(metadata[0], kept, nan, schema),
        spans=tuple(merged(spans)),
    )


def with_epochs(
    options: DeltaOptions, path: str, partition_values: Mapping[str, str | None], epochs: pa.ChunkedArray
) -> DataFile:
    """Write the rows of `path` with these values of `leader_epoch`, in their order, to a new file beside it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    codec = options.compression
    target = _new_name(path, codec)
    root = file_system(options)
    source = open_parquet(options, path)
    floats = [one.name for one in source.schema_arrow if pa.types.is_floating(one.type)]
    # Bounds in nanoseconds would be truncated to microseconds.
    unbounded = {one.name for one in source.schema_arrow if pa.types.is_timestamp(one.type) and one.type.unit == "ns"}
    for _, rows in read_pieces(source, floats) if floats else ():
        add_nan_columns(unbounded, rows)
    with open_file(options, path) as file, root.open_output_stream(target) as sink:
        size_bytes = with_column(file, sink, LEADER_EPOCH, epochs, codec)
    written = pq.ParquetFile(root.open_input_file(target))
    return DataFile(
        path=target,
        size_bytes=size_bytes,
        partition_values=partition_values,
        modified_ms=time.time_ns() // 1_000_000,
        record_count=len(epochs),
        statistics=statistics_of(written.metadata, len(epochs), unbounded, written.schema_arrow),
    )


def _new_name(path: str, codec: str) -> str:
    """A new file's name in the folder of another."""
    folder = os.path.dirname(path)
    name = f"part-{uuid.uuid4()}-c000.{'parquet' if codec == 'none' else f'{codec}.parquet'}"
    return f"{folder}/{name}" if folder else name


def _with_dictionaries(source: Any, schema: pa.Schema) -> list[str]:
    """Columns with a dictionary in the file: for distinct values a dictionary costs more than it saves."""
    if not source.num_row_groups:
        return []
    group = source.metadata.row_group(0)
    known = (group.column(number) for number in range(group.num_columns))
    chosen = {column.path_in_schema.split(".")[0] for column in known if column.has_dictionary_page}
    return [name for name in schema.names if name in chosen]
