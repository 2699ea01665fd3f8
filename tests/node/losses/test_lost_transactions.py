"""Receipts are delivered at once, and again with what the coordinators say of their transactions.

Rules: transactions.md X61-X63. The coordinators are a fake; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from fenceline.losses.folder import DUE, ReceiptFolder
from fenceline.losses.receipt import LossClass, Receipt, identified
from fenceline.losses.transactions import LostTransaction, TransactionFate
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.losses.lost_transactions import LostTransactions
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.loop import run
from fenceline.transactions.history import TransactionHistory
from tests.losses.helpers import DIRECTORY, TOPIC_ID
from tests.node.controller_helpers import StillClock
from tests.support.receipts import a_receipt
from tests.transactions.world import World

HERE, OTHER = ("rain", 3), ("snow", 0)
A_RECEIPT = a_receipt(
    topic="rain",
    topic_id=TOPIC_ID,
    partition=3,
    start_offset=10,
    end_offset_exclusive=12,
    loss_class=LossClass.MAYBE_ACKNOWLEDGED,
)


class Stage:
    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.mkdir(DIRECTORY)
        log_dirs = [cast(Any, SimpleNamespace(disk=self.disk, path="/data", strays=list))]
        self.keeper = LossKeeper(
            2, log_dirs, OpenReplicas(), StillClock(), cast(Any, None), max_age_ms=-1, max_bytes=-1
        )
        self.folder = ReceiptFolder(self.disk, DIRECTORY)
        self.world = World()
        self.world.topics = {HERE[0]: 10, OTHER[0]: 10}
        self.is_down = False
        self.asked: list[set[int]] = []
        self.service = LostTransactions(self.keeper, self.history_of, cast(Any, None))

    async def history_of(self, producer_ids: Collection[int]) -> TransactionHistory | None:
        self.asked.append(set(producer_ids))
        if self.is_down:
            return None
        history = TransactionHistory(producer_ids)
        for key, value in self.world.log.get(0, []):
            history.add(key, value)
        return history

    def lose(self, producer_id: int, epoch: int, **changes: Any) -> str:
        """A cut with records of this producer; the receipt's id."""
        lost = LostTransaction(
            producer_id=producer_id,
            producer_epoch=epoch,
            start_offset=10,
            end_offset_exclusive=12,
            records=2,
            first_sequence=0,
            newest_ms=self.world.wall_ms,
        )
        receipt = identified(replace(A_RECEIPT, transactions=(replace(lost, **changes),), transaction_count=1))
        self.folder.mark_due(receipt)
        self.keeper.record_loss(self.folder, receipt)
        return receipt.id

    def due(self) -> Receipt:
        (receipt,) = self.keeper.next_due(10)
        assert self.folder.due() == [receipt], "on disk as well"
        return receipt


def run_story(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        stage = Stage()
        stage.service.start()
        await story(stage)
        await stage.service.stop()

    run(whole())


def test_committed_transaction_with_another_partition_is_torn() -> None:
    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.world.end(identity, commit=True)
        stage.lose(*identity)
        assert stage.due().loss_class is LossClass.MAYBE_ACKNOWLEDGED, "the receipt does not wait"
        await asyncio.sleep(1)
        receipt = stage.due()
        (only,) = receipt.transactions
        assert (only.transactional_id, only.outcome) == ("orders", TransactionFate.COMMITTED)
        assert only.partitions == (HERE, OTHER)
        assert receipt.loss_class is LossClass.TORN
        assert "'orders'" in receipt.known_by
        assert "a test" in receipt.known_by, "what was known of the records is kept"
        assert stage.keeper.losses[LossClass.TORN] == 1
        assert stage.asked == [{identity.producer_id}], "nothing more is asked"

    run_story(story)


def test_undecided_transaction_is_asked_about_until_it_has_ended() -> None:
    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.lose(*identity)
        await asyncio.sleep(100)
        assert stage.due().transactions[0].outcome is TransactionFate.OPEN
        assert 3 < len(stage.asked) < 20, "less and less often"
        stage.world.init()
        await asyncio.sleep(100)
        receipt = stage.due()
        assert receipt.transactions[0].outcome is TransactionFate.ABORTED
        assert receipt.loss_class is LossClass.MAYBE_ACKNOWLEDGED

    run_story(story)


def test_transaction_whose_end_was_compacted_away_is_asked_about_no_more() -> None:
    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.lose(*identity)
        await asyncio.sleep(100)
        assert stage.due().transactions[0].outcome is TransactionFate.OPEN
        stage.world.log[0].clear()
        await asyncio.sleep(100)
        (only,) = stage.due().transactions
        assert (only.outcome, only.transactional_id) == (TransactionFate.UNKNOWN, "orders")
        asked = len(stage.asked)
        await asyncio.sleep(1_000)
        assert len(stage.asked) == asked

    run_story(story)


def test_silent_coordinator_is_asked_again() -> None:
    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE)
        stage.world.end(identity, commit=True)
        stage.is_down = True
        stage.lose(*identity)
        await asyncio.sleep(100)
        assert stage.due().transactions[0].outcome is TransactionFate.UNKNOWN
        stage.is_down = False
        await asyncio.sleep(100)
        receipt = stage.due()
        assert receipt.transactions[0].outcome is TransactionFate.COMMITTED
        assert receipt.loss_class is LossClass.MAYBE_ACKNOWLEDGED, "lost as a whole"

    run_story(story)


def test_producer_that_no_coordinator_knows_stays_unknown() -> None:
    async def story(stage: Stage) -> None:
        stage.lose(77, 0)
        await asyncio.sleep(100)
        assert stage.asked == [{77}]
        assert stage.due().transactions[0].outcome is TransactionFate.UNKNOWN
        stage.lose(78, 0, start_offset=11)
        await asyncio.sleep(1)
        assert stage.asked[1:] == [{78}], "what is final is not asked about again"

    run_story(story)


def test_lost_marker_of_transaction_version_2_names_the_transaction_before() -> None:
    """transactions.md X40: it has the next epoch."""

    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.world.end(identity, commit=True)
        marker = {"records": 0, "first_sequence": -1, "newest_ms": -1, "lost_marker": TransactionFate.COMMITTED}
        stage.lose(identity.producer_id, identity.epoch + 1, outcome=TransactionFate.COMMITTED, **marker)
        await asyncio.sleep(1)
        receipt = stage.due()
        assert receipt.transactions[0].transactional_id == "orders"
        assert receipt.loss_class is LossClass.MAYBE_ACKNOWLEDGED, "no record is lost: the leader ends it again"

    run_story(story)


def test_delivered_receipt_is_delivered_again_with_the_outcome_also_after_a_restart() -> None:
    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.lose(*identity)
        stage.keeper.delivered([stage.due()])
        assert stage.keeper.next_due(10) == []
        assert len(stage.folder.due()) == 1, "a restart asks again"
        stage.world.end(identity, commit=True)
        await asyncio.sleep(1)
        receipt = stage.due()
        assert receipt.loss_class is LossClass.TORN
        stage.keeper.delivered([receipt])
        assert stage.keeper.next_due(10) == []
        assert stage.folder.due() == []

    run_story(story)


def test_receipt_whose_folder_is_moved_away_is_not_written_there() -> None:
    """The directory of a deleted partition must not come back."""

    async def story(stage: Stage) -> None:
        identity = stage.world.begun(HERE, OTHER)
        stage.world.end(identity, commit=True)
        receipt_id = stage.lose(*identity)
        stage.folder.drop(receipt_id)
        await asyncio.sleep(1)
        assert stage.folder.due() == []
        (receipt,) = stage.keeper.next_due(10)
        assert receipt.loss_class is LossClass.TORN
        assert not [name for name in stage.disk.listdir(f"{DIRECTORY}/lost+found") if name.endswith(DUE)]

    run_story(story)
