"""Every cut has an exact receipt, with a crash at any step."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.errors import CorruptLog, StorageError, TruncationPending
from fenceline.log.core.file_names import EPOCH_FILE
from fenceline.log.core.lost_batches import LostBatches
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.recovery.note import RecoveryNote, write_note
from fenceline.losses.check import Stored, complaints, lost_between, stored_batches
from fenceline.losses.cutting import LogCut, cut_log, resolve_pending
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import LossCause, LossClass, Receipt
from fenceline.records.batch import assign_in_place
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded
from tests.losses.helpers import (
    DIRECTORY,
    LEADER,
    REPLICA,
    TOPIC_ID,
    a_disk,
    a_safe_history,
    cut,
    open_log,
    receipts_of,
    write,
)
from tests.support.lives import a_life


def a_history(disk: SimDisk | LifeDisk, rng: Random) -> PartitionLog:
    log = open_log(disk)
    for epoch in range(rng.randint(1, 5)):
        write(log, epoch, rng.randint(0, 8), rng)
    log.advance_high_watermark(rng.randint(0, log.log_end_offset))
    if rng.random() < 0.3 and log.high_watermark:
        log.advance_log_start(rng.randint(0, log.high_watermark))
    return log


def settled(disk: SimDisk, log: PartitionLog) -> list[Receipt]:
    resolve_pending(disk, log, replica=REPLICA, high_watermark=log.high_watermark)
    return receipts_of(disk)


@pytest.mark.parametrize("seed", range(60))
def test_receipt_equals_the_difference(seed: int) -> None:
    rng = Random(seed)
    disk = a_disk(seed)
    log = a_history(disk, rng)
    before, start = stored_batches(log), log.log_start_offset
    anew = rng.random() < 0.2
    offset = log.log_end_offset + rng.randint(1, 5) if anew else rng.randint(0, log.log_end_offset)
    receipts = cut_log(disk, log, cut(offset, truncates_fully=anew))
    lost = lost_between(before, stored_batches(log))
    reported = [clipped(batch, start) for batch in lost]
    assert complaints(receipts, reported) == []
    assert receipts_of(disk) == receipts
    for receipt in receipts:
        content = b"".join(disk.peek(path) or b"" for path in receipt.evidence)
        assert len(content) >= receipt.size_bytes > 0
        assert (receipt.replica, receipt.leader, receipt.topic_id) == (REPLICA, LEADER, TOPIC_ID)


def test_records_deleted_before_are_not_lost_even_if_damaged() -> None:
    """A receipt without offsets reported damage in a segment below the log start (operations, seed 32001026)."""
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 9)
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start(log.log_end_offset)
    disk.flip(log.segments[0].path, 8)
    assert cut_log(disk, log, cut(log.log_end_offset + 10, truncates_fully=True)) == []
    assert list(ReceiptFolder(disk, log.directory).evidence()) == [], "records deleted on request are not kept"


def clipped(batch: Stored, start: int) -> Stored:
    """A batch whose records below the log start had been deleted before."""
    below = max(0, start - batch.base_offset)
    return batch._replace(base_offset=batch.base_offset + below, record_count=batch.record_count - below)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("anew", [False, True])
def test_crash_at_any_step_leaves_no_loss_without_a_receipt(seed: int, anew: bool) -> None:
    """Power is lost at each call that changes the disk, one call per run; then the node restarts."""
    step = 0
    while True:
        step += 1
        rng = Random(seed)
        disk = a_disk(seed * 1_000 + step)
        before, high_watermark = a_safe_history(disk, rng)
        life = a_life(disk, seed, step)
        log = open_log(life, clean=True, high_watermark=high_watermark)
        offset = log.log_end_offset + 3 if anew else rng.randint(0, log.log_end_offset - 1)
        try:
            cut_log(life, log, cut(offset, truncates_fully=anew))
            survived = True
        except ProcessEnded:
            survived = False
        life.forget()
        again = open_log(disk, recovery_point=min(offset, before[-1].next_offset), high_watermark=high_watermark)
        assert complaints(settled(disk, again), lost_between(before, stored_batches(again))) == []
        assert settled(disk, again) == receipts_of(disk), "resolving twice changes nothing"
        # The next truncation cuts the rest; together the receipts report every record once.
        cut_log(disk, again, cut(offset, truncates_fully=anew, time_ms=8_000))
        assert complaints(receipts_of(disk), lost_between(before, stored_batches(again))) == []
        if survived:
            assert step > 10, "the cut has more steps than this"
            return


@pytest.mark.parametrize("seed", range(4))
def test_log_that_the_leader_has_completely_is_truncated_without_a_receipt(seed: int) -> None:
    """With a crash at any step: neither the next start nor the next cut reports a loss, and no evidence is kept."""
    step = 0
    while True:
        step += 1
        disk = a_disk(seed * 1_000 + step)
        _, high_watermark = a_safe_history(disk, Random(seed))
        life = a_life(disk, seed, step)
        log = open_log(life, clean=True, high_watermark=high_watermark)
        try:
            assert cut_log(life, log, cut(0, truncates_fully=True, is_lossless=True)) == []
            survived = True
        except ProcessEnded:
            survived = False
        life.forget()
        again = open_log(disk, high_watermark=high_watermark)  # its recovery point had been lowered
        assert settled(disk, again) == []
        cut_log(disk, again, cut(0, truncates_fully=True, is_lossless=True, time_ms=8_000))
        assert (again.log_start_offset, again.log_end_offset, stored_batches(again)) == (0, 0, [])
        assert receipts_of(disk) == []
        assert ReceiptFolder(disk, DIRECTORY).contents().evidence == ()
        if survived:
            assert step > 10, "the cut has more steps than this"
            return


def test_evidence_damaged_by_a_power_loss_does_not_reduce_the_loss() -> None:
    """The machine stops during a cut, and a segment that was set aside had never been flushed."""
    damaged = step = 0
    while True:
        step += 1
        disk = a_disk(step)
        log = open_log(disk)
        write(log, 0, 12, Random(3))
        log.close()
        life = a_life(disk, 1, step)
        log = open_log(life, clean=True)
        end = log.log_end_offset
        try:
            cut_log(life, log, cut(1))
            assert damaged > len(ReceiptFolder(disk, DIRECTORY).evidence()), "most were damaged in one of the runs"
            return
        except ProcessEnded:
            life.forget()
        evidence = [name for name in ReceiptFolder(disk, DIRECTORY).evidence() if "from-" not in name]
        again = open_log(disk, recovery_point=1)
        if len(evidence) < 2 or not 1 < again.log_end_offset < end:
            continue
        for name in evidence[:-1]:
            fd = disk.open_append(f"{DIRECTORY}/lost+found/{name}")
            disk.truncate(fd, 0)
            disk.close(fd)
            damaged += 1
        [receipt] = settled(disk, again)
        assert (receipt.end_offset_exclusive, receipt.records) == (end, end - again.log_end_offset)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("anew", [False, True])
def test_power_loss_during_a_cut_loses_nothing_without_a_receipt(seed: int, anew: bool) -> None:
    """Brokers, seeds 3308 and 3313: the log was not flushed yet, and records that should remain were lost, too.
    Recovery reported the torn batch and the cut its own range; no receipt reported the records between them."""
    step = found = 0
    while True:
        step += 1
        rng = Random(seed)
        disk = a_disk(seed * 1_000 + step)
        life = a_life(disk, seed)
        log = open_log(life)
        for epoch in range(4):
            write(log, epoch, 4, rng)
        before = stored_batches(log)
        offset = log.log_end_offset + 3 if anew else rng.choice(before).next_offset - 1
        life.crash_after(step)
        try:
            cut_log(life, log, cut(offset, truncates_fully=anew))
            break
        except ProcessEnded:
            life.forget()
        has_begun = any(ReceiptFolder(disk, DIRECTORY).intents())
        again = open_log(disk)
        reported = [
            offset
            for receipt in settled(disk, again)
            for offset in range(receipt.start_offset, receipt.end_offset_exclusive)
        ]
        there = [offset for batch in stored_batches(again) for offset in range(batch.base_offset, batch.next_offset)]
        assert not set(reported) & set(there)
        if has_begun:
            found += 1
            assert sorted(reported + there) == list(range(before[-1].next_offset)), f"step {step}"
            assert settled(disk, again) == receipts_of(disk), "resolving twice changes nothing"
    assert found > 10, "the cut has more steps than this"


def test_compacted_records_are_not_lost() -> None:
    disk = a_disk()
    log = open_log(disk, config=LogConfig(cleanup_policy=frozenset(("compact",))))
    write(log, 1, 2)
    kept = log.log_end_offset
    batch = bytearray(build_batch([(1_000, b"key", b"late", ())]))
    assign_in_place(batch, 0, kept + 20, 2)
    log.append_as_follower(memoryview(batch), epoch_starts=[(2, kept)])
    (receipt,) = cut_log(disk, log, cut(kept + 10))
    assert (receipt.start_offset, receipt.records, log.log_end_offset) == (kept + 20, 1, kept)


def test_no_loss_writes_no_receipt() -> None:
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 3)
    log.assign_epoch(4)
    assert cut_log(disk, log, cut(log.log_end_offset)) == []
    assert log.latest_epoch == 1
    assert receipts_of(disk) == []
    assert list(ReceiptFolder(disk, DIRECTORY).intents()) == []


def test_loss_classes() -> None:
    def lose(high_watermark: int, **fields: object) -> Receipt:
        disk = a_disk()
        log = open_log(disk)
        write(log, 1, 4)
        log.advance_high_watermark(high_watermark)
        (receipt,) = cut_log(disk, log, cut(2, **fields))
        return receipt

    whole = lose(10**6)
    assert whole.loss_class is LossClass.COMMITTED
    part = lose(5)
    assert part.loss_class is LossClass.COMMITTED
    assert "may have been acknowledged" in part.known_by
    assert lose(0).loss_class is LossClass.MAYBE_ACKNOWLEDGED
    ends = frozenset(range(1, 100))
    assert lose(0, unanswered_ends=ends).loss_class is LossClass.NEVER_ACKNOWLEDGED
    assert lose(0, unanswered_ends=frozenset({1})).loss_class is LossClass.MAYBE_ACKNOWLEDGED
    assert lose(5, unanswered_ends=ends).loss_class is LossClass.COMMITTED


def emptied(
    *, config: LogConfig | None = None, cause: LossCause = LossCause.LEADER_STARTS_LATER, below: int = 0, **fields: Any
) -> Receipt:
    """The receipt of a log of epoch 1, with timestamps of 1 s, whose leader's log starts at 100. `below`: the number of
    records past the high watermark."""
    disk = a_disk()
    log = open_log(disk, config=config or LogConfig(retention_ms=-1))
    write(log, 1, 4)
    log.advance_high_watermark(log.log_end_offset - below)
    (receipt,) = cut_log(disk, log, replace(cut(100, truncates_fully=True), cause=cause, **fields))
    assert log.log_start_offset == 100
    return receipt


def test_records_that_the_leader_deleted_before_have_expired() -> None:
    receipt = emptied(clean_since=1)
    assert (receipt.loss_class, receipt.cause) == (LossClass.EXPIRED, LossCause.LEADER_STARTS_LATER)
    assert "no leader after epoch 1 was elected uncleanly" in receipt.known_by


def test_records_that_an_unclean_leader_may_never_have_had_are_not_expired() -> None:
    """Its log starts later anyway, with records that this replica never had."""
    receipt = emptied(clean_since=2)
    assert receipt.loss_class is LossClass.COMMITTED
    assert "or may never have had them" in receipt.known_by
    assert emptied().loss_class is LossClass.COMMITTED, "the elections are unknown"
    assert emptied(clean_since=1, below=1).loss_class is LossClass.COMMITTED
    assert emptied(clean_since=1, cause=LossCause.DIVERGENCE).loss_class is LossClass.COMMITTED


def test_records_that_the_leader_may_have_had_may_be_acknowledged() -> None:
    """A producer rejected by this node retries, and a leader that has the batch acknowledges it (operations, seed
    31001620).
    """
    ends = frozenset(range(1, 100))
    receipt = emptied(below=100, unanswered_ends=ends)
    assert receipt.loss_class is LossClass.MAYBE_ACKNOWLEDGED
    assert "the leader's log starts at 100" in receipt.known_by
    assert (
        emptied(below=100, unanswered_ends=ends, cause=LossCause.DIVERGENCE).loss_class is LossClass.NEVER_ACKNOWLEDGED
    )


@pytest.mark.parametrize(
    ("config", "time_ms", "loss_class"),
    [
        (LogConfig(retention_ms=5_000), 6_001, LossClass.EXPIRED),
        (LogConfig(retention_ms=5_000), 6_000, LossClass.COMMITTED),
        (LogConfig(retention_ms=5_000, cleanup_policy=frozenset(("compact",))), 6_001, LossClass.COMMITTED),
    ],
)
def test_records_older_than_retention_ms_have_expired_under_any_leader(
    config: LogConfig, time_ms: int, loss_class: LossClass
) -> None:
    assert emptied(config=config, time_ms=time_ms).loss_class is loss_class


def test_cut_rejected_by_a_full_disk_changes_nothing() -> None:
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 9)
    before = stored_batches(log)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageError) as refused:
        cut_log(disk, log, cut(2))
    assert refused.value.disk_full
    assert log.offline is None
    assert stored_batches(log) == before
    disk.heal()
    receipts = cut_log(disk, log, cut(2))
    assert complaints(receipts, lost_between(before, stored_batches(log))) == []


def test_cut_on_a_full_disk_frees_older_evidence_then_keeps_none() -> None:
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 12)
    before = stored_batches(log)
    asked = []

    def no_room() -> bool:
        """Frees nothing; but there is room for the receipt itself."""
        asked.append(disk.used_bytes)
        return False

    offset = before[-2].base_offset  # most of the last segment remains and would have to be copied
    real_open = disk.open_append

    def open_append(path: str) -> int:
        if path.endswith(".kept.tmp") and not asked:
            raise OSError(errno.ENOSPC, "full", path)
        return real_open(path)

    disk.open_append = open_append  # type: ignore[method-assign]
    (receipt,) = cut_log(disk, log, cut(offset), no_room)
    assert asked, "older evidence is deleted first"
    assert receipt.evidence == ()
    assert "disk was full" in receipt.evidence_note
    assert complaints([receipt], lost_between(before, stored_batches(log))) == []
    assert log.offline is None
    write(log, 9, 1)


def test_receipt_is_retried_when_the_disk_fills_after_the_cut() -> None:
    """The log is intact but not usable until a repeated call finds room for the receipt."""
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 9)
    before = stored_batches(log)
    disk.fail("write", ".due.tmp", errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(TruncationPending):
            cut_log(disk, log, cut(2))
        assert log.offline is None
        assert log.log_end_offset < before[-1].next_offset
    disk.heal()
    receipts = cut_log(disk, log, cut(2))
    assert complaints(receipts, lost_between(before, stored_batches(log))) == []
    assert cut_log(disk, log, cut(2)) == []


class FullDisk(SimDisk):
    """Is full from the n-th change on (counted from 1) until it is healed."""

    changes = 0
    full_from: int | None = None

    def _check_faults(self, call: Any, path: str) -> None:
        super()._check_faults(call, path)
        if call in ("write", "rename", "fsync"):
            self.changes += 1
            if self.full_from is not None and self.changes >= self.full_from:
                raise OSError(errno.ENOSPC, "full", path)

    def heal(self) -> None:
        super().heal()
        self.full_from = None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("older_can_go", [False, True])
def test_cut_is_resumed_when_the_disk_fills_at_any_step(seed: int, anew: bool, older_can_go: bool) -> None:
    """When there is room again, the same call continues, and one receipt reports the whole loss. Deleting older
    evidence in between, if that is not enough, deletes no evidence of this cut.
    """
    step = 0
    while True:
        step += 1
        rng = Random(seed)
        disk = FullDisk(seed)
        disk.mkdir("/data")
        log = open_log(disk)
        for epoch in range(4):
            write(log, epoch, 4, rng)
        (older,) = cut_log(disk, log, cut(log.log_end_offset - 2, time_ms=1))
        log.advance_high_watermark(rng.randint(0, log.log_end_offset))
        before = stored_batches(log)
        wanted = cut(log.log_end_offset + 3 if anew else rng.randint(0, log.log_end_offset - 1), truncates_fully=anew)
        can_go = list(older.evidence) if older_can_go else []
        disk.full_from, disk.changes = step, 0
        refused = [refusal(disk, log, wanted, can_go) for _ in range(2)]
        for error in refused:
            assert error is None or error.disk_full
            assert log.offline is None
        if refused[0] is not None and not isinstance(refused[0], TruncationPending):
            assert stored_batches(log) == before
        disk.heal()
        cut_log(disk, log, wanted)
        (reported,) = (receipt for receipt in receipts_of(disk) if receipt.id != older.id)
        assert complaints([reported], lost_between(before, stored_batches(log))) == []
        assert all(disk.peek(path) for path in reported.evidence), "evidence named by a receipt exists"
        reader = EvidenceReader(disk, reported, reported.evidence)
        assert not reported.evidence or sum(header.record_count for header, _ in reader.batches()) == reported.records
        assert (log.offline, log.unfinished) == (None, None)
        write(log, 9, 2)
        log.close()
        again = open_log(disk, clean=True)
        assert stored_batches(again) == stored_batches(log)
        assert again.epochs.entries == log.epochs.entries
        if refused[0] is None:
            assert step > 10, "the cut has more steps than this"
            return


def refusal(disk: FullDisk, log: PartitionLog, wanted: LogCut, can_go: list[str]) -> StorageError | None:
    """The result of a cut. `can_go`: evidence that is deleted when the disk is full, which frees no space."""

    def make_room() -> bool:
        found, can_go[:] = list(can_go), []
        for path in found:
            disk.unlink(path)
        return bool(found)

    try:
        cut_log(disk, log, wanted, make_room)
    except StorageError as error:
        return error
    return None


def test_partially_cut_log_is_not_closed_cleanly() -> None:
    """Its node stops while the disk is full: the state in memory does not match the files."""
    disk = FullDisk()
    disk.mkdir("/data")
    log = open_log(disk)
    write(log, 1, 9)
    before = stored_batches(log)
    disk.fail("write", f"{EPOCH_FILE}.tmp", errno.ENOSPC)
    with pytest.raises(TruncationPending):
        cut_log(disk, log, cut(2))
    assert log.unfinished is not None
    assert log.flush_work(0) is None
    files = disk.durable(DIRECTORY)
    disk.heal()
    log.close()
    assert disk.durable(DIRECTORY) == files
    again = open_log(disk)
    assert complaints(settled(disk, again), lost_between(before, stored_batches(again))) == []
    cut_log(disk, again, cut(2, time_ms=8_000))
    assert complaints(receipts_of(disk), lost_between(before, stored_batches(again))) == []


@pytest.mark.parametrize("seed", range(40))
def test_truncation_by_recovery_has_a_receipt(seed: int) -> None:
    """A log after a power loss during writes, recovered by a node that loses power, too."""
    rng = Random(seed)
    disk = a_disk(seed)
    log = open_log(disk)
    write(log, 0, 6, rng)
    log.close()
    log = open_log(disk, clean=True)
    safe = log.log_end_offset
    write(log, 1, 10, rng)
    disk.crash()
    crashes = rng.randint(1, 12)
    life = a_life(disk, seed, crashes)
    try:
        first = open_log(life, recovery_point=safe)
        assert first.recovery is not None
        cut_anything = first.recovery.torn_bytes + first.recovery.cut_bytes > 0
    except ProcessEnded:
        cut_anything = False
    life.forget()
    again = open_log(disk, recovery_point=safe)
    report = again.recovery
    assert report is not None
    receipts = settled(disk, again)
    if cut_anything or report.torn_bytes or report.cut_bytes:
        assert receipts
    for receipt in receipts:
        assert receipt.cause is LossCause.RECOVERY
        assert receipt.start_offset >= safe
        assert receipt.end_offset_exclusive >= receipt.start_offset
        assert receipt.size_bytes > 0 or "counted by their offsets" in receipt.known_by
        for path in receipt.evidence:
            assert disk.peek(path), "evidence named by a receipt exists"
    assert ReceiptFolder(disk, DIRECTORY).notes() == []
    named = {path for receipt in receipts for path in receipt.evidence}
    kept = {path for path in ReceiptFolder(disk, DIRECTORY).contents().evidence if disk.peek(path)}
    assert named == kept, "all kept evidence is named"


def a_torn_segment(disk: SimDisk) -> list[Stored]:
    """A log to recover, with a middle segment that ends in garbage, and its former batches."""
    log = open_log(disk)
    write(log, 1, 16)
    before = stored_batches(log)
    log.close()
    assert len(log.segments) > 3
    fd = disk.open_append(log.segments[1].path)
    disk.truncate(fd, log.segments[1].size_bytes - 7)
    disk.write(fd, bytes([255] * 7))
    disk.fsync(fd)
    disk.close(fd)
    return before


def segment_files(disk: SimDisk) -> dict[str, bytes | None]:
    return {name: disk.peek(f"{DIRECTORY}/{name}") for name in disk.folder(DIRECTORY) or () if name.endswith(".log")}


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize(("number", "may_pass"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_recovery_cuts_nothing_before_its_note_is_durable(call: Any, number: int, may_pass: bool) -> None:
    """Seed 915 of the story `brokers`: a log was cut on a disk without room for the note, and never reported."""
    disk = a_disk()
    before = a_torn_segment(disk)
    files = segment_files(disk)
    disk.fail(call, ".note.tmp", number)
    for _ in range(2):
        with pytest.raises(CorruptLog) as refused:
            open_log(disk)
        assert (refused.value.transient_error is not None) == may_pass
        assert "no restart" not in refused.value.advice
        assert segment_files(disk) == files
    disk.heal()
    log = open_log(disk)
    assert complaints(settled(disk, log), lost_between(before, stored_batches(log))) == []


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_recovery_on_a_disk_that_fills_at_any_step_hides_no_loss(seed: int, power: bool) -> None:
    """Recovery fails there and is retried, in the same process or after a crash, until it succeeds."""
    step = 0
    while True:
        step += 1
        disk = FullDisk(seed)
        disk.mkdir("/data")
        before = a_torn_segment(disk)
        disk.full_from, disk.changes = step, 0
        refused = None
        for _ in range(2):
            try:
                open_log(disk)
            except CorruptLog as error:
                refused = error
                assert refused.transient_error is not None
            if power:
                disk.crash()
        disk.heal()
        again = open_log(disk)
        receipts = settled(disk, again)
        assert complaints(receipts, lost_between(before, stored_batches(again))) == []
        assert all(disk.peek(path) for receipt in receipts for path in receipt.evidence)
        if refused is None:
            assert step > 5, "recovery has more steps than this"
            return


def test_note_whose_rename_is_not_durable_is_synced_before_the_cut() -> None:
    """Its rename was in memory only; then power is lost after the cut became durable."""
    for seed in range(20):
        disk = a_disk(seed)
        log = open_log(disk)
        write(log, 1, 3)
        end = log.log_end_offset
        log.close()
        fd = disk.open_append(log.segments[-1].path)
        disk.truncate(fd, log.segments[-1].size_bytes - 7)
        disk.fsync(fd)
        disk.fail("fsync", "lost+found")
        with pytest.raises(CorruptLog):
            open_log(disk)
        disk.heal()
        assert open_log(disk).log_end_offset < end
        disk.crash()
        again = open_log(disk)
        (receipt,) = settled(disk, again)
        assert (receipt.start_offset, receipt.end_offset_exclusive) == (again.log_end_offset, end)


def test_evidence_deleted_between_two_recovery_attempts_frees_its_name() -> None:
    disk = a_disk()
    before = a_torn_segment(disk)
    folder = ReceiptFolder(disk, DIRECTORY)
    disk.mkdir(folder.path)
    older = f"{folder.path}/{sorted(segment_files(disk))[2]}.0"
    disk.close(disk.open_append(older))
    disk.fail("rename", ".log", errno.ENOSPC)
    with pytest.raises(CorruptLog):
        open_log(disk)
    disk.heal()
    disk.unlink(older)
    again = open_log(disk)
    (receipt,) = settled(disk, again)
    assert older in receipt.evidence
    assert complaints([receipt], lost_between(before, stored_batches(again))) == []


def test_recovery_counts_intact_batches_after_a_gap(tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = OsDisk()
    directory = str(tmp_path_factory.mktemp("log") / "rain-3")
    log = open_log(disk, directory)
    write(log, 0, 12)
    stored = stored_batches(log)
    log.close()
    victim = stored[5]
    segment = next(each for each in reversed(log.segments) if each.base_offset <= victim.base_offset)
    with open(segment.path, "r+b") as file:
        position = sum(b.size_bytes for b in stored if segment.base_offset <= b.base_offset < victim.base_offset)
        file.seek(position + 70)
        file.write(b"\xff\xff\xff")
    again = open_log(disk, directory, recovery_point=victim.base_offset, high_watermark=victim.base_offset)
    assert again.log_end_offset == victim.base_offset
    (receipt,) = resolve_pending(disk, again, replica=REPLICA, high_watermark=victim.base_offset + 1)
    assert receipt.loss_class is LossClass.COMMITTED
    assert complaints([receipt], lost_between(stored, stored_batches(again))) == []
    assert "checksum" in receipt.reason


def test_checker_detects_wrong_receipts() -> None:
    disk = a_disk()
    log = open_log(disk)
    write(log, 1, 6)
    before = stored_batches(log)
    (receipt,) = cut_log(disk, log, cut(before[3].base_offset))
    lost = lost_between(before, stored_batches(log))
    assert complaints([receipt], lost) == []
    assert complaints([], lost)
    assert complaints([receipt], lost[1:])
    assert complaints([receipt], before)
    assert complaints([receipt, receipt], lost)
    assert complaints([receipt], [batch._replace(leader_epoch=2) for batch in lost])
    inside = lost[0].base_offset + 1
    rest = replace(receipt, start_offset=inside, records=receipt.records - 1)
    assert complaints([rest], lost)
    assert complaints([rest], lost, log_start=inside) == []
    assert complaints([receipt], lost, log_start=inside)


def test_resolved_note_does_not_reappear_after_a_power_loss() -> None:
    """Seed 481 of the story `brokers`: the old note replaced that of the next recovery and hid its cut."""
    for seed in range(20):
        disk = a_disk(seed)
        write(open_log(disk), 1, 3)
        note = RecoveryNote(LostBatches(2, 4, 2, 100, (1,)), "a test", True, 5_000, ())
        write_note(disk, DIRECTORY, note)
        assert len(resolve_pending(disk, open_log(disk), replica=REPLICA, high_watermark=0)) == 1
        disk.crash()
        assert ReceiptFolder(disk, DIRECTORY).notes() == []
