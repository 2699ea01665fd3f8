"""Completes receipts with what became of the transactions in them: the coordinators are asked until they have ended.

Owns when to ask, and what an answer means for a receipt. A receipt never waits for this: it is delivered as it is, and
again, under the same id, with its transactions. Rules: transactions.md X61-X63.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.losses.receipt import Receipt
from fenceline.losses.transactions import LostTransaction, TransactionFate
from fenceline.node.logs import Logger
from fenceline.node.losses.woken_task import WokenTask

if TYPE_CHECKING:
    from fenceline.node.losses.keeper import LossKeeper
    from fenceline.transactions.history import TransactionHistory

log: Final = Logger("losses")

_AT_ONCE: Final = 100
_FIRST_PAUSE_S: Final = 0.5
_LAST_PAUSE_S: Final = 30.0


class LostTransactions:
    """Of one broker. All methods run on the event loop unless they say otherwise."""

    def __init__(
        self,
        keeper: LossKeeper,
        history_of: Callable[[Collection[int]], Awaitable[TransactionHistory | None]],
        executor: Executor,
    ) -> None:
        """`history_of`: the transactions of these producers; None if a coordinator could not be asked."""
        self._keeper = keeper
        self._history_of = history_of
        self._executor = executor
        self._task = WokenTask(self._run)

    def start(self) -> None:
        self._task.start(self._keeper.incomplete)

    async def stop(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._task.wakeup.clear()
            receipts = self._keeper.next_incomplete(_AT_ONCE)
            if not receipts:
                pause_s = _FIRST_PAUSE_S
                await self._task.wakeup.wait()
                continue
            try:
                are_complete = await self._complete(receipts)
            except Exception:
                # Our bug; it must not end the search for other receipts.
                log.exception("asking for the transactions of loss receipts failed")
                are_complete = False
            if not are_complete:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _complete(self, receipts: list[Receipt]) -> bool:
        """Whether nothing more can be learned about any of them."""
        asked = {each.producer_id for receipt in receipts for each in receipt.transactions if not each.is_complete}
        history = await self._history_of(asked)
        if history is None:
            return False
        are_complete = True
        for receipt in receipts:
            found = tuple(_answered(each, receipt, history) for each in receipt.transactions)
            is_final = all(each.outcome is not TransactionFate.OPEN for each in found)
            are_complete &= is_final
            complete = partial(self._keeper.complete, receipt.id, found, is_final=is_final)
            await asyncio.get_running_loop().run_in_executor(self._executor, complete)
        return are_complete


def _answered(transaction: LostTransaction, receipt: Receipt, history: TransactionHistory) -> LostTransaction:
    """With what the history tells. An end marker that was cut is the better witness of the outcome."""
    if transaction.is_complete:
        return transaction
    producer_id, epoch, at = transaction.producer_id, transaction.producer_epoch, (receipt.topic, receipt.partition)
    past = history.of(producer_id, epoch, at, transaction.newest_ms)
    if past is None and transaction.records == 0 and epoch > 0:
        # A marker alone: of transaction version 2, it has the epoch after that of the transaction.
        past = history.of(producer_id, epoch - 1, at, transaction.newest_ms)
    if past is None:
        # What was open has ended since, and compaction has removed how.
        is_open = transaction.outcome is TransactionFate.OPEN
        return replace(transaction, outcome=TransactionFate.UNKNOWN) if is_open else transaction
    outcome = TransactionFate.of(past.commit, TransactionFate.OPEN)
    return replace(
        transaction,
        transactional_id=past.transactional_id,
        outcome=outcome if transaction.lost_marker is TransactionFate.UNKNOWN else transaction.lost_marker,
        partitions=tuple(sorted(past.partitions)),
    )
