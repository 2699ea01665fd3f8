"""Receipts outlive the directory of their partition, with a crash at any step, and name the place of the evidence."""

from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.errors import TruncationPending
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.log.directories.set_aside import keep_records
from fenceline.losses import quarantine, removed_partitions
from fenceline.losses.check import complaints, lost_between, stored_batches
from fenceline.losses.cutting import cut_log
from fenceline.losses.evidence import EvidenceReader, places
from fenceline.losses.folder import ReceiptFolder, ReceiptOutbox
from fenceline.losses.receipt import Receipt
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded
from tests.losses.helpers import DIRECTORY, REPLICA, a_disk, a_safe_history, cut, open_log, write
from tests.losses.test_quarantine import three_losses
from tests.support.lives import a_life

ASIDE = "/data/rain-3.0123456789abcdef-stray"


def removed(disk: SimDisk | LifeDisk, path: str = ASIDE, *, high_watermark: int = 0) -> RemovedPartition:
    return RemovedPartition(path, disk, TopicPartition("rain", 3), high_watermark)


def put_aside(disk: SimDisk) -> RemovedPartition:
    disk.rename(DIRECTORY, ASIDE)
    return removed(disk)


def by_id(receipts: list[Receipt]) -> list[str]:
    return sorted(receipt.id for receipt in receipts)


def test_receipts_of_a_deleted_directory_report_the_evidence_as_deleted() -> None:
    disk = SimDisk()
    losses = three_losses(disk)
    rescued = removed_partitions.move_receipts_to_outbox(removed(disk, DIRECTORY), "/data", with_evidence=False)
    assert by_id(rescued) == by_id(losses)
    assert all(receipt.evidence == () and "removed" in receipt.evidence_note for receipt in rescued)
    outbox = ReceiptOutbox(disk, "/data")
    assert by_id(outbox.due()) == by_id(losses)
    for receipt in rescued:
        outbox.mark_reported(receipt)
    assert outbox.due() == []
    assert not [name for name in disk.listdir("/data") if "loss" in name]


def test_receipts_of_a_stray_directory_name_the_new_place_of_the_evidence() -> None:
    disk = SimDisk()
    losses = three_losses(disk)
    rescued = removed_partitions.move_receipts_to_outbox(put_aside(disk), "/data", with_evidence=True)
    assert by_id(rescued) == by_id(losses)
    for receipt in rescued:
        assert receipt.evidence
        assert all(disk.peek(path) for path in receipt.evidence)
        copied = places(receipt, "/copy")
        assert [path.removeprefix("/copy") for path in copied] == [p.removeprefix("/data") for p in receipt.evidence]
        reader = EvidenceReader(disk, receipt, receipt.evidence)
        assert sum(header.record_count for header, _ in reader.batches()) == receipt.records
    assert removed_partitions.move_receipts_to_outbox(removed(disk), "/data", with_evidence=True) == [], (
        "a second call finds nothing"
    )
    outbox = ReceiptOutbox(disk, "/data")
    for receipt in rescued:
        outbox.mark_reported(receipt)
    assert by_id(list(outbox.contents().receipts)) == by_id(losses), "the receipts still identify the evidence"


def test_evidence_of_a_stray_directory_expires_by_age_and_with_the_directory() -> None:
    disk = SimDisk()
    old, middle, new = three_losses(disk)
    removed_partitions.move_receipts_to_outbox(put_aside(disk), "/data", with_evidence=True)
    folders = [ReceiptFolder(disk, ASIDE), ReceiptOutbox(disk, "/data")]
    swept = quarantine.sweep(disk, folders, now_ms=10_101, max_age_ms=100, max_bytes=-1)
    ((folder, changed),) = swept.changed
    assert (changed.id, changed.evidence, folder) == (old.id, (), folders[1])
    assert swept.kept_bytes > 0
    removed(disk).delete()
    swept = quarantine.sweep(disk, folders, now_ms=10_101, max_age_ms=-1, max_bytes=-1)
    assert by_id([receipt for _, receipt in swept.changed]) == by_id([middle, new])
    assert all(receipt.evidence == () for receipt in folders[1].due())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("with_evidence", [True, False])
def test_interrupted_cut_is_reported_after_a_crash_at_any_step(seed: int, with_evidence: bool) -> None:
    """Power is lost during a cut; at the next start the replica is no longer assigned, and power is lost again."""
    step = 0
    while True:
        step += 1
        rng = Random(seed)
        disk = a_disk(seed)
        before, high_watermark = a_safe_history(disk, rng)
        life = a_life(disk, seed, rng.randint(8, 20))
        with contextlib.suppress(ProcessEnded):
            cut_log(life, open_log(life, clean=True), cut(rng.randint(0, before[-1].next_offset - 1)))
        life.forget()
        put_aside(disk)
        disk.fsync_dir("/data")
        life = a_life(disk, seed * 1_000 + step, step)
        try:
            gone = removed(life, high_watermark=high_watermark)
            removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
            removed_partitions.move_receipts_to_outbox(gone, "/data", with_evidence=with_evidence)
            survived = True
        except ProcessEnded:
            survived = False
        life.forget()
        gone = removed(disk, high_watermark=high_watermark)
        removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=2)
        removed_partitions.move_receipts_to_outbox(gone, "/data", with_evidence=with_evidence)
        receipts = ReceiptOutbox(disk, "/data").due()
        after = stored_batches(open_log(disk, ASIDE))
        assert complaints(receipts, lost_between(before, after)) == []
        assert all(disk.peek(path) for receipt in receipts for path in receipt.evidence)
        assert not ReceiptFolder(disk, ASIDE).contents().receipts
        if survived:
            return


def interrupted_cut(disk: SimDisk) -> None:
    """A cut whose evidence was copied and whose receipt was not written."""
    log = open_log(disk)
    write(log, 1, 9)
    disk.fail("write", ".due.tmp", errno.ENOSPC)
    with pytest.raises(TruncationPending):
        cut_log(disk, log, cut(2))
    disk.heal()
    log.close(clean=False)


def test_planned_loss_is_reported_if_the_log_cannot_be_opened() -> None:
    disk = a_disk()
    interrupted_cut(disk)
    (planned,) = [intent.receipt for intent in ReceiptFolder(disk, DIRECTORY).intents()]
    gone = put_aside(disk)
    disk.fail("open", ".log", errno.EIO)
    (receipt,) = removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
    assert (receipt.id, receipt.records) == (planned.id, planned.records)
    assert "cannot be opened" in receipt.known_by
    assert receipt.evidence


def test_transient_open_error_is_retried() -> None:
    disk = a_disk()
    interrupted_cut(disk)
    gone = put_aside(disk)
    disk.fail("open", ".log", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
    disk.heal()
    (receipt,) = removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
    assert "cannot be opened" not in receipt.known_by


@pytest.mark.parametrize("seed", range(8))
def test_records_of_a_stray_directory_are_reported_once_after_a_crash_at_any_step(seed: int) -> None:
    """Power is lost between the note, the move of each segment, the rename and the receipt; the next start resumes."""
    step = 0
    while True:
        step += 1
        rng = Random(seed)
        disk = a_disk(seed)
        before, high_watermark = a_safe_history(disk, rng)
        lost_from = rng.choice([0, before[len(before) // 2].base_offset])

        def start(life: SimDisk | LifeDisk, lost_from: int = lost_from, known: int = high_watermark) -> None:
            if life.stat(DIRECTORY) is not None:
                keep_records(life, DIRECTORY, lost_from, "a test", high_watermark=known, now_ms=9_000)
                life.rename(DIRECTORY, ASIDE)
            gone = removed(life)
            removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
            removed_partitions.move_receipts_to_outbox(gone, "/data", with_evidence=True)

        life = a_life(disk, seed * 1_000 + step, step)
        try:
            start(life)
            survived = True
        except ProcessEnded:
            survived = False
        life.forget()
        start(disk)
        receipts = ReceiptOutbox(disk, "/data").due()
        after = stored_batches(open_log(disk, ASIDE))
        assert after == before[: len(after)]
        lost = [batch for batch in before if batch.next_offset > lost_from]
        assert complaints(receipts, lost) == []
        assert all(disk.peek(path) for receipt in receipts for path in receipt.evidence)
        if survived:
            return


def test_deletion_on_a_full_disk_frees_space_for_its_own_receipts() -> None:
    disk = a_disk()
    interrupted_cut(disk)
    gone = put_aside(disk)
    (planned,) = [intent.receipt for intent in ReceiptFolder(disk, ASIDE).intents()]
    used = disk.used_bytes
    removed_partitions.delete_records(gone)
    assert disk.used_bytes < used
    assert not [name for name in disk.listdir(ASIDE) if name.endswith(".log")]
    (receipt,) = removed_partitions.resolve_pending(gone, replica=REPLICA, now_ms=1)
    removed_partitions.move_receipts_to_outbox(gone, "/data", with_evidence=False)
    assert (receipt.id, receipt.records, receipt.topic_id) == (planned.id, planned.records, planned.topic_id)
    assert by_id(ReceiptOutbox(disk, "/data").due()) == [planned.id]
