"""One stream read by two sources: Spark's Kafka connector and Fenceline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "fenceline"
THEIRS: Final = "kafka"
Row = tuple[int, bytes]
"""Offset and value."""


class Sinks:
    """A parquet table of each source, written by one query that is restarted repeatedly."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._topic, self._folder = spark, bootstrap, topic, folder

    def drain(self, word: str, **options: Any) -> Any:
        """Read all available records; returns the ended query. All runs of a source share one checkpoint."""
        given = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": self._topic, "startingOffsets": "earliest"}
        checkpoint = str(self._folder / f"{word}-checkpoint")
        given.update({"kafka.metadata.max.age.ms": "500"} if word == THEIRS else {"checkpointLocation": checkpoint})
        frame = self._spark.readStream.format(word).options(**given, **options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(str(self._folder / word))
        query.awaitTermination()
        return query

    def rows(self, word: str) -> list[Row]:
        """Offset and value."""
        found = self._spark.read.parquet(str(self._folder / word)).collect()
        return sorted((row.offset, bytes(row.value)) for row in found)
