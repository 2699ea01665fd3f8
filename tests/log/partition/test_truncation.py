"""Truncation of the end of a log."""

from __future__ import annotations

import pytest

from fenceline.log.core.errors import StorageError
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import SMALL, append, open_log, read_all


def test_truncation_keeps_the_removed_batches_as_evidence(disk: SimDisk) -> None:
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
    assert evidence[-cut.size_bytes :] == before[-cut.size_bytes :], "every truncated byte is kept"
    assert append(log, epoch=7) == 17


@pytest.mark.parametrize("wrong", [1, 2, 3, 100])
def test_bit_error_of_a_read_is_not_copied_into_the_remaining_segment(
    disk: SimDisk, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation inside a segment copies its start; no checksum covers all of it."""
    log = open_log(disk)
    for number in range(6):
        append(log, number + 1)
    before = read_all(log)[:4]  # ends at offset 10
    pread, left = disk.pread, wrong

    def with_wrong_bits(fd: int, size: int, position: int) -> bytes:
        nonlocal left
        content = bytearray(pread(fd, size, position))
        if left and len(content) > 100:
            left -= 1
            content[len(content) // 2 + left % 7] ^= 4
        return bytes(content)

    monkeypatch.setattr(disk, "pread", with_wrong_bits)
    if wrong < 100:
        log.truncate_to(10)
        monkeypatch.undo()
        assert read_all(log) == before
    else:
        with pytest.raises(StorageError, match="two reads return different"):
            log.truncate_to(10)
        monkeypatch.undo()
        assert read_all(log)[:4] == before
        assert not [name for name in disk.listdir(log.directory) if name.endswith(".tmp")]


def test_truncation_past_the_end_removes_an_epoch_without_records_e18(disk: SimDisk) -> None:
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
