"""Tables without epochs: from the format of Spark's Kafka connector to a table proven equal to the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from fenceline.client.reader.reader import RangeReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline.auditing.backfill_table import Backfill, backfill_here
from pyspark_fenceline.auditing.receipts import read_receipts
from pyspark_fenceline.auditing.repair_table import TableRepair, repair_here
from pyspark_fenceline.auditing.table import Audit, audit_here, settings
from pyspark_fenceline.common.connect import connect
from tests.spark.conftest import Broker

pytestmark = [pytest.mark.timeout(300)]
TOPIC = "t"
CONNECTOR = ["key", "value", "topic", "partition", "offset", "timestamp"]


def read(bootstrap: str, first: int, end: int) -> pa.Table:
    """Rows as Spark's Kafka connector returns them, with `leader_epoch`."""
    with RangeReader({"bootstrap.servers": bootstrap}) as reader:
        ranges = {TopicPartition(TOPIC, 0): (first, end)}
        batches = list(reader.read(ranges, include_leader_epoch=True, timestamp_unit="us"))
    return pa.Table.from_batches(batches).select([*CONNECTOR, "leader_epoch"])


class Story(NamedTuple):
    """A log that lost 1000 to 1499 and grew again to 1800, and a table that a connector continued at 1500."""

    bootstrap: str
    table: str
    before: pa.Table
    after: pa.Table


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(TOPIC)
        for first in range(0, 1500, 500):
            broker.produce(TOPIC, range(first, first + 500))
        before = read(node.bootstrap, 0, 1500)
        broker.admin.close()
        # A crash loses the last batch: a receipt records it, and other records reuse its offsets.
        node.kill()
        (segment,) = next(node.log_dir.rglob(f"{TOPIC}-0")).glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-3])
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(TOPIC, range(5000, 5800))
        after = read(node.bootstrap, 0, 1800)
        cluster = connect({"bootstrap.servers": node.bootstrap})
        ids = {TopicPartition(TOPIC, 0): cluster.topics([TOPIC])[TOPIC].id}
        client = {"bootstrap.servers": node.bootstrap}
        eventually(lambda: read_receipts(cluster, client, ids).lost, "the receipt")
        table = str(tmp_path / "table")
        written = pa.concat_tables([before, after.slice(1500, 300)]).select(CONNECTOR)
        write_deltalake(table, written.slice(0, 1200))
        write_deltalake(table, written.slice(1200), mode="append")
        yield Story(node.bootstrap, table, before, after)


def audited(story: Story, **options: Any) -> Audit:
    return audit_here(story.table, settings(story.bootstrap, **options))


def findings_of(found: Audit) -> list[tuple[str, int, int]]:
    return [(row["kind"], row["start_offset"], row["end_offset_exclusive"]) for row in found.findings.to_pylist()]


def filled(story: Story, *, apply: bool = True, topics: str | None = None) -> Backfill:
    return backfill_here(story.table, settings(story.bootstrap, topics, by_values=True), apply=apply)


def repaired(story: Story, *kinds: str, **options: Any) -> TableRepair:
    chosen = settings(story.bootstrap, **options)
    return repair_here(story.table, chosen, apply=True, kinds=kinds or None)


def in_table(story: Story) -> pa.Table:
    return DeltaTable(story.table).to_pyarrow_table().sort_by("offset")


def add_null_epochs(story: Story) -> None:
    rows = DeltaTable(story.table).to_pyarrow_table()
    rows = rows.append_column("leader_epoch", pa.nulls(rows.num_rows, pa.int32()))
    write_deltalake(story.table, rows, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("has_column", [False, True])
def test_a_table_without_epochs_is_unproven_and_its_receipt_is_reported(story: Story, has_column: bool) -> None:
    if has_column:
        add_null_epochs(story)
    found = audited(story)
    assert (found.verdict.outcome, found.verdict.is_equal, found.verdict.is_right) == ("unproven", False, False)
    assert findings_of(found) == [("unproven", 0, 1000), ("unproven", 1000, 1500), ("unproven", 1500, 1800)]
    assert "1800 of 1800 rows have no epoch" in str(found)
    details = [row["detail"] for row in found.findings.to_pylist()]
    assert "receipt" in details[1]
    assert "lost offsets 1000 to 1499" in details[1]
    assert "receipt" not in details[0] + details[2]
    # And no row is proven stale.
    assert repaired(story).version is None


def test_a_connector_table_is_backfilled_audited_and_repaired(story: Story) -> None:
    found = audited(story, by_values=True)
    assert findings_of(found) == [("missing", 1000, 1500), ("stale", 1000, 1500)]
    assert found.verdict.outcome == "different"

    planned = filled(story, apply=False)
    assert (planned.proven_rows, planned.stale_rows, planned.unknown_rows) == (1300, 500, 0)
    assert "1300 rows would get their epochs; nothing was changed" in planned.sentence()
    assert DeltaTable(story.table).version() == 1
    done = filled(story)
    assert (done.proven_rows, done.stale_rows) == (1300, 500)
    # One entry for the new column, and one for the epochs.
    assert (done.version, DeltaTable(story.table).version()) == (3, 3)
    (entry,) = DeltaTable(story.table).history(1)
    assert entry["fenceline"]["backfill"]["proven_rows"] == 1300
    assert entry["fenceline"]["backfill"]["stale_ranges"] == [
        {"topic": TOPIC, "partition": 0, "start_offset": 1000, "end_offset_exclusive": 1200},
        {"topic": TOPIC, "partition": 0, "start_offset": 1200, "end_offset_exclusive": 1500},
    ]
    counts = {name: entry["operationMetrics"][name] for name in ("numUpdatedRows", "numCopiedRows", "numDeletedRows")}
    assert counts == {"numUpdatedRows": "1300", "numCopiedRows": "500", "numDeletedRows": "0"}
    rows = in_table(story)
    stale = pc.and_(pc.greater_equal(rows["offset"], 1000), pc.less(rows["offset"], 1500))
    assert rows.filter(stale)["leader_epoch"].null_count == 500
    kept = rows.filter(pc.invert(stale)).select(story.after.column_names)
    true = story.after.filter(
        pc.or_(pc.less(story.after["offset"], 1000), pc.greater_equal(story.after["offset"], 1500))
    )
    assert kept.equals(true.cast(kept.schema))
    assert findings_of(audited(story)) == [("unproven", 1000, 1500)]
    assert filled(story).version is None

    done_repair = repaired(story, "stale", "missing", by_values=True)
    assert (done_repair.removed_rows, done_repair.added_rows) == (500, 500)
    added, removed = DeltaTable(story.table).history(2)
    assert added["operationMetrics"]["numOutputRows"] == "500"
    assert removed["operationMetrics"]["numDeletedRows"] == "500"
    assert (removed["version"], added["version"]) == (done_repair.version - 1, done_repair.version)
    assert audited(story).verdict.is_equal
    assert in_table(story).select(story.after.column_names).equals(story.after.cast(in_table(story).schema))
    assert "Every row has an epoch" in filled(story).sentence()


def test_null_epochs_are_filled_and_others_are_unchanged(story: Story) -> None:
    epochs = story.after["leader_epoch"].to_pylist()
    rows = story.after.drop_columns("leader_epoch").append_column(
        "leader_epoch", pa.array([epoch if offset % 3 else None for offset, epoch in enumerate(epochs)], pa.int64())
    )
    write_deltalake(story.table, rows, mode="overwrite", schema_mode="overwrite")
    found = audited(story)
    assert (found.verdict.outcome, found.verdict.rows) == ("unproven", {"unproven": 600})
    assert "600 of 1800 rows have no epoch" in str(found)
    assert filled(story).proven_rows == 600
    assert in_table(story)["leader_epoch"].to_pylist() == epochs
    assert in_table(story).schema.field("leader_epoch").type == pa.int64()
    # As delta-rs reads the files, skipping those that their statistics exclude.
    query = QueryBuilder().register("t", DeltaTable(story.table))
    counted = query.execute(
        "select count(*), count(value), sum(leader_epoch) from t where leader_epoch >= 0"
    ).read_all()
    assert [column[0].as_py() for column in pa.table(counted).columns] == [1800, 1800, sum(epochs)]
    assert audited(story).verdict.is_equal


def test_both_rows_of_an_offset_are_checked_independently(story: Story) -> None:
    """A connector that reread the log from an earlier offset wrote the new history next to the old one."""
    write_deltalake(story.table, story.after.slice(1000, 500).select(CONNECTOR), mode="append")
    assert findings_of(audited(story, by_values=True)) == [("stale", 1000, 1500)]
    assert repaired(story, by_values=True).removed_rows == 500
    assert filled(story).proven_rows == 1800
    assert audited(story).verdict.is_equal
    assert in_table(story)["value"].to_pylist() == story.after["value"].to_pylist()


def test_rows_of_expired_offsets_are_not_checked(story: Story) -> None:
    broker = Broker("fenceline", story.bootstrap)
    broker.admin.delete_records({TopicPartition(TOPIC, 0): 1100})
    done = filled(story, apply=False)
    assert (done.proven_rows, done.stale_rows, done.unknown_rows) == (300, 400, 1100)
    assert "1100 rows cannot be compared" in done.sentence()
    assert findings_of(audited(story, by_values=True)) == [
        ("expired", 0, 1100),
        ("missing", 1100, 1500),
        ("stale", 1100, 1500),
    ]


def test_a_table_of_another_topic_is_rejected_and_not_stale(story: Story) -> None:
    other = Broker("fenceline", story.bootstrap)
    other.create("other")
    other.produce("other", range(9000, 9100))
    renamed = story.before.slice(0, 100).select(CONNECTOR)
    renamed = renamed.set_column(2, "topic", pa.array(["other"] * 100))
    write_deltalake(story.table, renamed, mode="overwrite")
    for look in (lambda: filled(story), lambda: audited(story, by_values=True)):
        with pytest.raises(OperatorError, match=r"None of the 100 rows of the Delta table at .* has the values"):
            look()
    # Rows that name a topic unknown to the cluster are foreign, with values or without.
    gone = renamed.set_column(2, "topic", pa.array(["gone"] * 100))
    write_deltalake(story.table, gone, mode="overwrite")
    assert filled(story).unknown_rows == 100
    assert findings_of(audited(story)) == [("foreign", 0, 100)]


def test_tables_that_cannot_be_filled_are_rejected(story: Story, tmp_path: Path) -> None:
    chosen = settings(story.bootstrap, by_values=True)
    lower = story.before.slice(0, 5).select([*CONNECTOR, "leader_epoch"])
    bare = str(tmp_path / "bare")
    write_deltalake(bare, lower.select(["topic", "partition", "offset", "leader_epoch"]))
    with pytest.raises(OperatorError, match="no column value"):
        backfill_here(bare, chosen)
    text = str(tmp_path / "text")
    column = pa.array(["?"] * 5)
    write_deltalake(text, lower.set_column(6, "leader_epoch", column))
    with pytest.raises(OperatorError, match=r"leader_epoch of the Delta table at .* is of type string"):
        backfill_here(text, chosen, apply=True)
    by_epoch = str(tmp_path / "by_epoch")
    nulls = lower.set_column(6, "leader_epoch", pa.nulls(5, pa.int32()))
    write_deltalake(by_epoch, nulls, partition_by=["leader_epoch"])
    with pytest.raises(OperatorError, match="partitioned by leader_epoch"):
        backfill_here(by_epoch, chosen, apply=True)
    only = str(tmp_path / "only")
    write_deltalake(only, nulls, configuration={"delta.appendOnly": "true"})
    with pytest.raises(OperatorError, match=r"delta\.appendOnly"):
        backfill_here(only, chosen, apply=True)
    with pytest.raises(OperatorError, match="no topic nowhere"):
        filled(story, topics="nowhere")
