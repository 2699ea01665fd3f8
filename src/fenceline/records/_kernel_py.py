"""The records of a batch, in pure Python: slower twin of the Cython kernel (`_kernel.pyx`) with the same results.

Owns the layout of a record (varints, key, value, headers) and of the columns that records become. Every length is
checked against the end of its record and of the batch before a byte is read. For any input the outcome is a result or
RecordsError(CORRUPT_MESSAGE); a `ColumnBuilder` that raised is unchanged.

Both twins return equal results for equal input, errors included; change them together and run the same tests on both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from fenceline.records.errors import corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABI: Final = 6
"""Raised with every change of this interface, so that a stale build of the other twin is not used."""
IS_NATIVE: Final = False

_INT64_MAX: Final = (1 << 63) - 1
_INT64_MIN: Final = -(1 << 63)
_MASK64: Final = (1 << 64) - 1
MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths and the number of headers, a byte each."""

T = TypeVar("T", bound=tuple[object, ...])
Row = tuple[int, "bytes | None", "bytes | None", Sequence[tuple[str, "bytes | None"]]]


class Walk(NamedTuple):
    """The facts about the records of one batch that a leader needs."""

    contiguous: bool
    """The offset deltas are 0, 1, 2, ..."""
    min_timestamp: int
    max_timestamp: int
    first_without_key: int
    """Index of the first record without a key, -1 if all have one."""


def _fail(index: int, what: str) -> NoReturn:
    raise corrupt(f"record {index} of the batch is corrupt: {what}")


def _varint(view: bytes, position: int, end: int, index: int) -> tuple[int, int]:
    """A zigzag varint of at most 5 bytes (32 bits) and the position after it."""
    raw = shift = 0
    while True:
        if position >= end:
            _fail(index, "a number goes past its end")
        byte = view[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > 28:
            _fail(index, "a number is too long")


def _varlong(view: bytes, position: int, end: int, index: int) -> tuple[int, int]:
    """A zigzag varint of at most 10 bytes (64 bits) and the position after it."""
    raw = shift = 0
    while True:
        if position >= end:
            _fail(index, "a number goes past its end")
        byte = view[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= _MASK64
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > 63:
            _fail(index, "a number is too long")


def wrap64(value: int) -> int:
    return ((value - _INT64_MIN) & _MASK64) + _INT64_MIN


class ParsedRecord(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: tuple[int, int] | None
    """Start and end in the buffer."""
    value: tuple[int, int] | None
    headers: list[tuple[int, int, tuple[int, int] | None]]
    """Start and end of the name, start and end of the value."""


def parse_record(view: bytes, position: int, end: int, index: int) -> tuple[ParsedRecord, int]:
    """The record at `position` and the position after it."""
    length, position = _varint(view, position, end, index)
    if length < 0 or length > end - position:
        _fail(index, "its length goes past the end of the batch")
    end = position + length
    if position >= end:
        _fail(index, "a number goes past its end")
    timestamp_delta, position = _varlong(view, position + 1, end, index)
    offset_delta, position = _varint(view, position, end, index)
    key, position = _span(view, position, end, index)
    value, position = _span(view, position, end, index)
    count, position = _varint(view, position, end, index)
    if count < 0 or count > end - position:
        _fail(index, "the number of headers can not be")
    headers: list[tuple[int, int, tuple[int, int] | None]] = []
    for _ in range(count):
        name, position = _span(view, position, end, index)
        if name is None:
            _fail(index, "a header has no name")
        content, position = _span(view, position, end, index)
        headers.append((*name, content))
    if position != end:
        _fail(index, "its length differs from its content")
    return ParsedRecord(timestamp_delta, offset_delta, key, value, headers), position


def _span(view: bytes, position: int, end: int, index: int) -> tuple[tuple[int, int] | None, int]:
    length, position = _varint(view, position, end, index)
    if length < 0:
        return None, position
    if length > end - position:
        _fail(index, "a field goes past its end")
    return (position, position + length), position + length


def records_slice(buf: Buffer, start: int, end: int, count: int) -> bytes:
    with memoryview(buf) as view:
        size = view.nbytes
        if start < 0 or start > end or end > size:
            raise corrupt(f"records from {start} to {end} do not lie in a buffer of {size} bytes")
        if count < 0 or count > (end - start) // MIN_RECORD_BYTES:
            raise corrupt(f"{end - start} bytes can not hold {count} records")
        return bytes(view[start:end])


def check_end(position: int, end: int, count: int) -> None:
    if position != end:
        raise corrupt(f"{end - position} bytes are left behind the {count} records of the batch")


def check_delta(delta: int, previous: int, last_offset_delta: int, index: int) -> None:
    if delta <= previous or delta > last_offset_delta:
        _fail(index, "its offset lies outside of the batch or not behind the one before")


def walk(buf: Buffer, start: int, end: int, count: int, base_timestamp: int) -> Walk:
    """Check the `count` records in `buf[start:end]`, which they must fill exactly.

    Raises RecordsError(CORRUPT_MESSAGE) on any malformed structure.
    """
    view = records_slice(buf, start, end, count)
    position, contiguous, without_key = 0, True, -1
    low, high = _INT64_MAX, _INT64_MIN
    for index in range(count):
        record, position = parse_record(view, position, len(view), index)
        timestamp = wrap64(base_timestamp + record.timestamp_delta)
        low, high = min(low, timestamp), max(high, timestamp)
        contiguous = contiguous and record.offset_delta == index
        if record.key is None and without_key < 0:
            without_key = index
    check_end(position, len(view), count)
    return Walk(contiguous, low if count else -1, high if count else -1, without_key)


def decode(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    record_type: type[T],
    check_deltas: bool = True,
) -> list[T]:
    """A `record_type` (offset, timestamp, key, value, headers) for each of the `count` records in `buf[start:end]`.

    `fixed_timestamp` replaces the records' own (log append time). Raises RecordsError(CORRUPT_MESSAGE), also if the
    offsets do not increase or exceed `last_offset_delta` unless `check_deltas` is off.
    """
    view = records_slice(buf, start, end, count)
    check_offsets(base_offset, last_offset_delta)
    position, previous = 0, -1
    new = tuple.__new__
    records: list[T] = []
    for index in range(count):
        record, position = parse_record(view, position, len(view), index)
        delta = record.offset_delta
        if check_deltas:
            check_delta(delta, previous, last_offset_delta, index)
        previous = delta
        timestamp = fixed_timestamp
        if timestamp is None:
            timestamp = wrap64(base_timestamp + record.timestamp_delta)
        headers = tuple(
            (decode_name(view[a:b]), None if content is None else view[slice(*content)])
            for a, b, content in record.headers
        )
        key = None if record.key is None else view[slice(*record.key)]
        value = None if record.value is None else view[slice(*record.value)]
        records.append(new(record_type, (base_offset + delta, timestamp, key, value, headers)))
    check_end(position, len(view), count)
    return records


def decode_rows(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    row_type: type[T],
    before: tuple[str, int],
    between: tuple[int, int],
    start_offset: int,
    end_offset_exclusive: int,
) -> list[T]:
    """As `decode`, a `row_type` (a tuple of nine without a `__dict__`) for each record of the range of offsets:
    `before` (topic, partition), offset, timestamp, `between` (timestamp type, leader epoch), key, value, headers.
    """
    new = tuple.__new__
    return [
        new(row_type, (*before, offset, timestamp, *between, key, value, headers))
        for offset, timestamp, key, value, headers in decode(
            buf,
            start,
            end,
            count,
            base_offset,
            last_offset_delta,
            base_timestamp,
            fixed_timestamp,
            tuple,
        )
        if start_offset <= offset < end_offset_exclusive
    ]


def check_offsets(base_offset: int, last_offset_delta: int) -> None:
    """Raise RecordsError(CORRUPT_MESSAGE) if the offsets of a batch are not valid in a log."""
    if base_offset < 0 or last_offset_delta < 0 or base_offset > _INT64_MAX - last_offset_delta - 1:
        raise corrupt(f"a batch can not have the base offset {base_offset} and the last delta {last_offset_delta}")


def decode_name(raw: bytes) -> str:
    """A header's name; invalid UTF-8 becomes U+FFFD, as in Kafka's own clients."""
    return raw.decode("utf-8", "replace")


def _put_varlong(out: bytearray, value: int) -> None:
    raw = ((value << 1) ^ (value >> 63)) & _MASK64
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _put_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(1)
    else:
        _put_varlong(out, len(content))
        out += content


def append_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """Append one encoded record to `out`."""
    body = bytearray(1)
    _put_varlong(body, wrap64(timestamp_delta))
    _put_varlong(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    _put_varlong(body, len(headers))
    for name, content in headers:
        _put_bytes(body, name.encode())
        _put_bytes(body, content)
    _put_varlong(out, len(body))
    out += body


def encode(out: bytearray, rows: Sequence[Row], base_timestamp: int, first_delta: int = 0) -> tuple[int, int]:
    """Append all `rows` (timestamp, key, value, headers) to `out`; returns the lowest and highest timestamp.

    `rows` must not be empty.
    """
    low, high = _INT64_MAX, _INT64_MIN
    for delta, (timestamp, key, value, headers) in enumerate(rows, first_delta):
        append_record(out, delta, timestamp - base_timestamp, key, value, headers)
        low, high = min(low, timestamp), max(high, timestamp)
    return low, high


def murmur2(key: Buffer) -> int:
    """Kafka's hash of a key, not negative: `murmur2(key) & 0x7fffffff`."""
    content = bytes(key)
    size = len(content)
    mixed = (0x9747B28C ^ size) & 0xFFFFFFFF
    for (word,) in struct.iter_unpack("<I", content[: size & ~3]):
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ (word >> 24)) * 0x5BD1E995 & 0xFFFFFFFF
        mixed = (mixed * 0x5BD1E995 & 0xFFFFFFFF) ^ word
    if size & 3:
        mixed ^= int.from_bytes(content[size & ~3 :], "little")
        mixed = mixed * 0x5BD1E995 & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 13)) * 0x5BD1E995 & 0xFFFFFFFF
    return (mixed ^ (mixed >> 15)) & 0x7FFFFFFF
