"""What the records of `__transaction_state` say about past transactions of some producers.

Owns the order of one id's records: the record of an ongoing transaction has its partitions, the next one its outcome.
Compaction removes records of a key that are not its newest, so something may be missing. Never decides anything; the
coordinator's state is `shard`.

Rules: transactions.md X1, X2, X61.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from fenceline.transactions.messages import TopicIndex
from fenceline.transactions.model import Transaction
from fenceline.transactions.records import UnknownTransactionRecord, decode
from fenceline.transactions.states import TransactionState

_COMPLETE: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(slots=True)
class PastTransaction:
    transactional_id: str
    producer_id: int
    lowest_epoch: int
    """Of its records in partitions; less than `highest_epoch` only if the record that has it was compacted away."""
    highest_epoch: int
    partitions: frozenset[TopicIndex]
    """All that got, or will get, an end marker; empty if that was compacted away."""
    commit: bool | None
    """None: not decided."""
    decided_ms: float = inf
    """By the coordinator's clock."""

    def can_be(self, producer_id: int, epoch: int) -> bool:
        return self.producer_id == producer_id and self.lowest_epoch <= epoch <= self.highest_epoch


class TransactionHistory:
    """Of the producers with these ids."""

    def __init__(self, producer_ids: Collection[int]) -> None:
        self._wanted = frozenset(producer_ids)
        self._last: dict[str, PastTransaction] = {}
        """By transactional id: its newest transaction."""
        self._found: list[PastTransaction] = []

    @property
    def unknown(self) -> frozenset[int]:
        """Those of the producers of which nothing was read."""
        return self._wanted - {each.producer_id for each in self._found}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition of the topic. Raises InternalError on unreadable bytes."""
        record = decode(key, value)
        if isinstance(record, UnknownTransactionRecord):
            return
        name, now = record
        if now is None:
            self._last.pop(name, None)
        elif now.state is TransactionState.ONGOING:
            self._ongoing(name, now)
        elif now.state.is_prepared or now.state in _COMPLETE:
            self._decided(name, now)

    def of(self, producer_id: int, epoch: int, partition: TopicIndex, written_ms: int) -> PastTransaction | None:
        """The transaction of a producer's records in a partition; None if there is none in what was read.
        `written_ms`: the highest timestamp of the records.

        Before transaction version 2, an epoch has many transactions: it is the first that was not decided before the
        records were written, as far as the producer's clock and the coordinator's agree.
        """
        found = self._possible(producer_id, epoch, partition)
        return next((each for each in found if each.decided_ms >= written_ms), found[-1] if found else None)

    def only(self, producer_id: int, epoch: int, partition: TopicIndex) -> PastTransaction | None:
        """As `of`, if there is just one that the records can belong to."""
        found = self._possible(producer_id, epoch, partition)
        return found[0] if len(found) == 1 else None

    def _possible(self, producer_id: int, epoch: int, partition: TopicIndex) -> list[PastTransaction]:
        return [
            each
            for each in self._found
            if each.can_be(producer_id, epoch) and (partition in each.partitions or not each.partitions)
        ]

    def _ongoing(self, name: str, now: Transaction) -> None:
        last = self._last.get(name)
        if last is not None and last.commit is None and last.can_be(now.producer_id, now.epoch):
            last.partitions = now.partitions
            return
        self._begin(PastTransaction(name, now.producer_id, now.epoch, now.epoch, now.partitions, None))

    def _decided(self, name: str, now: Transaction) -> None:
        last = self._last.get(name)
        commits = now.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if last is not None and last.commit in (None, commits) and _is_end_of(last, now):
            last.decided_ms = min(last.decided_ms, now.last_update_ms)
            last.commit = commits
            last.partitions = now.partitions or last.partitions
            return
        ended = PastTransaction(
            name, now.producer_id, max(0, now.epoch - 1), now.epoch, now.partitions, commits, now.last_update_ms
        )
        if now.state.is_prepared and not now.partitions:
            self._last[name] = ended  # an abort of nothing: no partition has records of it
        else:
            self._begin(ended)

    def _begin(self, transaction: PastTransaction) -> None:
        self._last[transaction.transactional_id] = transaction
        if transaction.producer_id in self._wanted:
            self._found.append(transaction)


def _is_end_of(last: PastTransaction, now: Transaction) -> bool:
    """Whether a decided state is that of this transaction: it may come with the next epoch or, once the epochs have
    run out, with the next producer id."""
    if now.producer_id != last.producer_id:
        return now.state in _COMPLETE and now.previous_producer_id == last.producer_id
    return last.can_be(now.producer_id, now.epoch) or last.can_be(now.producer_id, now.epoch - 1)
