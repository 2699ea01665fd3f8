"""Which offsets of fetched batches an audit counts as records: dense, compacted and corrupt batches."""

from __future__ import annotations

import struct

from fenceline.client.core.fetched import scan
from fenceline.ids import TopicPartition
from fenceline.records.build import build_batch
from fenceline.records.crc import crc32c
from pyspark_fenceline.auditing.log import RecordRanges, note_records

TP = TopicPartition("t", 0)


def batch(base_offset: int, count: int, *, control: bool = False) -> bytearray:
    return build_batch([(0, None, b"v", [])] * count, base_offset=base_offset, leader_epoch=1, control=control)


def thinned(base_offset: int, count: int, last_offset_delta: int) -> bytearray:
    """A batch whose later records were compacted away: it keeps its last offset."""
    made = batch(base_offset, count)
    struct.pack_into(">i", made, 23, last_offset_delta)
    struct.pack_into(">I", made, 17, crc32c(made[21:]))
    return made


def damaged(base_offset: int, count: int) -> bytearray:
    made = batch(base_offset, count)
    made[-1] ^= 1
    return made


def found(*batches: bytearray, start: int = 0, end: int = 1000) -> RecordRanges:
    result = RecordRanges()
    piece, _ = scan(TP, memoryview(b"".join(batches)), start, -1, end_offset_exclusive=end, check_crcs=False)
    note_records(result, piece)
    return result


def test_dense_batches_are_ranges() -> None:
    assert found(batch(0, 5), batch(5, 3), batch(10, 2)).present == [(0, 8), (10, 12)]
    assert found(batch(0, 5), batch(5, 3), start=2, end=7).present == [(2, 7)]


def test_control_batches_hold_no_records() -> None:
    assert found(batch(0, 5), batch(5, 1, control=True), batch(6, 2)).present == [(0, 5), (6, 8)]


def test_compacted_batches_are_decoded() -> None:
    assert found(thinned(0, 3, 9), batch(10, 1)).present == [(0, 3), (10, 11)]


def test_a_checksum_mismatch_is_reported_and_later_batches_are_read() -> None:
    result = found(batch(0, 2), damaged(2, 3), batch(5, 2))
    assert result.present == [(0, 2), (5, 7)]
    assert result.unreadable == [(2, 5)]
