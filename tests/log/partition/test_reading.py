"""Reads from files on a real disk: what is sent from the page cache is neither mapped nor read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fenceline.log.core import disk as disk_module
from fenceline.log.core import open_files
from fenceline.log.core.disk import FileSlice, OsDisk, StoredFile
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.partition.reading import LogRead
from tests.log.helpers import append, open_log

RECORDS = 30
SIZE = 10_000


class CountingDisk(OsDisk):
    """Counts mappings and descriptors for sending, and has page counts whatever the system."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = 0
        self.stored: list[StoredFile] = []
        self.counts_pages = True

    def map(self, fd: int, position: int, size_bytes: int) -> Any:
        self.maps += 1
        return super().map(fd, position, size_bytes)

    def stored_file(self, fd: int) -> StoredFile | None:
        if not self.counts_pages:
            return None
        self.stored.append(StoredFile(fd))
        return self.stored[-1]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> CountingDisk:
    monkeypatch.setattr(disk_module._PageCounts, "has_all", lambda fd, start, end: True)
    return CountingDisk()


@pytest.fixture
def log(disk: CountingDisk, tmp_path: Path) -> PartitionLog:
    opened = open_log(disk, str(tmp_path / "rain-0"))
    for _ in range(RECORDS):
        append(opened, size=SIZE)
    return opened


def _read(log: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20, *, to_send: bool = True) -> LogRead:
    end = log.log_end_offset
    return log.read(offset, max_bytes, end_offset_exclusive=end, to_send=to_send)


def _content(part: FileSlice | memoryview) -> bytes:
    return os.pread(part.fd, len(part), part.position) if isinstance(part, FileSlice) else bytes(part)


def test_what_is_only_sent_is_not_mapped(log: PartitionLog, disk: CountingDisk) -> None:
    reads = [_read(log), _read(log, 5, 150_000), _read(log, 12)]
    assert disk.maps == 0
    assert len(disk.stored) == 1, "the slices of a segment share one descriptor"
    expected = [_read(log, 0, to_send=False), _read(log, 5, 150_000, to_send=False), _read(log, 12, to_send=False)]
    assert disk.maps > 0
    for sent, mapped in zip(reads, expected, strict=True):
        assert isinstance(sent.payload, FileSlice)
        assert sent.resident
        assert not sent.is_from_disk, "hot records are not paced"
        assert _content(sent.payload) == bytes(mapped.records)
        segments = log.segments_from(sent.offset)
        assert sent.end_limit(segments, log.log_end_offset) == mapped.end_limit(segments, log.log_end_offset)


def test_small_reads_are_copies(log: PartitionLog, disk: CountingDisk) -> None:
    read = _read(log, 3, 1)
    assert isinstance(read.payload, memoryview)
    assert len(read.payload) > SIZE, "the first batch comes whole"
    assert not disk.stored


def test_pages_that_were_evicted_are_loaded(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module._PageCounts, "has_all", lambda fd, start, end: False)
    read = _read(log)
    assert not read.resident
    assert read.is_from_disk
    read.begin_load()
    assert isinstance(loaded := read.finish_load(), FileSlice)
    monkeypatch.undo()
    assert _content(loaded) == bytes(_read(log, to_send=False).records)


def test_after_a_load_pages_are_looked_at_one_by_one(
    log: PartitionLog, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is on its way from the disk counts as cached, but the loop would wait for it."""
    now_s = 1_000.0
    monkeypatch.setattr(open_files.time, "monotonic", lambda: now_s)
    log.files.loaded(log.segments[0], 0, 100)
    read = _read(log, 20)
    assert isinstance(read.payload, memoryview)
    assert disk.maps == 1
    assert not disk.stored
    now_s += open_files.LOADING_S
    assert isinstance(_read(log, 20).payload, FileSlice)
    assert disk.maps == 1


def test_without_page_counts_records_are_mapped(log: PartitionLog, disk: CountingDisk) -> None:
    disk.counts_pages = False
    assert isinstance(_read(log).payload, memoryview)
    assert disk.maps == 1


def test_slices_stay_valid_and_their_descriptors_are_closed_with_the_last_one(
    log: PartitionLog, disk: CountingDisk
) -> None:
    expected = bytes(_read(log, to_send=False).records)
    read = _read(log)
    (fd,) = (each.fd for each in disk.stored)
    disk.stored.clear()
    log.release(log.segments)
    os.unlink(log.segments[0].path)
    assert _content(read.payload) == expected
    del read
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_no_descriptor_is_left(log: PartitionLog, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingDisk, "stored_file", OsDisk.stored_file)
    monkeypatch.setattr(disk_module, "MAX_OPEN_SLICES", 0)
    assert isinstance(_read(log).payload, memoryview)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the page cache cannot be dropped")
def test_pages_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(40_000))
    fd = os.open(path, os.O_RDWR)
    try:
        if not disk_module._PageCounts.are_known(fd):
            pytest.skip("this system does not count pages")
        os.fsync(fd)
        assert disk_module._PageCounts.has_all(fd, 1, 39_999)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if disk_module._PageCounts._count(fd, 0, 40_000):
            pytest.skip("the file system keeps its pages")
        assert not disk_module._PageCounts.has_all(fd, 1, 39_999)
        os.pread(fd, 1, 4096)
    finally:
        os.close(fd)
    assert disk_module._PageCounts._count(fd, 0, 1) == -1, "of a closed descriptor nothing is known"
