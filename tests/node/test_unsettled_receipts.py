"""Partitions that wait for room for the receipts of what a crash took (seed 1449 of the story `brokers`)."""

from __future__ import annotations

import asyncio
import errno
from threading import Event
from typing import cast

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.lost_batches import LostBatches
from fenceline.log.recovery_note import RecoveryNote, write_note
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import Receipt
from fenceline.node.broker import Broker
from fenceline.node.loss_keeper import LossKeeper

from .desk import TOPIC, Desk, told, turns, where


def _folder(desk: Desk) -> ReceiptFolder:
    return ReceiptFolder(desk.disk, f"/data/{TOPIC}-0")


def _receipts(desk: Desk) -> list[Receipt]:
    return list(_folder(desk).contents().receipts)


def _started(desk: Desk, number: int) -> LossKeeper:
    """After a crash that took two records, on a disk that refuses the receipt."""
    log = desk.partitions.log_of(where())
    assert log is not None
    write_note(desk.disk, log.directory, RecoveryNote(LostBatches(2, 4, 2, 100, (1,)), "a test", True, 5_000, ()))
    desk.disk.fail("write", ".due.tmp", number)
    keeper = LossKeeper(cast(Broker, desk))
    keeper.take_up()
    with pytest.raises(PeerError) as refused:
        desk.lead(3)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return keeper


def test_it_is_served_as_soon_as_there_is_room() -> None:
    async def story(desk: Desk) -> None:
        keeper = _started(desk, errno.ENOSPC)
        await keeper.settle_again()
        assert where() in desk.partitions.offline, "there is no room yet"
        desk.disk.heal()
        await keeper.settle_again()
        assert desk.replica().is_leader, "as the metadata says by now"
        assert [(each.start_offset, each.records) for each in _receipts(desk)] == [(2, 2)]
        assert [each.id for each in keeper.next_due(9)] == [each.id for each in _receipts(desk)]
        desk.append()
        await keeper.settle_again()
        assert len(_receipts(desk)) == 1

    told(story)


def test_what_an_attempt_has_written_is_told_when_all_of_it_is() -> None:
    """The disk gets full between two receipts: the first one is not forgotten until the next start."""

    async def story(desk: Desk) -> None:
        keeper = _started(desk, errno.ENOSPC)
        note = RecoveryNote(LostBatches(7, 9, 2, 100, (1,)), "a test", True, 5_000, ())
        write_note(desk.disk, f"/data/{TOPIC}-0", note)
        desk.disk.heal()
        real_rename = desk.disk.rename

        def rename(source: str, target: str) -> None:
            real_rename(source, target)
            desk.disk.fail("write", ".due.tmp", errno.ENOSPC)

        desk.disk.rename = rename  # type: ignore[method-assign]
        await keeper.settle_again()
        assert where() in desk.partitions.offline
        assert len(_receipts(desk)) == 1
        desk.disk.rename = real_rename  # type: ignore[method-assign]
        desk.disk.heal()
        await keeper.settle_again()
        assert desk.replica().is_leader
        assert len(keeper.next_due(9)) == len(_receipts(desk)) == 2

    told(story)


def test_evidence_of_before_makes_the_room() -> None:
    async def story(desk: Desk) -> None:
        log = desk.partitions.log_of(where())
        assert log is not None
        write_note(desk.disk, log.directory, RecoveryNote(LostBatches(2, 4, 2, 100, (1,)), "a test", True, 5_000, ()))
        fd = desk.disk.open_append(f"{_folder(desk).path}/00000000000000000000.log.0")
        desk.disk.write(fd, bytes(4_000))
        desk.disk.close(fd)
        desk.disk.capacity_bytes = desk.disk.used_bytes
        keeper = LossKeeper(cast(Broker, desk))
        keeper.take_up()
        assert where() not in desk.partitions.offline
        assert len(_receipts(desk)) == 1

    told(story)


def test_a_broken_disk_is_left_to_the_operator() -> None:
    async def story(desk: Desk) -> None:
        keeper = _started(desk, errno.EIO)
        desk.disk.heal()
        assert not keeper.has_unsettled
        await keeper.settle_again()
        assert where() in desk.partitions.offline

    told(story)


def test_a_topic_that_is_deleted_meanwhile_waits_for_the_thread() -> None:
    """Which would write into the directory of whatever has this name next."""

    async def story(desk: Desk) -> None:
        keeper = _started(desk, errno.ENOSPC)
        desk.disk.heal()
        go_on = Event()
        for _ in range(2):
            desk.disk_threads.submit(go_on.wait)
        settling = asyncio.ensure_future(keeper.settle_again())
        await turns()
        desk.delete_topic()
        notes = _folder(desk).notes()
        go_on.set()
        await settling
        assert notes, "its directory was where the thread looked for it"
        assert where() not in desk.partitions.offline
        assert desk.disk.folder(f"/data/{TOPIC}-0") is None
        await keeper.settle_again()

    told(story)
