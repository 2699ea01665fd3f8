"""Each branch of opening and cutting a log that removes records, or finds them missing, leaves a note or a receipt:
one test for each row of the table in docs/losses.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.compaction.compaction import Limits
from fenceline.log.core.compaction_bound import BOUND_FILE, read_bound
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.log.core.errors import CorruptLog
from fenceline.log.directories.duplicate_logs import inspect_log
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dir_offsets import UNKNOWN
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.log.directories.set_aside import keep_records
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.recovery.note import NOTE_SUFFIX
from fenceline.losses import removed_partitions
from fenceline.losses.check import stored_batches
from fenceline.losses.cutting import cut_log, resolve_pending
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.folder import ReceiptOutbox
from fenceline.losses.receipt import LossCause, LossClass, Receipt
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import compact_all
from tests.losses.helpers import DIRECTORY, REPLICA, a_disk, cut, open_log, receipts_of, write

PAGE: Final = Path(__file__).parents[2] / "docs" / "losses.md"


def used(disk: SimDisk) -> PartitionLog:
    """Batches of one record in several segments, all of them flushed."""
    log = open_log(disk)
    for number in range(30):
        made = build_batch([(1_000, b"k%d" % number, b"v" * 20, ())])
        log.append_as_leader(memoryview(made), leader_epoch=1, now_ms=1_000)
    log.advance_high_watermark(30)
    work = log.flush_work(1_000)
    assert work is not None
    work.run()
    log.close(clean=False)
    assert len(log.segments) > 3
    return log


def shorten(disk: SimDisk, path: str, size_bytes: int) -> None:
    fd = disk.open_append(path)
    disk.truncate(fd, size_bytes)
    disk.close(fd)


def damage(disk: SimDisk, path: str, position: int) -> None:
    content = bytearray(disk.peek(path) or b"")
    content[position] ^= 0x40
    shorten(disk, path, 0)
    fd = disk.open_append(path)
    disk.write(fd, bytes(content))
    disk.close(fd)


def reopened(disk: SimDisk, **fields: Any) -> tuple[PartitionLog, list[Receipt]]:
    """Resolve losses as a start does. Each note exists until its receipt is written."""
    log = open_log(disk, **fields)
    notes = [name for name in disk.folder(f"{DIRECTORY}/lost+found") or () if name.endswith(NOTE_SUFFIX)]
    assert notes
    receipts = resolve_pending(disk, log, replica=REPLICA, high_watermark=fields.get("high_watermark", 0))
    assert not [name for name in disk.folder(f"{DIRECTORY}/lost+found") or () if name.endswith(NOTE_SUFFIX)]
    assert len(receipts) == len(notes)
    assert {each.id for each in receipts} == {each.id for each in receipts_of(disk)}
    return log, sorted(receipts, key=lambda each: each.start_offset)


def test_torn_end() -> None:
    disk = a_disk()
    last = used(disk).segments[-1]
    shorten(disk, last.path, last.size_bytes - 5)
    log, (receipt,) = reopened(disk)
    assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.cause) == (29, 30, LossCause.RECOVERY)
    assert log.log_end_offset == 29


def test_damage_past_the_recovery_point() -> None:
    disk = a_disk()
    second = used(disk).segments[1]
    damage(disk, second.path, 80)
    log, (receipt,) = reopened(disk, high_watermark=30)
    assert (receipt.start_offset, receipt.end_offset_exclusive) == (log.log_end_offset, 30)
    assert receipt.loss_class is LossClass.COMMITTED
    assert receipt.evidence


def test_missing_segment_in_the_middle() -> None:
    disk = a_disk()
    _, second, third, *_ = used(disk).segments
    disk.unlink(second.path)
    log, (gone, cut_off) = reopened(disk, high_watermark=second.base_offset + 1)
    assert log.log_end_offset == second.base_offset
    assert (gone.start_offset, gone.end_offset_exclusive) == (second.base_offset, third.base_offset)
    assert (gone.loss_class, gone.evidence, gone.size_bytes) == (LossClass.COMMITTED, (), 0)
    assert (cut_off.start_offset, cut_off.end_offset_exclusive) == (third.base_offset, 30)
    assert (cut_off.loss_class, len(cut_off.evidence)) == (LossClass.MAYBE_ACKNOWLEDGED, len(log_files(cut_off)))


COMPACT: Final = LogConfig(segment_bytes=400, cleanup_policy=frozenset({"compact"}))
OURS: Final[dict[str, Any]] = {"config": COMPACT, "incarnation": UUID(int=7)}


def test_gap_of_a_compacted_log_that_compaction_did_not_make() -> None:
    """Seed 57 of the story `operations`, with kills during writes: a power loss removed the end of a segment but not
    the next segment, and no follower could fetch past the hole in the leader's log."""
    disk = a_disk()
    log = open_log(disk, **OURS)
    write(log, 1, 10)
    first, second = log.segments[:2]
    last = stored_batches(log)[len(list(iter_headers(disk.peek(first.path) or b""))) - 1]
    shorten(disk, first.path, first.size_bytes - last.size_bytes)
    log.close(clean=False)
    as_kafka_left_it = open_log(disk, config=COMPACT)
    assert as_kafka_left_it.log_end_offset == log.log_end_offset, "it is unknown which program compacted it"
    as_kafka_left_it.close(clean=False)
    log, (gone, cut_off) = reopened(disk, **OURS)
    assert log.log_end_offset == last.base_offset
    assert (gone.start_offset, gone.end_offset_exclusive) == (last.base_offset, second.base_offset)
    assert cut_off.start_offset == second.base_offset


def test_gap_made_by_compaction() -> None:
    """Also after a crash before the next cleaner and recovery point checkpoints. After a cut it applies
    up to the cut."""
    disk = a_disk()
    log = open_log(disk, **OURS)
    for key in (b"a", b"b", b"c", b"a", b"b", b"c", b"d", b"e", b"a", b"b"):
        made = build_batch([(1_000, key, b"v" * 90, ())])
        log.append_as_leader(memoryview(made), leader_epoch=1, now_ms=1_000)
    log.advance_high_watermark(10)
    compact_all(log, 2_000, Limits(secret=bytes(16)))
    ends = [segment.next_offset for segment in log.segments]
    stored = stored_batches(log)
    log.close(clean=False)
    log = open_log(disk, **OURS)
    assert stored_batches(log) == stored
    assert read_bound(disk, DIRECTORY) == log.segments[-1].base_offset, ends
    log.truncate_to(7)
    assert read_bound(disk, DIRECTORY) <= 7
    log.truncate_fully_and_start_at(3)
    assert read_bound(disk, DIRECTORY) == 0


def log_files(receipt: Receipt) -> list[str]:
    return [path for path in receipt.evidence if ".log." in path]


def test_missing_durable_segment_in_the_middle() -> None:
    """Offline, as with any other damage below the recovery point: the advice includes how to continue without it."""
    disk = a_disk()
    first, second, third, *_ = used(disk).segments
    disk.unlink(second.path)
    missing = f"offsets {first.next_offset} to {third.base_offset - 1} are missing"
    for _ in range(2):
        with pytest.raises(CorruptLog, match=missing) as refused:
            open_log(disk, recovery_point=30, high_watermark=30)
    assert refused.value.path == second.path
    assert "remove the .index and .timeindex files" in refused.value.advice
    with pytest.raises(CorruptLog, match=missing):
        open_log(disk, clean=True, recovery_point=30, high_watermark=30)
    second.delete_index_files()
    assert open_log(disk, recovery_point=30, high_watermark=30).log_end_offset == 30


@pytest.mark.parametrize("interval", [150, 10_000], ids=["with index entries", "without index entries"])
@pytest.mark.parametrize("clean", [False, True])
def test_missing_segment_in_the_middle_and_its_indexes(clean: bool, interval: int) -> None:
    """Only `fenceline verify` detected this: segments below the recovery point are not read."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=interval)
    fields: dict[str, Any] = {"config": config, "incarnation": UUID(int=7), "recovery_point": 30, "high_watermark": 30}
    disk = a_disk()
    log = used(disk)
    log.close(clean=True)
    fields |= {"clean": True, "segment_count": len(log.segments)} if clean else {}
    assert open_log(disk, **fields).log_end_offset == 30
    first, second, third, *_ = log.segments
    disk.unlink(second.path)
    second.delete_index_files()
    missing = f"offsets {first.next_offset} to {third.base_offset - 1} are missing"
    for _ in range(2):
        with pytest.raises(CorruptLog, match=missing) as refused:
            open_log(disk, **fields)
    assert refused.value.path == first.path
    assert disk.folder(f"{DIRECTORY}/lost+found") is None
    # Compaction or another program may have made it.
    assert open_log(disk, **fields | {"config": COMPACT}).log_end_offset == 30
    assert open_log(disk, **fields | {"incarnation": None}).log_end_offset == 30
    # Records below the log start were deleted.
    assert open_log(disk, **fields | {"log_start_offset": third.base_offset}).log_start_offset == third.base_offset
    # Follows the advice.
    assert f"write {third.base_offset} into the file {BOUND_FILE}" in refused.value.advice
    replace_file(disk, f"{DIRECTORY}/{BOUND_FILE}", b"%d\n" % third.base_offset)
    assert open_log(disk, **fields).log_end_offset == 30


@pytest.mark.parametrize(("clean", "start"), [(False, 0), (False, 7), (True, 0), (True, 7)])
def test_missing_first_segments(clean: bool, start: int) -> None:
    """As if an operator had freed disk space with rm: served as in Apache Kafka, and reported."""
    disk = a_disk()
    log = used(disk)
    for segment in log.segments[:3]:
        disk.unlink(segment.path)
        if clean:
            segment.delete_index_files()
    begins = log.segments[3].base_offset
    fields: dict[str, Any] = {"clean": True, "first_segment": 0} if clean else {}
    again, (receipt,) = reopened(disk, recovery_point=30, high_watermark=30, log_start_offset=start, **fields)
    assert (again.log_start_offset, again.log_end_offset) == (begins, 30)
    assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.records) == (start, begins, begins - start)
    assert (receipt.loss_class, receipt.cause, receipt.evidence) == (LossClass.COMMITTED, LossCause.RECOVERY, ())
    assert "first segment files of the log are missing" in receipt.reason
    again.close(clean=False)
    open_log(disk, recovery_point=30, high_watermark=30)
    assert receipts_of(disk) == [receipt], "reported once"


def test_deleted_first_segments_leave_no_receipt() -> None:
    disk = a_disk()
    log = used(disk)
    disk.unlink(log.segments[0].path)
    again = open_log(disk, recovery_point=30, high_watermark=30, log_start_offset=log.segments[1].base_offset)
    assert again.log_start_offset == log.segments[1].base_offset
    assert disk.folder(f"{DIRECTORY}/lost+found") is None


def test_end_below_the_log_start() -> None:
    """DeleteRecords, then a power loss that removed unsynced records."""
    disk = a_disk()
    log = used(disk)
    for segment in log.segments[2:]:
        disk.unlink(segment.path)
    end = log.segments[2].base_offset
    again, (receipt,) = reopened(disk, log_start_offset=25, high_watermark=30)
    assert (again.log_start_offset, again.log_end_offset) == (25, 25)
    assert (receipt.start_offset, receipt.end_offset_exclusive) == (0, end)
    assert (receipt.loss_class, receipt.cause) == (LossClass.EXPIRED, LossCause.RECOVERY)
    assert len(receipt.evidence) == 2


@pytest.mark.parametrize("left", [0, 2])
def test_end_below_the_recovery_point(left: int) -> None:
    """Whole files are missing, so that nothing is torn or damaged."""
    disk = a_disk()
    log = used(disk)
    for segment in log.segments[left:]:
        disk.unlink(segment.path)
    end = log.segments[left].base_offset
    again, (receipt,) = reopened(disk, recovery_point=28, high_watermark=30)
    assert again.log_end_offset == end
    assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.records) == (end, 28, 28 - end)
    assert receipt.loss_class is LossClass.COMMITTED
    assert "counted by their offsets" in receipt.known_by


def test_end_below_the_recovery_point_after_a_clean_shutdown() -> None:
    """Nothing may be missing after it: the partition stays offline, as with any other damage."""
    disk = a_disk()
    log = used(disk)
    log.close(clean=True)
    disk.unlink(log.segments[-1].path)
    with pytest.raises(CorruptLog, match="the records up to 30 had been safe on the disk, after a clean shutdown"):
        open_log(disk, clean=True, recovery_point=30, high_watermark=30)


def test_cut_before_the_checkpoint() -> None:
    """The recovery point on the disk is still the former one: the receipt of the cut reports the whole loss, once."""
    disk = a_disk()
    used(disk)
    log = open_log(disk, recovery_point=30, high_watermark=30)
    (receipt,) = cut_log(disk, log, cut(12))
    log.close(clean=False)
    again, receipts = reopened_with(disk, recovery_point=30, high_watermark=30)
    assert again.log_end_offset == 12
    assert receipts == []
    assert receipts_of(disk) == [receipt]


def reopened_with(disk: SimDisk, **fields: int) -> tuple[PartitionLog, list[Receipt]]:
    log = open_log(disk, **fields)
    return log, resolve_pending(disk, log, replica=REPLICA, high_watermark=fields["high_watermark"])


@pytest.mark.parametrize("truncates_fully", [False, True])
def test_cut_by_a_follower(truncates_fully: bool) -> None:
    disk = a_disk()
    used(disk)
    log = open_log(disk, recovery_point=30, high_watermark=20)
    (receipt,) = cut_log(disk, log, cut(40 if truncates_fully else 12, truncates_fully=truncates_fully))
    assert (receipt.start_offset, receipt.end_offset_exclusive) == (0 if truncates_fully else 12, 30)


@pytest.mark.parametrize("offset", [3, 20])
def test_restart_below_the_end(offset: int) -> None:
    """The log restarts at the leader's log start, at any offset: all its records are reported."""
    disk = a_disk()
    used(disk)
    log = open_log(disk, recovery_point=30, high_watermark=20, log_start_offset=10)
    (receipt,) = cut_log(disk, log, cut(offset, truncates_fully=True))
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    assert (receipt.start_offset, receipt.end_offset_exclusive) == (10, 30)


def test_compacted_log_that_is_fetched_again() -> None:
    """The receipt of the cut reports the loss; records removed after it are on the leader."""
    disk = a_disk()
    used(disk)
    log = open_log(disk, recovery_point=30, high_watermark=30)
    log.raise_complete_from(25, 3)
    (receipt,) = cut_log(disk, log, cut(12))
    assert log.complete_from.offset == 25, "the next start would read it, too"
    assert cut_log(disk, log, cut(0, truncates_fully=True, is_lossless=True)) == []
    assert (log.log_start_offset, log.log_end_offset, log.complete_from.offset) == (0, 0, 0)
    assert receipts_of(disk) == [receipt]


def test_damage_in_the_remaining_part_of_a_cut() -> None:
    """The log is reopened after a cut: damage in the part that should remain is cut and reported, too."""
    disk = a_disk()
    used(disk)
    log = open_log(disk, high_watermark=30)
    kept = log.segments[3]
    damage(disk, kept.path, 80)
    receipts = cut_log(disk, log, cut(28))
    assert log.log_end_offset == kept.base_offset
    reported = sorted((each.start_offset, each.end_offset_exclusive) for each in receipts)
    assert reported[0][0] == log.log_end_offset
    assert reported[-1] == (28, 30)
    assert {each.id for each in receipts_of(disk)} == {each.id for each in receipts}


def test_deleted_records_leave_no_receipt() -> None:
    """Retention and DeleteRecords remove records on request; the coordinator reports those a group had not read."""
    disk = a_disk()
    log = used(disk)
    log.advance_log_start(25)
    log.enforce_retention(1_000)
    assert receipts_of(disk) == []


def test_empty_log_that_moves() -> None:
    """No records, no loss: a follower appends a batch that starts below the end offset of its empty log."""
    disk = a_disk()
    log = open_log(disk)
    log.truncate_fully_and_start_at(5)
    write(log, 1, 0)
    batch = build_batch([(1_000, b"k", b"v", ())] * 4, base_offset=3, leader_epoch=1)
    log.append_as_follower(memoryview(batch))
    assert (log.log_start_offset, log.log_end_offset) == (3, 7)
    assert receipts_of(disk) == []


@pytest.mark.parametrize(("lost_from", "high_watermark"), [(0, 0), (0, 12), (12, 30), (14, 14)])
def test_stray_directory(lost_from: int, high_watermark: int) -> None:
    """Its topic id is unreadable, or another directory that lacks some of its records is used instead."""
    disk = a_disk()
    segments = used(disk).segments
    reason = "a test"
    assert keep_records(disk, DIRECTORY, lost_from, reason, high_watermark=high_watermark, now_ms=9_000) is not None
    aside = f"{DIRECTORY}.0123456789abcdef-stray"
    disk.rename(DIRECTORY, aside)
    removed = RemovedPartition(aside, disk, TopicPartition("rain", 3), 0)
    (receipt,) = removed_partitions.resolve_pending(removed, replica=REPLICA, now_ms=9_000)
    assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.records) == (lost_from, 30, 30 - lost_from)
    assert (receipt.cause, receipt.reason, receipt.leader_epochs) == (LossCause.SET_ASIDE, reason, (1,))
    known = high_watermark > lost_from
    assert receipt.loss_class is (LossClass.COMMITTED if known else LossClass.MAYBE_ACKNOWLEDGED)
    kept = sum(header.record_count for header, _ in EvidenceReader(disk, receipt, receipt.evidence).batches())
    assert kept == receipt.records
    stays = [segment for segment in segments if segment.next_offset <= lost_from]
    assert [name for name in disk.listdir(aside) if name.endswith(".log")] == [
        segment.path.rpartition("/")[2] for segment in stays
    ]
    (reported,) = removed_partitions.move_receipts_to_outbox(removed, "/data", with_evidence=True)
    assert reported.evidence == receipt.evidence


def moved_away(disk: SimDisk, high_watermark: int) -> tuple[LossKeeper, LogDir, RemovedPartition]:
    aside = f"{DIRECTORY}.0123456789abcdef-stray"
    disk.rename(DIRECTORY, aside)
    removed = RemovedPartition(aside, disk, TopicPartition("rain", 3), high_watermark)
    log_dir: Any = SimpleNamespace(disk=disk, path="/data", strays=list)
    clock: Any = SimpleNamespace(now_ms=lambda: 9_000)
    executor: Any = None
    keeper = LossKeeper(REPLICA, [log_dir], OpenReplicas(), clock, executor, max_age_ms=-1, max_bytes=-1)
    return keeper, log_dir, removed


@pytest.mark.parametrize(("lost_from", "high_watermark"), [(0, 30), (12, 30), (12, 12), (29, 0)])
def test_moved_replica(lost_from: int, high_watermark: int) -> None:
    """The leader has the records below `lost_from`; the rest is evidence, and the receipt is due for delivery."""
    disk = a_disk()
    used(disk)
    keeper, log_dir, removed = moved_away(disk, high_watermark)
    keeper.keep_rest(log_dir, removed, lost_from, "a test")
    (receipt,) = keeper.next_due(10)
    assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.records) == (lost_from, 30, 30 - lost_from)
    assert (receipt.cause, receipt.reason) == (LossCause.SET_ASIDE, "a test")
    known = high_watermark > lost_from
    assert receipt.loss_class is (LossClass.COMMITTED if known else LossClass.MAYBE_ACKNOWLEDGED)
    kept = sum(header.record_count for header, _ in EvidenceReader(disk, receipt, receipt.evidence).batches())
    assert kept == receipt.records
    assert not [name for name in disk.listdir(removed.path) if name.endswith((".log", ".index"))]
    assert [each.id for each in ReceiptOutbox(disk, "/data").due()] == [receipt.id]


@pytest.mark.parametrize("keeps_evidence", [False, True])
def test_moved_replica_whose_leader_has_all_records(*, keeps_evidence: bool) -> None:
    disk = a_disk()
    used(disk)
    keeper, log_dir, removed = moved_away(disk, 30)
    if keeps_evidence:
        keeper.keep_rest(log_dir, removed, 28, "an older loss")
        (receipt,) = keeper.next_due(10)
        keeper.delete_contained(removed, keeps_evidence=True)
        assert all(disk.stat(path) is not None for path in receipt.evidence)
    else:
        keeper.delete_contained(removed, keeps_evidence=False)
        assert keeper.next_due(10) == []
        assert disk.folder(removed.path) is None


def test_comparison_of_two_directories() -> None:
    """Two directories hold one partition: records that recovery would cut from either are kept while they are compared,
    and so are unfinished results of retention and compaction."""
    disk = a_disk()
    segments = used(disk).segments
    disk.rename(segments[0].path, segments[0].path + ".swap")
    disk.link(segments[1].path, segments[1].path + ".deleted")
    disk.link(segments[1].path, segments[-1].path + ".cleaned")
    shorten(disk, segments[-1].path, segments[-1].size_bytes - 5)
    damage(disk, segments[1].path, 80)
    before = {name: disk.peek(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)}
    found = inspect_log(disk, DIRECTORY, UNKNOWN, clean=False)
    assert found.log_end_offset == segments[1].base_offset
    assert {name: disk.peek(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)} == before


def test_the_page_lists_these_tests() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert set(named) == here
