"""A file of a Delta table without some of its rows, or with the epochs that its rows lack.

Owns the copy: the same columns, the same partition values, a new name, new statistics. Goes through the file some row
groups at a time, so memory does not grow with it. The old file is left unchanged: only a commit takes it out of the
table, and vacuum from the disk.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_fenceline.delta_files import DataFile, file_system, note_nan, statistics_of
from pyspark_fenceline.delta_index import LEADER_EPOCH, LOG_COLUMNS, Span, log_columns, merged, spans_of
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import open_parquet, pieces_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NewEpochs:
    """What `leader_epoch` says in a copy. `of_rows`: the column, of type `kind`, for rows of the file from the one with
    this number on; asked once for each piece, in the order of the file.
    """

    kind: pa.DataType
    of_rows: Callable[[int, pa.Table], pa.Array]


def rewrite(
    options: DeltaOptions,
    path: str,
    partition_values: Mapping[str, str | None],
    keep: npt.NDArray[np.bool_] | None,
    epochs: NewEpochs | None = None,
) -> DataFile:
    """Write the rows of `path` for which `keep` is true (None: all), in their order, to a new file beside it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = open_parquet(options, path)
    schema = pa.schema([field.remove_metadata() for field in source.schema_arrow])
    if epochs is not None:
        place = schema.get_field_index(LEADER_EPOCH)
        named = pa.field(LEADER_EPOCH, epochs.kind)
        schema = schema.append(named) if place < 0 else schema.set(place, named)
    codec = options.compression
    folder = os.path.dirname(path)
    name = f"part-{uuid.uuid4()}-c000.{'parquet' if codec == 'none' else f'{codec}.parquet'}"
    target = f"{folder}/{name}" if folder else name
    sink = file_system(options).open_output_stream(target)
    metadata: list[Any] = []
    nan: set[str] = set()
    spans: list[Span] = []
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
    for start, found in pieces_of(source):
        rows = found
        mask = np.ones(rows.num_rows, dtype=np.bool_) if keep is None else keep[start : start + rows.num_rows]
        if not mask.any():
            continue
        if epochs is not None:
            column, place = epochs.of_rows(start, rows), rows.schema.get_field_index(LEADER_EPOCH)
            named = pa.field(LEADER_EPOCH, epochs.kind)
            rows = rows.append_column(named, column) if place < 0 else rows.set_column(place, named, column)
        if not mask.all():
            rows = rows.filter(pa.array(mask))
        rows = rows.cast(schema)
        writer.write_table(rows)
        kept += rows.num_rows
        note_nan(nan, rows)
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


def _with_dictionaries(source: Any, schema: pa.Schema) -> list[str]:
    """Columns that have a dictionary in the file: one of values that are all different costs more than it saves. And
    `leader_epoch`, which changes from leader to leader only.
    """
    if not source.num_row_groups:
        return []
    group = source.metadata.row_group(0)
    known = (group.column(number) for number in range(group.num_columns))
    chosen = {column.path_in_schema.split(".")[0] for column in known if column.has_dictionary_page}
    return [name for name in schema.names if name in chosen or name == LEADER_EPOCH]
