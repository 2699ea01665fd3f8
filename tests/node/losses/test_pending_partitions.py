"""Partitions that wait for disk space for the receipts of a crash (seeds 915 and 1449 of the story `brokers`)."""

from __future__ import annotations

import asyncio
import errno
from threading import Event

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.lost_batches import LostBatches
from fenceline.log.recovery.note import RecoveryNote, write_note
from fenceline.losses.check import Stored, complaints, lost_between, stored_batches
from fenceline.losses.cutting import cut_log
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import LossClass, Receipt
from fenceline.node.losses.pending_partitions import PendingPartitions
from tests.losses.helpers import cut, open_log, write
from tests.node.desk import TOPIC, Desk, run_story, turns, where


def _folder(desk: Desk) -> ReceiptFolder:
    return ReceiptFolder(desk.disk, f"/data/{TOPIC}-0")


def _receipts(desk: Desk) -> list[Receipt]:
    return list(_folder(desk).contents().receipts)


def _started(desk: Desk, number: int) -> PendingPartitions:
    """After a crash that lost two records, on a disk that has no space for the receipt."""
    log = desk.partitions.log_of(where())
    assert log is not None
    write_note(desk.disk, log.directory, RecoveryNote(LostBatches(2, 4, 2, 100, (1,)), "a test", True, 5_000, ()))
    desk.disk.fail("write", ".due.tmp", number)
    pending = desk.plane.pending
    pending.recover()
    with pytest.raises(PeerError) as refused:
        desk.lead(3)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return pending


def test_the_partition_is_served_as_soon_as_there_is_space() -> None:
    async def story(desk: Desk) -> None:
        pending = _started(desk, errno.ENOSPC)
        await pending.retry()
        assert where() in desk.partitions.offline, "there is no space yet"
        desk.disk.heal()
        await pending.retry()
        assert desk.replica().is_leader, "as the metadata now says"
        assert [(each.start_offset, each.records) for each in _receipts(desk)] == [(2, 2)]
        assert [each.id for each in desk.losses.next_due(9)] == [each.id for each in _receipts(desk)]
        desk.append()
        await pending.retry()
        assert len(_receipts(desk)) == 1

    run_story(story)


def test_written_receipts_are_delivered_once_all_are_written() -> None:
    """The disk fills up between two receipts: the first one is not kept back until the next start."""

    async def story(desk: Desk) -> None:
        pending = _started(desk, errno.ENOSPC)
        note = RecoveryNote(LostBatches(7, 9, 2, 100, (1,)), "a test", True, 5_000, ())
        write_note(desk.disk, f"/data/{TOPIC}-0", note)
        desk.disk.heal()
        real_rename = desk.disk.rename

        def rename(source: str, target: str) -> None:
            real_rename(source, target)
            desk.disk.fail("write", ".due.tmp", errno.ENOSPC)

        desk.disk.rename = rename  # type: ignore[method-assign]
        await pending.retry()
        assert where() in desk.partitions.offline
        assert len(_receipts(desk)) == 1
        desk.disk.rename = real_rename  # type: ignore[method-assign]
        desk.disk.heal()
        await pending.retry()
        assert desk.replica().is_leader
        assert len(desk.losses.next_due(9)) == len(_receipts(desk)) == 2

    run_story(story)


def _older_loss(desk: Desk) -> Receipt:
    """Of another partition on that disk; its evidence may be deleted."""
    log = desk.partitions.log_of(where(1))
    assert log is not None
    write(log, 1, 99)
    (receipt,) = cut_log(desk.disk, log, cut(2))
    assert receipt.evidence
    return receipt


def test_old_evidence_is_deleted_for_space_and_undelivered_evidence_is_kept() -> None:
    async def story(desk: Desk) -> None:
        older = _older_loss(desk)
        log = desk.partitions.log_of(where())
        assert log is not None
        write_note(desk.disk, log.directory, RecoveryNote(LostBatches(2, 4, 2, 100, (1,)), "a test", True, 5_000, ()))
        untold = f"{_folder(desk).path}/00000000000000000000.log.0"
        fd = desk.disk.open_append(untold)
        desk.disk.write(fd, bytes(4_000))
        desk.disk.close(fd)
        desk.disk.capacity_bytes = desk.disk.used_bytes
        pending = desk.plane.pending
        pending.recover()
        assert where() not in desk.partitions.offline
        (receipt,) = _receipts(desk)
        assert receipt.evidence == (untold,)
        assert desk.disk.peek(untold)
        assert desk.disk.peek(older.evidence[0]) is None

    run_story(story, partitions=2)


def test_a_broken_disk_needs_the_operator() -> None:
    async def story(desk: Desk) -> None:
        pending = _started(desk, errno.EIO)
        desk.disk.heal()
        assert not len(pending)
        await pending.retry()
        assert where() in desk.partitions.offline

    run_story(story)


def test_a_topic_deleted_meanwhile_waits_for_the_thread() -> None:
    """Otherwise it would write into the directory of the next topic of that name."""

    async def story(desk: Desk) -> None:
        pending = _started(desk, errno.ENOSPC)
        desk.disk.heal()
        go_on = Event()
        for _ in range(2):
            desk.disk_threads.submit(go_on.wait)
        settling = asyncio.ensure_future(pending.retry())
        await turns()
        desk.delete_topic()
        notes = _folder(desk).notes()
        go_on.set()
        await settling
        assert notes, "its directory was where the thread looked for it"
        assert where() not in desk.partitions.offline
        assert desk.disk.folder(f"/data/{TOPIC}-0") is None
        await pending.retry()

    run_story(story)


# --- logs that recovery could not open -------------------------------------------------------------------------------


def _torn(desk: Desk) -> list[Stored]:
    """A log whose last batch was left as garbage by a crash, on a node that has not read it yet. Returns its old
    content.
    """
    log = open_log(desk.disk, f"/data/{TOPIC}-0", partition=0, topic_id=desk.topic_id)
    write(log, 1, 9)
    before = stored_batches(log)
    log.close()
    fd = desk.disk.open_append(log.segments[-1].path)
    desk.disk.truncate(fd, log.segments[-1].size_bytes - 7)
    desk.disk.write(fd, bytes([255] * 7))
    desk.disk.close(fd)
    return before


def _files(desk: Desk) -> dict[str, bytes | None]:
    directory = f"/data/{TOPIC}-0"
    return {name: desk.disk.peek(f"{directory}/{name}") for name in desk.disk.folder(directory) or ()}


def _recovered(desk: Desk) -> PendingPartitions:
    """The node has started, as far as it could."""
    files = _files(desk)
    desk.partitions.recover([where()])
    pending = desk.plane.pending
    pending.recover()
    with pytest.raises(PeerError) as refused:
        desk.lead(3)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert _files(desk) == files
    return pending


def _torn_and_committed(desk: Desk) -> list[Stored]:
    """According to the checkpoint that the start finds."""
    before = _torn(desk)
    desk.log_dirs.first.offsets.high_watermarks[where()] = before[-1].next_offset
    _name(desk, 0)
    return before


def _name(desk: Desk, index: int) -> None:
    """The checkpoints name the existing directory."""
    log_dir = desk.log_dirs.first
    log_dir.offsets.incarnations[where(index)] = log_dir.identity_of(log_dir.partition_path(where(index))).text


def _without_room_for_its_note(desk: Desk) -> PendingPartitions:
    desk.disk.fail("write", ".note.tmp", errno.ENOSPC)
    return _recovered(desk)


def test_a_log_that_recovery_must_truncate_waits_for_space_for_its_note() -> None:
    """Seed 915 of the story `brokers`: it was truncated, and the loss was never reported."""

    async def story(desk: Desk) -> None:
        before, log_dir = _torn_and_committed(desk), desk.log_dirs.first
        pending = _without_room_for_its_note(desk)
        files = _files(desk)
        assert len(pending)
        await pending.retry()
        await desk.checkpoint()
        assert _files(desk) == files
        assert where() in desk.partitions.offline
        desk.disk.heal()
        await pending.retry()
        log = desk.replica().log
        assert desk.replica().is_leader, "as the metadata now says"
        assert complaints(_receipts(desk), lost_between(before, stored_batches(log))) == []
        assert [each.loss_class for each in desk.losses.next_due(9)] == [LossClass.COMMITTED]
        assert not len(pending)
        desk.append()
        assert log_dir.open_logs[where()] is log
        assert log_dir.offline == {}

    run_story(story)


def test_the_receipt_may_lack_space_as_well() -> None:
    """The log is truncated by then, and open; it is neither reopened nor served until the receipt is written."""

    async def story(desk: Desk) -> None:
        before, log_dir = _torn_and_committed(desk), desk.log_dirs.first
        pending = _without_room_for_its_note(desk)
        desk.disk.heal()
        desk.disk.fail("write", ".due.tmp", errno.ENOSPC)
        await pending.retry()
        assert where() in desk.partitions.offline
        log = log_dir.open_logs[where()]
        await desk.checkpoint()  # of the log in its current state
        desk.disk.heal()
        await pending.retry()
        assert desk.replica().log is log
        (receipt,) = _receipts(desk)
        assert receipt.loss_class is LossClass.COMMITTED, "by the state known before it was truncated"
        assert complaints([receipt], lost_between(before, stored_batches(log))) == []

    run_story(story)


def test_old_evidence_is_deleted_for_the_note() -> None:
    async def story(desk: Desk) -> None:
        older = _older_loss(desk)
        before = _torn(desk)
        desk.disk.capacity_bytes = desk.disk.used_bytes
        pending = _recovered(desk)
        await pending.retry()
        assert desk.disk.peek(older.evidence[0]) is None
        assert complaints(_receipts(desk), lost_between(before, stored_batches(desk.replica().log))) == []

    run_story(story, partitions=2)


def test_a_note_that_a_broken_disk_rejects_needs_the_operator() -> None:
    async def story(desk: Desk) -> None:
        _torn(desk)
        desk.disk.fail("write", ".note.tmp", errno.EIO)
        pending = _recovered(desk)
        desk.disk.heal()
        assert not len(pending)

    run_story(story)


def test_damage_found_while_a_log_waits_needs_the_operator() -> None:
    async def story(desk: Desk) -> None:
        _torn(desk)
        pending = _without_room_for_its_note(desk)
        desk.disk.heal()
        desk.disk.fail("open", ".log", errno.EIO)
        await pending.retry()
        assert not len(pending)
        assert where() in desk.partitions.offline

    run_story(story)


def test_a_recovery_point_past_the_end_is_lowered_before_serving() -> None:
    """The log was truncated last: records appended now are not flushed up to that point."""

    async def story(desk: Desk) -> None:
        before = _torn(desk)
        desk.log_dirs.first.offsets.recovery_points[where()] = before[-1].next_offset + 100
        _name(desk, 0)
        desk.disk.fail("open", ".log", errno.EMFILE)
        pending = _recovered(desk)
        desk.disk.heal()
        await pending.retry()
        end = desk.replica().log.log_end_offset
        checkpoint = desk.disk.peek("/data/recovery-point-offset-checkpoint") or b""
        assert f"{TOPIC} 0 {end}\n".encode() in checkpoint

    run_story(story)


def test_a_lower_recovery_point_of_another_log_does_not_change_the_loss_class() -> None:
    """The checkpoint that lowers its recovery point has the high watermarks of logs that recovery has truncated."""

    async def story(desk: Desk) -> None:
        other = open_log(desk.disk, f"/data/{TOPIC}-1", partition=1, topic_id=desk.topic_id)
        write(other, 1, 3)
        other.close()
        _torn_and_committed(desk)
        log_dir = desk.log_dirs.first
        log_dir.offsets.recovery_points[where(1)] = other.log_end_offset + 10
        _name(desk, 1)
        await desk.plane.recover()
        assert not log_dir.has_truncated_log()
        assert [each.loss_class for each in desk.losses.next_due(9)] == [LossClass.COMMITTED]

    run_story(story, partitions=2)


def test_a_topic_deleted_while_its_log_is_opened_is_removed_with_it() -> None:
    async def story(desk: Desk) -> None:
        _torn(desk)
        pending = _without_room_for_its_note(desk)
        desk.disk.heal()
        go_on = Event()
        for _ in range(2):
            desk.disk_threads.submit(go_on.wait)
        settling = asyncio.ensure_future(pending.retry())
        await turns()
        desk.delete_topic()
        assert desk.disk.folder(f"/data/{TOPIC}-0") is not None, "a thread is opening it"
        go_on.set()
        await settling
        assert desk.disk.folder(f"/data/{TOPIC}-0") is None
        assert where() not in desk.log_dirs.first.open_logs
        assert where() not in desk.partitions.offline
        await pending.retry()
        assert not len(pending)

    run_story(story)
