"""The scan over batches: both twins return the same rows and stop at the same position."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.compiled import compiled
from fenceline.records import _batch_scan_py
from fenceline.records._batch_scan_py import COLUMNS, TOTALS
from fenceline.records.batch import Codec, assign_in_place, compute_crc, iter_headers
from fenceline.records.build import build_batch

NATIVE = compiled("fenceline.records._batch_scan", _batch_scan_py.ABI)
TWINS = [
    pytest.param(_batch_scan_py, id="python"),
    pytest.param(NATIVE, id="compiled", marks=pytest.mark.compiled),
]


def batches(*counts: int, gap: int = 0, **fields: Any) -> bytes:
    out, offset = b"", 10
    for number, count in enumerate(counts):
        rows = [(1_000 + each, b"k", b"v" * 30, ()) for each in range(count)]
        one = build_batch(rows, **fields)
        assign_in_place(one, 0, offset, number // 2)
        out += one
        offset += count + gap
    return out


def scan(
    twin: Any,
    content: bytes,
    *,
    capacity: int = 100,
    next_offset: int = 0,
    epoch: int = -1,
    crc: bool = True,
    at: int = 0,
) -> tuple[int, list[list[int]], dict[str, int]]:
    rows, totals = array("q", bytes(8 * capacity * len(COLUMNS))), array("q", bytes(8 * len(TOTALS)))
    count = twin.scan_plain(content, at, len(content), 1_000_000 + at, rows, totals, next_offset, epoch, crc)
    columns = [list(rows[number * capacity : number * capacity + count]) for number in range(len(COLUMNS))]
    return count, columns, dict(zip(TOTALS, totals, strict=True))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("codec", Codec)
def test_rows_match_the_headers(twin: Any, codec: Codec) -> None:
    content = batches(1, 5, 2, codec=codec, producer_id=1 << 40, producer_epoch=3, base_sequence=7, transactional=True)
    count, columns, totals = scan(twin, content)
    wanted = [
        [
            header.position + 1_000_000, header.base_offset, header.last_offset, header.size_bytes, header.leader_epoch,
            header.crc, header.attributes, header.base_timestamp, header.max_timestamp, header.producer_id,
            header.producer_epoch, header.base_sequence, header.record_count, highest,
        ]
        for header, highest in zip(iter_headers(content), (1000, 1004, 1004), strict=True)
    ]  # fmt: skip
    assert [list(row) for row in zip(*columns, strict=True)] == wanted
    assert totals == {
        "records": 8, "gaps": 1, "missing_offsets": 10, "first_gap_row": 0, "holes": 0, "control_batches": 0,
    }  # fmt: skip
    assert count == 3


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 4096 - 70, 4096 - 69, 5000])
def test_the_checksum_of_short_batches_and_of_long_ones(twin: Any, size: int) -> None:
    content = bytearray(build_batch([(1, None, bytes(range(256)) * 20, ())])[: -5120 + size])
    content[8:12] = (len(content) - 12).to_bytes(4, "big")
    for wrong, found in ((0, 1), (1, 0)):
        content[17:21] = (compute_crc(content, 0, len(content)) ^ wrong).to_bytes(4, "big")
        assert scan(twin, bytes(content))[0] == found


@pytest.mark.parametrize("twin", TWINS)
def test_totals(twin: Any) -> None:
    last = build_batch([(1, b"k", b"v", ())], base_offset=30, leader_epoch=9, control=True)
    last[23:27] = (4).to_bytes(4, "big")
    last[17:21] = compute_crc(last, 0, len(last)).to_bytes(4, "big")
    content = batches(2, 2, 2, gap=3) + bytes(last)
    _, _, totals = scan(twin, content, next_offset=10)
    assert totals == {
        "records": 7, "gaps": 3, "missing_offsets": 3 + 3 + 8, "first_gap_row": 1, "holes": 1, "control_batches": 1,
    }  # fmt: skip


@pytest.mark.parametrize("twin", TWINS)
def test_scan_stops_at_special_batches_and_at_the_row_limit(twin: Any) -> None:
    content = batches(2, 2, 2)
    assert scan(twin, content, capacity=2)[0] == 2
    assert scan(twin, content, next_offset=11)[0] == 0
    assert scan(twin, content, epoch=1)[0] == 0
    assert scan(twin, content[:-1])[0] == 2
    assert scan(twin, content, at=1)[0] == 0
    damaged = bytearray(content)
    damaged[-1] ^= 1
    assert scan(twin, bytes(damaged))[0] == 2
    assert scan(twin, bytes(damaged), crc=False)[0] == 3


@pytest.mark.compiled
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.booleans(),
    st.integers(-1, 3),
    st.integers(-5, 30),
)
def test_twins_agree_on_damaged_bytes(damage: list[tuple[int, int]], crc: bool, epoch: int, next_offset: int) -> None:
    content = bytearray(batches(1, 2, 3, 1))
    for position, value in damage:
        content[position % len(content)] = value
    ways = [
        scan(twin, bytes(content), crc=crc, epoch=epoch, next_offset=next_offset) for twin in (_batch_scan_py, NATIVE)
    ]
    assert ways[0] == ways[1]


@pytest.mark.compiled
def test_compiled_twin_reads_only_inside_the_buffer() -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="of 10 bytes"):
        NATIVE.scan_plain(bytes(10), 0, 100, 0, array("q", bytes(8 * len(COLUMNS))), array("q", bytes(48)), 0, 0, True)
