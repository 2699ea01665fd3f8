"""Unsigned varints and tagged fields (KIP-482), for codecs that are written by hand.

Owns how both are written, read and skipped. Knows no message: the meaning of a field is up to its codec. Invalid bytes
raise MalformedRequest; a read past the end of the buffer raises IndexError.
"""

from __future__ import annotations

from typing import TypeAlias

from fenceline.wire.errors import MalformedRequest

Buffer: TypeAlias = bytes | bytearray | memoryview


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (7 bits per byte, lowest first)."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def uvarint(value: int) -> bytes:
    """One unsigned varint."""
    if value <= 127:
        return bytes((value,))
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


def read_uvarint(buf: Buffer, position: int) -> tuple[int, int]:
    """(value of at most 32 bits, position after it). Raises IndexError at the end, MalformedRequest if too long."""
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


def skip_tagged_field(buf: Buffer, position: int, end: int) -> int:
    """The position after one unknown tagged field."""
    _, position = read_uvarint(buf, position)
    size, position = read_uvarint(buf, position)
    if size > end - position:
        raise MalformedRequest("a tagged field exceeds the message")
    return position + size


def skip_tagged_fields(buf: Buffer, position: int, end: int) -> int:
    """The position after all tagged fields of a struct. Raises IndexError at the end of the buffer."""
    count, position = read_uvarint(buf, position)
    for _ in range(count):
        position = skip_tagged_field(buf, position, end)
    return position
