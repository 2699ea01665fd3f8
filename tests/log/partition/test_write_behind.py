"""Writeback and page cache eviction behind a busy log: which ranges, when, and that they are only hints."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition import write_behind
from fenceline.log.partition.write_behind import WriteBehind
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import append, open_log, read_all

PIECE, KEPT, AGAIN = 1_000, 3_000, 1_500


class ByteRange(NamedTuple):
    start: int
    end: int


class RecordingDisk(SimDisk):
    """Records the ranges it is asked to write back."""

    def __init__(self) -> None:
        super().__init__()
        self.mkdir("/data")
        self.written_back: list[ByteRange] = []
        self.refuses: set[str] = set()

    def start_writeback(self, fd: int, position: int, size_bytes: int) -> None:
        assert self.pread(fd, 1, position), "the descriptor is open"
        if "start_writeback" in self.refuses:
            raise OSError(errno.EIO, "no")
        self.written_back.append(ByteRange(position, position + size_bytes))

    def duplicate(self, fd: int) -> int:
        if "duplicate" in self.refuses:
            raise OSError(errno.EMFILE, "no")
        return super().duplicate(fd)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("PIECE_BYTES", PIECE), ("KEPT_BYTES", KEPT), ("AGAIN_BYTES", AGAIN)):
        monkeypatch.setattr(write_behind, name, size)


def test_writeback_starts_in_order_and_only_bytes_written_since_then_are_evicted() -> None:
    disk = RecordingDisk()
    log = open_log(disk)
    while log.size_bytes < 2 * PIECE:
        append(log)
    first = log.size_bytes
    written = WriteBehind(log)
    began = first
    for _ in range(200):
        append(log)
        work = written.due()
        if work is None:
            assert log.size_bytes < began + PIECE
            continue
        assert disk.written_back == []
        work()
        begun, *left = disk.written_back
        assert begun == (began, log.size_bytes)
        expected = ByteRange(max(first, began - KEPT - AGAIN), log.size_bytes - KEPT)
        assert left == ([expected] if expected.end > expected.start else [])
        began = log.size_bytes
        disk.written_back.clear()
    assert began - first > KEPT + AGAIN + PIECE


def test_pending_work_accumulates_until_it_is_requested() -> None:
    disk = RecordingDisk()
    log = open_log(disk)
    append(log)
    first, written = log.size_bytes, WriteBehind(log)
    while log.size_bytes < 5 * PIECE:
        append(log)
    work = written.due()
    assert work is not None
    work()
    assert disk.written_back == [(first, log.size_bytes), (first, log.size_bytes - KEPT)]
    assert written.due() is None


def test_writeback_of_a_new_segment_starts_at_its_first_byte() -> None:
    disk = RecordingDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=3 * PIECE))
    append(log)
    written = WriteBehind(log)
    while len(log.segments) == 1:
        append(log)
    assert written.due() is None
    while log.segments[-1].size_bytes < PIECE:
        append(log)
    work = written.due()
    assert work is not None
    work()
    assert disk.written_back == [(0, log.segments[-1].size_bytes)]


@pytest.mark.parametrize("refused", ["start_writeback", "duplicate"])
def test_refused_system_call_has_no_effect(refused: str) -> None:
    disk = RecordingDisk()
    log = open_log(disk)
    written = WriteBehind(log)
    while log.size_bytes < PIECE:
        append(log)
    disk.refuses.add(refused)
    work = written.due()
    if work is not None:
        work()
    assert disk.written_back == []
    disk.refuses.clear()
    while (work := written.due()) is None:
        append(log)
    work()
    assert disk.written_back[0].end == log.size_bytes
    assert len(read_all(log)) == log.log_end_offset
    log.close()
    assert disk.open_descriptors == 0, "the work closes its duplicated descriptors"


def test_log_without_segments_has_no_work() -> None:
    log = open_log(RecordingDisk())
    written = WriteBehind(log)
    assert written.due() is None


def test_os_disk_uses_the_hint_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, at, size, advice: reported.append((at, size, advice)), raising=False
    )
    disk = OsDisk()
    fd = disk.open_append(str(tmp_path / "log"))
    reported.clear()
    disk.start_writeback(fd, 8192, 4096)
    disk.close(fd)
    assert reported == [(8192, 4096, os.POSIX_FADV_DONTNEED)]
