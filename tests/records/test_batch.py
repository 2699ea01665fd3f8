"""The header view and in-place changes."""

from __future__ import annotations

import struct

import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    Codec,
    TimestampType,
    assign_in_place,
    check_crc,
    crc_is_valid,
    iter_headers,
    peek_header,
    read_header,
    set_create_time,
    set_log_append_time,
)
from fenceline.records.build import build_batch
from fenceline.records.errors import RecordsError

ROWS = [(1000, b"k", b"v", ()), (900, None, None, (("h", b"x"),)), (1200, b"", b"", ())]


def test_every_field() -> None:
    batch = b"pad" + build_batch(
        ROWS, base_offset=7, leader_epoch=4, codec=Codec.NONE, producer_id=11, producer_epoch=3, base_sequence=40,
        transactional=True, control=True, timestamp_type=TimestampType.LOG_APPEND_TIME,
    )  # fmt: skip
    header = read_header(batch, 3)
    assert header.position == 3
    assert header.end_position == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.leader_epoch, header.magic, header.record_count) == (4, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1200)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (11, 3, 40, 42)
    assert header.is_transactional
    assert header.is_control
    assert not header.has_delete_horizon
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert crc_is_valid(batch, header)


def test_last_sequence_wraps() -> None:
    assert read_header(build_batch(ROWS, producer_id=1, base_sequence=2**31 - 1)).last_sequence == 1
    assert read_header(build_batch(ROWS)).last_sequence == -1


def test_assigning_keeps_the_crc() -> None:
    batch = build_batch(ROWS)
    assign_in_place(batch, 0, 123_456_789_012, 99)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (123_456_789_012, 99)
    check_crc(batch, header)


def test_setting_timestamps_updates_the_crc() -> None:
    batch = bytearray(b"xx") + build_batch(ROWS)
    set_log_append_time(batch, 2, 5000)
    header = read_header(batch, 2)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 5000)
    assert crc_is_valid(batch, header)
    set_create_time(batch, 2, 1200)
    assert batch[2:] == build_batch(ROWS)


@pytest.mark.parametrize("at", [BATCH_OVERHEAD, 21, 40, -1])
def test_changed_byte_is_detected(at: int) -> None:
    batch = build_batch(ROWS)
    batch[at] ^= 1
    header = read_header(batch)
    assert not crc_is_valid(batch, header)
    with pytest.raises(RecordsError) as refused:
        check_crc(batch, header)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_consecutive_headers() -> None:
    batches = b"".join(build_batch(ROWS, base_offset=offset) for offset in (0, 3, 6))
    assert [h.base_offset for h in iter_headers(batches)] == [0, 3, 6]
    size = len(batches) // 3
    assert [h.base_offset for h in iter_headers(batches, size, 2 * size)] == [3]


@pytest.mark.parametrize("cut", [1, 30, 60, 70, 71])
def test_a_torn_tail(cut: int) -> None:
    one = build_batch(ROWS)
    torn = (one + one)[: len(one) + min(cut, len(one) - 1)]
    assert len(list(iter_headers(torn, allow_partial_tail=True))) == 1
    with pytest.raises(RecordsError):
        list(iter_headers(torn))
    with pytest.raises(RecordsError):
        read_header(torn, len(one))


def test_garbage_is_not_a_torn_tail() -> None:
    batch = build_batch(ROWS)
    struct.pack_into(">i", batch, 8, 48)
    with pytest.raises(RecordsError):
        list(iter_headers(batch, allow_partial_tail=True))
    old = build_batch(ROWS)
    old[16] = 1
    with pytest.raises(RecordsError, match="magic 1"):
        list(iter_headers(old, allow_partial_tail=True))


def test_peeking_needs_only_the_header() -> None:
    batch = build_batch(ROWS)
    assert peek_header(batch[:BATCH_OVERHEAD]) == read_header(batch)
    with pytest.raises(RecordsError):
        peek_header(batch[: BATCH_OVERHEAD - 1])


def test_codec_names() -> None:
    assert Codec.from_name("uncompressed") is Codec.NONE
    assert Codec.from_name("zstd") is Codec.ZSTD
    with pytest.raises(ValueError, match="producer"):
        Codec.from_name("producer")
    batch = build_batch(ROWS)
    batch[22] = 6
    with pytest.raises(RecordsError):
        _ = read_header(batch).codec
