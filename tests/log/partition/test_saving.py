"""Which parts of a log are durable, and when."""

from __future__ import annotations

import errno
from typing import Any, Final

import pytest

from fenceline.log.core.checkpoints import read_partition_metadata
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.segment import Segment
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.testing.sim_disk import Call, SimDisk
from tests.log.helpers import DIRECTORY, SMALL, TOPIC_ID, append, files, open_log, read_all


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
    with pytest.raises(StorageError, match="is offline for writes"):
        append(log)


def test_flush_advances_the_recovery_point_to_the_flushed_offset(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(20):
        append(log)
    work = log.flush_work()
    assert work is not None
    assert log.flush_work() is None, "one flush at a time"
    append(log)
    work()
    work.complete()
    assert (log.recovery_point, log.log_end_offset) == (20, 21)
    for segment in log.segments[:-1]:
        assert disk.stat(segment.stem + ".index") is not None
        assert disk.stat(f"{DIRECTORY}/{segment.next_offset:020d}.snapshot") is not None


@pytest.mark.parametrize("is_full", [False, True])
def test_flush_leaves_no_index_of_a_segment_deleted_by_retention_meanwhile(disk: SimDisk, is_full: bool) -> None:
    """Seeds 6000056 and 24000064 of `operations`: the next start took these indexes for the remains of a missing
    segment file, and wrote a receipt for records that had been deleted on request. In the second one the disk became
    full between the two index files."""
    log = open_log(disk, config=SMALL)
    for _ in range(60):
        append(log)
    log.advance_high_watermark(60)
    work = log.flush_work()
    assert work is not None
    log.advance_log_start(log.segments[2].base_offset)
    removed = log.enforce_retention(1_000)
    assert len(removed) == 2
    if is_full:
        disk.fail("write", ".timeindex.tmp", errno.ENOSPC)
        with pytest.raises(StorageError):
            work()
        disk.heal()
    else:
        work()
        work.complete()
    for segment in removed:
        segment.delete()
    left = min([name for name in files(disk) if name.endswith("index")], default="")
    assert left.startswith("" if is_full else f"{log.segments[0].base_offset:020d}")
    assert not left.startswith(tuple(f"{base:020d}" for base in range(log.segments[0].base_offset)))


def test_indexes_evicted_from_memory_are_durable_after_the_next_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OpenFiles` writes large indexes of segments that are rarely used, and does not wait for the disk."""
    monkeypatch.setattr("fenceline.log.core.segment.SMALL_INDEX_BYTES", -1)
    for seed in range(20):
        disk = a_disk(seed)
        log = open_log(disk, config=SMALL)
        for _ in range(20):
            append(log)
        sealed = log.segments[0]
        sealed.release()
        assert sealed.index is None
        flush(log)
        assert sealed.indexes_saved
        before = [disk.peek(sealed.stem + suffix) for suffix in (".index", ".timeindex")]
        disk.crash()
        assert [disk.peek(sealed.stem + suffix) for suffix in (".index", ".timeindex")] == before


def a_disk(seed: int) -> SimDisk:
    """A disk whose crashes keep other bytes with each seed."""
    disk = SimDisk(seed)
    disk.mkdir(DIRECTORY.rpartition("/")[0])
    return disk


def flush(log: PartitionLog, now_ms: int = 0) -> None:
    work = log.flush_work(now_ms)
    assert work is not None
    work.run()


def test_topic_id_is_durable_after_the_first_flush() -> None:
    """Seed 16 of the story `brokers`: without it, a later topic of that name took the records for its own."""
    for seed in range(50):
        disk = a_disk(seed)
        log = open_log(disk)
        append(log)
        flush(log)
        append(log)
        disk.crash()
        assert read_partition_metadata(disk, f"{DIRECTORY}/{METADATA_FILE}") == TOPIC_ID


def test_writes_of_a_killed_process_are_durable_after_the_next_flush() -> None:
    """Its directory entries, too: it is unknown which of them were synced."""
    for seed in range(50):
        disk = a_disk(seed)
        append(open_log(disk))
        log = open_log(disk)
        assert log.flush_due(1_000)
        flush(log)
        disk.crash()
        assert read_partition_metadata(disk, f"{DIRECTORY}/{METADATA_FILE}") == TOPIC_ID
        assert open_log(disk, recovery_point=1).log_end_offset == 1


def test_log_start_inside_a_segment_does_not_advance_the_recovery_point() -> None:
    """The log start (DeleteRecords) was used as the recovery point when the log of a killed process was opened: after
    the next power loss bytes below it were missing, and the partition stayed offline (recovery.md)."""
    for seed in range(50):
        disk = a_disk(seed)
        log = open_log(disk)
        append(log)
        flush(log)
        for _ in range(20):
            append(log)
        again = open_log(disk, recovery_point=1, log_start_offset=18)
        assert again.recovery_point == 1
        disk.crash()
        opened = open_log(disk, recovery_point=again.recovery_point, log_start_offset=18)
        assert opened.log_start_offset == 18


def test_flush_due(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(flush_messages=3, flush_ms=500))
    append(log)
    assert log.flush_due(1_000), "the directory is new"
    flush(log, 1_000)
    append(log, 2)
    assert not log.flush_due(1_000)
    assert log.flush_due(1_500)
    append(log)
    assert log.flush_due(1_000)


def test_flush_without_records_writes_a_missing_topic_id(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    flush(log)
    disk.unlink(f"{DIRECTORY}/{METADATA_FILE}")
    log.mark_identity_unsaved()
    assert log.flush_due(1_000)
    flush(log)
    assert read_partition_metadata(disk, f"{DIRECTORY}/{METADATA_FILE}") == TOPIC_ID
    assert not log.flush_due(1_000)


def test_torn_topic_id_of_an_empty_log_is_rewritten_with_its_first_records(disk: SimDisk) -> None:
    """Seed 12 of the story `operations`: power was lost before the metadata log had a record."""
    disk.mkdir(DIRECTORY)
    replace_file(disk, f"{DIRECTORY}/{METADATA_FILE}", b"")
    log = open_log(disk)
    log.mark_identity_unsaved()
    assert not log.flush_due(1_000)
    append(log)
    flush(log)
    assert read_partition_metadata(disk, f"{DIRECTORY}/{METADATA_FILE}") == TOPIC_ID


@pytest.mark.parametrize("clean", [True, False])
def test_nothing_is_appended_to_a_closed_log(disk: SimDisk, clean: bool) -> None:
    """The next start would regard it as flushed (operations, seed 21001776)."""
    log = open_log(disk)
    append(log)
    log.close(clean)
    with pytest.raises(StorageError, match="is closed"):
        append(log)
    assert log.log_end_offset == 1


ONE_BATCH: Final = LogConfig(segment_bytes=100, index_interval_bytes=1)
"""A segment for each batch."""


def test_snapshots_below_the_log_start_go_with_the_next_flush(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the flush's thread: of a directory with 100,000 files, the list alone takes the loop 40 ms."""
    log = open_log(disk, config=SMALL)
    for _ in range(60):
        append(log)
    work = log.flush_work()
    assert work is not None
    work.run()
    old, kept = 3, log.segments[2].base_offset
    for offset in (old, kept):
        replace_file(disk, f"{DIRECTORY}/{offset:020d}.snapshot", b"")
    log.advance_high_watermark(60)
    log.advance_log_start(kept)
    for _ in range(20):
        append(log)
    work = log.flush_work()
    assert work is not None
    work()
    left = [name for name in files(disk) if name.endswith(".snapshot")]
    assert min(left) == f"{kept:020d}.snapshot"
    lists: list[str] = []
    monkeypatch.setattr(disk, "listdir", lists.append)
    work.complete()
    for _ in range(20):
        append(log)
    work = log.flush_work()
    assert work is not None
    work.run()
    assert not lists, "the log start has not moved"


class LimitedDisk(SimDisk):
    """A process that may open `most` files at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.mkdir(DIRECTORY.rpartition("/")[0])
        self.most = most
        self.open_now = 0

    def _descriptor(self, file: Any, path: str) -> int:
        if self.open_now == self.most:
            raise OSError(errno.EMFILE, "Too many open files", path)
        self.open_now += 1
        return super()._descriptor(file, path)

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_now -= 1


def test_a_flush_of_many_segments_opens_few_files() -> None:
    """A log with more new segments than the process may open files went offline: a flush opened all of them."""
    disk = LimitedDisk(most=60)
    log = open_log(disk, config=ONE_BATCH, files=OpenFiles(disk, max_files=10))
    for _ in range(200):
        append(log)
    assert len(log.segments) == 200
    work = log.flush_work()
    assert work is not None
    work.run()
    assert log.recovery_point == 200
    assert all(segment.indexes_saved for segment in log.segments[:-1])
    assert disk.calls["fsync"] < 300, "its batches are checked; the files made from them are synced together"
    log.close()
    assert disk.open_now == 0
    disk.crash()
    files = OpenFiles(disk, max_files=10)
    reopened = open_log(disk, config=ONE_BATCH, clean=True, recovery_point=200, files=files)
    assert [header.base_offset for header, _ in read_all(reopened)] == list(range(200))


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open"])
def test_power_loss_in_a_flush_of_many_segments_leaves_no_partial_index(call: Call) -> None:
    """In every step; a segment below the recovery point is not recovered, and its index files are believed."""
    for step in range(0, 2000, 7):
        disk = a_disk(step)
        log = open_log(disk, config=ONE_BATCH)
        append(log)
        flush(log)
        for _ in range(40):
            append(log)
        log.roll(1_000)
        saved = {segment.stem: encoded(segment) for segment in log.segments[:-1]}
        work = log.flush_work()
        assert work is not None
        disk.fail_later(call, step)
        try:
            work()
        except StorageError:
            disk.heal()
            disk.fsync_dir(DIRECTORY)  # the journal was committed just then, without the data of the files
            disk.crash()
        else:
            assert step > 20, f"no {call} in a flush"
            return
        for stem, contents in saved.items():
            for suffix, content in zip((".index", ".timeindex"), contents, strict=True):
                assert disk.peek(stem + suffix) in (None, content)
        reopened = open_log(disk, config=ONE_BATCH, recovery_point=1)
        assert reopened.log_end_offset >= 1
    raise AssertionError("the flush never ended")


def encoded(segment: Segment) -> tuple[bytes, bytes]:
    index, time_index = segment.indexes()
    return index.encode(), time_index.encode()


def test_a_flush_that_the_log_takes_back_ends_early(disk: SimDisk) -> None:
    """A truncation or a close waits for the step in progress, not for thousands of segments."""
    log = open_log(disk, config=ONE_BATCH)
    for _ in range(100):
        append(log)
    work = log.flush_work()
    assert work is not None
    work._abandoned = True  # `abandon`, while another thread runs the work
    work()
    assert not any(segment.indexes_saved for segment in log.segments)
    log.truncate_to(50)
    flush(log)
    assert log.recovery_point == 50


def test_a_failed_write_back_in_a_flush_of_many_segments_takes_the_partition_offline(disk: SimDisk) -> None:
    log = open_log(disk, config=ONE_BATCH)
    for _ in range(100):
        append(log)
    work = log.flush_work()
    assert work is not None
    disk.fail("fsync", f"{7:020d}.log")
    with pytest.raises(StorageError):
        work.run()
    with pytest.raises(StorageError, match="is offline for writes"):
        append(log)
