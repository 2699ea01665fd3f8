"""Tables derived from the log by a function or a predicate, under Spark: missing rows, proof for rows without an
epoch, and the record at which a function fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

import pyspark_fenceline
from fenceline.errors import OperatorError
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing.transform import RowMapping
from tests.spark.conftest import NEEDS_CONNECTOR, Broker
from tests.spark.cut_log import restart_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]
ABSENT = ("missing", "behind")


def read(spark: SparkSession, broker: Broker, topic: str, source: str = "fenceline", **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.read.format(source).options(**given, **options).load()


def parsed(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("cast(cast(value as string) as int) v", "topic", "partition", "offset", "leader_epoch")


def even(frame: DataFrame) -> DataFrame:
    return parsed(frame).where("v % 2 = 0")


def exploded(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "cast(value as string) v", "explode(array(0, 1)) line", "topic", "partition", "offset", "leader_epoch"
    )


def keep(frame: DataFrame, table: Path, *, mode: str = "append") -> str:
    write_deltalake(str(table), frame.toArrow(), mode=mode)  # type: ignore[call-overload]
    return str(table)


def findings_of(found: Any) -> list[tuple[str, int, int, int]]:
    rows = found.findings.orderBy("start_offset", "kind").collect()
    return [(row.kind, row.start_offset, row.end_offset_exclusive, row.rows) for row in rows]


def offsets(table: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


@pytest.fixture
def filled(fenceline_node: Broker, topic: str) -> Broker:
    """With a topic of 100 records."""
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(100))
    return fenceline_node


def test_records_filtered_out_by_the_transform_are_not_missing(
    spark: SparkSession, filled: Broker, topic: str, tmp_path: Path
) -> None:
    frame = read(spark, filled, topic, includeLeaderEpoch=True, includeHeaders=True)
    # 20 to 29 are missing, among them five even ones; the table ends at 88.
    table = keep(even(frame).where("offset not between 20 and 29 and offset < 90"), tmp_path / "t")
    plain = pyspark_fenceline.audit(table, filled.bootstrap, topic)
    assert plain.verdict.rows["missing"] > 40
    for given in ({"transform": even}, {"transform": parsed, "where": "v % 2 = 0"}):
        found = pyspark_fenceline.audit(table, filled.bootstrap, topic, **given)  # type: ignore[arg-type]
        assert {row[0] for row in findings_of(found)} == {"missing", "behind"}
        assert (found.verdict.rows["missing"], found.verdict.rows["behind"]) == (5, 5)
    given = {"transform": parsed, "where": "v % 2 = 0"}
    done = pyspark_fenceline.repair(table, filled.bootstrap, topic, apply=True, kinds=ABSENT, **given)  # type: ignore[arg-type]
    assert done.added_rows == 10
    assert offsets(table) == [*range(0, 100, 2)]
    assert pyspark_fenceline.audit(table, filled.bootstrap, topic, transform=even).verdict.is_equal
    # With a predicate on source columns only.
    table = keep(frame.where("key = 'k1'"), tmp_path / "keys")
    given = {"where": "key = 'k1'"}
    assert pyspark_fenceline.audit(table, filled.bootstrap, topic, **given).verdict.is_equal  # type: ignore[arg-type]
    # A query that Spark cannot plan fails before anything is done.
    keep(frame.where("key = 'k1'").limit(1), tmp_path / "keys", mode="overwrite")
    with pytest.raises(OperatorError, match=r"cannot be made from the log's records: .*nothing"):
        pyspark_fenceline.audit(table, filled.bootstrap, topic, where="nothing = 1")


def test_a_failing_transform_reports_the_offset_and_writes_nothing(
    spark: SparkSession, filled: Broker, topic: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    @f.udf("int")
    def picky(value: bytes) -> int:
        if value == b"67":
            raise ValueError("no 67 here")
        return int(value)

    def fails(frame: DataFrame) -> DataFrame:
        return frame.select(picky("value").alias("v"), "topic", "partition", "offset", "leader_epoch")

    frame = read(spark, filled, topic, includeLeaderEpoch=True)
    table = keep(parsed(frame).where("offset < 50"), tmp_path / "t")
    files = sorted((tmp_path / "t").rglob("*.parquet"))
    for kinds in (("behind",), ABSENT):
        with pytest.raises(OperatorError, match=f"record of {topic}-0 at offset 67: .*no 67 here"):
            pyspark_fenceline.repair(table, filled.bootstrap, topic, apply=True, kinds=kinds, transform=fails)
    bare = keep(parsed(frame).drop("leader_epoch"), tmp_path / "bare")
    with pytest.raises(OperatorError, match="at offset 67"):
        pyspark_fenceline.backfill(bare, filled.bootstrap, topic, apply=True, transform=fails)
    assert DeltaTable(table).version() == DeltaTable(bare).version() == 0
    assert sorted((tmp_path / "t").rglob("*.parquet")) == files
    # Spark's own errors also carry an offset.
    with pytest.raises(OperatorError, match=r"at offset 67: .*DIVIDE_BY_ZERO"):
        pyspark_fenceline.audit(table, filled.bootstrap, topic, transform=parsed, where="1 / (v - 67) > -10")
    with pytest.raises(OperatorError, match="no column offset"):
        RowMapping(lambda one: one.select("topic", "partition")).rows(frame)


def test_rows_without_an_epoch_are_compared_with_the_transform_output(spark: SparkSession, tmp_path: Path) -> None:
    topic = "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for first in (0, 100):
            broker.produce(topic, range(first, first + 100))
        frame = read(spark, broker, topic, includeLeaderEpoch=True)
        table = keep(exploded(frame).drop("leader_epoch"), tmp_path / "t")
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1100))
        given = {"transform": exploded, "row_key": ["line"]}
        found = pyspark_fenceline.audit(table, broker.bootstrap, **given)  # type: ignore[arg-type]
        assert (found.verdict.outcome, found.verdict.rows) == ("unproven", {"unproven": 400})
        with pytest.raises(OperatorError, match="no column value"):
            pyspark_fenceline.backfill(table, broker.bootstrap)
        planned = pyspark_fenceline.backfill(table, broker.bootstrap, transform=exploded)
        assert (planned.proven_rows, planned.stale_rows, planned.version) == (200, 200, None)
        assert [(one.start_offset, one.end_offset_exclusive) for one in planned.stale] == [(100, 200)]
        done = pyspark_fenceline.backfill(table, broker.bootstrap, transform=exploded, apply=True)
        assert done.proven_rows == 200
        fixed = pyspark_fenceline.repair(
            table,
            broker.bootstrap,
            apply=True,
            kinds=("stale", *ABSENT),
            by_values=True,
            **given,  # type: ignore[arg-type]
        )
        assert (fixed.removed_rows, fixed.added_rows) == (200, 200)
        assert pyspark_fenceline.audit(table, broker.bootstrap, **given).verdict.is_equal  # type: ignore[arg-type]
        rows = DeltaTable(table).to_pyarrow_table().to_pylist()
        values = [*range(100), *range(1000, 1100)]
        assert sorted((row["offset"], row["line"], row["v"]) for row in rows) == [
            (offset, line, str(value)) for offset, value in enumerate(values) for line in (0, 1)
        ]


@NEEDS_CONNECTOR
def test_a_table_of_sparks_own_connector_is_adopted(spark: SparkSession, tmp_path: Path) -> None:
    topic = "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for first in (0, 100):
            broker.produce(topic, range(first, first + 100))
        table = keep(read(spark, broker, topic, "kafka"), tmp_path / "t")
        frame = spark.createDataFrame(DeltaTable(table).to_pyarrow_table())
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1150))
        # A DataFrame gives the same result as the table.
        found = pyspark_fenceline.audit(frame, broker.bootstrap)
        assert (found.verdict.outcome, found.verdict.rows) == ("unproven", {"unproven": 200, "behind": 50})
        for given in (frame, table):
            found = pyspark_fenceline.audit(given, broker.bootstrap, by_values=True)
            # The last row in the log is 99: later records are not yet in the table.
            assert findings_of(found) == [("behind", 100, 250, 150), ("stale", 100, 200, 100)]
            assert found.verdict.outcome == "different"
        assert pyspark_fenceline.backfill(table, broker.bootstrap, apply=True).proven_rows == 100
        fixed = pyspark_fenceline.repair(table, broker.bootstrap, apply=True, kinds=("stale", *ABSENT), by_values=True)
        assert (fixed.removed_rows, fixed.added_rows) == (100, 150)
        assert pyspark_fenceline.audit(table, broker.bootstrap).verdict.is_equal


def test_a_frame_of_several_rows_a_record_is_audited_by_its_key(
    spark: SparkSession, filled: Broker, topic: str
) -> None:
    frame = exploded(read(spark, filled, topic, includeLeaderEpoch=True))
    assert pyspark_fenceline.audit(frame, filled.bootstrap, row_key=["line"]).verdict.is_equal
    assert findings_of(pyspark_fenceline.audit(frame, filled.bootstrap)) == [("duplicate", 0, 100, 100)]
    twice = frame.unionByName(frame.where("offset = 7 and line = 1"))
    assert findings_of(pyspark_fenceline.audit(twice, filled.bootstrap, row_key=["line"])) == [("duplicate", 7, 8, 1)]
    two = frame.selectExpr("*", "offset as Offset")
    with pytest.raises(OperatorError, match="more than one column offset"):
        pyspark_fenceline.audit(two, filled.bootstrap)
