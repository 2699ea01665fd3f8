"""Encodes an Arrow table into record batches per partition.

Owns the assignment of rows to partitions. Batches are encoded in the compiled kernel, without a Python object per row.
Processes the table in slices, so that memory is bounded for any table size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.surroundings import surroundings
from fenceline.client.producer.partitioner import StickyPartitioner
from fenceline.errors import OperatorError
from fenceline.extras import missing_packages
from fenceline.ids import TopicPartition
from fenceline.records.arrow import arrow_to_batches, hash_keys
from fenceline.records.batch import Codec

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise missing_packages("Arrow input", ["pyarrow"], "arrow") from error

_SLICE_BYTES: Final = 8 * 1024 * 1024
_MAX_SLICE_ROWS: Final = 262_144
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57


def encoded_pieces(
    table: pa.Table | pa.RecordBatch,
    topic: str,
    partition_count: int,
    available: Sequence[int],
    config: ClientConfig,
    *,
    value: str | None = "value",
    key: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    partition: str | int | None = None,
    sticky: StickyPartitioner,
) -> Iterator[tuple[TopicPartition, bytearray, int]]:
    """(partition, batch, record count), in an order that keeps the order of rows within each partition.

    Raises OperatorError for missing columns and unsupported types.
    """
    names = [name for name in (value, key, timestamp, headers) if name is not None]
    wanted = [*names, partition] if isinstance(partition, str) else names
    missing = [name for name in wanted if name not in table.schema.names]
    if missing:
        raise OperatorError(
            f"The table has no column {', '.join(missing)}",
            f"Its columns are {', '.join(table.schema.names)}. Set value=, key=, timestamp=, headers= to their names.",
        )
    narrow = table.select(list(dict.fromkeys(wanted)))
    codec = Codec.from_name(config["compression.type"])
    now_ms = surroundings().wall_ms()
    batch_bytes = max(config["batch.size"], 1) if codec is Codec.NONE else max(config["batch.size"], 262_144)
    for rows in _slices(narrow):
        for index, part in _split(rows, partition_count, available, key, partition, topic, sticky):
            try:
                batches = arrow_to_batches(
                    part,
                    key=key,
                    value=value,
                    timestamp=timestamp,
                    headers=headers,
                    default_timestamp_ms=now_ms,
                    codec=codec,
                    level=config["compression.level"],
                    max_batch_bytes=min(batch_bytes, config["max.request.size"]),
                )
            except (TypeError, ValueError) as error:
                raise OperatorError(f"The table cannot be sent: {error}") from None
            for encoded in batches:
                yield TopicPartition(topic, index), encoded, _COUNT.unpack_from(encoded, _COUNT_AT)[0]


def _slices(table: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    pieces = table.to_batches() if isinstance(table, pa.Table) else [table]
    for piece in pieces:
        if not piece.num_rows:
            continue
        row_bytes = max(1, piece.get_total_buffer_size() // piece.num_rows)
        step = max(1, min(_MAX_SLICE_ROWS, _SLICE_BYTES // row_bytes))
        for start in range(0, piece.num_rows, step):
            yield piece.slice(start, step)


def _split(
    rows: pa.RecordBatch,
    partition_count: int,
    available: Sequence[int],
    key: str | None,
    partition: str | int | None,
    topic: str,
    sticky: StickyPartitioner,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if isinstance(partition, int):
        _check_range(partition, partition, partition_count, topic)
        yield partition, rows
        return
    if isinstance(partition, str):
        chosen = rows.column(partition).cast(pa.int32())
        if chosen.null_count:
            raise OperatorError(f"The partition column {partition} has nulls", "Set a partition in every row.")
        bounds = pc.min_max(chosen).as_py()
        _check_range(bounds["min"], bounds["max"], partition_count, topic)
    elif key is None:
        yield sticky.switch(topic, available), rows
        return
    else:
        try:
            hashes = hash_keys(rows.column(key))
        except TypeError as error:
            raise OperatorError(f"The column {key} cannot be the key: {error}") from None
        if hashes.null_count == len(hashes):
            yield sticky.switch(topic, available), rows
            return
        if partition_count == 1:
            yield 0, rows
            return
        chosen = _modulo(hashes, partition_count)
        if chosen.null_count:
            chosen = chosen.fill_null(sticky.switch(topic, available))
    if partition_count == 1:
        yield 0, rows
        return
    # A stable sort keeps the order of a partition's rows; then each partition is one slice of the gathered rows.
    order = pc.sort_indices(chosen)
    gathered = rows.take(order)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(chosen).to_pylist()}
    start = 0
    for index in sorted(counts):
        yield index, gathered.slice(start, counts[index])
        start += counts[index]


def _modulo(hashes: pa.Int32Array, divisor: int) -> pa.Int32Array:
    whole = pc.divide(hashes, pa.scalar(divisor, pa.int32()))
    return pc.subtract(hashes, pc.multiply(whole, pa.scalar(divisor, pa.int32())))


def _check_range(low: int, high: int, partition_count: int, topic: str) -> None:
    if low < 0 or high >= partition_count:
        raise OperatorError(
            f"{topic} has no partition {low if low < 0 else high}", f"Its partitions are 0 to {partition_count - 1}."
        )
