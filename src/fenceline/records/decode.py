"""Reading the records of batches as Python values.

Owns the decoding of a batch's bytes to `Record`s; for columns see `arrow.py`. Never guesses: unreadable bytes raise
RecordsError(CORRUPT_MESSAGE). The caller checks the CRC (`batch.check_crc`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from fenceline.records import kernel
from fenceline.records.batch import BATCH_OVERHEAD, BatchHeader, Codec, TimestampType, iter_headers
from fenceline.records.build import Record
from fenceline.records.compression import DEFAULT_MAX_SIZE_BYTES, decompress_view

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T", bound=tuple)  # type: ignore[type-arg]


def records_of(
    buf: Buffer, header: BatchHeader, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> tuple[Buffer, int, int]:
    """The uncompressed records of a batch as (buffer, start, end). Decompresses if needed, bounded."""
    start = header.position + BATCH_OVERHEAD
    codec = header.codec
    if codec is Codec.NONE:
        return buf, start, header.end_position
    payload = decompress_view(codec, memoryview(buf)[start : header.end_position], max_size_bytes)
    return payload, 0, payload.nbytes


def decode_batch(buf: Buffer, header: BatchHeader, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> list[Record]:
    """The records of one batch, control records included, with absolute offsets.

    With log append time every record has the batch's maximum timestamp. Raises RecordsError.
    """
    payload, start, end = records_of(buf, header, max_size_bytes)
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    return kernel.decode(
        payload,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        fixed,
        Record,
    )


def decode_rows(
    buf: Buffer,
    header: BatchHeader,
    row_type: type[T],
    topic: str,
    partition: int,
    start_offset: int,
    end_offset_exclusive: int,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
) -> list[T]:
    """The records of one batch within a range of offsets as `row_type` (topic, partition, offset, timestamp, timestamp
    type, leader epoch, key, value, headers), a tuple type without a `__dict__`. Raises RecordsError.
    """
    payload, start, end = records_of(buf, header, max_size_bytes)
    is_fixed = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return kernel.decode_rows(
        payload,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if is_fixed else None,
        row_type,
        (topic, partition),
        (int(header.timestamp_type), header.leader_epoch),
        start_offset,
        end_offset_exclusive,
    )


def decode_all(
    buf: Buffer, *, allow_partial_tail: bool = False, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every batch of `buf` in order with its records."""
    for header in iter_headers(buf, allow_partial_tail=allow_partial_tail):
        yield header, decode_batch(buf, header, max_size_bytes)
