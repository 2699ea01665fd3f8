"""The parts that Produce and Fetch share."""

from __future__ import annotations

import pytest

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.partitioned import (
    LeaderEndpoint,
    put_endpoints_tag,
    put_records,
    read_count,
    read_endpoints_tag,
    read_records,
    read_string,
    read_topic,
    runs_by_topic,
)
from fenceline.wire.primitives import Buffer


def test_runs_keep_the_order() -> None:
    a, b = ("a", b"1"), ("b", b"1")
    assert runs_by_topic([a, a, b, a], by_id=False) == [[a, a], [b], [a]]
    assert runs_by_topic([a, a, b, a], by_id=True) == [[a, a, b, a]]
    assert runs_by_topic([], by_id=False) == []


@pytest.mark.parametrize(("flexible", "text"), [(True, "05"), (False, "00000004"), (True, "00"), (False, "ffffffff")])
def test_impossible_counts_are_rejected(flexible: bool, text: str) -> None:
    raw = bytes.fromhex(text) + bytes(11)
    with pytest.raises(MalformedRequest, match=r"claims 4 elements in 11 bytes|null"):
        read_count(raw, 0, len(raw), flexible, 3)


def test_the_largest_possible_counts_are_accepted() -> None:
    raw = b"\x05" + bytes(12)
    assert read_count(raw, 0, len(raw), True, 3) == (4, 1)


@pytest.mark.parametrize("flexible", [True, False])
def test_lengths_beyond_the_end_are_rejected(flexible: bool) -> None:
    short = b"\x04ab" if flexible else b"\0\x03ab"
    long = b"\x04ab" if flexible else b"\0\0\0\x03ab"
    with pytest.raises(MalformedRequest, match="string exceeds"):
        read_string(short, 0, len(short), flexible)
    with pytest.raises(MalformedRequest, match="records exceed"):
        read_records(memoryview(long), 0, len(long), flexible)
    with pytest.raises(MalformedRequest, match="truncated"):
        read_topic(bytes(15), 0, 15, True, True)


def test_small_records_are_copied_and_large_ones_are_not() -> None:
    for size, copied in ((10, True), (1023, True), (1024, False)):
        buffers: list[Buffer] = []
        records = memoryview(bytes(size))
        rest = put_records(buffers, bytearray(b"head"), records, False)
        assert (buffers == []) is copied
        assert b"".join([*buffers, rest]) == b"head" + size.to_bytes(4, "big") + bytes(size)


def test_endpoints() -> None:
    endpoints = (LeaderEndpoint(1, "host", 9092, None), LeaderEndpoint(2, "other", 9093, "rack"))
    out = bytearray()
    put_endpoints_tag(out, endpoints)
    assert out[:3] == bytes([1, 0, len(out) - 3])
    assert read_endpoints_tag(out, 0, len(out), known=True) == endpoints
    assert read_endpoints_tag(out, 0, len(out), known=False) == ()
    out[2] += 1
    with pytest.raises(MalformedRequest):
        read_endpoints_tag(out + b"\0", 0, len(out) + 1, known=True)
