"""Checks receipts against the logs themselves: receipts must equal the difference.

Owns the comparison, for tests and simulations. Never used by a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.receipt import Receipt
from fenceline.records.batch import BatchHeader, iter_headers


class Stored(NamedTuple):
    """One stored batch. `crc` covers the records: two batches are equal if all fields are."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    record_count: int
    size_bytes: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> Stored:
        return cls(
            header.base_offset,
            header.next_offset,
            header.leader_epoch,
            header.record_count,
            header.size_bytes,
            header.crc,
        )


def stored_batches(log: PartitionLog) -> list[Stored]:
    """All batches from log start to log end. Reads the log: not during a truncation. Raises StorageError."""
    found: list[Stored] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        records = log.read(offset, 1 << 20, end_offset_exclusive=log.log_end_offset).load()
        for header in iter_headers(records):
            offset = header.next_offset
            found.append(Stored.of(header))
    return found


def lost_between(before: Sequence[Stored], after: Iterable[Stored]) -> list[Stored]:
    """The batches of one log that another one, or the same one later, does not have."""
    there = set(after)
    return [batch for batch in before if batch not in there]


def readable_from(log_start: int, batch: Stored) -> Stored:
    """The readable part of a batch in a log that starts inside it. Its size stays: batches are cut as a unit."""
    if batch.base_offset >= log_start:
        return batch
    deleted = min(log_start - batch.base_offset, batch.record_count)
    return batch._replace(base_offset=log_start, record_count=batch.record_count - deleted)


def complaints(receipts: Sequence[Receipt], lost: Sequence[Stored], *, log_start: int = 0) -> list[str]:
    """Errors and omissions in the receipts of one partition; empty if they equal the difference.

    `lost`: the lost batches, by `lost_between`. Each lost batch must be in exactly one receipt, and each receipt must
    have the offsets, epochs, records and bytes of its batches. `log_start`: the log start before the loss
    (DeleteRecords may move it into a batch).
    """
    found: list[str] = []
    left = [readable_from(log_start, batch) for batch in lost]
    for receipt in sorted(receipts, key=lambda each: each.start_offset):
        mine = [
            batch
            for batch in left
            if receipt.start_offset < batch.next_offset and batch.base_offset < receipt.end_offset_exclusive
        ]
        left = [batch for batch in left if batch not in mine]
        if not mine:
            found.append(f"receipt {receipt.id} of {receipt} reports batches that are not lost")
            continue
        epochs = tuple(dict.fromkeys(batch.leader_epoch for batch in mine))
        for what, reported, true in (
            ("starts at", receipt.start_offset, mine[0].base_offset),
            ("ends at", receipt.end_offset_exclusive, mine[-1].next_offset),
            ("has records", receipt.records, sum(batch.record_count for batch in mine)),
            ("has bytes", receipt.size_bytes, sum(batch.size_bytes for batch in mine)),
            ("has epochs", receipt.leader_epochs, epochs),
        ):
            if reported != true:
                found.append(f"receipt {receipt.id} of {receipt} {what} {reported}, but the difference has {true}")
    if left:
        found.append(f"no receipt reports offsets {left[0].base_offset} to {left[-1].next_offset - 1}")
    return found
