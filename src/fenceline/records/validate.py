"""Validates what a producer sends to a leader: the rules and error codes of Apache Kafka 4.3.1.

Owns the checks between a Produce request and the log, in Kafka's order, since the first failure decides the code: one
batch and its magic (`since_4_0.md K31`), base offset, size, CRC, header, records. Never assigns offsets; it may set log
append time, correct the header's maximum timestamp, or rebuild the batch for another codec.

Uncompressed records are iterated once, as in Kafka. Compressed ones are not decompressed (hot path: records are opaque)
unless the topic is compacted, the codec changes, the topic limits old timestamps, or the header is implausible;
`check_compressed=True` requests Kafka's full check of every compressed batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fenceline.errors import ErrorCode
from fenceline.records import kernel
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    LENGTH_PREFIX,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    TimestampType,
    check_crc,
    read_header,
    set_create_time,
    set_log_append_time,
)
from fenceline.records.build import Record, finish_batch
from fenceline.records.compression import DEFAULT_MAX_SIZE_BYTES
from fenceline.records.decode import records_of
from fenceline.records.errors import RecordsError, corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
NO_LIMIT_MS: Final = (1 << 63) - 1
_MIN_LENGTH: Final = 14  # the smallest length field that Kafka accepts before it checks the batch
_UP_TO_MAGIC: Final = 17
_MAX_RECORD_ERRORS_IN_MESSAGE: Final = 3
_LENGTH: Final = struct.Struct(">i")
ZSTD_SINCE_VERSION: Final = 7


class Validated(NamedTuple):
    """A batch that can be appended once its offset and epoch are assigned (`batch.assign_in_place`)."""

    records: memoryview
    """Exactly one batch, writable: the given bytes, changed in place if needed, or a new buffer."""
    header: BatchHeader
    """Of `records`, at position 0."""
    log_append_time_ms: int
    """The timestamp set on the batch, -1 with create time; the Produce response returns it."""
    rebuilt: bool
    """The batch was re-encoded (another codec, or its inner offsets were not consecutive)."""


def validate_produced(
    records: memoryview,
    *,
    version: int,
    max_message_bytes: int,
    timestamp_type: TimestampType,
    target_codec: Codec | None,
    compression_level: int | None = None,
    now_ms: int,
    timestamp_before_max_ms: int = NO_LIMIT_MS,
    timestamp_after_max_ms: int = NO_LIMIT_MS,
    compacted: bool = False,
    from_client: bool = True,
    check_compressed: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_SIZE_BYTES,
) -> Validated:
    """Check the records of a Produce request of `version` for one partition.

    `target_codec` None keeps the producer's codec. `from_client` False skips the checks that apply only to clients
    (control records, other base offsets), for batches that a coordinator of this node writes. Raises RecordsError with
    Kafka's code.
    """
    header = _single_batch(records, version)
    if from_client and header.base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    _check_size(header.size_bytes, max_message_bytes)
    check_crc(records, header)
    _check_header(header, from_client)
    source_codec = _readable(lambda: header.codec)
    codec = source_codec if target_codec is None or header.is_control else target_codec
    view = records[: header.size_bytes]
    if (
        codec is source_codec
        and source_codec is not Codec.NONE
        and not compacted
        and not check_compressed
        and _header_decides(header, timestamp_type, now_ms, timestamp_before_max_ms, timestamp_after_max_ms)
    ):
        return _set_timestamps(view, header, timestamp_type, header.max_timestamp, now_ms)
    payload, start, end = _readable(lambda: records_of(view, header, max_decompressed_bytes))
    found = _readable(lambda: kernel.walk(payload, start, end, header.record_count, header.base_timestamp))
    low, high = found.min_timestamp, found.max_timestamp
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        low = high = header.max_timestamp
    limits = _Limits(timestamp_type, now_ms, timestamp_before_max_ms, timestamp_after_max_ms)
    if (compacted and found.first_without_key >= 0) or limits.may_reject(header, low, high):
        _raise_record_errors(_decode(payload, start, end, header), header, limits, compacted)
    if codec is source_codec and found.contiguous:
        return _set_timestamps(view, header, timestamp_type, high, now_ms)
    if found.contiguous and header.timestamp_type is TimestampType.CREATE_TIME:
        base_timestamp, out = header.base_timestamp, bytearray(BATCH_OVERHEAD)
        out += memoryview(payload)[start:end]
    else:
        base_timestamp, out = _reencode(_decode(payload, start, end, header))
    batch = _finish(out, header, codec, compression_level, timestamp_type, base_timestamp, high, now_ms)
    _check_size(len(batch), max_message_bytes)
    log_append_time_ms = now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else -1
    return Validated(memoryview(batch), read_header(batch), log_append_time_ms, rebuilt=True)


def _invalid(message: str, *, is_framing: bool = False) -> RecordsError:
    return RecordsError(ErrorCode.INVALID_RECORD, message, is_framing=is_framing)


def _single_batch(records: memoryview, version: int) -> BatchHeader:
    """The header of the only batch. A second one is rejected; an incomplete rest after the first is dropped, as in
    Kafka."""
    size = _batch_size(records, 0)
    if size is None:
        raise _invalid("a partition of a Produce request must contain one record batch, found none", is_framing=True)
    if records[16] != MAGIC:
        raise _invalid(f"batches of magic {records[16]} are not supported, only magic {MAGIC}", is_framing=True)
    if size < BATCH_OVERHEAD:
        raise corrupt(f"the batch claims {size} bytes, less than its header")
    header = read_header(records[:size])
    if version < ZSTD_SINCE_VERSION and header.attributes & 7 == Codec.ZSTD:
        raise RecordsError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd requires Produce version {ZSTD_SINCE_VERSION} or later, but the request has version {version}",
            is_framing=True,
        )
    if size < records.nbytes and _batch_size(records, size) is not None:
        raise _invalid(
            "a partition of a Produce request must contain exactly one record batch, found more", is_framing=True
        )
    return header


def _batch_size(records: memoryview, position: int) -> int | None:
    """Size of the batch at `position`, None if there is no complete one."""
    remaining = records.nbytes - position
    if remaining < LENGTH_PREFIX:
        return None
    (length,) = _LENGTH.unpack_from(records, position + 8)
    if length < _MIN_LENGTH:
        raise corrupt(f"the batch claims a length of {length}, less than the minimum of {_MIN_LENGTH}")
    if remaining < _UP_TO_MAGIC:
        return None
    if records[position + 16] > MAGIC:
        raise corrupt(f"the batch has magic {records[position + 16]}")
    return length + LENGTH_PREFIX if remaining >= length + LENGTH_PREFIX else None


def _check_size(size_bytes: int, max_message_bytes: int) -> None:
    if size_bytes > max_message_bytes:
        raise RecordsError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size_bytes} bytes, which exceeds the topic's limit "
            f"(max.message.bytes={max_message_bytes})",
        )


def _check_header(header: BatchHeader, from_client: bool) -> None:
    if not from_client:
        return
    if header.last_offset_delta < 0:
        raise _invalid(f"the batch ends before its base offset (last offset delta {header.last_offset_delta})")
    if header.record_count <= 0:
        raise _invalid(f"the batch claims to hold {header.record_count} records")
    if header.record_count != header.last_offset_delta + 1:
        raise _invalid(f"the batch spans {header.last_offset_delta + 1} offsets but has {header.record_count} records")
    if header.is_control:
        raise _invalid("clients must not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} sent the invalid sequence {header.base_sequence}")


class _Limits(NamedTuple):
    timestamp_type: TimestampType
    now_ms: int
    before_max_ms: int
    after_max_ms: int

    def may_reject(self, header: BatchHeader, low: int, high: int) -> bool:
        """Whether a record of a batch with timestamps from `low` to `high` can be rejected for its timestamp."""
        log_append = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return log_append
        return (log_append and low == NO_TIMESTAMP) or self.out_of_range(low) or self.out_of_range(high)

    def out_of_range(self, timestamp: int) -> bool:
        return self.now_ms - timestamp > self.before_max_ms or timestamp - self.now_ms > self.after_max_ms

    def rejection_reason(self, header: BatchHeader, timestamp: int, offset: int) -> str | None:
        """Why a record with this timestamp is rejected, None if it is not."""
        if self.timestamp_type is TimestampType.CREATE_TIME and timestamp != NO_TIMESTAMP:
            if self.out_of_range(timestamp):
                low, high = self.now_ms - self.before_max_ms, self.now_ms + self.after_max_ms
                return f"timestamp {timestamp} of the record at offset {offset} is not within [{low}, {high}]"
        elif header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return f"the record at offset {offset} has log append time, which only the broker may set"
        return None


def _header_decides(
    header: BatchHeader, timestamp_type: TimestampType, now_ms: int, before_max_ms: int, after_max_ms: int
) -> bool:
    """Whether a compressed batch can be accepted without decompression: its header is plausible and decides the
    timestamp rules."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return False
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        return True
    if before_max_ms < now_ms or header.max_timestamp < header.base_timestamp:
        return False
    return header.max_timestamp - now_ms <= after_max_ms


def _readable(read: Callable[[], T]) -> T:
    """The result of `read`; unreadable records are INVALID_RECORD here.

    The CRC matched, so the producer created the bytes in this form, and a retry, which clients do on CORRUPT_MESSAGE,
    would not help. Kafka answers the same, or UNKNOWN_SERVER_ERROR if its own code fails.
    """
    try:
        return read()
    except RecordsError as error:
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            raise _invalid(error.message) from error
        raise


def _decode(payload: Buffer, start: int, end: int, header: BatchHeader) -> list[Record]:
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    return kernel.decode(
        payload, start, end, header.record_count, header.base_offset, header.last_offset_delta,
        header.base_timestamp, fixed, Record, False,
    )  # fmt: skip


def _raise_record_errors(records: list[Record], header: BatchHeader, limits: _Limits, compacted: bool) -> None:
    """Raise if a record is rejected: INVALID_TIMESTAMP if any is for its timestamp, else INVALID_RECORD."""
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(records):
        if compacted and record.key is None:
            errors.append((index, "a compacted topic accepts no record without a key"))
            continue
        reason = limits.rejection_reason(header, record.timestamp, record.offset)
        if reason is not None:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, reason))
    if errors:
        shown = "; ".join(f"record {index}: {reason}" for index, reason in errors[:_MAX_RECORD_ERRORS_IN_MESSAGE])
        raise RecordsError(code, f"{len(errors)} of {len(records)} records are rejected: {shown}", errors)


def _writable(view: memoryview) -> memoryview:
    return memoryview(bytearray(view)) if view.readonly else view


def _set_timestamps(
    view: memoryview, header: BatchHeader, timestamp_type: TimestampType, max_timestamp: int, now_ms: int
) -> Validated:
    """Set the batch's timestamp type and maximum, in place if the header differs."""
    log_append = timestamp_type is TimestampType.LOG_APPEND_TIME
    changes = log_append or header.timestamp_type is not timestamp_type or header.max_timestamp != max_timestamp
    view = _writable(view)
    if changes:
        if log_append:
            set_log_append_time(view, 0, now_ms)
        else:
            set_create_time(view, 0, max_timestamp)
        header = read_header(view)
    return Validated(view, header, now_ms if log_append else -1, rebuilt=False)


def _reencode(records: list[Record]) -> tuple[int, bytearray]:
    """The records with consecutive offsets and their own timestamps, and the base timestamp."""
    out = bytearray(BATCH_OVERHEAD)
    kernel.encode(out, [record[1:] for record in records], records[0].timestamp)
    return records[0].timestamp, out


def _finish(
    out: bytearray,
    header: BatchHeader,
    codec: Codec,
    level: int | None,
    timestamp_type: TimestampType,
    base_timestamp: int,
    max_timestamp: int,
    now_ms: int,
) -> bytearray:
    return finish_batch(
        out,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        codec=codec,
        level=level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        timestamp_type=timestamp_type,
        base_timestamp=base_timestamp,
        max_timestamp=now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else max_timestamp,
        record_count=header.record_count,
    )
