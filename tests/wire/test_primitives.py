"""Scalars one at a time, in both encodings."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import Reader, Writer, put_uvarint, take_uvarint, unzigzag, zigzag

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@given(st.integers(0, 2**32 - 1))
def test_uvarint(value: int) -> None:
    out = bytearray(b"x")
    put_uvarint(out, value)
    assert take_uvarint(out, 1) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")]
)
def test_uvarint_by_hand(value: int, text: str) -> None:
    out = bytearray()
    put_uvarint(out, value)
    assert out.hex() == text


@pytest.mark.parametrize("text", ["ffffffff10", "ffffffff7f", "808080808000", "ffffffffff"])
def test_uvarint_too_long(text: str) -> None:
    with pytest.raises(MalformedRequest):
        take_uvarint(bytes.fromhex(text), 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag(value: int) -> None:
    assert 0 <= zigzag(value) < 2**64
    assert unzigzag(zigzag(value)) == value
    writer = Writer()
    writer.varlong(value)
    assert Reader(writer.out).varlong() == value


def test_zigzag_by_hand() -> None:
    assert [zigzag(v) for v in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]


@given(st.booleans(), st.data())
def test_all_of_them_in_a_row(flexible: bool, data: st.DataObject) -> None:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        **{name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in INTEGERS.items()},
        "uint16": st.integers(0, 2**16 - 1),
        "uint32": st.integers(0, 2**32 - 1),
        "float64": st.floats(allow_nan=False),
        "boolean": st.booleans(),
        "uuid": st.uuids(),
        "varint": st.integers(-(2**31), 2**31 - 1),
        "nullable_string": st.none() | st.text(max_size=200),
        "nullable_bytes": st.none() | st.binary(max_size=200),
        "nullable_array": st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200),
    }
    names = data.draw(st.lists(st.sampled_from(sorted(kinds)), max_size=8))
    values = [data.draw(kinds[name]) for name in names]
    writer = Writer(flexible=flexible)
    for name, value in zip(names, values, strict=True):
        if name == "nullable_array":
            writer.array(value, writer.int32)
        else:
            getattr(writer, name.removeprefix("nullable_"))(value)
    writer.tagged_fields([(3, b"abc"), (0, b"")])
    reader = Reader(memoryview(writer.out), flexible=flexible)
    for name, value in zip(names, values, strict=True):
        read = (
            reader.nullable_array(Reader.int32, smallest_bytes=4)
            if name == "nullable_array"
            else getattr(reader, name)()
        )
        assert read == value
    tags = {tag: bytes(value) for tag, value in reader.tagged_fields().items()}
    assert tags == ({0: b"", 3: b"abc"} if flexible else {})
    assert reader.remaining_bytes == 0


READS: list[Callable[[Reader], Any]] = [
    *(getattr(Reader, name) for name in ("int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "boolean")),
    *(getattr(Reader, name) for name in ("uuid", "uvarint", "varint", "varlong", "string", "bytes", "tagged_fields")),
    Reader.nullable_string,
    Reader.nullable_bytes,
    lambda reader: reader.array(Reader.string),
]


@given(st.booleans(), st.binary(max_size=30), st.lists(st.sampled_from(READS), min_size=1, max_size=6))
def test_any_bytes(flexible: bool, raw: bytes, reads: list[Callable[[Reader], Any]]) -> None:
    reader = Reader(raw, flexible=flexible)
    try:
        for read in reads:
            read(reader)
    except MalformedRequest:
        pass
    assert 0 <= reader.position <= len(raw)


@pytest.mark.parametrize(
    ("flexible", "text", "read"),
    [
        (True, "00", Reader.string),
        (False, "ffff", Reader.string),
        (True, "03 ff ff", Reader.string),
        (True, "05 61", Reader.string),
        (False, "0005 61", Reader.string),
        (True, "00", lambda r: r.array(Reader.int8)),
        (False, "7fffffff 00", lambda r: r.array(Reader.int8)),
        (True, "ffffffff0f 00", lambda r: r.array(Reader.int8)),
        (True, "01 00 05 61", Reader.tagged_fields),
        (True, "ffffffff0f", Reader.bytes),
    ],
)
def test_lengths_that_can_not_be(flexible: bool, text: str, read: Callable[[Reader], Any]) -> None:
    with pytest.raises(MalformedRequest):
        read(Reader(bytes.fromhex(text), flexible=flexible))


def test_strings_that_are_too_long_for_the_old_encoding() -> None:
    with pytest.raises(Exception, match=r"short|requires"):
        Writer(flexible=False).string("x" * 40_000)
    assert Reader(bytes(16)).uuid() == uuid.UUID(int=0)
