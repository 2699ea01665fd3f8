"""Evidence is deleted by age, by bytes, for a full disk and with its partition; its receipt records each deletion."""

from __future__ import annotations

import errno

import pytest

from fenceline.losses import quarantine
from fenceline.losses.cutting import cut_log
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import Receipt, decode, encode
from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import DIRECTORY, cut, open_log, receipts_of, write


def three_losses(disk: SimDisk, *, batches: int = 4, records: int = 3) -> list[Receipt]:
    """Receipts of a log that was cut three times; all are delivered."""
    disk.mkdir("/data")
    log = open_log(disk)
    folder = ReceiptFolder(disk, DIRECTORY)
    reported = []
    for number in range(3):
        write(log, number, batches)
        for receipt in cut_log(disk, log, cut(log.log_end_offset - records, time_ms=10_000 + number)):
            folder.mark_reported(receipt)
            reported.append(receipt)
    assert len(reported) == 3
    assert folder.due() == []
    return reported


def sweep(disk: SimDisk, *, now_ms: int = 10_002, max_age_ms: int = -1, max_bytes: int = -1) -> quarantine.SweepResult:
    return quarantine.sweep(
        disk, [ReceiptFolder(disk, DIRECTORY)], now_ms=now_ms, max_age_ms=max_age_ms, max_bytes=max_bytes
    )


def is_there(disk: SimDisk, receipt: Receipt) -> bool:
    return all(disk.peek(path) is not None for path in receipt.evidence)


def size_of(disk: SimDisk, receipt: Receipt) -> int:
    return sum(len(disk.peek(path) or b"") for path in receipt.evidence)


def test_evidence_is_kept_without_limits() -> None:
    disk = SimDisk()
    losses = three_losses(disk)
    swept = sweep(disk, now_ms=10**15)
    assert swept.changed == ()
    assert swept.kept_bytes == sum(size_of(disk, receipt) for receipt in losses)


def test_evidence_expires_by_age() -> None:
    disk = SimDisk()
    old, middle, new = three_losses(disk)
    swept = sweep(disk, now_ms=10_101, max_age_ms=100)
    ((_, changed),) = swept.changed
    assert (changed.id, changed.evidence) == (old.id, ())
    assert "retention.ms" in changed.evidence_note
    assert not is_there(disk, old)
    assert is_there(disk, middle)
    assert is_there(disk, new)
    assert ReceiptFolder(disk, DIRECTORY).due() == [changed], "the receipt is due again"


def test_oldest_evidence_is_deleted_first_by_bytes() -> None:
    disk = SimDisk()
    old, middle, new = three_losses(disk)
    swept = sweep(disk, max_bytes=size_of(disk, new))
    assert [receipt.id for _, receipt in swept.changed] == [old.id, middle.id]
    assert swept.kept_bytes == size_of(disk, new)
    assert is_there(disk, new)
    folder = ReceiptFolder(disk, DIRECTORY)
    for _, receipt in swept.changed:
        folder.mark_reported(receipt)
    assert receipts_of(disk) == [new], "a receipt without evidence is kept only in the ledger"


def test_evidence_of_a_cut_in_progress_is_kept() -> None:
    disk = SimDisk()
    three_losses(disk)
    stranger = f"{DIRECTORY}/lost+found/00000000000000000000.log.77"
    disk.close(disk.open_append(stranger))
    for name in "receipt-abc.intended", "recovery-7.note":
        paper = f"{DIRECTORY}/lost+found/{name}"
        disk.close(disk.open_append(paper))
        sweep(disk, now_ms=10**15, max_age_ms=0)
        assert disk.peek(stranger) is not None
        disk.unlink(paper)
    disk.close(disk.open_append(f"{DIRECTORY}/lost+found/receipt-abc.intended.tmp"))  # left by a crash
    sweep(disk, now_ms=10**15, max_age_ms=0)
    assert disk.peek(stranger) is None, "evidence without a receipt expires by age, too"


def test_full_disk_deletes_the_oldest_evidence() -> None:
    disk = SimDisk()
    old, _, new = three_losses(disk, batches=60, records=100)
    disk.capacity_bytes = disk.used_bytes
    room = quarantine.make_room(disk, [ReceiptFolder(disk, DIRECTORY)])
    assert room.freed
    assert not is_there(disk, old)
    _, first = room.changed[0]
    assert (first.id, first.evidence) == (old.id, ())
    assert "full" in first.evidence_note
    assert is_there(disk, new)
    disk.capacity_bytes = 0
    while quarantine.make_room(disk, [ReceiptFolder(disk, DIRECTORY)]).freed:
        pass
    assert not is_there(disk, new)
    disk.heal()
    sweep(disk)
    assert all(receipt.evidence == () for receipt in receipts_of(disk)), "the receipts are corrected later"


def test_full_disk_keeps_evidence_that_no_receipt_names_yet() -> None:
    disk = SimDisk()
    three_losses(disk)
    unnamed = f"{DIRECTORY}/lost+found/00000000000000000000.log.77"
    fd = disk.open_append(unnamed)
    disk.write(fd, bytes(1_000))
    disk.close(fd)
    for _ in range(3):
        assert quarantine.make_room(disk, [ReceiptFolder(disk, DIRECTORY)]).freed
    assert not quarantine.make_room(disk, [ReceiptFolder(disk, DIRECTORY)]).freed
    assert disk.peek(unnamed)


def test_evidence_deleted_by_hand_is_removed_from_its_receipt() -> None:
    disk = SimDisk()
    old, *_ = three_losses(disk)
    for path in old.evidence:
        disk.unlink(path)
    ((_, changed),) = sweep(disk).changed
    assert (changed.id, changed.evidence) == (old.id, ())


def test_receipt_changed_since_its_delivery_stays_due() -> None:
    disk = SimDisk()
    (old, *_) = three_losses(disk)
    folder = ReceiptFolder(disk, DIRECTORY)
    folder.mark_due(old)
    sweep(disk, now_ms=10_101, max_age_ms=100)
    folder.mark_reported(old)
    (due,) = folder.due()
    assert due.evidence == ()


def test_other_disk_errors_are_raised() -> None:
    disk = SimDisk()
    three_losses(disk)
    disk.fail("unlink", number=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        quarantine.make_room(disk, [ReceiptFolder(disk, DIRECTORY)])


def test_receipt_document_round_trip() -> None:
    disk = SimDisk()
    for receipt in three_losses(disk):
        assert decode(encode(receipt)) == receipt
