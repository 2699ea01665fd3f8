"""Receipts name the transactions that a cut takes from a log, and say which are torn (`transactions.md X61-X63`)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fenceline.log.core.disk import replace_file
from fenceline.log.core.lost_batches import MOST_TRANSACTIONS, CutTransaction, LostBatches
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.recovery.note import RecoveryNote, read_note, write_note
from fenceline.losses.cutting import cut_log, resolve_pending
from fenceline.losses.receipt import Receipt, decode, document, encode
from fenceline.losses.transactions import LostTransaction, TransactionFate
from fenceline.records.batch import assign_in_place
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import REPLICA, a_disk, cut, open_log, receipts_of, write

UNKNOWN, OPEN = TransactionFate.UNKNOWN, TransactionFate.OPEN
COMMITTED, ABORTED = TransactionFate.COMMITTED, TransactionFate.ABORTED
HERE = ("rain", 3)


def produce(log: PartitionLog, producer_id: int, epoch: int, sequence: int, records: int = 2) -> int:
    """Returns the offset of the batch."""
    rows = [(1_000, b"k", b"v", ()) for _ in range(records)]
    batch = build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return _append(log, batch)


def end(log: PartitionLog, producer_id: int, epoch: int, *, commit: bool) -> int:
    return _append(log, end_marker(commit, producer_id, epoch, 0, 1_000))


def _append(log: PartitionLog, batch: bytearray) -> int:
    """As a follower: what the leader has accepted is not checked again."""
    offset = log.log_end_offset
    assign_in_place(batch, 0, offset, 0)
    log.append_as_follower(memoryview(batch), leader_epoch=0)
    return offset


def lost_from(disk: SimDisk, log: PartitionLog, offset: int) -> Receipt:
    (receipt,) = cut_log(disk, log, cut(offset))
    assert receipts_of(disk) == [receipt]
    return receipt


def test_transactions_of_a_cut_are_listed_with_what_was_cut_of_each() -> None:
    disk = a_disk()
    log = open_log(disk)
    produce(log, 1, 0, 0)
    first = produce(log, 1, 0, 2)
    second = produce(log, 2, 7, 0, records=3)
    write(log, 0, 1)
    produce(log, 1, 0, 4)
    end(log, 1, 1, commit=True)  # transaction version 2: the marker has the next epoch
    third = produce(log, 1, 1, 0, records=1)
    receipt = lost_from(disk, log, first)
    assert receipt.transaction_count == 3
    found = {each.start_offset: each for each in receipt.transactions}
    assert list(found) == [first, second, third]
    ended, other, following = found.values()
    assert (ended.producer_id, ended.producer_epoch, ended.records, ended.first_sequence) == (1, 0, 4, 2)
    assert (ended.lost_marker, ended.outcome) == (COMMITTED, COMMITTED)
    assert (other.producer_id, other.producer_epoch, other.records, other.outcome) == (2, 7, 3, UNKNOWN)
    assert (following.producer_epoch, following.end_offset_exclusive, following.outcome) == (1, third + 1, UNKNOWN)
    assert ended.is_torn(HERE), "its first records stay"


def test_marker_without_records_is_a_transaction_that_is_open_again() -> None:
    disk = a_disk()
    log = open_log(disk)
    produce(log, 1, 0, 0)
    offset = end(log, 1, 0, commit=False)
    receipt = lost_from(disk, log, offset)
    (only,) = receipt.transactions
    assert (only.start_offset, only.end_offset_exclusive, only.records, only.lost_marker) == (
        offset,
        offset,
        0,
        ABORTED,
    )
    assert not only.is_torn(HERE)


def test_next_epoch_is_another_transaction_even_without_an_end_marker_between() -> None:
    """The marker is unreadable, or compaction has removed it with the data."""
    disk = a_disk()
    log = open_log(disk)
    produce(log, 1, 0, 0)
    produce(log, 1, 1, 0)
    receipt = lost_from(disk, log, 0)
    assert [(each.producer_epoch, each.records) for each in receipt.transactions] == [(0, 2), (1, 2)]


def test_newest_of_many_producers_are_listed() -> None:
    disk = a_disk()
    log = open_log(disk)
    for number in range(MOST_TRANSACTIONS + 5):
        produce(log, number, 0, 0, records=1)
    receipt = lost_from(disk, log, 0)
    assert receipt.transaction_count == MOST_TRANSACTIONS + 5
    assert [each.producer_id for each in receipt.transactions] == list(range(5, MOST_TRANSACTIONS + 5))


def test_newest_are_listed_and_all_are_counted() -> None:
    disk = a_disk()
    log = open_log(disk)
    for number in range(MOST_TRANSACTIONS + 20):
        produce(log, 1, number, 0, records=1)
        end(log, 1, number, commit=True)
    receipt = lost_from(disk, log, 0)
    assert receipt.transaction_count == MOST_TRANSACTIONS + 20
    assert [each.producer_epoch for each in receipt.transactions] == list(range(20, MOST_TRANSACTIONS + 20))


def test_recovery_lists_them_as_well() -> None:
    """A note becomes the receipt: it has the transactions, and one of an earlier version has none."""
    disk = a_disk()
    log = open_log(disk)
    write(log, 0, 1)
    lost = produce(log, 4, 2, 0)
    disk.flip(f"{log.directory}/00000000000000000000.log", log.size_bytes - 1)
    write(log, 0, 1)
    log = open_log(disk)
    resolve_pending(disk, log, replica=REPLICA, high_watermark=0)
    (receipt,) = receipts_of(disk)
    (only,) = receipt.transactions
    assert (only.producer_id, only.producer_epoch, only.start_offset) == (4, 2, lost)


def test_note_of_recovery_is_read_back_and_one_of_an_earlier_version_too() -> None:
    disk = a_disk()
    log = open_log(disk)
    lost = LostBatches(
        0, 2, 2, 90, (0,), transactions=(CutTransaction(4, 2, 0, 2, 2, 0, 1_000, None),), transaction_count=1
    )
    write_note(disk, log.directory, RecoveryNote(lost, "why", False, 5, ()))
    path = f"{log.directory}/lost+found/recovery-0.note"
    note = read_note(disk, path)
    assert note is not None
    assert note.lost == lost
    fields = json.loads(disk.peek(path) or b"")
    del fields["lost"]["transactions"], fields["lost"]["transaction_count"]
    replace_file(disk, path, json.dumps(fields).encode())
    older = read_note(disk, path)
    assert older is not None
    assert older.lost == replace(lost, transactions=(), transaction_count=0)


A_TRANSACTION = LostTransaction(
    producer_id=5,
    producer_epoch=3,
    start_offset=10,
    end_offset_exclusive=12,
    records=2,
    first_sequence=0,
    transactional_id="copy",
    partitions=(HERE, ("snow", 0)),
)


@pytest.mark.parametrize(
    ("changes", "torn"),
    [
        ({"outcome": COMMITTED}, True),
        ({"outcome": COMMITTED, "partitions": (HERE,)}, False),
        ({"outcome": COMMITTED, "partitions": ()}, False),
        ({"outcome": COMMITTED, "partitions": (HERE,), "first_sequence": 4}, True),
        ({"outcome": COMMITTED, "records": 0}, False),
        ({"outcome": ABORTED}, False),
        ({"outcome": ABORTED, "first_sequence": 4}, False),
        ({"outcome": OPEN}, False),
        ({"outcome": UNKNOWN}, False),
    ],
)
def test_table_of_torn_transactions(changes: dict[str, object], torn: bool) -> None:
    assert replace(A_TRANSACTION, **changes).is_torn(HERE) is torn  # type: ignore[arg-type]


def test_document_says_what_became_of_each_partition_and_is_read_back() -> None:
    disk = a_disk()
    log = open_log(disk)
    receipt = lost_from(disk, log, produce(log, 5, 3, 0))
    complete = replace(receipt, transactions=(replace(A_TRANSACTION, outcome=COMMITTED),))
    assert decode(encode(complete)) == complete
    (fields,) = document(complete)["transactions"]
    assert (fields["transactional_id"], fields["torn"], fields["outcome"]) == ("copy", True, "committed")
    assert fields["partitions"] == [
        {"topic": "rain", "partition": 3, "records": "cut"},
        {"topic": "snow", "partition": 0, "records": "committed"},
    ]


def test_receipt_of_an_earlier_version_has_none() -> None:
    disk = a_disk()
    log = open_log(disk)
    receipt = lost_from(disk, log, produce(log, 5, 3, 0))
    fields = json.loads(encode(receipt))
    del fields["transactions"], fields["transaction_count"]
    assert decode(json.dumps(fields).encode()) == replace(receipt, transactions=(), transaction_count=0)
