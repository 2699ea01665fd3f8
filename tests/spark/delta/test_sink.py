"""`format("fenceline_delta")` under Spark, reading from files: no broker needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from pyspark_fenceline.delta.sink import app_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Feed:
    """A folder of text files as a stream: each call of `add` is one more micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        folder.mkdir()
        self.count = 0

    def add(self, *values: int) -> None:
        (self.folder / f"{self.count:05d}.json").write_text("".join(json.dumps({"v": v}) + "\n" for v in values))
        self.count += 1

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json(str(self.folder))


def run(frame: DataFrame, table: str, checkpoint: str, *, mode: str = "append", **options: Any) -> str:
    writer = frame.writeStream.format("fenceline_delta").outputMode(mode).option("checkpointLocation", checkpoint)
    query = writer.options(**options).trigger(availableNow=True).start(table)
    query.awaitTermination()
    return str(query.id)


def values(table: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("v").to_pylist())


def test_a_stream_is_written_once_however_often_its_commits_are_lost(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    feed, table = Feed(spark, tmp_path / "in"), str(tmp_path / "table")
    feed.add(1, 2)
    feed.add(3)
    query_id = run(feed.stream(), table, checkpoint)
    assert values(table) == [1, 2, 3]
    assert DeltaTable(table).transaction_version(app_id(query_id)) == 1
    # The last commit is lost: Spark replays the batch, with other files.
    for lost in Path(checkpoint, "commits").glob("*1*"):
        lost.unlink()
    feed.add(4)
    assert run(feed.stream(), table, checkpoint) == query_id
    assert values(table) == [1, 2, 3, 4]


def test_a_new_checkpoint_is_a_new_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    feed, table = Feed(spark, tmp_path / "in"), str(tmp_path / "table")
    feed.add(1)
    run(feed.stream(), table, checkpoint)
    shutil.rmtree(checkpoint)
    run(feed.stream(), table, checkpoint)
    assert values(table) == [1, 1]


def test_complete_mode_replaces_the_table(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    feed, table = Feed(spark, tmp_path / "in"), str(tmp_path / "table")
    feed.add(1, 2, 3)
    feed.add(4)
    frame = feed.stream().selectExpr("v % 2 as v").groupBy("v").count()
    run(frame, table, checkpoint, mode="complete")
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted((row["v"], row["count"]) for row in rows) == [(0, 2), (1, 2)]


def test_batch_writes_append_overwrite_and_are_idempotent_when_named(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    frame = spark.range(5).selectExpr(
        "id as v", "current_timestamp() as t", "cast(id % 2 as string) as p", "date'2024-01-01' d"
    )

    def save(mode: str, **options: Any) -> None:
        frame.write.format("fenceline_delta").mode(mode).options(partitionBy="p", **options).save(table)

    save("append")
    assert values(table) == list(range(5))
    assert DeltaTable(table).metadata().partition_columns == ["p"]
    save("append", txnAppId="job", txnVersion=3)
    save("append", txnAppId="job", txnVersion=3)
    assert values(table) == sorted(2 * list(range(5)))
    save("overwrite")
    assert values(table) == list(range(5))
    arrow = DeltaTable(table).to_pyarrow_table()
    assert str(arrow.schema.field("t").type) == "timestamp[us, tz=UTC]"


def test_times_survive_a_session_in_another_zone(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.sql("select timestamp_micros(1700000000123456) t, timestamp_ntz'2024-01-01 00:00:00' n")
        frame.write.format("fenceline_delta").mode("append").save(table)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert row["t"].timestamp() == 1700000000.123456
    assert row["n"].isoformat() == "2024-01-01T00:00:00"


def test_mismatches_are_rejected_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(1).write.format("fenceline_delta").mode("append").save(table)
    before = sorted(Path(table).rglob("*"))
    with pytest.raises(Exception, match="column id is string here and long in the table"):
        spark.range(1).selectExpr("cast(id as string) id").write.format("fenceline_delta").mode("append").save(table)
    with pytest.raises(Exception, match="needs the table's path"):
        spark.range(1).write.format("fenceline_delta").mode("append").save()
    with pytest.raises(Exception, match="is write-only"):
        spark.read.format("fenceline_delta").load(table)
    assert sorted(Path(table).rglob("*")) == before
