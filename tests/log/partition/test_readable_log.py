"""Reads of one log: bounds, page cache misses, slices that outlive a truncation, look-ups by timestamp."""

from __future__ import annotations

import errno
import os
from random import Random
from typing import Any, cast

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core import _tail_py
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.errors import StorageError
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import SMALL, TP, append, open_log, read_all


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


def _at_once(log: PartitionLog, *arguments: Any) -> tuple[bytes, int] | None:
    """The result of `batches_at`, which is the same compiled and in Python."""
    found = log.batches_at(*arguments)
    twin = _tail_py.LogTail.batches_at(cast("Any", log), *arguments)
    assert (found and (bytes(found[0]), found[1])) == (twin and (bytes(twin[0]), twin[1])), arguments
    return found and (bytes(found[0]), found[1])


def test_batches_at_gives_as_much_as_fits(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=4_000, index_interval_bytes=150))
    rng = Random(5)
    for _ in range(120):
        append(log, rng.randint(1, 6), size=rng.choice([1, 90]))
    everything = read_all(log)
    for _ in range(4_000):
        offset = rng.randrange(log.log_end_offset)
        number = log.segment_number(offset)
        segment = log.segments[number]
        end = rng.choice([log.log_end_offset, segment.next_offset, rng.randint(offset + 1, log.log_end_offset)])
        limit, at_least_one = rng.choice([0, 1, 100, 300, 5000, 70_000]), rng.random() < 0.5
        held = [each for each, _ in everything if segment.base_offset <= each.base_offset < segment.next_offset]
        wanted = [each for each in held if each.last_offset >= offset and each.next_offset <= end]
        position = sum(each.size_bytes for each in held if each.last_offset < offset)
        fitting = 0
        for each in wanted:
            if fitting + each.size_bytes > limit:
                break
            fitting += each.size_bytes
        found = _at_once(log, segment, offset, end, limit, at_least_one, rng.choice([-1, position]))
        if found is None:
            assert not fitting, "a look-up is needed for a batch that is too large, or past the end"
        else:
            assert fitting or not at_least_one
            assert (len(found[0]), found[1]) == (fitting, position)
            assert found[0] == disk.pread(segment.fd, fitting, position)


def test_batches_at_leaves_to_a_look_up_what_it_cannot_read(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(index_interval_bytes=150))
    for _ in range(20):
        append(log, 2, size=90)
    segment, end = log.segments[0], log.log_end_offset
    index = segment.index
    assert index is not None
    whole = _at_once(log, segment, 0, end, 70_000, True, -1)
    assert whole is not None
    assert len(whole[0]) == segment.size_bytes
    behind = index.offsets[5] + 1
    index.positions[5] += 1
    assert _at_once(log, segment, behind, end, 70_000, True, -1) is None, "the entry points into a batch"
    assert bytes(log.read(behind, 70_000, end_offset_exclusive=end).load()) in whole[0]
    index = segment.index
    assert index is not None
    index.positions[5] = index.positions[9] - 1
    index.positions[5] += 1
    assert _at_once(log, segment, behind, end, 70_000, True, -1) is None, "the entry points past the offset"
    disk.resident = lambda: False
    assert _at_once(log, segment, 0, end, 70_000, True, -1) is None, "the bytes are not in the page cache"
    disk.resident = lambda: True
    for _ in range(30):
        append(log, 2, size=3_000)
    assert _at_once(log, segment, 1, log.log_end_offset, 1 << 20, True, -1) is None, "larger reads are mapped"
    segment.release()
    assert _at_once(log, segment, 1, end, 100, True, -1) is None, "the file is closed"


def test_the_newest_batch_is_read_within_the_same_limits(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    append(log, 3)
    newest = append(log, 3)
    end = log.log_end_offset
    whole = log.read(newest, 5000, end_offset_exclusive=end)
    assert [header.base_offset for header in iter_headers(whole.records)] == [newest]
    assert not len(log.read(newest, 5000, end_offset_exclusive=end - 1).records), "its last record is past the end"
    assert not len(log.read(newest, 1, end_offset_exclusive=end, at_least_one=False).records)
    assert log.read(newest, 1, end_offset_exclusive=end).records == whole.records
    following = append(log, 2)
    both = log.read(newest, 5000, end_offset_exclusive=log.log_end_offset)
    assert [header.base_offset for header in iter_headers(both.records)] == [newest, following]


def test_read_outside_is_out_of_range_e11(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.advance_log_start(2)
    for offset in (1, 6, -1):
        with pytest.raises(PeerError) as caught:
            log.read(offset, 100, end_offset_exclusive=5)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(log.read(5, 100, end_offset_exclusive=5).records) == 0


def test_bytes_outside_the_page_cache_are_loaded_by_the_caller() -> None:
    disk = SimDisk(resident=lambda: False)
    disk.mkdir("/data")
    log = open_log(disk, config=SMALL)
    for _ in range(40):
        append(log, 2)
    read = log.read(30, 500, end_offset_exclusive=80)
    assert not read.resident
    assert len(read.records) == 0
    log.truncate_to(20)
    assert next(iter_headers(read.load())).base_offset == 30, "the open descriptor still reads the old file"
    assert read.resident
    log.read(10, 500, end_offset_exclusive=20).close()
    before = disk.open_descriptors
    log.read(10, 500, end_offset_exclusive=20).close()
    assert disk.open_descriptors == before


def test_failure_to_open_a_segment_for_a_thread_is_an_error_of_its_log(disk: SimDisk) -> None:
    """A Fetch returns KAFKA_STORAGE_ERROR for this partition and the records of the others."""
    log = open_log(disk, config=SMALL)
    for _ in range(20):
        append(log, 3, size=90)
    segment = log.segments[0]
    segment.index = None  # as after eviction of the index: a thread reads it
    disk.close(segment.fd)
    segment.fd = -1
    disk.fail("open", ".log", errno.EIO)
    with pytest.raises(StorageError, match="reading ") as caught:
        log.read(0, 5000, end_offset_exclusive=log.log_end_offset)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    assert not log.read(0, 5000, end_offset_exclusive=log.log_end_offset).resident


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


def test_nothing_is_kept_of_the_segments_of_a_closed_log(tmp_path: object) -> None:
    """A thread may load from a segment whose descriptor was closed meanwhile."""
    files = OpenFiles(OsDisk(), max_files=1)
    log = open_log(OsDisk(), f"{tmp_path}/rain-0", config=SMALL, files=files)
    for _ in range(20):
        append(log, 3, size=90)
    first, *_, last = log.segments
    files.loads.begun(first, 0)
    files.loads.begun(last, 0)
    assert (first.fd, last.fd >= 0) == (-1, True)
    log.close(clean=False)
    assert not files.loads.segments()
    assert files.open_count == 0


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
