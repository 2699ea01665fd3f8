"""Appends to one log: offsets, epochs, timestamps, and appends of a follower."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.log.core.config import LogConfig
from fenceline.records.batch import TimestampType, read_header
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, append, batch, files, open_log


def test_log_that_was_never_written_has_no_directory_and_no_descriptor(disk: SimDisk) -> None:
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (0, 0, -1)
    assert len(log.read(0, 100, end_offset_exclusive=0).records) == 0
    assert log.flush_work() is None
    log.close()
    assert disk.stat(DIRECTORY) is None
    assert disk.open_descriptors == 0
    append(open_log(disk))
    assert "partition.metadata" in files(disk)


def test_offsets_and_epoch_are_assigned_in_place(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 3, epoch=4)
    made = batch(2)
    info = log.append_as_leader(made, leader_epoch=6, now_ms=1_000)
    assert (info.base_offset, info.last_offset, info.log_append_time_ms, info.duplicate) == (3, 4, -1, False)
    header = read_header(made)
    assert (header.base_offset, header.leader_epoch) == (3, 6)
    assert log.epochs.entries == ((4, 0), (6, 3))
    assert log.end_offset_for_epoch(4) == (4, 3)


def test_one_append_is_one_write(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    before = dict(disk.calls)
    for _ in range(20):
        append(log, 40, size=500)
    assert disk.calls["write"] - before["write"] == 20
    assert {call: number for call, number in disk.calls.items() if call != "write"} == {
        call: number for call, number in before.items() if call != "write"
    }


def test_log_append_time(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    info = log.append_as_leader(batch(2, timestamp=5), leader_epoch=0, now_ms=77_000)
    assert info.log_append_time_ms == 77_000
    found = log.offset_for_timestamp(77_000)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, 77_000)


def test_batch_larger_than_a_segment_is_rejected(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=100))
    with pytest.raises(PeerError) as caught:
        append(log, 1, size=200)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_follower_appends_the_leaders_batches(disk: SimDisk) -> None:
    log = open_log(disk)
    one, two = batch(2, leader_epoch=3), batch(3, base_offset=2, leader_epoch=4)
    torn = batch(1, base_offset=5)[:-4]
    info = log.append_as_follower(memoryview(bytes(one) + bytes(two) + bytes(torn)))
    assert (info.base_offset, info.last_offset) == (0, 4)
    assert log.epochs.entries == ((3, 0), (4, 2))
    with pytest.raises(InternalError, match="does not continue"):
        log.append_as_follower(batch(1, base_offset=4))
    spoilt = bytearray(batch(1, base_offset=5))
    spoilt[-3] ^= 1
    with pytest.raises(PeerError) as caught:
        log.append_as_follower(memoryview(spoilt))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 5


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
def test_follower_appends_at_most_one_segment_at_a_time(disk: SimDisk, is_transactional: bool) -> None:
    """A response with more batches than fit into a segment; the rest is fetched again."""
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    fields = producer if is_transactional else {}
    batches = [batch(base_offset=each, leader_epoch=1, **fields) for each in range(5)]
    size = len(batches[0])
    log = open_log(disk, config=LogConfig(segment_bytes=2 * size + size // 2))
    for first, taken in ((0, 2), (2, 2), (4, 1)):
        info = log.append_as_follower(memoryview(b"".join(batches[first:])))
        assert (info.base_offset, info.last_offset, info.size_bytes) == (first, first + taken - 1, taken * size)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_empty_follower_starts_inside_the_leaders_first_batch(disk: SimDisk) -> None:
    log = open_log(disk, log_start_offset=7)
    log.append_as_follower(batch(5, base_offset=5))
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)
