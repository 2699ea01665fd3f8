"""What a repair must not change: rows of one record, deliberately deleted rows, kinds that were not requested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fenceline.client.reader.reader import RangeReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing.repair_plan import PROVEN_WRONG, chosen_kinds
from pyspark_fenceline.auditing.repair_table import TableRepair, repair_here
from pyspark_fenceline.auditing.table import Audit, audit_here, settings
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut

pytestmark = [pytest.mark.timeout(300)]
COLUMNS = ["key", "value", "topic", "partition", "offset", "leader_epoch"]
ABSENT = ("missing", "behind")


def records(broker: Broker, topic: str, first: int, end: int) -> pa.Table:
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        return pa.Table.from_batches(list(reader.read({TopicPartition(topic, 0): (first, end)}))).select(COLUMNS)


@pytest.fixture
def filled(fenceline_node: Broker, topic: str) -> Broker:
    """With a topic of 100 records."""
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(100))
    return fenceline_node


def audited(broker: Broker, table: str, topic: str, **options: Any) -> Audit:
    return audit_here(table, settings(broker.bootstrap, topic, **options))


def findings_of(found: Audit) -> list[tuple[str, int, int, int]]:
    return [
        (row["kind"], row["start_offset"], row["end_offset_exclusive"], row["rows"])
        for row in found.findings.to_pylist()
    ]


def repaired(broker: Broker, table: str, topic: str, kinds: Sequence[str] | None = None, **options: Any) -> TableRepair:
    return repair_here(table, settings(broker.bootstrap, topic, **options), apply=True, kinds=kinds)


def offsets(table: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def exploded(rows: pa.Table, parts: int = 2) -> pa.Table:
    """Each record as several rows, distinguished by a column `line`."""
    lines = [rows.append_column("line", pa.array([number] * rows.num_rows, pa.int32())) for number in range(parts)]
    return pa.concat_tables(lines).sort_by([("offset", "ascending"), ("line", "ascending")])


def test_rows_of_one_record_are_no_duplicates(filled: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = exploded(records(filled, topic, 0, 100))
    write_deltalake(table, rows.slice(0, 101))
    write_deltalake(table, rows.slice(101), mode="append")
    # Without the option the table does not equal the log, and no row is removed.
    found = audited(filled, table, topic)
    assert (findings_of(found), found.verdict.outcome) == ([("duplicate", 0, 100, 100)], "different")
    done = repaired(filled, table, topic, ("stale", "duplicate"))
    assert (done.version, done.removed_rows) == (None, 0)
    assert "row_key" in done.left[0]["detail"]
    assert "1 findings are left unchanged (duplicate)" in done.sentence()
    assert len(offsets(table)) == 200
    # With the distinguishing column the table equals the log, and rows duplicated by it are removed.
    assert audited(filled, table, topic, row_key=["line"]).verdict.is_equal
    write_deltalake(table, rows.slice(20, 10), mode="append")
    found = audited(filled, table, topic, row_key=["line"])
    assert findings_of(found) == [("duplicate", 10, 15, 10)]
    done = repaired(filled, table, topic, ("duplicate",), row_key=["line"])
    assert done.removed_rows == 10
    assert audited(filled, table, topic, row_key=["line"]).verdict.is_equal
    left = DeltaTable(table).to_pyarrow_table().sort_by([("offset", "ascending"), ("line", "ascending")])
    assert left.cast(rows.schema).equals(rows)
    with pytest.raises(OperatorError, match="has no column lines, which row_key names"):
        audited(filled, table, topic, row_key=["lines"])


def test_only_duplicates_equal_in_every_column_are_removed(filled: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = records(filled, topic, 0, 100)
    write_deltalake(table, rows)
    write_deltalake(table, rows.slice(10, 10), mode="append")
    changed = rows.slice(50, 5).set_column(1, "value", pa.array([b"other"] * 5, pa.binary()))
    write_deltalake(table, changed, mode="append")
    done = repaired(filled, table, topic, ("duplicate",))
    assert done.removed_rows == 10
    assert [(one["kind"], one["start_offset"]) for one in done.left] == [("duplicate", 10), ("duplicate", 50)]
    assert findings_of(audited(filled, table, topic)) == [("duplicate", 50, 55, 5)]


def test_only_an_applied_repair_changes_rows_and_only_proven_ones(tmp_path: Path) -> None:
    topic, table = "cut", str(tmp_path / "t")
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for first in (0, 100):
            broker.produce(topic, range(first, first + 100))
        rows = records(broker, topic, 0, 200)
        # Ten are missing, five duplicated, and 100 to 199 become stale.
        write_deltalake(table, pa.concat_tables([rows.slice(0, 50), rows.slice(60), rows.slice(0, 5)]))
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1050))
        chosen = settings(broker.bootstrap, topic)
        planned = repair_here(table, chosen)
        assert (planned.is_applied, planned.version, planned.removed_rows, planned.added_rows) == (False, None, 100, 0)
        assert "Would remove 100 rows (100 stale) and add 0: 1 files would be removed; nothing was changed" in str(
            planned.sentence()
        )
        everything = repair_here(table, chosen, kinds=("stale", "duplicate", *ABSENT))
        assert (everything.removed_rows, everything.added_rows) == (105, 60)
        assert DeltaTable(table).version() == 0

        done = repair_here(table, chosen, apply=True)
        assert (done.removed_rows, done.added_rows, done.version) == (100, 0, 1)
        assert {one["kind"] for one in done.left} == {"missing", "duplicate"}
        (entry,) = DeltaTable(table).history(1)
        counts = {name: entry["operationMetrics"][name] for name in ("numDeletedRows", "numCopiedRows")}
        assert counts == {"numDeletedRows": "100", "numCopiedRows": "95"}
        assert {kind for kind, *_ in findings_of(audited(broker, table, topic))} == {"missing", "behind", "duplicate"}


def test_kinds_without_a_repair_are_rejected() -> None:
    assert chosen_kinds(None) == PROVEN_WRONG == {"stale", "beyond"}
    assert chosen_kinds("missing") == {"missing"}
    with pytest.raises(OperatorError, match="does not support findings of the kind expired, sdale") as caught:
        chosen_kinds(("stale", "sdale", "expired"))
    assert "aborted, behind, beyond" in caught.value.advice


# Deliberately deleted rows --------------------------------------------------------------------------------------------


def test_rows_deleted_by_other_writers_are_not_restored(filled: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = records(filled, topic, 0, 100)
    write_deltalake(table, pa.concat_tables([rows.slice(0, 30), rows.slice(33, 47)]))
    opened = DeltaTable(table)
    opened.delete("offset in (10, 11, 79)")
    opened.update(predicate="offset = 20", updates={"leader_epoch": "leader_epoch"})
    opened.optimize.compact()
    # They are not missing, even where the log still has them; the table's own log names the deletion.
    found = audited(filled, table, topic)
    assert findings_of(found) == [
        ("deleted", 10, 12, 2),
        ("missing", 30, 33, 3),
        ("deleted", 79, 80, 1),
        ("behind", 80, 100, 20),
    ]
    assert found.findings.to_pylist()[0]["detail"] == "deleted by version 1 of the table (DELETE)"
    assert "3 deleted" in str(found)
    repaired(filled, table, topic, ABSENT)
    assert offsets(table) == [o for o in range(100) if o not in (10, 11, 79)]
    found = audited(filled, table, topic)
    assert found.verdict.is_equal
    assert (
        "The table equals the log except for rows that were deleted on purpose (97 rows of 1 partitions: 3 deleted)"
        in (str(found))
    )
    # A repair's own entry is no deliberate deletion, and on request the rows are restored.
    assert repaired(filled, table, topic, ("deleted",)).added_rows == 3
    assert offsets(table) == [*range(100)]


def test_records_behind_deleted_stale_rows_are_missing(tmp_path: Path) -> None:
    topic, table = "cut", str(tmp_path / "t")
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for first in (0, 100):
            broker.produce(topic, range(first, first + 100))
        write_deltalake(table, records(broker, topic, 0, 200))
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1050))
        write_deltalake(table, records(broker, topic, 140, 150), mode="append")
        # A manual cleanup deletes the old history, and two rows that are in the log.
        DeltaTable(table).delete("leader_epoch = 0 and (offset >= 100 or offset in (7, 8))")
        found = audited(broker, table, topic)
        assert findings_of(found) == [("deleted", 7, 9, 2), ("missing", 100, 140, 40)]
        assert repaired(broker, table, topic, ABSENT).added_rows == 40
        assert offsets(table) == [o for o in range(150) if o not in (7, 8)]


def test_nothing_is_added_when_deleted_rows_are_unknown(filled: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = records(filled, topic, 0, 100)
    write_deltalake(table, pa.concat_tables([rows.slice(0, 30), rows.slice(33, 67)]))
    opened = DeltaTable(table)
    opened.delete("offset = 10")
    opened.vacuum(0, dry_run=False, enforce_retention_duration=False)
    found = audited(filled, table, topic)
    assert findings_of(found) == [("missing", 10, 11, 1), ("missing", 30, 33, 3)]
    assert "the rows deleted by version 1 of the table (DELETE) are unknown: vacuum has removed its files" in str(found)
    done = repaired(filled, table, topic, ABSENT)
    assert (done.version, done.added_rows, len(done.left)) == (None, 0, 2)
    assert "may have been deleted on purpose by version 1" in done.sentence()
    assert (done.removed, done.added) == ([], [])
    # The caller can name the deleted rows, or request that all are restored.
    named = pa.table({"topic": [topic], "partition": [0], "start_offset": [10], "end_offset_exclusive": [11]})
    assert findings_of(audited(filled, table, topic, deleted=named)) == [("deleted", 10, 11, 1), ("missing", 30, 33, 3)]
    assert repaired(filled, table, topic, ("missing", "deleted"), deleted=named).added_rows == 4
    assert offsets(table) == [*range(100)]


def test_deleted_records_can_be_given_by_key(filled: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = records(filled, topic, 0, 100)
    # The keys are k0 to k4; all rows of k3 are missing, and ten more.
    kept = [row for row in range(100) if row % 5 != 3 and not 50 <= row < 60]
    write_deltalake(table, rows.take(pa.array(kept)))
    for keys in (pa.table({"key": ["k3"]}), pa.table({"key": [b"k3", b"k4"], "topic": [topic, "another"]})):
        found = audited(filled, table, topic, deleted=keys)
        assert found.verdict.rows["deleted"] == 20
        assert found.verdict.rows["missing"] == 8
    assert repaired(filled, table, topic, ABSENT, deleted=pa.table({"key": ["k3"]})).added_rows == 8
    assert offsets(table) == [row for row in range(100) if row % 5 != 3]
    with pytest.raises(OperatorError, match="The columns name do not identify deleted rows"):
        audited(filled, table, topic, deleted=pa.table({"name": ["k3"]}))
