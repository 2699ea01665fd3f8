"""A loss receipt as clients see it: a Fenceline cluster's record of lost records.

Owns the parsing of a ledger record's value, and which of several records of a receipt counts. `loss_ledger.py` reads
the ledger topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from fenceline.ids import NO_EPOCH, decode_uuid


class _LedgerEntry(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def time_ms(self) -> int: ...


E = TypeVar("E", bound=_LedgerEntry)


class ReceiptTransaction(NamedTuple):
    """A transaction of which the replica lost records. `partitions`: topic, partition and what became of its records
    there: `cut`, `committed`, `aborted`, `open` or `unknown`. `is_torn`: a part of it can be read, another is gone.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    outcome: str
    is_torn: bool
    partitions: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        name = f"{self.transactional_id!r} " if self.transactional_id else ""
        parts = ", ".join(f"{topic}-{index} {fate}" for topic, index, fate in self.partitions)
        producer = f"producer {self.producer_id}, epoch {self.producer_epoch}"
        return f"transaction {name}({producer}{': ' if parts else ''}{parts})"


class LossReceipt(NamedTuple):
    """Offsets [start_offset, end_offset_exclusive) that `replica` lost, written in `leader_epochs` (oldest first).

    `loss_class`: committed, maybe_acknowledged, never_acknowledged or expired. `evidence`: paths on that node of the
    lost bytes; `evidence_note`: why there are none, or not all. `topic_id` as text, "" if unknown. `known_by`: how the
    class was determined. `leader_epoch`: of `leader`, at the truncation. `group`: for the class expired, the group
    whose committed offset was passed.
    """

    id: str
    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset_exclusive: int
    leader_epochs: tuple[int, ...]
    records: int
    size_bytes: int
    loss_class: str
    cause: str
    replica: int
    leader: int
    time_ms: int
    evidence: tuple[str, ...]
    evidence_note: str = ""
    known_by: str = ""
    reason: str = ""
    leader_epoch: int = NO_EPOCH
    group: str = ""
    transactions: tuple[ReceiptTransaction, ...] = ()

    def __str__(self) -> str:
        kept = "evidence kept" if self.evidence else "no evidence"
        return (
            f"{self.id[:12]} (node {self.replica} lost offsets {self.start_offset} to {self.end_offset_exclusive - 1}, "
            f"{self.records} records, {self.loss_class}, {kept})"
        )

    def overlaps(self, start_offset: int, end_offset_exclusive: int, epochs: Iterable[int] = ()) -> bool:
        """Whether the receipt covers a part of a range of its partition; `epochs`: of the records read there, empty if
        unknown."""
        read_in = set(epochs)
        return (
            self.start_offset < end_offset_exclusive
            and start_offset < self.end_offset_exclusive
            and (not read_in or not self.leader_epochs or not read_in.isdisjoint(self.leader_epochs))
        )


def parse_receipt(document: bytes) -> LossReceipt | None:
    """Parse the value of a ledger record; None if it is not a receipt that this client understands."""
    try:
        fields: dict[str, Any] = json.loads(document)
        if fields["topic_id"]:
            decode_uuid(fields["topic_id"])
        return LossReceipt(
            str(fields["id"]),
            str(fields["topic"]),
            str(fields["topic_id"] or ""),
            int(fields["partition"]),
            int(fields["start_offset"]),
            int(fields["end_offset_exclusive"]),
            tuple(map(int, fields["leader_epochs"])),
            int(fields["records"]),
            int(fields["bytes"]),
            str(fields["class"]),
            str(fields["cause"]),
            int(fields["replica"]),
            int(fields["leader"]),
            int(fields["time_ms"]),
            tuple(map(str, fields["evidence"])),
            str(fields.get("evidence_note", "")),
            str(fields.get("known_by", "")),
            str(fields.get("reason", "")),
            int(fields.get("leader_epoch", NO_EPOCH)),
            str(fields.get("group", "")),
            tuple(map(_transaction, fields.get("transactions", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _transaction(fields: Mapping[str, Any]) -> ReceiptTransaction:
    return ReceiptTransaction(
        str(fields["transactional_id"]),
        int(fields["producer_id"]),
        int(fields["producer_epoch"]),
        str(fields["outcome"]),
        bool(fields["torn"]),
        tuple((str(each["topic"]), int(each["partition"]), str(each["records"])) for each in fields["partitions"]),
    )


def newest_versions(receipts: Iterable[E]) -> list[E]:
    """Each receipt once, in the last version that was written; oldest loss first. `receipts`: in ledger order."""
    newest = {receipt.id: receipt for receipt in receipts}
    return sorted(newest.values(), key=lambda receipt: (receipt.time_ms, receipt.id))
