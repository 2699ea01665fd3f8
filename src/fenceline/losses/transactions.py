"""Transactions of which a log lost something: which, how they ended, and whether one is torn.

Owns the table. A transaction is torn if a part of it can be read and another part is gone:

| its records here | its outcome | anything else of it                | torn                                        |
|------------------|-------------|------------------------------------|---------------------------------------------|
| lost             | committed   | other partitions, or records that  | yes                                         |
|                  |             | were written here before           |                                             |
| lost             | committed   | nothing                            | no: it is lost as a whole                   |
| lost             | open        |                                    | no: its coordinator aborts it, or is asked  |
|                  |             |                                    | again until it has ended                    |
| lost             | aborted     |                                    | no: no reader of committed records gets it  |
| lost             | unknown     |                                    | not known: the receipt says so              |
| only its marker  | any         |                                    | no: the leader writes one (`node.replication`) |

Never asks a coordinator: a receipt is made from the batches alone, and completed once the coordinators have answered.
Rules: transactions.md X61-X63.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from fenceline.log.core.lost_batches import CutTransaction

TopicIndex: TypeAlias = tuple[str, int]
_CUT: Final = "cut"
"""What became of a transaction's records in the partition of the receipt."""


class TransactionFate(StrEnum):
    UNKNOWN = "unknown"
    """No coordinator has answered, or none knows it any more."""
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"

    @classmethod
    def of(cls, commit: bool | None, undecided: TransactionFate) -> TransactionFate:
        """`undecided`: what None means."""
        return undecided if commit is None else cls.COMMITTED if commit else cls.ABORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTransaction:
    """Offsets [start, end) of one transaction; equal if only its end marker is lost."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    end_offset_exclusive: int
    records: int
    first_sequence: int
    """Of the first lost batch. Above 0: the producer wrote records of this epoch before, and they are still there."""
    newest_ms: int = -1
    """The highest timestamp of its lost records."""
    lost_marker: TransactionFate = TransactionFate.UNKNOWN
    """COMMITTED or ABORTED: its end marker is lost, too. UNKNOWN: it is not."""
    transactional_id: str = ""
    """Empty until a coordinator has named it."""
    outcome: TransactionFate = TransactionFate.UNKNOWN
    partitions: tuple[TopicIndex, ...] = ()
    """All that its coordinator wrote end markers to, or will."""

    @property
    def is_complete(self) -> bool:
        """Nothing more can be learned of it."""
        return bool(self.transactional_id) and self.outcome in (TransactionFate.COMMITTED, TransactionFate.ABORTED)

    def is_torn(self, here: TopicIndex) -> bool:
        """`here`: the partition that lost the records."""
        has_more = self.first_sequence > 0 or any(each != here for each in self.partitions)
        return self.records > 0 and self.outcome is TransactionFate.COMMITTED and has_more


def lost_transactions(found: Iterable[CutTransaction]) -> tuple[LostTransaction, ...]:
    """As far as the batches tell."""
    return tuple(_of_cut(each) for each in found)


def _of_cut(cut: CutTransaction) -> LostTransaction:
    marker = TransactionFate.of(cut.commit, TransactionFate.UNKNOWN)
    return LostTransaction(
        producer_id=cut.producer_id,
        producer_epoch=cut.producer_epoch,
        start_offset=cut.start_offset,
        end_offset_exclusive=cut.end_offset_exclusive,
        records=cut.records,
        first_sequence=cut.first_sequence,
        newest_ms=cut.newest_ms,
        lost_marker=marker,
        outcome=marker,
    )


def transaction_document(transaction: LostTransaction, here: TopicIndex) -> dict[str, Any]:
    """The fields in a receipt, with what became of each partition."""
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "start_offset": transaction.start_offset,
        "end_offset_exclusive": transaction.end_offset_exclusive,
        "records": transaction.records,
        "first_sequence": transaction.first_sequence,
        "newest_ms": transaction.newest_ms,
        "lost_marker": transaction.lost_marker.value,
        "outcome": transaction.outcome.value,
        "torn": transaction.is_torn(here),
        "partitions": [
            {"topic": topic, "partition": index, "records": _fate(transaction, (topic, index), here)}
            for topic, index in transaction.partitions
        ],
    }


def _fate(transaction: LostTransaction, partition: TopicIndex, here: TopicIndex) -> str:
    return _CUT if partition == here and transaction.records else transaction.outcome.value


def transaction_from_document(fields: Mapping[str, Any]) -> LostTransaction:
    """Raises ValueError, KeyError or TypeError."""
    return LostTransaction(
        producer_id=int(fields["producer_id"]),
        producer_epoch=int(fields["producer_epoch"]),
        start_offset=int(fields["start_offset"]),
        end_offset_exclusive=int(fields["end_offset_exclusive"]),
        records=int(fields["records"]),
        first_sequence=int(fields["first_sequence"]),
        newest_ms=int(fields["newest_ms"]),
        lost_marker=TransactionFate(fields["lost_marker"]),
        transactional_id=str(fields["transactional_id"]),
        outcome=TransactionFate(fields["outcome"]),
        partitions=tuple((str(each["topic"]), int(each["partition"])) for each in fields["partitions"]),
    )
