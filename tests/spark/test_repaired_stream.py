"""A stream into a table that is compared with the log, under Spark: all steps from a truncated log to an equal
table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import pyspark_fenceline
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing import executor as audit_executor
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.queries import keep_equal, stream, tracked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]


def offsets(table: str) -> list[tuple[int, int]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_a_truncated_log_its_table_and_derived_tables(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    table, topic = str(tmp_path / "table"), "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        keep_equal(
            tracked(spark, broker.bootstrap, topic, maxOffsetsPerTrigger=60), table, checkpoint, broker.bootstrap
        )
        assert DeltaTable(table).metadata().partition_columns == ["topic", "partition"]
        assert pyspark_fenceline.audit(table, broker.bootstrap).verdict.is_equal
        seen = DeltaTable(table).version()
        came = pyspark_fenceline.changes(table, 0, seen).groupBy("_commit_version", "_change_type").count().collect()
        assert sorted((row["_change_type"], row["count"]) for row in came) == [
            ("insert", 30),
            ("insert", 60),
            ("insert", 60),
        ]

        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1100))
        found = pyspark_fenceline.audit(table, broker.bootstrap)
        assert found.verdict.outcome == "different"
        kinds = {row.kind: (row.start_offset, row.end_offset_exclusive) for row in found.findings.collect()}
        assert kinds == {"stale": (100, 150), "behind": (100, 200)}

        # With onTruncation=rewind the sink removes the old history with the first batch of the new one.
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
        assert offsets(table) == [(0, offset) for offset in range(200)]

        changed = pyspark_fenceline.changes(table, seen + 1)
        net = {row._change_type: row["count"] for row in changed.groupBy("_change_type").count().collect()}
        assert net == {"delete": 50, "insert": 100}
        went = changed.where("_change_type = 'delete'").selectExpr("min(offset) a", "max(offset) b").first()
        assert tuple(went) == (100, 149)

        # A frame of any schema is audited like the table.
        frame = spark.createDataFrame(
            [("cut", 0, 5, 0), ("cut", 0, 5, 0), ("cut", 0, 150, 0)],
            "topic string, partition int, offset long, leader_epoch int",
        )
        report = pyspark_fenceline.audit(frame, broker.bootstrap, starting="table")
        found_kinds = {(row.kind, row.rows) for row in report.findings.collect()}
        assert found_kinds == {("duplicate", 1), ("stale", 1), ("missing", 94), ("behind", 100)}


def test_stale_rows_of_an_idle_partition_are_removed(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """The batch that reports the truncation has no records: the sink reads from Spark's checkpoint which rows may be
    removed."""
    table, topic = str(tmp_path / "table"), "quiet"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic, 2)
        broker.produce(topic, range(100), partition=0)
        broker.produce(topic, range(100, 150), partition=0)
        broker.produce(topic, range(20), partition=1)
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        assert offsets(table) == [(0, offset) for offset in range(100)] + [(1, offset) for offset in range(20)]
        assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
        (reported,) = [
            entry["fenceline"]["repair"]
            for entry in DeltaTable(table).history()
            if "repair" in entry.get("fenceline", {})
        ]
        assert reported["removed_rows"] == 50
        version = DeltaTable(table).version()
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        assert DeltaTable(table).version() == version
        broker.produce(topic, range(100, 110), partition=0)
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal


@pytest.mark.parametrize("everything", [False, True])
def test_an_audit_has_the_same_result_on_driver_and_tasks(
    spark: SparkSession,
    fenceline_node: Broker,
    topic: str,
    everything: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few runs are checked by this process if the log need not be read; many runs, and the rest, by tasks."""
    fenceline_node.create(topic, 3)
    for partition in (0, 1, 2):
        fenceline_node.produce(topic, range(300), partition=partition)
    source = spark.read.format("fenceline").option("kafka.bootstrap.servers", fenceline_node.bootstrap)
    frame = source.option("subscribe", topic).option("includeLeaderEpoch", True).load()
    whole = frame.select("topic", "partition", "offset", "leader_epoch")
    odd = spark.createDataFrame(
        [(topic, 0, 7, 0), (topic, 1, None, 0), (topic, 1, 250, None), (topic, 9, 3, 0), ("nowhere", 0, 4, 0)],
        whole.schema,
    )
    holes = whole.where("partition != 1 or offset between 50 and 249").where("partition != 2 or offset % 3 < 2")
    spoiled = holes.unionByName(odd).repartition(3, "offset")
    said: list[tuple[Any, Any]] = []
    for few in (audit_executor.FEW_RUNS, -1):
        monkeypatch.setattr(audit_executor, "FEW_RUNS", few)
        report = pyspark_fenceline.audit(spoiled, fenceline_node.bootstrap, everything=everything)
        rows = sorted(tuple(str(value) for value in row) for row in report.findings.collect())
        said.append((rows, (report.verdict.ranges, report.verdict.rows, report.verdict.row_count)))
        equal = pyspark_fenceline.audit(whole, fenceline_node.bootstrap, topic, everything=everything)
        assert equal.verdict.is_equal
        assert equal.findings.count() == 0
    assert said[0] == said[1]
    kinds = {row[2] for row in said[0][0]}
    # The log has only one epoch: there the row without an epoch is proven.
    assert kinds == {"behind", "duplicate", "foreign", "invalid", "missing"}


def test_repair_fills_a_table_with_other_columns_by_a_transform(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    broker.create(topic, 2)
    for partition in (0, 1):
        broker.produce(topic, range(300), partition=partition)

    def parsed(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("cast(cast(value as string) as int) v", "topic", "partition", "offset", "leader_epoch")

    source = spark.read.format("fenceline").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = parsed(
        source.option("subscribe", topic).option("includeLeaderEpoch", True).option("includeHeaders", True).load()
    )
    frame.where("offset % 100 < 70").repartition(3).write.format("fenceline_delta").mode("append").save(table)
    frame.where("offset < 10").write.format("fenceline_delta").mode("append").save(table)
    kinds = ("missing", "behind", "duplicate")
    with pytest.raises(Exception, match="columns v are not the source's"):
        pyspark_fenceline.repair(table, broker.bootstrap, topic, apply=True, kinds=kinds)
    done = pyspark_fenceline.repair(table, broker.bootstrap, topic, apply=True, kinds=kinds, transform=parsed)
    assert (done.removed_rows, done.added_rows) == (20, 180)
    assert "20 duplicate" in done.sentence()
    assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted((row["partition"], row["offset"], row["v"]) for row in rows) == [
        (partition, offset, offset) for partition in (0, 1) for offset in range(300)
    ]
    again = pyspark_fenceline.repair(table, broker.bootstrap, topic, apply=True, kinds=kinds, transform=parsed)
    assert again.version is None


def test_a_second_query_adds_no_existing_rows(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    broker.create(topic, 2)
    for partition in (0, 1):
        broker.produce(topic, range(100), partition=partition)
    keep_equal(tracked(spark, broker.bootstrap, topic), table, str(tmp_path / "one"), broker.bootstrap)
    broker.produce(topic, range(100, 120), partition=0)
    keep_equal(
        tracked(spark, broker.bootstrap, topic, maxOffsetsPerTrigger=50), table, str(tmp_path / "two"), broker.bootstrap
    )
    assert offsets(table) == [(0, o) for o in range(120)] + [(1, o) for o in range(100)]
    assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal


def test_a_frame_without_epochs_is_rejected_before_anything_is_written(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(3))
    table = tmp_path / "table"
    with pytest.raises(Exception, match="missing: leader_epoch"):
        keep_equal(stream(spark, fenceline_node.bootstrap, topic), str(table), checkpoint, fenceline_node.bootstrap)
    assert not table.exists()
