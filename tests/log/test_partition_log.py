"""Append, read, roll, retention and truncation of one log, and what a bad disk does to it."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.log.config import LogConfig
from fenceline.log.disk import OsDisk
from fenceline.log.errors import StorageError
from fenceline.log.open_files import OpenFiles
from fenceline.log.partition_log import PartitionLog
from fenceline.log.tail import WRITE_BYTES
from fenceline.records.batch import TimestampType, iter_headers, read_header
from fenceline.testing.sim_disk import SimDisk

from .helpers import DIRECTORY, TP, append, batch, open_log, read_all

SMALL = LogConfig(segment_bytes=1_000, index_interval_bytes=150)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    return disk


def files(disk: SimDisk) -> list[str]:
    return list(disk.listdir(DIRECTORY))


def test_a_log_that_was_never_written_has_no_directory_and_no_descriptor(disk: SimDisk) -> None:
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (0, 0, -1)
    assert len(log.read(0, 100, end_offset_exclusive=0).records) == 0
    assert log.flush_work() is None
    log.close()
    assert disk.stat(DIRECTORY) is None
    assert disk.open_descriptors == 0
    append(log)
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


def test_read_gives_whole_batches_within_its_limits(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    rng = Random(3)
    for _ in range(60):
        append(log, rng.randint(1, 6), size=rng.choice([1, 90]))
    everything = read_all(log)
    for _ in range(400):
        offset = rng.randrange(log.log_end_offset)
        end = rng.randint(0, log.log_end_offset)
        limit = rng.choice([0, 1, 100, 300, 5000])
        at_least_one = rng.random() < 0.5
        read = log.read(offset, limit, end_offset_exclusive=end, at_least_one=at_least_one)
        headers = list(iter_headers(read.records))
        allowed = [header for header, _ in everything if header.last_offset >= offset and header.next_offset <= end]
        assert [h.base_offset for h in headers] == [h.base_offset for h in allowed[: len(headers)]]
        assert len(read.records) <= limit or (at_least_one and len(headers) == 1)
        if allowed and (at_least_one or allowed[0].size_bytes <= limit):
            assert headers, f"offset {offset}, end {end}, limit {limit}"


def test_read_outside_is_out_of_range_e11(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.advance_log_start(2)
    for offset in (1, 6, -1):
        with pytest.raises(PeerError) as caught:
            log.read(offset, 100, end_offset_exclusive=5)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(log.read(5, 100, end_offset_exclusive=5).records) == 0


def test_what_is_not_in_the_page_cache_is_loaded_elsewhere() -> None:
    disk = SimDisk(resident=lambda: False)
    disk.mkdir("/data")
    log = open_log(disk, config=SMALL)
    for _ in range(40):
        append(log, 2)
    read = log.read(30, 500, end_offset_exclusive=80)
    assert not read.resident
    assert len(read.records) == 0
    log.truncate_to(20)
    assert next(iter_headers(read.load())).base_offset == 30, "the old file was still there for it"
    assert read.resident
    log.read(10, 500, end_offset_exclusive=20).close()
    before = disk.open_descriptors
    log.read(10, 500, end_offset_exclusive=20).close()
    assert disk.open_descriptors == before


def test_slices_outlive_truncation_and_deletion(tmp_path: object) -> None:
    log = open_log(OsDisk(), f"{tmp_path}/rain-0")
    for _ in range(300):
        append(log, 10, size=100)
    read = log.read(0, 1 << 20, end_offset_exclusive=3000)
    assert len(read.records) > 64 << 10
    kept = bytes(read.records)
    log.truncate_to(10)
    for removed in (log.truncate_fully_and_start_at(50),):
        assert removed.size_bytes > 0
    append(log, 1)
    assert bytes(read.records) == kept
    assert log.log_start_offset == 50


@pytest.mark.parametrize(
    ("config", "timestamps", "segments"),
    [
        (LogConfig(segment_bytes=200), [1, 1, 1, 1], 4),
        (LogConfig(segment_ms=100), [1, 101, 102, 300], 3),
        (LogConfig(segment_index_bytes=40, index_interval_bytes=0), [1, 2, 3, 4], 2),
    ],
)
def test_roll(disk: SimDisk, config: LogConfig, timestamps: list[int], segments: int) -> None:
    log = open_log(disk, config=config)
    for timestamp in timestamps:
        append(log, size=100, timestamp=timestamp)
    assert len(log.segments) == segments
    assert [s.base_offset for s in log.segments] == sorted({s.base_offset for s in log.segments})


def test_a_quiet_segment_rolls_by_the_clock(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_ms=100))
    assert not log.maybe_roll(10_000)
    append(log)
    assert not log.maybe_roll(1_100)
    assert log.maybe_roll(1_101)
    assert not log.maybe_roll(9_999)
    assert log.active_segment_base == 1


def test_more_than_a_segment_is_refused(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=100))
    with pytest.raises(PeerError) as caught:
        append(log, 1, size=200)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_retention_by_size_and_time_stops_at_the_high_watermark(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=200, retention_ms=100, retention_bytes=-1))
    for number in range(5):
        append(log, size=100, timestamp=1_000 + number * 50)
    log.advance_high_watermark(2)
    removed = log.enforce_retention(1_000_000)
    assert [segment.base_offset for segment in removed] == [0, 1]
    assert (log.log_start_offset, log.high_watermark) == (2, 2)
    assert any(name.endswith(".deleted") for name in files(disk))
    for segment in removed:
        segment.delete()
    assert not any(name.endswith(".deleted") for name in files(disk))
    log.advance_high_watermark(5)
    assert [s.base_offset for s in log.enforce_retention(1_000 + 200 + 1)] == [2]
    log.config = LogConfig(segment_bytes=200, retention_ms=-1, retention_bytes=log.segments[-1].size_bytes)
    assert [s.base_offset for s in log.enforce_retention(0)] == [3]
    log.config = LogConfig(segment_bytes=200, retention_ms=0)
    assert [s.reason for s in log.enforce_retention(1_000_000)] == ["time"]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)
    assert append(log) == 5
    assert open_log(disk, log_start_offset=5).log_end_offset == 6


def test_delete_records(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for number in range(40):
        append(log, epoch=number // 10)
    log.advance_high_watermark(35)
    with pytest.raises(PeerError) as caught:
        log.advance_log_start(36)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(25)
    assert not log.advance_log_start(20)
    assert log.epochs.entries == ((2, 25), (3, 30))
    gone = log.enforce_retention(1_000)
    assert gone
    assert all(segment.next_offset <= 25 and segment.reason == "log start" for segment in gone)
    again = open_log(disk, config=SMALL, log_start_offset=25)
    assert (again.log_start_offset, again.log_end_offset) == (25, 40)


def test_truncation_keeps_what_it_cuts(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for number in range(40):
        append(log, epoch=number // 10)
    before = b"".join(content for _, content in read_all(log))
    cut = log.truncate_to(17)
    assert (cut.from_offset, cut.to_offset) == (17, 40)
    assert (log.log_end_offset, log.high_watermark) == (17, 17)
    assert log.epochs.entries == ((0, 0), (1, 10))
    kept = b"".join(content for _, content in read_all(log))
    assert len(before) - len(kept) == cut.size_bytes
    evidence = b""
    for path in cut.evidence:
        fd = disk.open_read(path)
        evidence += disk.pread(fd, 1 << 20, 0)
        disk.close(fd)
    assert len(evidence) >= cut.size_bytes
    assert evidence[-cut.size_bytes :] == before[-cut.size_bytes :], "every byte that was cut is still there"
    assert append(log, epoch=7) == 17


def test_truncating_past_the_end_drops_an_epoch_without_records_e18(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, epoch=1)
    log.assign_epoch(5)
    assert log.epochs.entries == ((1, 0), (5, 1))
    log.truncate_to(9)
    assert log.epochs.entries == ((1, 0),)
    assert log.log_end_offset == 1


def test_truncate_fully_e19(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, len(log.epochs)) == (100, 100, 100, 0)
    disk.crash()
    again = open_log(disk)
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    assert append(again) == 100


def test_a_follower_takes_the_leaders_batches(disk: SimDisk) -> None:
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


def test_an_empty_follower_starts_inside_of_the_leaders_first_batch(disk: SimDisk) -> None:
    log = open_log(disk, log_start_offset=7)
    log.append_as_follower(batch(5, base_offset=5))
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)


# -- bad disks ------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_one_append_and_heals(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    size = log.segments[0].size_bytes
    disk.capacity_bytes = disk.used_bytes + 50
    with pytest.raises(StorageError) as caught:
        append(log, 3)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert caught.value.disk_full
    found = disk.stat(log.segments[0].path)
    assert found is not None
    assert found.size_bytes == size, "the partial write is cut off"
    assert log.log_end_offset == 3
    assert len(read_all(log)) == 1
    disk.capacity_bytes = None
    assert append(log, 3) == 3
    assert open_log(disk).log_end_offset == 6


def test_a_large_batch_is_written_in_pieces_and_cut_off_whole(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    size = log.segments[0].size_bytes
    large = 3 * WRITE_BYTES
    disk.capacity_bytes = disk.used_bytes + 2 * WRITE_BYTES
    with pytest.raises(StorageError):
        log.append_as_leader(batch(1, size=large), leader_epoch=0, now_ms=0)
    found = disk.stat(log.segments[0].path)
    assert found is not None
    assert found.size_bytes == size, "the pieces before the failed one are cut off too"
    disk.capacity_bytes = None
    writes = disk.calls["write"]
    log.append_as_leader(batch(1, size=large), leader_epoch=0, now_ms=0)
    assert disk.calls["write"] - writes == 4
    assert open_log(disk).log_end_offset == 4


def test_a_full_disk_at_the_first_append_and_at_a_roll(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=200))
    disk.capacity_bytes = 0
    with pytest.raises(StorageError):
        append(log, size=100)
    disk.capacity_bytes = None
    append(log, size=100)
    disk.fail("open", f"{1:020d}.log", errno.ENOSPC)
    with pytest.raises(StorageError):
        append(log, size=100)
    assert len(log.segments) == 1
    disk.heal()
    assert append(log, size=100) == 1
    assert len(log.segments) == 2


def test_a_write_that_can_not_be_cut_off_takes_the_partition_offline(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail("write")
    disk.fail("truncate")
    with pytest.raises(StorageError):
        append(log)
    disk.heal()
    with pytest.raises(StorageError, match="until the node is restarted"):
        append(log)
    assert len(read_all(log)) == 1, "readers go on"


def test_a_failed_fsync_takes_the_partition_offline(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail("fsync", ".log")
    work = log.flush_work()
    assert work is not None
    with pytest.raises(StorageError):
        work.run()
    disk.heal()
    assert log.recovery_point == 0
    with pytest.raises(StorageError, match="takes no more records"):
        append(log)


def test_flush_moves_the_recovery_point_to_what_it_covered(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(20):
        append(log)
    work = log.flush_work()
    assert work is not None
    assert log.flush_work() is None, "one at a time"
    append(log)
    work()
    work.done()
    assert (log.recovery_point, log.log_end_offset) == (20, 21)
    for segment in log.segments[:-1]:
        assert disk.stat(segment.stem + ".index") is not None
        assert disk.stat(f"{DIRECTORY}/{segment.next_offset:020d}.snapshot") is not None


def test_flush_due(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(flush_messages=3, flush_ms=500))
    append(log, 2)
    assert not log.flush_due(1_000)
    assert log.flush_due(1_500)
    append(log)
    assert log.flush_due(1_000)


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_open_files_and_windows_are_bounded(tmp_path: object) -> None:
    disk = OsDisk()
    descriptors = len(os.listdir("/proc/self/fd"))
    shared = OpenFiles(disk, max_files=5, max_mapped_bytes=18 << 20)
    logs = [open_log(disk, f"{tmp_path}/rain-{number}", files=shared) for number in range(20)]
    for _ in range(3):
        for log in logs:
            append(log, 100, size=1_000)
    for _ in range(2):
        for log in logs:
            assert [h.base_offset for h, _ in read_all(log, max_bytes=1 << 20)] == [0, 100, 200]
    assert shared.open_count <= 5
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 5
    assert 0 < shared.window_count <= 3
    for log in logs:
        log.close()
    assert (shared.open_count, shared.window_count) == (0, 0)


def test_readable_bytes_is_exact_at_the_end_and_never_reads(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(30):
        append(log)
    end = log.log_end_offset
    assert log.readable_bytes(end, end) == 0
    reads = disk.calls.get("read", 0)
    assert log.readable_bytes(0, end) == log.size_bytes
    assert log.readable_bytes(end - 1, end) == log.segments[-1].size_bytes - log.segments[-1].last_batch_position
    assert log.readable_bytes(5, end) > 0
    assert disk.calls.get("read", 0) == reads


def test_look_ups_by_time_l20_l22(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for number in range(40):
        append(log, 2, timestamp=1_000 + number * 10, epoch=number // 20)
    found = log.offset_for_timestamp(1_201)
    assert found == (41, 1_201, 1)
    assert log.offset_for_timestamp(0) == (0, 1_000, 0)
    assert log.offset_for_timestamp(1_392) is None
    assert log.offset_for_timestamp(1_300, end_offset_exclusive=60) is None
    assert log.offset_of_max_timestamp() == (79, 1_391, 1)
    assert log.offset_of_max_timestamp(end_offset_exclusive=79) is None
    log.advance_log_start(50)
    assert log.offset_for_timestamp(0) == (50, 1_250, 1)
    assert isinstance(log, PartitionLog)
    assert log.topic_partition == TP
