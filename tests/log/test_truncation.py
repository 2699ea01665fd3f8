"""The end of a log goes back."""

from __future__ import annotations

from fenceline.testing.sim_disk import SimDisk

from .helpers import SMALL, append, open_log, read_all


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
