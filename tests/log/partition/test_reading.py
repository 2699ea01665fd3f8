"""Reads from files on a real disk: what is sent from the page cache is neither mapped nor read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fenceline.log.core import disk as disk_module
from fenceline.log.core import recent_loads
from fenceline.log.core.disk import FileSlice, OsDisk, StoredFile
from fenceline.log.partition import reading
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.partition.reading import LogRead
from tests.log.helpers import append, open_log

RECORDS = 30
SIZE = 10_000
HALF_RECORDS, HALF = 14, 150_000
"""A request of this many bytes gets so many records."""


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


class _Cache:
    """What the page cache has, for page counts."""

    has_all = False


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> _Cache:
    found = _Cache()
    monkeypatch.setattr(disk_module._PageCounts, "has_all", lambda fd, start, end: found.has_all)
    return found


def _load(read: LogRead) -> None:
    assert not read.resident
    read.begin_load()
    assert isinstance(read.finish_load(), FileSlice)


def test_what_a_thread_has_loaded_is_sent_and_what_the_system_has_read_ahead_is_not(
    log: PartitionLog, cache: _Cache
) -> None:
    """The loop would pass a page that the system has marked, and so start a read of megabytes."""
    _load(_read(log, 0, HALF))
    cache.has_all = True
    again = _read(log, 0, HALF)
    assert again.resident
    assert again.is_from_disk, "it is paced"
    behind = _read(log, HALF_RECORDS, HALF)
    _load(behind)
    hot = _read(log, HALF_RECORDS, HALF)
    assert hot.resident
    assert not hot.is_from_disk, "nothing was left to read ahead"


def test_a_thread_loads_ahead_for_the_next_request(log: PartitionLog, cache: _Cache) -> None:
    read = _read(log, 0, HALF)
    _load(read)
    read.load_ahead()
    cache.has_all = True
    following = _read(log, HALF_RECORDS, HALF)
    assert following.resident
    assert following.is_from_disk


def test_a_sealed_segment_that_was_read_ahead_to_its_end_is_still_loaded(log: PartitionLog, cache: _Cache) -> None:
    _load(_read(log, 0, HALF))
    log.segments[0].sealed = True
    cache.has_all = True
    _load(_read(log, HALF_RECORDS, HALF))
    assert _read(log, HALF_RECORDS, HALF).is_from_disk


def test_a_file_without_a_name_is_loaded(log: PartitionLog, cache: _Cache) -> None:
    """Retention may delete a segment before its thread has read it."""
    expected = bytes(_read(log, to_send=False).records)
    os.unlink(log.segments[0].path)
    read = _read(log)
    _load(read)
    assert _content(read.payload) == expected
    file = log.files.file_to_load(log.segments[0])
    assert file is not None
    assert file.reads_ahead


def test_pages_that_another_load_has_requested_are_waited_for(
    log: PartitionLog, cache: _Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count as cached."""
    read = _read(log, 0, HALF)
    cache.has_all = True
    passed: list[tuple[int, int]] = []
    monkeypatch.setattr(FileSlice, "load", lambda self, start, end, through: passed.append((start, end)))
    _load(read)
    assert passed == [(0, len(read.payload))]


def test_a_system_without_names_of_descriptors_loads_as_well(
    log: PartitionLog, cache: _Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bytes(_read(log, to_send=False).records)
    opens = os.open

    def refused(path: Any, *arguments: Any) -> int:
        if str(path).startswith("/proc/"):
            raise PermissionError(path)
        return opens(path, *arguments)

    monkeypatch.setattr(disk_module.os, "open", refused)
    read = _read(log)
    _load(read)
    assert _content(read.payload) == expected
    file = log.files.file_to_load(log.segments[0])
    assert file is not None
    assert not file.reads_ahead


def test_a_system_without_page_counts_loads_as_well(log: PartitionLog, cache: _Cache, disk: CountingDisk) -> None:
    read = _read(log)
    expected = bytes(log.read(0, 1 << 20, end_offset_exclusive=log.log_end_offset).records)
    disk.counts_pages = False
    log.files.close(log.segments[0])
    source = reading.loader(log.files, log.segments[0], reading.Request(0, log.log_end_offset, 1 << 20, True, -1, True))
    loaded = LogRead(0, loader=source)
    _load(loaded)
    assert isinstance(loaded.payload, FileSlice)
    assert _content(loaded.payload) == expected
    assert loaded.payload.is_resident(0, len(loaded.payload))
    read.close()


def test_without_page_counts_a_reader_at_the_end_of_a_log_needs_no_thread(
    log: PartitionLog, disk: CountingDisk
) -> None:
    """It was sent to one for each request, because its own loads seemed to be followed by readahead."""
    disk.counts_pages = False
    log.files.loads.begun(log.segments[0], 0)
    first = _read(log, HALF_RECORDS, HALF)
    _load(first)
    for _ in range(HALF_RECORDS):
        append(log, size=SIZE)
    following = _read(log, RECORDS, HALF)
    assert following.resident
    assert not following.is_from_disk


def test_after_a_load_pages_are_looked_at_one_by_one(
    log: PartitionLog, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is on its way from the disk counts as cached, but the loop would wait for it."""
    now_s = 1_000.0
    monkeypatch.setattr(recent_loads.time, "monotonic", lambda: now_s)
    log.files.loads.begun(log.segments[0], 0)
    log.files.loads.cached(log.segments[0], 0, log.segments[0].size_bytes)
    read = _read(log, 20)
    assert isinstance(read.payload, memoryview)
    assert disk.maps == 1
    assert not disk.stored
    now_s += recent_loads.LOADING_S
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
