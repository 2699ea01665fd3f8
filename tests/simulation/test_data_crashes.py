"""Receipts after a crash: which losses the check of the scenario `brokers` reports as losses without a receipt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.losses.receipt import NO_NODE, LossCause, LossClass, Receipt, identified
from fenceline.records.batch import assign_in_place
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_crashes import Crashes
from fenceline.testing.simulation.world import StoredBatch
from tests.support.receipts import a_receipt

DIRECTORY = "/data/t0-0"
SEGMENT = f"{DIRECTORY}/00000000000000000000.log"
KEY = (b"i" * 16, 0)


def stored(offset: int, records: int = 2) -> StoredBatch:
    content = build_batch([(1, None, b"v%d" % offset, ())] * records)
    assign_in_place(memoryview(content), 0, offset, 3)
    return StoredBatch(offset, offset + records, 3, bytes(content))


LOG = [stored(0), stored(2), stored(4)]


def receipt(lost: list[StoredBatch], **other: object) -> Receipt:
    first, last = lost[0], lost[-1]
    made = a_receipt(
        topic="t0",
        start_offset=first.base_offset,
        end_offset_exclusive=last.next_offset,
        leader_epochs=(3,),
        records=last.next_offset - first.base_offset,
        size_bytes=sum(len(each.content) for each in lost),
        loss_class=LossClass.MAYBE_ACKNOWLEDGED,
        leader_epoch=NO_NODE,
    )
    return identified(replace(made, **other))  # type: ignore[arg-type]


class Machine:
    """A log, a crash, and the log and receipts of the next process."""

    def __init__(self, *, synced: bool) -> None:
        self.disk = SimDisk()
        self.disk.mkdir(DIRECTORY)
        fd = self.disk.open_append(SEGMENT)
        self.disk.fsync_dir(DIRECTORY)
        self.disk.write(fd, b"".join(batch.content for batch in LOG))
        if synced:
            self.disk.fsync(fd)
        self.crashes = Crashes(self.disk)

    def crash(self, *, power_lost: bool) -> Machine:
        self.crashes.log_closed(KEY, DIRECTORY, list(LOG), {})
        if power_lost:
            self.disk.crash()
        self.crashes.life_started()
        return self

    def opens(
        self,
        log: list[StoredBatch],
        *receipts: Receipt,
        start: int = 0,
        is_compacted: bool = False,
        leader_has: bool = False,
        directory: str = DIRECTORY,
    ) -> None:
        reported = {each.id: each for each in receipts}
        self.crashes.log_opened(
            KEY,
            directory,
            log,
            reported,
            start,
            is_compacted=is_compacted,
            leader_has=lambda batch: leader_has,
            where="n1 t0-0",
        )


def killed() -> Machine:
    return Machine(synced=False).crash(power_lost=False)


def test_a_killed_process_loses_nothing_without_a_receipt() -> None:
    killed().opens(LOG)
    killed().opens(LOG[:1], receipt(LOG[1:]))
    killed().opens(LOG[:1], receipt(LOG[1:2]), receipt(LOG[2:]))
    with pytest.raises(InvariantBroken, match="batch at 4 of epoch 3 is missing without a receipt"):
        killed().opens(LOG[:2])
    with pytest.raises(InvariantBroken, match="batch at 2 of epoch 3 is missing without a receipt"):
        killed().opens(LOG[:1], receipt(LOG[2:]))


@pytest.mark.parametrize(
    "wrong",
    [{"start_offset": 3}, {"records": 3}, {"size_bytes": 1}, {"leader_epochs": (2,)}, {"end_offset_exclusive": 5}],
)
def test_an_inexact_receipt_is_detected(wrong: dict[str, object]) -> None:
    with pytest.raises(InvariantBroken, match="receipts after a crash"):
        killed().opens(LOG[:1], receipt(LOG[1:], **wrong))


def test_a_receipt_for_records_that_are_not_lost_is_detected() -> None:
    with pytest.raises(InvariantBroken, match="not lost"):
        killed().opens(LOG, receipt(LOG[1:]))
    with pytest.raises(InvariantBroken, match="not lost"):
        killed().opens(LOG, receipt(LOG[1:], cause=LossCause.RECOVERY))


def test_a_receipt_excludes_records_below_the_log_start() -> None:
    """The record below it had been deleted before."""
    exact = receipt(LOG, start_offset=1, records=5)
    for reported in (exact, receipt(LOG)):
        machine = Machine(synced=False)
        machine.crashes.log_closed(KEY, DIRECTORY, list(LOG), {}, start=1)
        machine.crashes.life_started()
        if reported is exact:
            machine.opens([], reported, start=9)
        else:
            with pytest.raises(InvariantBroken, match="starts at 0, but the difference has 1"):
                machine.opens([], reported, start=9)


def test_records_deleted_up_to_the_middle_of_a_batch_are_not_lost() -> None:
    """The deletion came right after the start, before the log was checked (operations, seed 33001665)."""
    Machine(synced=True).crash(power_lost=True).opens(LOG[1:], start=3)
    with pytest.raises(InvariantBroken, match="without a receipt"):
        Machine(synced=True).crash(power_lost=True).opens([stored(8)], start=8)


def test_receipts_of_a_restarted_compacted_log() -> None:
    """A receipt need not cover records that compaction removed before; the others are below the new log start."""
    killed().opens([], receipt(LOG), start=9, is_compacted=True)
    killed().opens([], receipt(LOG[1:], records=2), start=9, is_compacted=True)
    for wrong in ({"end_offset_exclusive": 7}, {"leader_epochs": (2,)}, {"records": 7}):
        with pytest.raises(InvariantBroken, match="covers more"):
            killed().opens([], receipt(LOG, **wrong), start=9, is_compacted=True)
    with pytest.raises(InvariantBroken, match="not lost"):
        killed().opens(LOG[2:], receipt(LOG), start=0, is_compacted=True)


def test_a_compacted_log_emptied_right_before_the_crash_is_no_loss() -> None:
    """Its leader has every record, and no file shows any more why the log is empty (operations, seed 36000837)."""
    killed().opens([], is_compacted=True, leader_has=True)
    with pytest.raises(InvariantBroken, match="without a receipt"):
        killed().opens([], is_compacted=True)
    with pytest.raises(InvariantBroken, match="without a receipt"):
        killed().opens([], leader_has=True)


def test_a_replica_recreated_in_another_directory_is_no_loss() -> None:
    """Its disk had failed before the log was checked in this process (operations, seed 37001253)."""
    killed().opens([], directory="/data2/t0-0")


def test_a_power_failure_loses_unsynced_data_without_a_receipt() -> None:
    seen = set()
    for seed in range(20):
        machine = Machine(synced=False)
        machine.disk.rng.seed(seed)
        machine.crash(power_lost=True)
        left = machine.disk.peek(SEGMENT) or b""
        whole = [batch for batch in LOG if batch.content in left]
        seen.add(len(whole))
        machine.opens(whole)
    assert len(seen) > 1


def test_durable_records_missing_after_a_power_failure_are_a_loss() -> None:
    machine = Machine(synced=True).crash(power_lost=True)
    with pytest.raises(InvariantBroken, match="batch at 4 of epoch 3 is missing without a receipt"):
        machine.opens(LOG[:2])


@pytest.mark.parametrize("has_moved", [True, False])
def test_evidence_of_an_earlier_loss_is_no_file_of_the_log(has_moved: bool) -> None:
    """Its batches were fetched again, and then lost in a power failure. The receipt names the directory from which the
    replica was moved since (operations, seed 1230)."""
    machine = Machine(synced=False)
    machine.disk.mkdir(f"{DIRECTORY}/lost+found")
    fd = machine.disk.open_append(f"{DIRECTORY}/lost+found/0.log.0")
    machine.disk.write(fd, LOG[2].content)
    machine.disk.fsync(fd)
    machine.disk.fsync_dir(f"{DIRECTORY}/lost+found")
    old = receipt(LOG[2:], evidence=(f"{'/data3/t0-0' if has_moved else DIRECTORY}/lost+found/0.log.0",))
    machine.crashes.log_closed(KEY, DIRECTORY, list(LOG), {old.id: old})
    machine.disk.crash()
    machine.disk.unlink(SEGMENT)
    machine.crashes.life_started()
    machine.opens([])


def test_a_removed_directory_is_no_loss() -> None:
    machine = killed()
    machine.disk.rename(DIRECTORY, "/data/t0-0.x-delete")
    machine.disk.mkdir(DIRECTORY)
    machine.opens([])


def test_a_late_receipt_of_a_directory_set_aside_covers_nothing_else() -> None:
    """It does not cover the log in use, whose batches have the same offsets (`operations`, seed 43002494)."""
    late = receipt(LOG, cause=LossCause.RECOVERY, evidence=("/data/t0-0.x-stray/lost+found/0.log.0",))
    killed().opens(LOG, late)
    with pytest.raises(InvariantBroken, match="batch at 4 of epoch 3 is missing without a receipt"):
        killed().opens(LOG[:2], late)
    with pytest.raises(InvariantBroken, match="not lost"):
        killed().opens(LOG, replace(late, evidence=(f"{DIRECTORY}/lost+found/0.log.0",)))


def test_deleted_records_are_no_loss() -> None:
    killed().opens(LOG[2:], start=LOG[2].base_offset)
    killed().opens([LOG[0], LOG[2]], is_compacted=True)
    with pytest.raises(InvariantBroken, match="batch at 4 of epoch 3 is missing without a receipt"):
        killed().opens(LOG[:2], start=2)
    with pytest.raises(InvariantBroken, match="batch at 4 of epoch 3 is missing without a receipt"):
        killed().opens(LOG[:2], is_compacted=True)
