"""Loss classes when a broker cuts a log that it led before, and receipts due for the ledger."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.losses import quarantine
from fenceline.losses.cutting import resolve_pending
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import LossClass, Receipt
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.replication.follower_truncation import cut_of
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.replication.replica import Replica
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.replica.follower import CutTo, FollowerState, RestartAt, TruncationCause
from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import TOPIC_ID, open_log, receipts_of, write
from tests.node.controller_helpers import StillClock
from tests.node.desk import turns


class Waiter:
    def __init__(self) -> None:
        self.code: ErrorCode | None = None

    def committed(self, position: int, code: ErrorCode) -> None:
        self.code = code


class _ManualExecutor(Executor):
    """Work runs on request."""

    def __init__(self) -> None:
        self.work: list[Any] = []

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.work.append((done, work, args))
        return done

    def catch_up(self) -> None:
        for done, work, args in self.work:
            done.set_result(work(*args))
        self.work.clear()


class Stage:
    """A replica that led epoch 4 with three batches, some of them with pending acks=all requests."""

    def __init__(self, *, waiting: int, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.disk.mkdir("/data")
        self.log = open_log(self.disk)
        clock = SimpleNamespace(now_ms=lambda: 9_000, monotonic_ms=lambda: self.now_ms)
        self.in_service = OpenReplicas()
        self.threads = _ManualExecutor()
        self.now_ms = 0
        self.keeper = LossKeeper(
            2,
            [cast(Any, SimpleNamespace(disk=self.disk, path="/data", strays=list))],
            self.in_service,
            clock,
            self.threads,
            max_age_ms=-1,
            max_bytes=-1,
        )
        self.news = 0
        self.keeper.due.listen(self.hear)
        self.replica = Replica(TopicPartition("rain", 3), TOPIC_ID, self.log, LogConfig(), clock)
        self.replica.leader, self.replica.leader_epoch = cast(Any, object()), 4
        self.in_service.by_name[self.replica.topic_partition] = self.replica
        self.waiters = [Waiter() for _ in range(waiting)]
        for number in range(3):
            write(self.log, 4, 1)
            if number < waiting:
                self.replica.when_committed(self.log.log_end_offset, self.waiters[number], 0)

    def hear(self) -> None:
        self.news += 1

    def cut(self, leader_epoch: int) -> Receipt:
        self.replica.end_leadership()
        assert all(waiter.code is ErrorCode.NOT_LEADER_OR_FOLLOWER for waiter in self.waiters)
        state = FollowerState("rain", TOPIC_ID.bytes, 3, leader_epoch, self.log)
        self.keeper.cut(self.replica, cut_of(self.replica, CutTo(state, 0, TruncationCause.DIVERGENCE), 2, 7, 9_000))
        (receipt,) = receipts_of(self.disk)
        return receipt


@pytest.mark.parametrize(
    ("waiting", "leader_epoch", "loss_class"),
    [
        (3, 5, LossClass.NEVER_ACKNOWLEDGED),
        (2, 5, LossClass.MAYBE_ACKNOWLEDGED),  # a producer wrote with acks=1
        (3, 6, LossClass.MAYBE_ACKNOWLEDGED),  # a leader in between may have acknowledged a retry
        (0, 5, LossClass.MAYBE_ACKNOWLEDGED),
    ],
)
def test_loss_class_of_unacknowledged_records(waiting: int, leader_epoch: int, loss_class: LossClass) -> None:
    stage = Stage(waiting=waiting)
    receipt = stage.cut(leader_epoch)
    assert receipt.loss_class is loss_class
    assert (receipt.cause, receipt.leader, receipt.leader_epoch) == ("divergence", 7, leader_epoch)
    assert stage.keeper.losses[loss_class] == 1


@pytest.mark.parametrize(("clean_since", "loss_class"), [(4, LossClass.EXPIRED), (5, LossClass.COMMITTED)])
def test_loss_class_of_records_below_the_leaders_log_start(clean_since: int, loss_class: LossClass) -> None:
    stage = Stage(waiting=0)
    stage.log.advance_high_watermark(stage.log.log_end_offset)
    stage.replica.clean_since = clean_since
    state = FollowerState("rain", TOPIC_ID.bytes, 3, 6, stage.log)
    stage.keeper.cut(
        stage.replica, cut_of(stage.replica, RestartAt(state, 100, TruncationCause.LEADER_STARTS_LATER), 2, 7, 9_000)
    )
    (receipt,) = receipts_of(stage.disk)
    assert receipt.loss_class is loss_class


def test_every_cause_of_a_follower_has_a_name_in_receipts() -> None:
    from fenceline.losses import receipt

    assert {cause.name.lower() for cause in TruncationCause} <= {cause.value for cause in receipt.LossCause}


def test_receipt_is_due_until_it_is_delivered() -> None:
    stage = Stage(waiting=0)
    receipt = stage.cut(5)
    assert stage.news == 1
    assert stage.keeper.next_due(10) == [receipt]
    stage.keeper.delivered([receipt])
    assert (stage.keeper.next_due(10), stage.keeper.undelivered) == ([], 0)
    assert [name for name in stage.disk.listdir("/data/rain-3/lost+found") if name.endswith(".due")] == []
    stage.keeper.delivered([receipt])


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_delivered_cut_is_not_reported_again_after_a_restart(is_checkpointed: bool) -> None:
    """A full disk lost the evidence and rejected the checkpoint after the cut: the recovery point on the disk still
    covers the cut records, and the node is killed."""
    stage = Stage(waiting=0)
    end = stage.log.log_end_offset
    stage.log.advance_high_watermark(end)
    stage.log.durable_recovery_point = end
    receipt = stage.cut(5)
    if is_checkpointed:
        stage.log.durable_recovery_point = 0
    gone = quarantine.without_evidence(receipt, quarantine.BY_FULL_DISK)
    folder = ReceiptFolder(stage.disk, stage.log.directory)
    folder.mark_due(gone)
    stage.keeper.queue_receipt(folder, gone)
    stage.keeper.delivered([gone])
    assert folder.due() == []
    assert receipts_of(stage.disk) == ([] if is_checkpointed else [gone])
    stage.keeper._sweep()
    assert receipts_of(stage.disk) == ([] if is_checkpointed else [gone])
    stage.log.close(clean=False)
    known = 0 if is_checkpointed else end
    again = open_log(stage.disk, recovery_point=known, high_watermark=end)
    assert resolve_pending(stage.disk, again, replica=2, high_watermark=end) == []
    stage.log.durable_recovery_point = 0
    stage.keeper._sweep()
    assert receipts_of(stage.disk) == []


def test_full_disk_deletes_evidence_to_make_room_for_records() -> None:
    """A full disk deletes evidence before it stops service, and reports that. Each check deletes the oldest evidence of
    one loss; without evidence there are no checks.
    """

    async def story() -> None:
        stage = Stage(waiting=0)
        stage.cut(5)
        threads = stage.threads
        evidence = [name for name in stage.disk.listdir("/data/rain-3/lost+found") if ".log" in name]
        assert evidence
        trouble = StorageTrouble(StillClock())
        trouble.write_rejected.listen(stage.keeper.on_rejected)
        full = StorageError.of("appending", OSError(errno.ENOSPC, "full"))
        broken = StorageError.of("appending", OSError(errno.EIO, "broken"))

        async def refused(error: StorageError) -> int:
            """The number of checks that two appends rejected with this error start."""
            trouble.rejected(stage.replica.topic_partition, 5, error)
            trouble.rejected(stage.replica.topic_partition, 5, error)
            looks = len(threads.work)
            threads.catch_up()
            await turns()
            return looks

        assert await refused(broken) == 0
        assert await refused(full) == 1
        left = [name for name in stage.disk.listdir("/data/rain-3/lost+found") if ".log" in name]
        assert left == []
        (receipt,) = receipts_of(stage.disk)
        assert receipt.evidence == ()
        assert "disk was full" in receipt.evidence_note
        assert [each.evidence_note for each in stage.keeper.next_due(10)] == [receipt.evidence_note], (
            "the receipt is due again"
        )
        assert await refused(full) == 1, "there may be more evidence"
        assert await refused(full) == 0, "there was no more evidence"
        stage.now_ms = 10_000
        assert await refused(full) == 1

    asyncio.run(story())


def test_deletion_frees_as_much_evidence_as_its_receipts_need(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(waiting=0)
    removed = RemovedPartition("/data/rain-3", stage.disk, TopicPartition("rain", 3), 0)
    full = OSError(errno.ENOSPC, "full")
    attempts: list[OSError | None] = [full, full, None]
    evidence = [True, True, False]

    def take_along(*_: Any, **__: Any) -> None:
        error = attempts.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(stage.keeper, "_move_receipts", take_along)
    monkeypatch.setattr(stage.keeper, "make_room", lambda _: evidence.pop(0))
    stage.keeper.delete_partition(removed)
    assert stage.disk.folder("/data/rain-3") is None
    assert evidence == [False]

    stage = Stage(waiting=0)
    monkeypatch.setattr(stage.keeper, "_move_receipts", take_along)
    monkeypatch.setattr(stage.keeper, "make_room", lambda _: evidence.pop(0))
    attempts += [full, full]
    with pytest.raises(OSError, match="full"):
        stage.keeper.delete_partition(RemovedPartition("/data/rain-3", stage.disk, TopicPartition("rain", 3), 0))
    assert not [name for name in stage.disk.listdir("/data/rain-3") if name.endswith(".log")], (
        "stray segments are deleted first"
    )
