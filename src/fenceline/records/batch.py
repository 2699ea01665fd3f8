"""Record batch v2 as a view: header, CRC, and the changes a leader makes in place.

Owns the layout of the 61 bytes before the records. Never reads or copies the records themselves: every function takes
the buffer and a position in it. The fields before the CRC (base offset, length, leader epoch, magic) can be changed
without it; the CRC covers everything from the attributes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.records.crc import crc32c
from fenceline.records.errors import RecordsError, corrupt
from fenceline.records.sequences import MAX_SEQUENCE

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_OVERHEAD: Final = 61
"""Bytes of an empty batch: the header up to and including the record count."""
LENGTH_PREFIX: Final = 12
"""Base offset and length field: the bytes that the length field does not count."""
MAGIC: Final = 2
CRC_COVERS_FROM: Final = 21
"""Start of the bytes under the CRC, relative to the batch's start."""
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_ATTRIBUTES: Final = struct.Struct(">h")
_CRC: Final = struct.Struct(">I")
_OFFSET: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_put_offset: Final = _OFFSET.pack_into
_put_int32: Final = _INT32.pack_into
_MAX_TIMESTAMP_AT: Final = 35

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_DELETE_HORIZON_BIT: Final = 0x40


class Codec(IntEnum):
    """How the records of a batch are compressed; the value is that of the attribute bits."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """The codec of a `compression.type` value ("none", "uncompressed", "gzip", ...). Raises ValueError."""
        if name == "uncompressed":
            return cls.NONE
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"unknown compression type {name!r}") from None


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


_CODECS: Final[dict[int, Codec]] = {codec.value: codec for codec in Codec}


class BatchHeader(NamedTuple):
    """The header of one batch that starts at `position` of some buffer. Offsets and timestamps as stored.

    Only the structure was checked (length, magic): counts, deltas and codec may be invalid.
    """

    position: int
    base_offset: int
    size_bytes: int
    """The complete batch, including the 12 bytes of base offset and length."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> Codec:
        """Raises RecordsError(CORRUPT_MESSAGE) for the undefined ids 5 to 7."""
        codec = _CODECS.get(self.attributes & _CODEC_MASK)
        if codec is None:
            raise corrupt(f"unknown compression codec {self.attributes & _CODEC_MASK}")
        return codec

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """The base timestamp is not the first record's but the delete horizon of tombstones (KIP-534)."""
        return self.attributes & _DELETE_HORIZON_BIT != 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_position(self) -> int:
        """The position right after the batch in its buffer."""
        return self.position + self.size_bytes

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps to 0 after 2^31 - 1. -1 if the batch has no sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`, which must lie in `buf` completely.

    Raises RecordsError(CORRUPT_MESSAGE) if it does not, or if the length or the magic is invalid. The CRC is not
    checked: `crc_is_valid`.
    """
    available = memoryview(buf).nbytes - position
    if position < 0 or available < BATCH_OVERHEAD:
        raise corrupt(f"batch at {position} is cut short: {max(available, 0)} of at least {BATCH_OVERHEAD} bytes")
    header = _unpack(buf, position)
    if header.size_bytes > available:
        raise corrupt(f"batch at {position} is cut short: {available} of {header.size_bytes} bytes")
    return header


def peek_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """As `read_header`, but only the 61 bytes of the header itself need to lie in `buf` (the log's headers-only scans).

    Raises RecordsError(CORRUPT_MESSAGE).
    """
    available = memoryview(buf).nbytes - position
    if position < 0 or available < BATCH_OVERHEAD:
        raise corrupt(f"batch at {position} is cut short: {max(available, 0)} of at least {BATCH_OVERHEAD} bytes")
    return _unpack(buf, position)


def _unpack(buf: Buffer, position: int) -> BatchHeader:
    fields = _HEADER.unpack_from(buf, position)
    if fields[3] != MAGIC:
        raise corrupt(f"batch at {position} has magic {fields[3]}, only {MAGIC} is supported")
    size_bytes = fields[1] + LENGTH_PREFIX
    if size_bytes < BATCH_OVERHEAD:
        raise corrupt(f"batch at {position} claims {size_bytes} bytes, less than its header")
    # Straight to tuple: the generated __new__ with its 14 parameters costs as much as the rest of this function.
    return tuple.__new__(BatchHeader, (position, fields[0], size_bytes, *fields[2:]))


def iter_headers(
    buf: Buffer, position: int = 0, end: int | None = None, *, allow_partial_tail: bool = False
) -> Iterator[BatchHeader]:
    """The headers of the adjacent batches in `buf[position:end]`.

    A batch that exceeds the end raises RecordsError(CORRUPT_MESSAGE), or with `allow_partial_tail` ends the iteration:
    fetch responses and files after a crash may stop in the middle of a batch. An invalid batch raises in both cases.
    """
    size = memoryview(buf).nbytes
    end = size if end is None else min(end, size)
    while position < end:
        if end - position < BATCH_OVERHEAD:
            if allow_partial_tail:
                return
            raise corrupt(f"batch at {position} is cut short: {end - position} of at least {BATCH_OVERHEAD} bytes")
        header = _unpack(buf, position)
        if position + header.size_bytes > end:
            if allow_partial_tail:
                return
            raise corrupt(f"batch at {position} is cut short: {end - position} of {header.size_bytes} bytes")
        yield header
        position += header.size_bytes


def compute_crc(buf: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C over attributes to end of the batch of `size_bytes` at `position`."""
    with memoryview(buf) as view:
        return crc32c(view[position + CRC_COVERS_FROM : position + size_bytes])


def crc_is_valid(buf: Buffer, header: BatchHeader) -> bool:
    """Whether the stored CRC matches the batch's bytes."""
    return compute_crc(buf, header.position, header.size_bytes) == header.crc


def check_crc(buf: Buffer, header: BatchHeader) -> None:
    """Raise RecordsError(CORRUPT_MESSAGE) unless the CRC matches."""
    computed = compute_crc(buf, header.position, header.size_bytes)
    if computed != header.crc:
        raise corrupt(
            f"batch at offset {header.base_offset} is corrupt: stored CRC {header.crc:#010x}, computed {computed:#010x}"
        )


def assign_in_place(buf: Buffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the fields that the leader assigns; both lie before the CRC, which stays valid."""
    _put_offset(buf, position, base_offset)
    _put_int32(buf, position + LENGTH_PREFIX, leader_epoch)


def set_log_append_time(buf: Buffer, position: int, timestamp_ms: int) -> None:
    """Make `timestamp_ms` the timestamp of every record of the batch; recomputes the CRC."""
    _set_times(buf, position, timestamp_ms, TimestampType.LOG_APPEND_TIME)


def set_create_time(buf: Buffer, position: int, max_timestamp_ms: int) -> None:
    """Keep the records' own timestamps and correct the header's maximum; recomputes the CRC."""
    _set_times(buf, position, max_timestamp_ms, TimestampType.CREATE_TIME)


def _set_times(buf: Buffer, position: int, max_timestamp_ms: int, timestamp_type: TimestampType) -> None:
    header = read_header(buf, position)
    attributes = header.attributes & ~_LOG_APPEND_TIME_BIT
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= _LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(buf, position + CRC_COVERS_FROM, attributes)
    _OFFSET.pack_into(buf, position + _MAX_TIMESTAMP_AT, max_timestamp_ms)
    _CRC.pack_into(buf, position + 17, compute_crc(buf, position, header.size_bytes))


def write_header(
    buf: Buffer,
    position: int = 0,
    *,
    size_bytes: int,
    base_offset: int,
    leader_epoch: int,
    codec: Codec,
    timestamp_type: TimestampType,
    transactional: bool,
    control: bool,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the 61 bytes before the records that already lie at `position + 61`, then the CRC over all.

    Raises RecordsError(MESSAGE_TOO_LARGE) if the length does not fit an int32.
    """
    if size_bytes - LENGTH_PREFIX > 0x7FFFFFFF:
        raise RecordsError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch cannot have {size_bytes} bytes")
    attributes = codec | (timestamp_type << 3) | (transactional << 4) | (control << 5)
    _HEADER.pack_into(
        buf, position, base_offset, size_bytes - LENGTH_PREFIX, leader_epoch, MAGIC, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
    )  # fmt: skip
    _CRC.pack_into(buf, position + 17, compute_crc(buf, position, size_bytes))


def rewrite_header(
    content: Buffer, *, records: int, max_timestamp: int | None = None, horizon_ms: int | None = None
) -> bytearray:
    """A batch from which records were removed: `content` is its old header and the remaining records, encoded.

    Offsets, epoch, producer and sequences stay. Without records it is an empty batch, as Kafka keeps the last one of a
    producer: not compressed, without a delete horizon. `horizon_ms`: the new base of the records' timestamps (KIP-534).
    `max_timestamp`: None if unchanged.
    """
    out = bytearray(content)
    header = peek_header(out)
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if not records:
        attributes &= ~(_CODEC_MASK | _DELETE_HORIZON_BIT)
        base_timestamp, max_timestamp = NO_TIMESTAMP, None
        del out[BATCH_OVERHEAD:]
    elif horizon_ms is not None:
        attributes |= _DELETE_HORIZON_BIT
        base_timestamp = horizon_ms
    if max_timestamp is None:
        max_timestamp = header.max_timestamp
    _HEADER.pack_into(
        out, 0, header.base_offset, len(out) - LENGTH_PREFIX, header.leader_epoch, MAGIC, 0, attributes,
        header.last_offset_delta, base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, records,
    )  # fmt: skip
    _CRC.pack_into(out, 17, compute_crc(out, 0, len(out)))
    return out
