"""The scalars of the protocol, one at a time: for codecs that are written by hand and are not on the hot path.

Owns varints, strings, arrays and tagged fields of both encodings (compact ones since KIP-482). Every read is checked
against the end of the buffer; whatever is wrong with the bytes raises MalformedRequest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from fenceline.wire.errors import MalformedRequest

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_UINT16: Final = struct.Struct(">H")
_UINT32: Final = struct.Struct(">I")
_FLOAT64: Final = struct.Struct(">d")


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (7 bits a byte, lowest first)."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def take_uvarint(buf: Buffer, position: int) -> tuple[int, int]:
    """(value of at most 32 bits, position behind it). Raises IndexError at the end, MalformedRequest if too long."""
    byte = buf[position]
    if byte < 128:
        return byte, position + 1
    value = byte & 127
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buf[position]
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position + 1
    raise MalformedRequest("a varint has more than 32 bits")


def take_uvarlong(buf: Buffer, position: int) -> tuple[int, int]:
    """As `take_uvarint`, with up to 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = buf[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >= 1 << 64:
                break
            return value, position
    raise MalformedRequest("a varint has more than 64 bits")


def zigzag(value: int) -> int:
    """A signed 64-bit number as the unsigned one that a signed varint holds."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def skip_tagged_field(buf: Buffer, position: int, end: int) -> int:
    """The position behind one tagged field that nobody knows."""
    _, position = take_uvarint(buf, position)
    size, position = take_uvarint(buf, position)
    if size > end - position:
        raise MalformedRequest("a tagged field ends outside of the message")
    return position + size


def skip_tagged_fields(buf: Buffer, position: int, end: int) -> int:
    """The position behind the whole section of tagged fields. Raises IndexError at the end of the buffer."""
    count, position = take_uvarint(buf, position)
    for _ in range(count):
        position = skip_tagged_field(buf, position, end)
    return position


class Reader:
    """Reads one message from front to back. `flexible` chooses the encoding of lengths."""

    __slots__ = ("_buf", "_end", "_flexible", "position")

    def __init__(self, buf: Buffer, position: int = 0, *, flexible: bool = True) -> None:
        self._buf = buf
        self._end = len(buf)
        self._flexible = flexible
        self.position = position

    @property
    def remaining_bytes(self) -> int:
        return self._end - self.position

    def int8(self) -> int:
        return int(self._fixed(_INT8)[0])

    def int16(self) -> int:
        return int(self._fixed(_INT16)[0])

    def int32(self) -> int:
        return int(self._fixed(_INT32)[0])

    def int64(self) -> int:
        return int(self._fixed(_INT64)[0])

    def uint16(self) -> int:
        return int(self._fixed(_UINT16)[0])

    def uint32(self) -> int:
        return int(self._fixed(_UINT32)[0])

    def float64(self) -> float:
        return float(self._fixed(_FLOAT64)[0])

    def boolean(self) -> bool:
        return self.int8() != 0

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.raw(16)))

    def uvarint(self) -> int:
        try:
            value, self.position = take_uvarint(self._buf, self.position)
        except IndexError:
            raise MalformedRequest("a varint is cut off") from None
        return value

    def varint(self) -> int:
        return unzigzag(self.uvarint())

    def varlong(self) -> int:
        try:
            value, self.position = take_uvarlong(self._buf, self.position)
        except IndexError:
            raise MalformedRequest("a varint is cut off") from None
        return unzigzag(value)

    def raw(self, size_bytes: int) -> Buffer:
        """The next bytes, of the buffer's own type. Negative sizes and ends outside raise MalformedRequest."""
        start = self.position
        if not 0 <= size_bytes <= self._end - start:
            raise MalformedRequest(f"{size_bytes} bytes wanted at {start} of {self._end}")
        self.position = start + size_bytes
        return self._buf[start : self.position]

    def nullable_bytes(self) -> bytes | None:
        size = self.uvarint() - 1 if self._flexible else self.int32()
        return None if size < 0 else bytes(self.raw(size))

    def bytes(self) -> bytes:
        return _not_null(self.nullable_bytes())

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1 if self._flexible else self.int16()
        if size < 0:
            return None
        try:
            return str(self.raw(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("a string is not UTF-8") from None

    def string(self) -> str:
        return _not_null(self.nullable_string())

    def nullable_array(self, element: Callable[[Reader], T], *, smallest_bytes: int = 1) -> list[T] | None:
        """Elements read by `element`, each of which takes at least `smallest_bytes`."""
        count = self.uvarint() - 1 if self._flexible else self.int32()
        if count < 0:
            return None
        if count * smallest_bytes > self.remaining_bytes:
            raise MalformedRequest(f"an array claims {count} elements in {self.remaining_bytes} bytes")
        return [element(self) for _ in range(count)]

    def array(self, element: Callable[[Reader], T], *, smallest_bytes: int = 1) -> list[T]:
        return _not_null(self.nullable_array(element, smallest_bytes=smallest_bytes))

    def tagged_fields(self) -> dict[int, Buffer]:
        """All tagged fields of this struct, undecoded; nothing where the encoding has none."""
        found: dict[int, Buffer] = {}
        if self._flexible:
            for _ in range(self.uvarint()):
                tag = self.uvarint()
                found[tag] = self.raw(self.uvarint())
        return found

    def _fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self._buf, self.position)
        except struct.error:
            raise MalformedRequest(f"the message is cut off at {self._end}") from None
        self.position += layout.size
        return values


def _not_null(value: T | None) -> T:
    if value is None:
        raise MalformedRequest("null where nothing may be null")
    return value


class Writer:
    """Appends to one bytearray, `out`. `flexible` chooses the encoding of lengths."""

    __slots__ = ("_flexible", "out")

    def __init__(self, *, flexible: bool = True) -> None:
        self.out = bytearray()
        self._flexible = flexible

    def int8(self, value: int) -> None:
        self.out += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self.out += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self.out += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.out += _INT64.pack(value)

    def uint16(self, value: int) -> None:
        self.out += _UINT16.pack(value)

    def uint32(self, value: int) -> None:
        self.out += _UINT32.pack(value)

    def float64(self, value: float) -> None:
        self.out += _FLOAT64.pack(value)

    def boolean(self, value: bool) -> None:
        self.out.append(1 if value else 0)

    def uuid(self, value: UUID) -> None:
        self.out += value.bytes

    def uvarint(self, value: int) -> None:
        put_uvarint(self.out, value)

    def varint(self, value: int) -> None:
        put_uvarint(self.out, zigzag(value))

    def varlong(self, value: int) -> None:
        put_uvarint(self.out, zigzag(value))

    def raw(self, value: Buffer) -> None:
        self.out += value

    def bytes(self, value: Buffer | None) -> None:
        """Bytes with their length; None is null."""
        self._length(None if value is None else len(value), _INT32)
        if value is not None:
            self.out += value

    def string(self, value: str | None) -> None:
        """UTF-8 with its length; None is null."""
        encoded = None if value is None else value.encode()
        self._length(None if encoded is None else len(encoded), _INT16)
        if encoded is not None:
            self.out += encoded

    def array(self, values: Sequence[T] | None, element: Callable[[T], None]) -> None:
        """The count, then `element(value)` for each; None is null."""
        self._length(None if values is None else len(values), _INT32)
        for value in values or ():
            element(value)

    def tagged_fields(self, fields: Iterable[tuple[int, Buffer]] = ()) -> None:
        """Tagged fields in order of their tags; nothing where the encoding has none."""
        if not self._flexible:
            return
        held = sorted(fields)
        put_uvarint(self.out, len(held))
        for tag, value in held:
            put_uvarint(self.out, tag)
            put_uvarint(self.out, len(value))
            self.out += value

    def _length(self, size: int | None, layout: struct.Struct) -> None:
        if self._flexible:
            put_uvarint(self.out, 0 if size is None else size + 1)
        else:
            self.out += layout.pack(-1 if size is None else size)
