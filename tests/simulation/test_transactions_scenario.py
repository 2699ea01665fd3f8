"""Transactional clients in simulated clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.losses.receipt import LossClass, Receipt
from fenceline.losses.transactions import LostTransaction, TransactionFate
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.stage import play
from fenceline.testing.simulation.transactions_scenario import check_losses
from fenceline.testing.transaction_history import ClientTransaction
from tests.support.receipts import a_receipt

HERE, THERE = ("t", 0), ("t", 1)
LOST = LostTransaction(
    producer_id=7,
    producer_epoch=0,
    start_offset=5,
    end_offset_exclusive=6,
    records=1,
    first_sequence=0,
    transactional_id="a",
    outcome=TransactionFate.COMMITTED,
)
TORN = a_receipt(start_offset=3, end_offset_exclusive=9, loss_class=LossClass.TORN, transactions=(LOST,))


def test_transactions_are_atomic() -> None:
    outcome = play(1, "transactions")
    assert outcome.failure is None, outcome.report()


def test_the_same_seed_is_the_same_run() -> None:
    assert play(3, "transactions").digest == play(3, "transactions").digest


@pytest.mark.parametrize(
    ("receipts", "complaint"),
    [
        ([TORN], ""),
        ([replace(TORN, loss_class=LossClass.COMMITTED)], "is torn"),
        ([replace(TORN, transactions=())], "is lost"),
        ([replace(TORN, transactions=(replace(LOST, transactional_id="b"),))], "is lost"),
        ([replace(TORN, transactions=(replace(LOST, outcome=TransactionFate.ABORTED),))], "is lost"),
        ([replace(TORN, transactions=(replace(LOST, start_offset=6, end_offset_exclusive=7),))], "is lost"),
        ([], "is lost"),
    ],
)
def test_a_lost_record_of_a_committed_transaction_needs_a_receipt(receipts: list[Receipt], complaint: str) -> None:
    transaction = ClientTransaction(0, "client", "a")
    for partition, value, offset in ((HERE, 1, 5), (THERE, 2, 8)):
        transaction.sends(partition, value).offset = offset
    present: dict[tuple[str, int], set[tuple[int, int]]] = {HERE: set(), THERE: {(8, 2)}}
    if not complaint:
        check_losses(transaction, present, {HERE: receipts, THERE: []})
        return
    with pytest.raises(InvariantBroken, match=complaint):
        check_losses(transaction, present, {HERE: receipts, THERE: []})
