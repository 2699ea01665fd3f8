"""Adds or replaces one column of a Parquet file without decoding the other columns.

Owns the copy of a file's bytes with another footer: existing pages keep their position, those of the new column follow
them, and the footer references both. A backfill changes one small column of wide files; decoding, encoding and
compressing the others would be most of the work. The footer is Thrift in its compact protocol, in which each field has
a number and a type, so unknown fields are preserved. Must never change the content of other columns.

Field numbers are those of parquet-format's `parquet.thrift`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8
_COPY_BYTES: Final = 8 << 20

# FileMetaData
_SCHEMA, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 4, 5, 7
# SchemaElement
_NAME, _NUM_CHILDREN = 4, 5
# RowGroup
_COLUMNS, _TOTAL_BYTES, _TOTAL_COMPRESSED = 1, 2, 6
# ColumnChunk
_FILE_OFFSET, _META_DATA = 2, 3
_INDEX_OFFSETS: Final = (4, 6)
# ColumnMetaData
_PATH, _UNCOMPRESSED, _COMPRESSED = 3, 6, 7
_PAGE_OFFSETS: Final = (9, 10, 11, 14)
# KeyValue
_KEY: Final = 1
_SCHEMAS_OF_WRITERS: Final = (b"ARROW:schema", b"org.apache.spark.sql.parquet.row.metadata")
"""Schemas of writers, which would not contain the column."""


def with_column(source: Any, target: Any, name: str, column: pa.ChunkedArray, codec: str) -> int:
    """Copy a file to the stream `target` with `column` in place of its top-level column of this name, or after its last
    one; returns the number of bytes written. `source`: opened for random access. `column`: of a flat type, with as many
    values as the file has rows. Raises `OperatorError` for a file without a plain footer.
    """
    footer, end = _read_footer(source)
    groups = footer.rows(_ROW_GROUPS)
    donor = io.BytesIO(_written(name, column, [group.number(3) for group in groups], codec))
    other, other_end = _read_footer(donor)
    shift = end - len(_MAGIC)
    place = _put_schema(footer, other, name)
    for group, added in zip(groups, other.rows(_ROW_GROUPS), strict=True):
        _put_chunk(group, added.rows(_COLUMNS)[0], place, shift)
    _drop_writers_schemas(footer)
    written = footer.encode()
    source.seek(0)
    _copy(source, target, end)
    donor.seek(len(_MAGIC))
    _copy(donor, target, other_end - len(_MAGIC))
    target.write(written)
    target.write(struct.pack("<I", len(written)) + _MAGIC)
    return end + other_end - len(_MAGIC) + len(written) + _TAIL_BYTES


def _written(name: str, column: pa.ChunkedArray, sizes: Sequence[int], codec: str) -> bytes:
    """A file of this column alone, in row groups of these sizes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert sum(sizes) == len(column), f"{len(column)} values for {sum(sizes)} rows"
    rows = pa.table({name: column})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, compression=codec, store_schema=False, version="2.6") as writer:
        start = 0
        for size in sizes:
            writer.write_table(rows.slice(start, size), row_group_size=max(size, 1))
            start += size
    return sink.getvalue()


def _read_footer(file: Any) -> tuple[_Struct, int]:
    """The footer, and where it begins."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - _TAIL_BYTES, 0))
    tail = file.read(_TAIL_BYTES)
    if len(tail) < _TAIL_BYTES or tail[4:] != _MAGIC:
        raise OperatorError(
            "A file of the table is no Parquet file with a plain footer",
            "Encrypted files cannot be rewritten: copy the table to another one with the column.",
        )
    (length,) = struct.unpack("<I", tail[:4])
    begin = size - _TAIL_BYTES - length
    file.seek(begin)
    return _Reader(file.read(length)).structure(), begin


def _copy(source: Any, target: Any, size: int) -> None:
    left = size
    while left:
        part = source.read(min(left, _COPY_BYTES))
        assert part, "a file ended before its footer"
        target.write(part)
        left -= len(part)


# The footer -----------------------------------------------------------------------------------------------------------


def _put_schema(footer: _Struct, other: _Struct, name: str) -> int | None:
    """Put the column into the schema; returns its index among the leaf columns, None if it was appended."""
    elements, element = footer.rows(_SCHEMA), other.rows(_SCHEMA)[1]
    # The schema is a tree in preorder; the column must be a leaf whose parent is the root.
    left, leaf = [elements[0].number(_NUM_CHILDREN)], 0
    for place, known in enumerate(elements[1:], 1):
        depth = len(left)
        left[-1] -= 1
        children = known.number(_NUM_CHILDREN)
        if depth == 1 and known.text(_NAME) == name.encode():
            assert not children, f"column {name} is nested"
            elements[place] = element
            return leaf
        if children:
            left.append(children)
        else:
            leaf += 1
        while len(left) > 1 and not left[-1]:
            left.pop()
    elements.append(element)
    elements[0].put_number(_NUM_CHILDREN, elements[0].number(_NUM_CHILDREN) + 1)
    if _COLUMN_ORDERS in footer.fields:
        footer.rows(_COLUMN_ORDERS).append(other.rows(_COLUMN_ORDERS)[0])
    return None


def _put_chunk(group: _Struct, chunk: _Struct, place: int | None, shift: int) -> None:
    meta = chunk.structure(_META_DATA)
    for where, numbers in ((chunk, _INDEX_OFFSETS), (meta, _PAGE_OFFSETS)):
        for number in numbers:
            if number in where.fields:
                where.put_number(number, where.number(number) + shift)
    if chunk.number(_FILE_OFFSET):
        # Deprecated; newer writers set it to 0.
        chunk.put_number(_FILE_OFFSET, chunk.number(_FILE_OFFSET) + shift)
    chunks, before = group.rows(_COLUMNS), None
    if place is None:
        chunks.append(chunk)
    else:
        before, chunks[place] = chunks[place].structure(_META_DATA), chunk
    for total, part in ((_TOTAL_BYTES, _UNCOMPRESSED), (_TOTAL_COMPRESSED, _COMPRESSED)):
        if total in group.fields:
            old_size = 0 if before is None else before.number(part)
            group.put_number(total, group.number(total) - old_size + meta.number(part))


def _drop_writers_schemas(footer: _Struct) -> None:
    if _KEY_VALUES not in footer.fields:
        return
    pairs = footer.rows(_KEY_VALUES)
    pairs[:] = [pair for pair in pairs if pair.text(_KEY) not in _SCHEMAS_OF_WRITERS]
    if not pairs:
        footer.drop(_KEY_VALUES)


# Thrift, compact protocol ---------------------------------------------------------------------------------------------


class _Type(IntEnum):
    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    MAP = 11
    STRUCT = 12


_INTEGERS: Final = frozenset({_Type.I16, _Type.I32, _Type.I64})


@dataclass(slots=True)
class _Sequence:
    """A list or a set."""

    kind: int
    values: list[Any]


@dataclass(slots=True)
class _Map:
    key_kind: int
    kind: int
    pairs: list[tuple[Any, Any]]


@dataclass(slots=True)
class _Struct:
    """Type and value of fields by number. `raw`: the original bytes, until a field is returned for modification."""

    fields: dict[int, tuple[int, Any]] = field(default_factory=dict)
    raw: bytes | None = None

    def number(self, id: int) -> int:
        """0 if the field is missing."""
        return int(self.fields[id][1]) if id in self.fields else 0

    def put_number(self, id: int, value: int) -> None:
        self.raw = None
        self.fields[id] = self.fields[id][0], value

    def text(self, id: int) -> bytes:
        return bytes(self.fields[id][1])

    def rows(self, id: int) -> list[_Struct]:
        """The structs of a list, to be modified in place."""
        self.raw = None
        values: list[_Struct] = self.fields[id][1].values
        return values

    def structure(self, id: int) -> _Struct:
        """A nested struct, to be modified in place."""
        self.raw = None
        found: _Struct = self.fields[id][1]
        return found

    def drop(self, id: int) -> None:
        self.raw = None
        del self.fields[id]

    def encode(self) -> bytes:
        out = bytearray()
        _put_struct(out, self)
        return bytes(out)


class _Reader:
    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._at = 0

    def structure(self) -> _Struct:
        found = _Struct()
        id, begin = 0, self._at
        while True:
            head = self._byte()
            kind = head & 0x0F
            if not kind:
                found.raw = self._buffer[begin : self._at]
                return found
            id = id + (head >> 4) if head >> 4 else _signed(self._varint())
            found.fields[id] = kind, self._value(kind, in_struct=True)

    def _value(self, kind: int, *, in_struct: bool = False) -> Any:
        match kind:
            case _Type.TRUE | _Type.FALSE:
                # In a struct the type is the value.
                return kind if in_struct else self._byte()
            case _Type.BYTE:
                return self._byte()
            case _Type.I16 | _Type.I32 | _Type.I64:
                return _signed(self._varint())
            case _Type.DOUBLE:
                return self._bytes(8)
            case _Type.BINARY:
                return self._bytes(self._varint())
            case _Type.LIST | _Type.SET:
                head = self._byte()
                size = head >> 4 if head >> 4 < 15 else self._varint()
                return _Sequence(head & 0x0F, [self._value(head & 0x0F) for _ in range(size)])
            case _Type.MAP:
                size = self._varint()
                kinds = self._byte() if size else 0
                pairs = [(self._value(kinds >> 4), self._value(kinds & 0x0F)) for _ in range(size)]
                return _Map(kinds >> 4, kinds & 0x0F, pairs)
            case _Type.STRUCT:
                return self.structure()
        raise OperatorError(
            f"The footer of a Parquet file has a value of type {kind}, which Thrift does not have",
            "The file is damaged: restore it, or remove it from the table.",
        )

    def _byte(self) -> int:
        self._at += 1
        return self._buffer[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._buffer[self._at - size : self._at]

    def _varint(self) -> int:
        byte = self._buffer[self._at]
        if byte < 0x80:
            self._at += 1
            return byte
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


def _put_struct(out: bytearray, found: _Struct) -> None:
    if found.raw is not None:
        out += found.raw
        return
    before = 0
    for id, (kind, value) in sorted(found.fields.items()):
        step = id - before
        # A boolean of a struct is its type.
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            out += _varint(_zigzag(id))
        if kind not in (_Type.TRUE, _Type.FALSE):
            _put(out, kind, value)
        before = id
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    match kind:
        case _Type.TRUE | _Type.FALSE | _Type.BYTE:
            out.append(value)
        case _Type.DOUBLE:
            out += value
        case _Type.BINARY:
            out += _varint(len(value))
            out += value
        case _Type.LIST | _Type.SET:
            size = len(value.values)
            out.append((size if size < 15 else 15) << 4 | value.kind)
            if size >= 15:
                out += _varint(size)
            for one in value.values:
                _put(out, value.kind, one)
        case _Type.MAP:
            out += _varint(len(value.pairs))
            if value.pairs:
                out.append(value.key_kind << 4 | value.kind)
            for key, one in value.pairs:
                _put(out, value.key_kind, key)
                _put(out, value.kind, one)
        case _Type.STRUCT:
            _put_struct(out, value)
        case _:
            assert kind in _INTEGERS, f"type {kind}"
            out += _varint(_zigzag(value))


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
