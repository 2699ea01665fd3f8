"""`format("fenceline_segments")` under Spark: compared with a broker's fetch, and across replicas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.spark.segments.test_reading import flip, make_log, segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SPLIT = """
    SELECT topic, partition, min(greatest(a.base_offset, b.base_offset)) AS diverges_at
    FROM batches a JOIN batches b USING (topic, partition)
    WHERE a.replica < b.replica
      AND a.base_offset <= b.last_offset AND b.base_offset <= a.last_offset
      AND a.leader_epoch <> b.leader_epoch
    GROUP BY topic, partition
"""


def read(spark: SparkSession, path: Path | list[str], **options: Any) -> DataFrame:
    target = [str(path)] if isinstance(path, Path) else path
    frame = spark.read.format("fenceline_segments").options(**options)
    return frame.load(target[0]) if len(target) == 1 else frame.load(target)


def test_records_equal_those_of_a_fetch(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    for partition in (0, 1):
        for start in (0, 40, 90):
            broker.produce(topic, range(start, start + 40 + partition), partition=partition)
    columns = ["topic", "partition", "offset", "leader_epoch", "timestamp", "timestampType", "key", "value", "headers"]
    fetched = (
        spark.read.format("fenceline")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .options(subscribe=topic, includeLeaderEpoch=True, includeHeaders=True)
        .load()
        .select(columns)
    )
    # The node keeps running undisturbed, and acknowledged records are in the files.
    found = read(spark, broker.log_dir, mode="records", topics=topic, includeHeaders=True).select(columns)
    assert found.count() == 243
    order = ["partition", "offset"]
    assert found.orderBy(order).collect() == fetched.orderBy(order).collect()
    batches = read(spark, broker.log_dir, topics=topic)
    assert batches.selectExpr("sum(records)", "bool_and(crc_ok)").first() == (243, True)
    severe = read(spark, broker.log_dir, mode="findings").where("severity = 'error'")
    assert severe.collect() == []


def test_a_query_distinguishes_replicas_after_an_unclean_election(spark: SparkSession, tmp_path: Path) -> None:
    make_log(tmp_path / "one" / "rain-2")
    make_log(tmp_path / "two" / "rain-2", epochs=2)
    other = tmp_path / "three" / "rain-2"
    make_log(other, epochs=2)
    frame = read(spark, [str(tmp_path / "one"), str(tmp_path / "two")])
    frame.createOrReplaceTempView("batches")
    assert spark.sql(SPLIT).collect() == []
    # The third replica continued in epoch 5 at offset 45.
    for path in segments(other):
        content, position = bytearray(path.read_bytes()), 0
        while position < len(content):
            if int.from_bytes(content[position : position + 8], "big") >= 45:
                content[position + 12 : position + 16] = (5).to_bytes(4, "big")
            position += int.from_bytes(content[position + 8 : position + 12], "big") + 12
        path.write_bytes(content)
    read(spark, [str(tmp_path / name) for name in ("one", "three")]).createOrReplaceTempView("batches")
    assert [tuple(row) for row in spark.sql(SPLIT).collect()] == [("rain", 2, 45)]


def test_corruption_is_a_row_and_ends_a_read_of_records(spark: SparkSession, tmp_path: Path) -> None:
    make_log(tmp_path / "one" / "rain-2")
    flip(segments(tmp_path / "one" / "rain-2")[0], 70)
    (row,) = read(spark, tmp_path, maxPartitions=2).where("not crc_ok").collect()
    assert (row.base_offset, row.position) == (0, 0)
    with pytest.raises(Exception, match="the checksum of the batch at offset 0"):
        read(spark, tmp_path, mode="records").count()
    assert read(spark, tmp_path, mode="records", failOnDamage=False).count() == 87
