"""The loss receipt: which offsets of which partition were lost where, whether they were acknowledged, and why.

Owns its fields, its id and its two forms: the document on disk and in the ledger topic, and the fourteen fields of
`fenceline losses list --json`. Decides nothing.

A receipt's id is derived from its content and never changes, so that a receipt can be delivered twice and count once. A
later receipt of the same loss (its evidence was deleted) has the same id; the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

from fenceline.ids import decode_uuid, encode_uuid
from fenceline.losses.transactions import LostTransaction, transaction_document, transaction_from_document

NO_NODE: Final = -1
"""No leader, or none that is known."""


class LossClass(StrEnum):
    """Whether the records were acknowledged to their producers. A range of several classes has the worst."""

    TORN = "torn"
    """Records of a committed transaction, of which another part can be read (`losses.transactions`)."""

    COMMITTED = "committed"
    """Below a high watermark that the replica knew: acknowledged to acks=all, and readable."""
    MAYBE_ACKNOWLEDGED = "maybe_acknowledged"
    """Above it. Producers with acks=1 got an acknowledgement, and the high watermark may have been higher."""
    NEVER_ACKNOWLEDGED = "never_acknowledged"
    """No producer got an acknowledgement."""
    EXPIRED = "expired"
    """Retention or a deletion removed them before a consumer that had not read them yet."""


class LossCause(StrEnum):
    """Why they were lost. The first four are a follower's, named as in `fenceline.replica.follower.LossCause`."""

    DIVERGENCE = "divergence"
    LEADER_IS_SHORTER = "leader_is_shorter"
    UNKNOWN_EPOCH = "unknown_epoch"
    LEADER_STARTS_LATER = "leader_starts_later"
    RECOVERY = "recovery"
    SET_ASIDE = "directory_set_aside"
    LOG_START = "log_start_moved"
    TOPIC_DELETED = "topic_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Offsets [start, end) of one partition. `size_bytes`: of the batches as they were stored."""

    id: str = ""
    """The same for the same loss (`receipt_id`); empty until it is known."""
    topic: str
    topic_id: UUID | None
    partition: int
    start_offset: int
    end_offset_exclusive: int
    leader_epochs: tuple[int, ...]
    """Of the lost batches, oldest first."""
    records: int
    size_bytes: int
    loss_class: LossClass
    known_by: str
    """How the class was determined."""
    cause: LossCause
    reason: str
    replica: int
    """Node whose log lost them; for class expired, the group's coordinator."""
    leader: int
    leader_epoch: int
    """Leader epoch of the truncation."""
    time_ms: int
    evidence: tuple[str, ...] = ()
    """Files on the replica's disk that hold the lost batches."""
    evidence_note: str = ""
    """Why there is no evidence, or only part of it."""
    group: str = ""
    """The group whose committed offset was passed, for class expired."""
    transactions: tuple[LostTransaction, ...] = ()
    """Those with records or an end marker in the range: the newest `MOST_TRANSACTIONS`."""
    transaction_count: int = 0
    """All of them."""

    @property
    def has_incomplete_transactions(self) -> bool:
        """Coordinators can tell more about them, or will."""
        return any(not each.is_complete for each in self.transactions)

    def with_transactions(self, transactions: tuple[LostTransaction, ...]) -> Receipt:
        """The receipt once the coordinators have answered: of class TORN if one of them is torn."""
        here = (self.topic, self.partition)
        torn = [each for each in transactions if each.is_torn(here)]
        if not torn or self.loss_class is LossClass.TORN:
            return replace(self, transactions=transactions)
        first = torn[0]
        known = (
            f"producer {first.producer_id} with epoch {first.producer_epoch}, transactional id "
            f"{first.transactional_id!r}, committed its transaction, of which these records are gone"
        )
        others = f", and {len(torn) - 1} other transactions likewise" if len(torn) > 1 else ""
        return replace(
            self,
            transactions=transactions,
            loss_class=LossClass.TORN,
            known_by=f"{known}{others}; of the records: {self.known_by}",
        )

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start_offset} to {self.end_offset_exclusive - 1}"


def receipt_id(
    *,
    topic: str,
    topic_id: UUID | None,
    partition: int,
    start_offset: int,
    end_offset_exclusive: int,
    cause: LossCause,
    replica: int,
    leader_epoch: int = NO_NODE,
    time_ms: int = 0,
    group: str = "",
) -> str:
    """24 hexadecimal digits, the same for the same loss."""
    parts = (
        topic,
        topic_id.hex if topic_id is not None else "",
        partition,
        start_offset,
        end_offset_exclusive,
        cause.value,
        replica,
        leader_epoch,
        time_ms,
        group,
    )
    return blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def identified(receipt: Receipt) -> Receipt:
    """With the id that follows from the loss and its time."""
    found = receipt_id(
        topic=receipt.topic,
        topic_id=receipt.topic_id,
        partition=receipt.partition,
        start_offset=receipt.start_offset,
        end_offset_exclusive=receipt.end_offset_exclusive,
        cause=receipt.cause,
        replica=receipt.replica,
        leader_epoch=receipt.leader_epoch,
        time_ms=receipt.time_ms,
    )
    return replace(receipt, id=found)


def summary_fields(receipt: Receipt) -> dict[str, Any]:
    """The fields of `fenceline losses list --json`."""
    return {
        "topic": receipt.topic,
        "topic_id": encode_uuid(receipt.topic_id) if receipt.topic_id is not None else None,
        "partition": receipt.partition,
        "start_offset": receipt.start_offset,
        "end_offset_exclusive": receipt.end_offset_exclusive,
        "leader_epochs": list(receipt.leader_epochs),
        "records": receipt.records,
        "bytes": receipt.size_bytes,
        "class": receipt.loss_class.value,
        "cause": receipt.cause.value,
        "replica": receipt.replica,
        "leader": receipt.leader,
        "time": _time_text(receipt.time_ms),
        "evidence": list(receipt.evidence),
    }


def document(receipt: Receipt) -> dict[str, Any]:
    """All fields of a receipt."""
    return {
        "id": receipt.id,
        **summary_fields(receipt),
        "known_by": receipt.known_by,
        "reason": receipt.reason,
        "leader_epoch": receipt.leader_epoch,
        "time_ms": receipt.time_ms,
        "evidence_note": receipt.evidence_note,
        "group": receipt.group,
        "transactions": [
            transaction_document(each, (receipt.topic, receipt.partition)) for each in receipt.transactions
        ],
        "transaction_count": receipt.transaction_count,
    }


def encode(receipt: Receipt) -> bytes:
    """The document as JSON."""
    return json.dumps(document(receipt), separators=(",", ":")).encode()


def decode(content: bytes) -> Receipt:
    """Inverse of `encode`; unknown fields of later versions are ignored. Raises ValueError."""
    try:
        return from_document(json.loads(content))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a loss receipt: {error!r}") from None


def from_document(fields: Mapping[str, Any]) -> Receipt:
    """Raises ValueError, KeyError or TypeError if it is not a receipt."""
    return Receipt(
        id=str(fields["id"]),
        topic=str(fields["topic"]),
        topic_id=decode_uuid(fields["topic_id"]) if fields["topic_id"] is not None else None,
        partition=int(fields["partition"]),
        start_offset=int(fields["start_offset"]),
        end_offset_exclusive=int(fields["end_offset_exclusive"]),
        leader_epochs=tuple(int(epoch) for epoch in fields["leader_epochs"]),
        records=int(fields["records"]),
        size_bytes=int(fields["bytes"]),
        loss_class=LossClass(fields["class"]),
        known_by=str(fields["known_by"]),
        cause=LossCause(fields["cause"]),
        reason=str(fields["reason"]),
        replica=int(fields["replica"]),
        leader=int(fields["leader"]),
        leader_epoch=int(fields["leader_epoch"]),
        time_ms=int(fields["time_ms"]),
        evidence=tuple(str(path) for path in fields["evidence"]),
        evidence_note=str(fields["evidence_note"]),
        group=str(fields["group"]),
        transactions=tuple(transaction_from_document(each) for each in fields.get("transactions", ())),
        transaction_count=int(fields.get("transaction_count", 0)),
    )


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
