"""What the chaos of operations knows of its topics, and how each acknowledged record is accounted for afterwards.

Owns the record of what was acknowledged and what was asked for (`Topic`), and the judgement (`unaccounted`, `ghosts`).
Asserts nothing. A record says in its value of which life of its topic it is: `name/life/number`.

An acknowledged record is readable at its offset, or one of these holds: its topic was deleted since, DeleteRecords
asked for offsets behind it, its topic has a retention and the log starts behind it, its topic is compacted and a later
record has its key, or a receipt covers its offset and its evidence holds the record.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fenceline.log.core.disk import OsDisk
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.receipt import LossClass, Receipt
from fenceline.records.decode import decode_batch

TELLING: Final = frozenset({LossClass.COMMITTED, LossClass.MAYBE_ACKNOWLEDGED})
"""Classes that say that a record may have been acknowledged."""


class Acknowledged(NamedTuple):
    """One record. Times are of the monotonic clock."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    sent_s: float
    acknowledged_s: float


class LogOfPartition(NamedTuple):
    """What a consumer reads from the beginning. records: offset to (key, value)."""

    start_offset: int
    end_offset: int
    records: Mapping[int, tuple[bytes, bytes]]


@dataclass(slots=True)
class Topic:
    """One name, through all its lives."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    replicas: tuple[int, ...] = ()
    """The brokers that have it; empty: three of the controller's choice."""
    is_compacted: bool = False
    has_retention: bool = False
    may_lose: bool = False
    """Elected uncleanly by request: what is lost then needs a receipt. No other topic may lose anything."""
    life: int = 0
    born_s: float = 0.0
    """When its present life was confirmed."""
    deletions: list[float] = field(default_factory=list)
    """When each deletion was first asked for."""
    deleted_below: dict[int, int] = field(default_factory=dict)
    """By partition of the present life: the highest offset that DeleteRecords asked for."""
    acknowledged: list[Acknowledged] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, record: Acknowledged) -> None:
        with self.lock:
            self.acknowledged.append(record)


def unaccounted(
    topic: Topic, logs: Mapping[int, LogOfPartition], receipts: Iterable[Receipt], counts: Counter[str]
) -> list[str]:
    """Acknowledged records that are gone without a reason. `counts` counts each account."""
    reported = [each for each in receipts if each.topic == topic.name and each.loss_class in TELLING]
    newest = {
        (partition, key): offset for partition, log in logs.items() for offset, (key, _) in sorted(log.records.items())
    }
    missing = []
    for record in topic.acknowledged:
        log = logs.get(record.partition, LogOfPartition(0, 0, {}))
        if log.records.get(record.offset, (b"", b""))[1] == record.value:
            counts["readable"] += 1
        elif record.sent_s <= topic.born_s and topic.deletions:
            counts["topic deleted"] += 1
        elif record.offset < topic.deleted_below.get(record.partition, 0):
            counts["deleted by request"] += 1
        elif topic.has_retention and record.offset < log.start_offset:
            counts["retention"] += 1
        elif topic.is_compacted and newest.get((record.partition, record.key), -1) > record.offset:
            counts["compacted"] += 1
        elif topic.may_lose and _is_told(record, reported):
            counts["receipt"] += 1
        else:
            there = log.records.get(record.offset)
            missing.append(f"{topic.name}-{record.partition} offset {record.offset}: {record.value!r}; there: {there}")
    return missing


def ghosts(topic: Topic, logs: Mapping[int, LogOfPartition]) -> list[str]:
    """Records of an earlier life, acknowledged before its deletion was asked for, that are in the present log."""
    if not topic.deletions:
        return []
    old = {each.value for each in topic.acknowledged if each.acknowledged_s < topic.deletions[-1]}
    return [
        f"{topic.name}-{partition} offset {offset}: {value!r}"
        for partition, log in logs.items()
        for offset, (_, value) in log.records.items()
        if value in old
    ]


def moved_starts(topic: Topic, logs: Mapping[int, LogOfPartition]) -> list[str]:
    """Partitions whose log start has moved without a cause."""
    if topic.has_retention:
        return []
    return [
        f"{topic.name}-{partition} starts at {log.start_offset}, asked for {topic.deleted_below.get(partition, 0)}"
        for partition, log in logs.items()
        if log.start_offset > topic.deleted_below.get(partition, 0)
    ]


def _is_told(record: Acknowledged, receipts: Iterable[Receipt]) -> bool:
    """A receipt covers the offset, and its evidence, where it has any, holds the record."""
    return any(
        receipt.partition == record.partition
        and receipt.start_offset <= record.offset < receipt.end_offset_exclusive
        and (not receipt.evidence or _evidence(receipt).get(record.offset) == record.value)
        for receipt in receipts
    )


_read: dict[str, dict[int, bytes]] = {}


def _evidence(receipt: Receipt) -> dict[int, bytes]:
    found = _read.get(receipt.id)
    if found is None:
        found = _read[receipt.id] = {
            record.offset: bytes(record.value or b"")
            for header, content in EvidenceReader(OsDisk(), receipt, receipt.evidence).batches()
            if not header.is_control
            for record in decode_batch(content, header)
        }
    return found
