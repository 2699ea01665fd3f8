"""Segments of one log: when it rolls, and writes that fail on the disk."""

from __future__ import annotations

import errno

import pytest

from fenceline.errors import ErrorCode
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError
from fenceline.log.core.tail import WRITE_BYTES
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import TP, append, batch, open_log, read_all


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


def test_idle_segment_rolls_after_segment_ms(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_ms=100))
    assert not log.maybe_roll(10_000)
    append(log)
    assert not log.maybe_roll(1_100)
    assert log.maybe_roll(1_101)
    assert not log.maybe_roll(9_999)
    assert log.active_segment_base == 1


def test_full_disk_fails_one_append_and_the_log_recovers(disk: SimDisk) -> None:
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
    assert found.size_bytes == size, "the partial write is truncated"
    assert log.log_end_offset == 3
    assert len(read_all(log)) == 1
    disk.capacity_bytes = None
    assert append(log, 3) == 3
    assert open_log(disk).log_end_offset == 6


def test_failed_write_of_a_large_batch_is_truncated_completely(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    size = log.segments[0].size_bytes
    large = 3 * WRITE_BYTES
    disk.capacity_bytes = disk.used_bytes + 2 * WRITE_BYTES
    with pytest.raises(StorageError):
        log.append_as_leader(batch(1, size=large), leader_epoch=0, now_ms=0)
    found = disk.stat(log.segments[0].path)
    assert found is not None
    assert found.size_bytes == size, "the pieces before the failed one are truncated, too"
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


def test_failed_truncation_of_a_partial_write_takes_the_partition_offline(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail("write")
    disk.fail("truncate")
    with pytest.raises(StorageError):
        append(log)
    disk.heal()
    with pytest.raises(StorageError, match="until the node is restarted"):
        append(log)
    assert len(read_all(log)) == 1, "the log stays readable"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_start_offset", 10, "log start 10, log end 9"),
        ("high_watermark", -1, "high watermark -1 of 0..9"),
        ("high_watermark", 10, "high watermark 10 of 0..9"),
        ("recovery_point", 10, "recovery point 10, log end 9"),
        ("bases", [0], "bases of the segments"),
        ("size_bytes", 1, "size 1, of its segments"),
    ],
)
def test_broken_invariant_is_reported_with_the_partition(disk: SimDisk, name: str, value: object, message: str) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=300))
    for _ in range(9):
        append(log, size=100)
    log.check()
    setattr(log, name, value)
    with pytest.raises(AssertionError, match=rf"{TP}: .*{message}"):
        log.check()


def test_invariants_of_segments_and_epochs(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=300))
    for _ in range(9):
        append(log, size=100)
    log.segments[0].sealed = False
    with pytest.raises(AssertionError, match="is not the last segment, and not sealed"):
        log.check()
    log.segments[0].sealed = log.segments[-1].sealed = True
    with pytest.raises(AssertionError, match="is sealed"):
        log.check()
    log.segments[-1].sealed = False
    log.segments[0].next_offset = log.segments[1].base_offset + 1
    with pytest.raises(AssertionError, match="overlaps with"):
        log.check()
    log.segments[0].next_offset = log.segments[1].base_offset
    log.segments[-1].next_offset = 10
    with pytest.raises(AssertionError, match="ends past the log end 9"):
        log.check()
    log.segments[-1].next_offset = 9
    log.check()
    log.epochs.assign(9, 20)
    with pytest.raises(AssertionError, match="goes past the log end 9"):
        log.check()
