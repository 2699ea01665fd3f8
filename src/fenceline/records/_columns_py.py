"""Batches to columns and columns to batches, in pure Python: the second half of the Cython kernel's twin.

Owns the layout of the buffers that `arrow.py` passes to Arrow (little-endian int32 offsets, validity bits with the
lowest bit first). Knows nothing of pyarrow. See `_kernel_py` for the contract of both twins.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.records._kernel_py import (
    append_record,
    check_delta,
    check_end,
    check_offsets,
    decode_name,
    murmur2,
    parse_record,
    records_slice,
    wrap64,
)
from fenceline.records.errors import RecordsError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_COLUMN_BYTES: Final = (1 << 31) - 1

BytesBuffers = tuple["Buffer | None", "Buffer", "Buffer"]
"""Validity bits (None: no nulls), int32 offsets, data."""
BytesColumn = tuple[int, int, "Buffer | None", "Buffer", "Buffer | None"]
"""Rows, array offset (rows to skip at the start), validity bits, int32 offsets, data."""
HeaderColumn = tuple[BytesColumn, BytesColumn, BytesColumn]
"""The lists (their offsets count headers, no data), all names, all values."""

if sys.byteorder != "little":
    raise ImportError("the columns are laid out for little-endian machines")


class Columns(NamedTuple):
    """The buffers of `rows` records in Arrow's layout: int64 offsets and timestamps, int32 for the other numbers."""

    rows: int
    topics: Buffer
    partitions: Buffer
    offsets: Buffer
    timestamps: Buffer
    timestamp_types: Buffer
    leader_epochs: Buffer
    keys: BytesBuffers
    values: BytesBuffers
    headers: tuple[int, Buffer, BytesBuffers, BytesBuffers] | None
    """Number of headers, int32 list offsets, names, values."""


def columns_full() -> RecordsError:
    return RecordsError(ErrorCode.MESSAGE_TOO_LARGE, "a column of an Arrow batch can not hold more than 2 GiB")


def timestamp_out_of_range(index: int) -> RecordsError:
    return RecordsError(
        ErrorCode.INVALID_TIMESTAMP, f"the timestamp of record {index} of the batch does not fit the unit asked for"
    )


class _Bytes:
    """A column of nullable bytes."""

    __slots__ = ("data", "offsets", "valid")

    def __init__(self) -> None:
        self.valid: list[bool] = []
        self.offsets = array("i", [0])
        self.data = bytearray()

    def put(self, content: bytes | None) -> None:
        self.valid.append(content is not None)
        if content:
            self.data += content
        self.offsets.append(len(self.data))

    def cut(self, rows: int) -> None:
        del self.valid[rows:]
        del self.offsets[rows + 1 :]
        del self.data[self.offsets[-1] :]

    def finish(self) -> BytesBuffers:
        bits: bytearray | None = None
        if not all(self.valid):
            bits = bytearray((len(self.valid) + 7) >> 3)
            for row, valid in enumerate(self.valid):
                if valid:
                    bits[row >> 3] |= 1 << (row & 7)
        return bits, self.offsets, self.data


class ColumnBuilder:
    """Collects the records of batches as columns. An unreadable batch leaves it unchanged.

    `timestamp_scale` is the number of units in a millisecond: 1, 1_000 (microseconds) or 1_000_000.
    """

    def __init__(self, with_headers: bool, timestamp_scale: int) -> None:
        self._with_headers = with_headers
        self._scale = timestamp_scale
        self._reset()

    def _reset(self) -> None:
        self.rows = 0
        self._topics, self._partitions = array("i"), array("i")
        self._offsets, self._timestamps = array("q"), array("q")
        self._types, self._epochs, self._lists = array("i"), array("i"), array("i", [0])
        self._keys, self._values, self._names, self._contents = _Bytes(), _Bytes(), _Bytes(), _Bytes()

    @property
    def size_bytes(self) -> int:
        """Approximate size of the columns."""
        columns = (self._keys, self._values, self._names, self._contents)
        return self.rows * 40 + sum(len(column.data) for column in columns)

    def has_room_for(self, payload_bytes: int) -> bool:
        """Whether records of `payload_bytes` certainly fit: a column is addressed by int32."""
        most = max(len(self._keys.data), len(self._values.data), self.rows)
        if self._with_headers:
            most = max(
                most, len(self._contents.data), len(self._names.valid), len(self._names.data) + 2 * payload_bytes
            )
        return most + payload_bytes <= _MAX_COLUMN_BYTES

    def expect(self, rows: int, value_bytes: int) -> None:
        """A hint, not a limit: about this much more will be appended. Saves the native twin repeated growth."""

    def append(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        first_offset: int,
        end_offset_exclusive: int,
        topic: int,
        partition: int,
        leader_epoch: int,
        timestamp_type: int,
    ) -> int:
        """Append those of the `count` records in `buf[start:end]` whose offset lies in the range; returns their number.

        Raises RecordsError: CORRUPT_MESSAGE; INVALID_TIMESTAMP if one does not fit the unit; MESSAGE_TOO_LARGE if there
        is no room (`has_room_for`).
        """
        view = records_slice(buf, start, end, count)
        check_offsets(base_offset, last_offset_delta)
        if not self.has_room_for(len(view)):
            raise columns_full()
        rows_before, headers_before = self.rows, len(self._names.valid)
        try:
            self._parse(
                view, count, base_offset, last_offset_delta, base_timestamp, fixed_timestamp, first_offset,
                end_offset_exclusive,
            )  # fmt: skip
        except BaseException:
            for column, rows in ((self._keys, rows_before), (self._values, rows_before)):
                column.cut(rows)
            for column in (self._names, self._contents):
                column.cut(headers_before)
            del self._offsets[rows_before:], self._timestamps[rows_before:], self._lists[rows_before + 1 :]
            raise
        added = len(self._offsets) - rows_before
        for constants, value in (
            (self._topics, topic),
            (self._partitions, partition),
            (self._epochs, leader_epoch),
            (self._types, timestamp_type),
        ):
            constants.extend([value] * added)
        self.rows += added
        return added

    def _parse(
        self,
        view: bytes,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        first_offset: int,
        end_offset_exclusive: int,
    ) -> None:
        position, previous = 0, -1
        lowest, highest = -((1 << 63) // self._scale), ((1 << 63) - 1) // self._scale
        for index in range(count):
            record, position = parse_record(view, position, len(view), index)
            check_delta(record.offset_delta, previous, last_offset_delta, index)
            previous = record.offset_delta
            offset = base_offset + record.offset_delta
            if not first_offset <= offset < end_offset_exclusive:
                continue
            timestamp = fixed_timestamp
            if timestamp is None:
                timestamp = wrap64(base_timestamp + record.timestamp_delta)
            if not lowest <= timestamp <= highest:
                raise timestamp_out_of_range(index)
            self._offsets.append(offset)
            self._timestamps.append(timestamp * self._scale)
            self._keys.put(None if record.key is None else view[slice(*record.key)])
            self._values.put(None if record.value is None else view[slice(*record.value)])
            if self._with_headers:
                for name_start, name_end, content in record.headers:
                    self._names.put(decode_name(view[name_start:name_end]).encode())
                    self._contents.put(None if content is None else view[slice(*content)])
                self._lists.append(len(self._names.valid))
        check_end(position, len(view), count)

    def finish(self) -> Columns:
        """The columns so far; the builder is empty afterwards."""
        headers = None
        if self._with_headers:
            headers = (len(self._names.valid), self._lists, self._names.finish(), self._contents.finish())
        columns = Columns(
            self.rows,
            self._topics,
            self._partitions,
            self._offsets,
            self._timestamps,
            self._types,
            self._epochs,
            self._keys.finish(),
            self._values.finish(),
            headers,
        )
        self._reset()
        return columns


class _Reader:
    """Random access to a nullable column of bytes."""

    __slots__ = ("bits", "data", "offsets", "rows", "shift")

    def __init__(self, column: BytesColumn) -> None:
        self.rows, self.shift, bits, offsets, data = column
        self.bits = None if bits is None else memoryview(bits).cast("B")
        self.offsets = memoryview(offsets).cast("B").cast("i")
        self.data = memoryview(b"" if data is None else data).cast("B")
        if self.bits is not None and self.bits.nbytes * 8 < self.shift + self.rows:
            raise ValueError("the validity bits of a column are cut short")
        if self.rows and len(self.offsets) < self.shift + self.rows + 1:
            raise ValueError("the offsets of a column are cut short")

    def is_null(self, row: int) -> bool:
        row += self.shift
        return self.bits is not None and not (self.bits[row >> 3] >> (row & 7)) & 1

    def __getitem__(self, row: int) -> bytes | None:
        if self.is_null(row):
            return None
        start, end = self.offsets[self.shift + row], self.offsets[self.shift + row + 1]
        if not 0 <= start <= end <= self.data.nbytes:
            raise ValueError(f"row {row}: the offsets of a column are broken")
        return bytes(self.data[start:end])


class _Headers:
    __slots__ = ("lists", "names", "values")

    def __init__(self, headers: HeaderColumn) -> None:
        self.lists, self.names, self.values = (_Reader(column) for column in headers)

    def __getitem__(self, row: int) -> list[tuple[str, bytes | None]]:
        if self.lists.is_null(row):
            return []
        start, end = (self.lists.offsets[self.lists.shift + row + step] for step in (0, 1))
        if not 0 <= start <= end <= min(self.names.rows, self.values.rows):
            raise ValueError(f"row {row}: the offsets of a column are broken")
        found = []
        for index in range(start, end):
            name = self.names[index]
            if name is None:
                raise ValueError(f"row {row}: a header has no name")
            found.append((name.decode(), self.values[index]))
        return found


def encode_columns(
    start_row: int,
    end_row: int,
    room_before: int,
    max_size_bytes: int,
    timestamps: Buffer | None,
    default_timestamp: int,
    keys: BytesColumn | None,
    values: BytesColumn | None,
    headers: HeaderColumn | None,
) -> tuple[bytearray, int, int, int]:
    """Encode rows from `start_row` on after `room_before` zero bytes, up to `max_size_bytes`.

    Always encodes at least one row. `timestamps` are int64 milliseconds. Returns the bytes, the row after the last one,
    the base timestamp (the first row's) and the highest. Raises ValueError on inconsistent columns.
    """
    for column in (keys, values, None if headers is None else headers[0]):
        if column is not None and end_row > column[0]:
            raise ValueError(f"rows up to {end_row} of a column of {column[0]}")
    if not 0 <= start_row < end_row:
        raise ValueError(f"no rows from {start_row} to {end_row}")
    times = None if timestamps is None else memoryview(timestamps).cast("B").cast("q")
    if times is not None and len(times) < end_row:
        raise ValueError("the timestamps are cut short")
    key_column, value_column = (None if column is None else _Reader(column) for column in (keys, values))
    header_column = None if headers is None else _Headers(headers)
    base = high = default_timestamp if times is None else times[start_row]
    out = bytearray(room_before)
    for row in range(start_row, end_row):
        before = len(out)
        timestamp = default_timestamp if times is None else times[row]
        append_record(
            out,
            row - start_row,
            timestamp - base,
            None if key_column is None else key_column[row],
            None if value_column is None else value_column[row],
            () if header_column is None else header_column[row],
        )
        if len(out) > max_size_bytes and row > start_row:
            del out[before:]
            return out, row, base, high
        high = max(high, timestamp)
    return out, end_row, base, high


def hash_column(column: BytesColumn) -> Buffer:
    """The `murmur2` of every key as int32, -1 for null."""
    keys = _Reader(column)
    hashes = array("i", bytes(4 * keys.rows))
    for row in range(keys.rows):
        key = keys[row]
        hashes[row] = -1 if key is None else murmur2(key)
    return hashes
