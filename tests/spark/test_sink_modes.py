"""Save and output modes, `partitionBy`, keys and properties of the sinks under Spark: what works, and how Spark
treats a Python data source before it calls the sink.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.delta.test_sink import Feed, run, values
from tests.spark.queries import keep_equal, tracked
from tests.spark.table_readers import change_feed, check_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("form", ["fenceline", "fenceline_delta"])
def test_spark_rejects_the_default_save_mode_and_lists_the_supported_ones(spark: SparkSession, form: str) -> None:
    """Spark's Kafka connector accepts it: it uses Spark's older interface, which Python data sources lack."""
    frame = spark.range(1).selectExpr("cast(id as string) value")
    for mode in ("errorifexists", "ignore"):
        writer = frame.write.format(form).mode(mode).option("kafka.bootstrap.servers", "b").option("topic", "t")
        with pytest.raises(Exception, match=r"(?s)UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*use either the .Append. or"):
            writer.save("/nowhere")


@pytest.mark.parametrize("form", ["fenceline", "fenceline_delta"])
def test_update_mode_is_rejected_by_spark(spark: SparkSession, tmp_path: Path, checkpoint: str, form: str) -> None:
    feed = Feed(spark, tmp_path / "in")
    feed.add(1)
    frame = feed.stream().selectExpr("cast(v as string) value").groupBy("value").count()
    writer = frame.writeStream.format(form).outputMode("update").option("checkpointLocation", checkpoint)
    query = writer.option("kafka.bootstrap.servers", "b").option("topic", "t").start(str(tmp_path / "t"))
    with pytest.raises(Exception, match="does not support Update mode"):
        query.awaitTermination()


def test_a_table_is_partitioned_by_the_option(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """Spark refuses the method in a batch write, and ignores it in a stream, without notifying the sink."""
    frame = spark.range(4).selectExpr("id % 2 p", "id v")
    table = str(tmp_path / "batch")
    with pytest.raises(Exception, match=r"(?s)partitioning or clustering columns do not match.*identity\(p\)"):
        frame.write.format("fenceline_delta").mode("append").partitionBy("p").save(table)
    assert not Path(table).exists()
    frame.write.format("fenceline_delta").mode("append").option("partitionBy", "p").save(table)
    assert DeltaTable(table).metadata().partition_columns == ["p"]
    feed = Feed(spark, tmp_path / "in")
    feed.add(1, 2, 3)
    stream = feed.stream().selectExpr("v % 2 p", "v")
    writer = stream.writeStream.format("fenceline_delta").partitionBy("p").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(str(tmp_path / "stream")).awaitTermination()
    assert DeltaTable(str(tmp_path / "stream")).metadata().partition_columns == []


def test_a_stream_replaces_rows_of_equal_keys_once(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    feed, table = Feed(spark, tmp_path / "in"), str(tmp_path / "table")
    frame = feed.stream().selectExpr("v % 10 id", "v")
    for batch in ((1, 2, 3), (13, 4)):
        feed.add(*batch)
        run(frame, table, checkpoint, upsertKeys="id")
    assert values(table) == [1, 2, 4, 13]
    for lost in Path(checkpoint, "commits").glob("*1*"):
        lost.unlink()
    feed.add(21)
    run(frame, table, checkpoint, upsertKeys="id")
    assert values(table) == [2, 4, 13, 21]
    feed.add(31, 41)
    with pytest.raises(Exception, match=r"1 keys .* have several rows in one batch"):
        run(frame, table, checkpoint, upsertKeys="id")


def test_foreach_batch_upserts_aggregates_by_key(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """As documented: update mode, whose rows are the new values of some keys."""
    feed, table = Feed(spark, tmp_path / "in"), str(tmp_path / "table")
    feed.add(1, 2, 3)
    feed.add(4)
    frame = feed.stream().selectExpr("v % 2 odd").groupBy("odd").count()

    def keep(rows: Any, batch: int) -> None:
        writer = rows.write.format("fenceline_delta").mode("append").option("upsertKeys", "odd")
        writer.option("txnAppId", "counts").option("txnVersion", batch).save(table)

    query = frame.writeStream.outputMode("update").foreachBatch(keep).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted((row["odd"], row["count"]) for row in found) == [(0, 2), (1, 2)]


def test_a_truncated_log_in_a_table_with_a_change_feed(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    from fenceline.testing.node import EmbeddedNode

    table, topic = str(tmp_path / "table"), "fed"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        feed = {"delta.enableChangeDataFeed": True}
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap, **feed)
        assert DeltaTable(table).metadata().configuration == {"delta.enableChangeDataFeed": "true"}
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1020))
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap, **feed)
        check_readers(table)
        assert sorted(offset for _, _, offset, _ in change_feed(table)) == list(range(120))
