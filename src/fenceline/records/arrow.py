"""Record batches as Arrow columns, and Arrow columns as record batches.

Owns the columns' names and types. Client side only: the server never imports this (it needs pyarrow). No Python object
is created per row: the kernel fills and reads the buffers of the columns. Control batches and skipped records (offsets
outside the range, aborted transactions) never become rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal

from fenceline.extras import missing_packages
from fenceline.records import kernel
from fenceline.records.aborted import AbortedTransaction, AbortedTransactions
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Codec,
    TimestampType,
    check_crc,
    iter_headers,
)
from fenceline.records.build import finish_batch
from fenceline.records.compression import DEFAULT_MAX_SIZE_BYTES
from fenceline.records.decode import records_of
from fenceline.records.errors import RecordsError
from fenceline.records.sequences import MAX_SEQUENCE

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise missing_packages("Arrow input and output", ["pyarrow"], "arrow") from error

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fenceline.records._columns_py import BytesBuffers, BytesColumn, Columns, HeaderColumn

TimestampUnit = Literal["ms", "us", "ns"]
NO_END_OFFSET: Final = (1 << 63) - 1
HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_LIKELY_RECORD_BYTES: Final = 64
_SCALES: Final[dict[str, int]] = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def arrow_schema(
    *,
    include_headers: bool = True,
    include_leader_epoch: bool = True,
    timestamp_unit: TimestampUnit = "ms",
    dictionary_topic: bool = False,
) -> pa.Schema:
    """The schema of `batches_to_arrow` under the same options; timestamps are in UTC."""
    fields = [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()) if dictionary_topic else pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp(timestamp_unit, "UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
    left_out = {
        name for name, wanted in (("headers", include_headers), ("leader_epoch", include_leader_epoch)) if not wanted
    }
    return pa.schema([field for field in fields if field.name not in left_out])


class ArrowDecoder:
    """Collects fetched batches as columns; `finish` returns them as one RecordBatch.

    Options: `empty_headers_as_null` makes the headers of a record without headers null instead of an empty list (as
    Spark's Kafka source); `check_crc` checks every batch; `max_decompressed_bytes` limits the size of one decompressed
    batch.
    """

    def __init__(
        self,
        *,
        include_headers: bool = True,
        include_leader_epoch: bool = True,
        timestamp_unit: TimestampUnit = "ms",
        dictionary_topic: bool = False,
        empty_headers_as_null: bool = False,
        check_crc: bool = True,
        max_decompressed_bytes: int = DEFAULT_MAX_SIZE_BYTES,
    ) -> None:
        self.schema = arrow_schema(
            include_headers=include_headers,
            include_leader_epoch=include_leader_epoch,
            timestamp_unit=timestamp_unit,
            dictionary_topic=dictionary_topic,
        )
        self._builder = kernel.ColumnBuilder(include_headers, _SCALES[timestamp_unit])
        self._topics: dict[str, int] = {}
        self._empty_headers_as_null = empty_headers_as_null
        self._check_crc = check_crc
        self._max_decompressed_bytes = max_decompressed_bytes

    @property
    def row_count(self) -> int:
        return self._builder.rows

    @property
    def size_bytes(self) -> int:
        """Approximate size of the columns collected so far."""
        return self._builder.size_bytes

    def expect(self, row_count: int, value_bytes: int) -> None:
        """A hint: about this much more will be appended."""
        self._builder.expect(row_count, value_bytes)

    def append(
        self,
        topic: str,
        partition: int,
        records: Buffer,
        *,
        start_offset: int = 0,
        end_offset_exclusive: int = NO_END_OFFSET,
        aborted: Iterable[AbortedTransaction] = (),
    ) -> int:
        """Append the records of `records` (batches, the last may be incomplete) whose offsets lie in the range.

        Returns the offset after the last complete batch, at most `end_offset_exclusive`: where the next fetch
        continues. Raises RecordsError naming topic, partition and batch; batches before the bad one stay collected.
        """
        hidden = AbortedTransactions(aborted) if aborted else None
        topic_index = self._topics.setdefault(topic, len(self._topics))
        next_offset = start_offset
        try:
            for header in iter_headers(records, allow_partial_tail=True):
                if header.base_offset >= end_offset_exclusive:
                    return max(next_offset, end_offset_exclusive)
                next_offset = max(next_offset, header.base_offset)
                if self._check_crc:
                    check_crc(records, header)
                is_hidden = (hidden is not None and hidden.hides(records, header)) or header.is_control
                if not is_hidden and header.next_offset > start_offset:
                    self._append_batch(records, header, start_offset, end_offset_exclusive, topic_index, partition)
                next_offset = max(next_offset, min(header.next_offset, end_offset_exclusive))
        except RecordsError as error:
            raise RecordsError(
                error.code, f"{topic}-{partition}, from offset {next_offset}: {error.message}"
            ) from error
        return next_offset

    def _append_batch(
        self, records: Buffer, header: BatchHeader, start_offset: int, end_offset: int, topic: int, partition: int
    ) -> None:
        payload, start, end = records_of(records, header, self._max_decompressed_bytes)
        timestamp_type = header.timestamp_type
        self._builder.append(
            payload,
            start,
            end,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
            start_offset,
            end_offset,
            topic,
            partition,
            header.leader_epoch,
            timestamp_type,
        )

    def finish(self) -> pa.RecordBatch:
        """The collected records, in the order of the `append` calls; the decoder is empty afterwards."""
        columns = self._builder.finish()
        topics, self._topics = self._topics, {}
        return pa.RecordBatch.from_arrays(
            [self._array(field.name, field.type, columns, list(topics)) for field in self.schema], schema=self.schema
        )

    def _array(self, name: str, kind: pa.DataType, columns: Columns, topics: list[str]) -> pa.Array:
        rows = columns.rows
        match name:
            case "topic":
                return _topic_array(columns, topics, dictionary=pa.types.is_dictionary(kind))
            case "partition":
                return _fixed_array(kind, rows, columns.partitions)
            case "offset":
                return _fixed_array(kind, rows, columns.offsets)
            case "timestamp":
                return _fixed_array(kind, rows, columns.timestamps)
            case "timestamp_type":
                return _fixed_array(kind, rows, columns.timestamp_types)
            case "leader_epoch":
                return _fixed_array(kind, rows, columns.leader_epochs)
            case "key":
                return _bytes_array(kind, rows, columns.keys)
            case "value":
                return _bytes_array(kind, rows, columns.values)
            case _:
                return self._headers_array(columns)

    def _headers_array(self, columns: Columns) -> pa.Array:
        assert columns.headers is not None, "headers are a column only if requested"
        count, offsets, names, values = columns.headers
        pairs = pa.StructArray.from_arrays(
            [_bytes_array(pa.string(), count, names), _bytes_array(pa.binary(), count, values)],
            fields=list(HEADERS_TYPE.value_type),
        )
        lists = pa.Array.from_buffers(HEADERS_TYPE, columns.rows, [None, pa.py_buffer(offsets)], 0, children=[pairs])
        if self._empty_headers_as_null:
            filled = pc.greater(pc.list_value_length(lists), 0)
            return pc.if_else(filled, lists, pa.scalar(None, HEADERS_TYPE))
        return lists


def _fixed_array(kind: pa.DataType, rows: int, values: Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)


def _bytes_array(kind: pa.DataType, rows: int, buffers: BytesBuffers) -> pa.Array:
    bits, offsets, content = buffers
    return pa.Array.from_buffers(
        kind, rows, [None if bits is None else pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _topic_array(columns: Columns, topics: list[str], *, dictionary: bool) -> pa.Array:
    if len(topics) == 1 and not dictionary:
        return pa.repeat(pa.scalar(topics[0], pa.string()), columns.rows)
    indices = _fixed_array(pa.int32(), columns.rows, columns.topics)
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array(topics, pa.string()))
    return encoded if dictionary else encoded.dictionary_decode()


def batches_to_arrow(
    chunks: Iterable[tuple[str, int, Buffer]],
    *,
    start_offsets: Sequence[int] | None = None,
    end_offsets_exclusive: Sequence[int] | None = None,
    aborted: Sequence[Iterable[AbortedTransaction]] | None = None,
    **options: Any,
) -> pa.RecordBatch:
    """The records of all chunks (topic, partition, batches) in order; the options are those of `ArrowDecoder`.

    The three sequences hold one entry per chunk: the range of offsets and the aborted transactions to skip (none given:
    all records). Raises RecordsError: CORRUPT_MESSAGE; MESSAGE_TOO_LARGE if a column would exceed 2 GiB;
    INVALID_TIMESTAMP if a timestamp does not fit `timestamp_unit`.
    """
    decoder = ArrowDecoder(**options)
    chunks = list(chunks)
    total_bytes = sum(memoryview(records).nbytes for _, _, records in chunks)
    decoder.expect(total_bytes // _LIKELY_RECORD_BYTES, total_bytes)
    starts = repeat(0) if start_offsets is None else start_offsets
    ends = repeat(NO_END_OFFSET) if end_offsets_exclusive is None else end_offsets_exclusive
    left_out: Iterable[Iterable[AbortedTransaction]] = repeat(()) if aborted is None else aborted
    for (topic, partition, records), start, end, hidden in zip(chunks, starts, ends, left_out, strict=False):
        decoder.append(topic, partition, records, start_offset=start, end_offset_exclusive=end, aborted=hidden)
    return decoder.finish()


def arrow_to_batches(
    table: pa.Table | pa.RecordBatch,
    *,
    key: str | None = None,
    value: str | None = "value",
    timestamp: str | None = None,
    headers: str | None = None,
    default_timestamp_ms: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    max_batch_bytes: int = 1_000_000,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> list[bytearray]:
    """The rows as produced batches, in order, each of up to `max_batch_bytes` before compression (at least one row).

    `key` and `value` name columns of (large) binary or string, `timestamp` one of timestamps or of int64 milliseconds
    (nulls become `default_timestamp_ms`), `headers` one of lists of structs with "key" and "value". With a producer id
    the sequences of the batches count up from `base_sequence`. Raises TypeError on other column types, KeyError on
    missing columns, ValueError on a header without a name.
    """
    pieces = table.combine_chunks().to_batches() if isinstance(table, pa.Table) else [table]
    batches: list[bytearray] = []
    for piece in pieces:
        timestamps = None if timestamp is None else _milliseconds(piece.column(timestamp), default_timestamp_ms)
        columns = (
            None if key is None else _bytes_column(piece.column(key)),
            None if value is None else _bytes_column(piece.column(value)),
            None if headers is None else _header_column(piece.column(headers)),
        )
        row = 0
        while row < piece.num_rows:
            start = row
            out, row, base, high = kernel.encode_columns(
                start, piece.num_rows, BATCH_OVERHEAD, max_batch_bytes, timestamps, default_timestamp_ms, *columns
            )
            batches.append(
                finish_batch(
                    out,
                    base_offset=0,
                    leader_epoch=-1,
                    codec=codec,
                    level=level,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                    transactional=transactional,
                    control=False,
                    timestamp_type=TimestampType.CREATE_TIME,
                    base_timestamp=base,
                    max_timestamp=high,
                    record_count=row - start,
                )
            )
            if base_sequence >= 0:
                base_sequence = (base_sequence + row - start) & MAX_SEQUENCE
    return batches


def hash_keys(column: pa.Array) -> pa.Int32Array:
    """Kafka's murmur2 of every key (not negative), null for null: modulo the partition count it is the partition."""
    hashes = pa.py_buffer(kernel.hash_column(_bytes_column(column)))
    found = pa.Array.from_buffers(pa.int32(), len(column), [None, hashes], 0)
    return found if column.null_count == 0 else pc.if_else(column.is_valid(), found, pa.scalar(None, pa.int32()))


def _bytes_column(column: pa.Array) -> BytesColumn:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        bits, offsets, content = column.buffers()
        offsets = b"\0\0\0\0" if offsets is None else offsets
        return len(column), column.offset, bits, offsets, content
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if large or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind):
        return _bytes_column(column.cast(pa.binary()))
    raise TypeError(f"keys and values must be columns of binary or string, not of {kind}: cast or encode them first")


def _header_column(column: pa.Array) -> HeaderColumn:
    kind = column.type
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        raise TypeError(f"headers must be a column of list<struct<key: string, value: binary>>, not of {kind}")
    bits, offsets = column.buffers()[:2]
    pairs = column.values
    if pairs.null_count:
        raise ValueError("a header is null")
    names = pairs.field("key")
    if not pa.types.is_string(names.type):
        names = names.cast(pa.string())
    lists = (len(column), column.offset, bits, b"\0\0\0\0" if offsets is None else offsets, None)
    return lists, _bytes_column(names), _bytes_column(pairs.field("value"))


def _milliseconds(column: pa.Array, default_ms: int) -> pa.Buffer | memoryview:
    """The column as int64 milliseconds since the epoch; finer units are rounded down."""
    if pa.types.is_timestamp(column.type):
        if column.type.unit in ("us", "ns"):
            column = pc.floor_temporal(column, unit="millisecond") if _has_negative(column) else column
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_int64(column.type):
        raise TypeError(f"timestamps must be a column of timestamp or of int64 milliseconds, not of {column.type}")
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(default_ms)
    values = column.buffers()[1]
    return memoryview(values or b"")[column.offset * 8 : (column.offset + len(column)) * 8]


def _has_negative(column: pa.Array) -> bool:
    lowest = pc.min(column.cast(pa.int64())).as_py()
    return lowest is not None and lowest < 0
