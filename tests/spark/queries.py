"""Queries of `format("fenceline")`, batch and stream, and tables written by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def batch(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options}
    return spark.read.format("fenceline").options(**given).load()


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    """From the topic's beginning, for a query without state."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    given |= {"statefulQuery": False, **options}
    return spark.readStream.format("fenceline").options(**given).load()


def tracked(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    """A stream for a table that is kept equal to the log."""
    return stream(spark, bootstrap, topic, includeLeaderEpoch=True, onTruncation="rewind", **options)


def drain(frame: DataFrame, table: str, checkpoint: str, **options: Any) -> StreamingQuery:
    """Write all available records to a Delta table; returns the ended query."""
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint).options(**options)
    query = writer.trigger(availableNow=True).start(table)
    query.awaitTermination()
    return query


def keep_equal(frame: DataFrame, table: str, checkpoint: str, bootstrap: str, **options: Any) -> StreamingQuery:
    """As `drain`, into a table that is compared with the log."""
    return drain(frame, table, checkpoint, **{"kafka.bootstrap.servers": bootstrap, **options})


def rows(table: str) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value."""
    columns = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in columns)
