"""Unsigned varints and tagged fields, by hand and by any number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import put_uvarint, read_uvarint, skip_tagged_fields, uvarint


@given(st.integers(0, 2**32 - 1))
def test_uvarint(value: int) -> None:
    out = bytearray(b"x")
    put_uvarint(out, value)
    assert read_uvarint(out, 1) == (value, len(out))
    assert uvarint(value) == out[1:]


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
        read_uvarint(bytes.fromhex(text), 0)


SECTION = bytes.fromhex("02 00 01 aa 8001 02 bbcc")
"""Two tagged fields: 0 of one byte, 128 of two."""


def test_tagged_fields_are_skipped() -> None:
    assert skip_tagged_fields(b"x" + SECTION + b"rest", 1, len(SECTION) + 5) == 1 + len(SECTION)
    assert skip_tagged_fields(b"\0rest", 0, 5) == 1


def test_tagged_fields_beyond_the_end_are_rejected() -> None:
    for size in range(len(SECTION)):
        with pytest.raises((MalformedRequest, IndexError)):
            skip_tagged_fields(SECTION[:size], 0, size)
    with pytest.raises(MalformedRequest, match="exceeds the message"):
        skip_tagged_fields(SECTION, 0, len(SECTION) - 1)
