"""Loss receipts as an audit reads them: which of them make a row doubtful, and what is reported if some are unknown."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from fenceline.client.core.epoch_history import EpochStart
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import LOSSES_TOPIC, TopicPartition, encode_uuid
from pyspark_fenceline.auditing.judge import ExpectedRows, LostRecords, TableFinding, TableFindingKind, judge
from pyspark_fenceline.auditing.log import RecordRanges
from pyspark_fenceline.auditing.receipts import read_receipts, receipts_of
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.log_columns import log_columns
from pyspark_fenceline.common.log_matching import LogEpochs, proven_without_epoch
from pyspark_fenceline.common.loss_ledger import sort_receipts
from tests.spark.fakes import FakeCluster
from tests.spark.receipts import receipt

TP = TopicPartition("t", 0)
MINE, OTHER = encode_uuid(UUID(int=7)), encode_uuid(UUID(int=8))


def ranges(*values: bytes | None, topic_id: str | None = MINE) -> list[tuple[int, int, tuple[int, ...]]]:
    found = receipts_of(sort_receipts(values), {TP: topic_id})
    return [(one.start_offset, one.end_offset_exclusive, one.epochs) for one in found.lost.get(TP, ())]


def test_the_latest_version_of_each_receipt_of_the_partition_counts() -> None:
    assert ranges(receipt(topic_id=MINE), None, receipt(end_offset_exclusive=20)) == [(10, 20, (1, 3))]
    assert ranges(receipt(partition=1), receipt("b", topic="u")) == []
    # A receipt for an unreadable torn end names no offsets.
    assert ranges(receipt(end_offset_exclusive=10)) == []


def test_a_receipt_with_expired_evidence_still_counts() -> None:
    assert ranges(receipt(evidence=[], evidence_note="removed after fenceline.lost.retention.ms")) == [(10, 17, (1, 3))]


def test_deleted_records_are_no_loss_of_the_log() -> None:
    assert ranges(receipt(**{"class": "expired", "cause": "log_start_moved"})) == []


@pytest.mark.parametrize("reported", [{"topic_id": OTHER}, {"cause": "topic_deleted", "class": "expired"}])
def test_receipts_of_a_deleted_topic_of_the_same_name_are_reported(reported: dict[str, Any]) -> None:
    found = receipts_of(sort_receipts([receipt(**reported)]), {TP: MINE})
    assert (found.lost, found.replaced) == ({}, {"t"})


def test_unknown_receipts_are_reported() -> None:
    assert receipts_of(sort_receipts([receipt(), b'{"id": "b"}']), {TP: MINE}).notes == (
        f"1 records of {LOSSES_TOPIC} have an unknown format",
    )
    (note,) = receipts_of(sort_receipts([receipt()]), {TP: MINE}, is_complete=False).notes
    assert "older losses are not known" in note


def _transaction(*, torn: bool) -> dict[str, Any]:
    return {
        "transactional_id": "orders",
        "producer_id": 7,
        "producer_epoch": 2,
        "outcome": "committed",
        "torn": torn,
        "partitions": [
            {"topic": "t", "partition": 0, "records": "cut"},
            {"topic": "u", "partition": 3, "records": "committed"},
        ],
    }


def test_a_torn_transaction_is_named_with_all_its_partitions() -> None:
    values = [receipt(transactions=[_transaction(torn=True), _transaction(torn=False)])]
    (torn,) = receipts_of(sort_receipts(values), {TP: MINE}).torn
    assert torn.startswith(
        "transaction 'orders' (producer 7, epoch 2: t-0 cut, u-3 committed) is torn: receipt a (node 2 lost offsets"
    )


def test_a_cluster_without_a_ledger_has_no_receipts() -> None:
    assert read_receipts(FakeCluster(t=1), {}, {TP: MINE}).lost == {}


def test_a_ledger_that_cannot_be_read_does_not_stop_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    class UnreadableLedger(FakeCluster):
        def log_starts(self, partitions: Any) -> Any:
            raise PeerError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads")

    monkeypatch.setattr(connect, "forget", lambda *_: None)
    found = read_receipts(UnreadableLedger(**{LOSSES_TOPIC: 1}), {}, {TP: MINE})
    assert "cannot be read" in found.notes[0]


# Effect of a receipt on rows ------------------------------------------------------------------------------------------


def judged(
    view: LogEpochs, rows: dict[int, int], readable_end: int | None = None, **expected: Any
) -> list[TableFinding]:
    """Findings for rows, given as epoch by offset, in a log without gaps."""
    offsets = np.array(sorted(rows), dtype=np.int64)
    epochs = np.array([rows[offset] for offset in sorted(rows)], dtype=np.int64)

    def find(ranges: Any, level: str) -> RecordRanges:
        return RecordRanges(present=list(ranges))

    end = view.end_offset if readable_end is None else readable_end
    return judge(ExpectedRows(view, end, **expected), (0, 100), offsets, offsets + 1, epochs, find)


TWO = LogEpochs(4, 0, 30, (EpochStart(1, 0), EpochStart(4, 10)))
ONE = LogEpochs(0, 0, 30, (EpochStart(0, 0),))


def test_rows_without_an_epoch_cite_receipts_covering_their_offsets() -> None:
    lost = (LostRecords(10, 17, (1,), "receipt a"), LostRecords(12, 14, (1,), "receipt b"))
    findings = judged(TWO, dict.fromkeys(range(8, 20), -1), lost=lost)
    reported = [
        (one.start_offset, one.end_offset_exclusive, one.detail)
        for one in findings
        if one.kind is TableFindingKind.UNPROVEN
    ]
    a, b = "records at these offsets were lost: receipt a", "records at these offsets were lost: receipt b"
    none = "the rows have no epoch"
    assert reported == [
        (8, 10, none),
        (10, 12, f"{none}; {a}"),
        (12, 14, f"{none}; {a}; {b}"),
        (14, 17, f"{none}; {a}"),
        (17, 20, none),
    ]


def test_rows_behind_an_open_transaction_are_undecided() -> None:
    """The log's last stable offset is 20, its end 30."""
    (found,) = judged(ONE, dict.fromkeys(range(25), 0), readable_end=20, committed_only=True)
    assert (found.kind, found.start_offset, found.end_offset_exclusive) == (TableFindingKind.UNDECIDED, 20, 25)
    assert "the last stable offset is 20" in found.detail
    assert judged(ONE, dict.fromkeys(range(20), 0), readable_end=20, committed_only=True) == []


def test_only_a_log_of_one_epoch_proves_rows_without_an_epoch() -> None:
    rows = dict.fromkeys(range(30), -1)
    assert judged(ONE, rows) == []
    assert {one.kind for one in judged(TWO, rows)} == {TableFindingKind.UNPROVEN}
    # One epoch is left, but there were others: retention deleted them, or their leaders' logs are lost.
    for leader, epochs in ((4, (EpochStart(4, 0),)), (1, (EpochStart(0, 0), EpochStart(1, 30))), (-1, ())):
        view = LogEpochs(leader, 0, 30, epochs)
        assert proven_without_epoch(view) == (0, 0)
        assert {one.kind for one in judged(view, rows)} == {TableFindingKind.UNPROVEN}
    # The rows may be of a deleted topic of the same name.
    assert {one.kind for one in judged(ONE, rows, is_replaced=True)} == {TableFindingKind.UNPROVEN}
    # An unknown epoch proves nothing, whatever number represents it in a table.
    columns = log_columns(
        {"topic": "t", "partition": 0, "offset": pa.array([3, 4]), "leader_epoch": pa.array([-3, -2])}
    )
    assert columns.epochs.tolist() == [-1, -1]
    # Rows above the end are not in the log, whatever their epoch.
    assert {one.kind for one in judged(ONE, {**rows, 40: -1})} == {TableFindingKind.BEYOND}
