"""A file of a Delta table without some of its rows, or with the epochs that its rows lack.

Owns the copy: the same columns, the same partition values, a new name, new statistics. Goes through the file one row
group at a time, so memory does not grow with it. The old file is left as it is: only a commit takes it out of the
table, and vacuum from the disk.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_fenceline.delta_files import DataFile, file_system, note_nan, statistics_of
from pyspark_fenceline.delta_index import LEADER_EPOCH, LOG_COLUMNS, Span, log_columns, merged, spans_of
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import open_parquet

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


def rewrite(
    options: DeltaOptions,
    path: str,
    partition_values: Mapping[str, str | None],
    keep: npt.NDArray[np.bool_] | None,
    leader_epochs: pa.Array | None = None,
) -> DataFile:
    """Write the rows of `path` for which `keep` is true (None: all), in their order, to a new file beside it.
    `leader_epochs`: what the column of that name says instead, for each row of `path`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = open_parquet(options, path)
    schema = pa.schema([field.remove_metadata() for field in source.schema_arrow])
    if leader_epochs is not None:
        place = schema.get_field_index(LEADER_EPOCH)
        named = pa.field(LEADER_EPOCH, leader_epochs.type)
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
    )
    start = kept = 0
    for group in range(source.num_row_groups):
        size = source.metadata.row_group(group).num_rows
        mask = np.ones(size, dtype=np.bool_) if keep is None else keep[start : start + size]
        epochs = None if leader_epochs is None else leader_epochs.slice(start, size)
        start += size
        if not mask.any():
            continue
        rows = source.read_row_group(group)
        if epochs is not None:
            known = LEADER_EPOCH in rows.column_names
            rows = (
                rows.set_column(rows.schema.get_field_index(LEADER_EPOCH), LEADER_EPOCH, epochs)
                if known
                else rows.append_column(LEADER_EPOCH, epochs)
            )
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
