"""The Spark side: two streaming queries from `format("fenceline")` into `format("fenceline_delta")`.

Owns the session and the queries. Reads nothing but the topic; each query keeps its own checkpoint, so it can be stopped
and started again anywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenceline.demo.flights import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS_PER_TRIGGER = 40_000
_LOG_SETTINGS = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = Spark %p: %m%n
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.stopped.name = org.apache.spark.sql.execution.datasources.v2
logger.stopped.level = off
"""


class Pipeline:
    """A Spark session and the two queries. Use as a context manager: Spark's processes end with it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self.raw_table = directory / "flights"
        self.hourly_table = directory / "hourly_delays"
        self._spark: SparkSession | None = None
        self._queries: list[StreamingQuery] = []

    def __enter__(self) -> Pipeline:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        log_settings = self._directory / "log4j2.properties"
        log_settings.write_text(_LOG_SETTINGS)
        self._spark = (
            SparkSession.builder.master("local[2]")
            .appName("fenceline-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(self._directory / "spark"))
            .config("spark.sql.warehouse.dir", str(self._directory / "spark"))
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log_settings}")
            .getOrCreate()
        )
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(Exception):
            self.stop()
        if self._spark is not None:
            self._spark.stop()

    def start(self) -> None:
        """Start both queries, at the beginning of the topic or where their checkpoints say."""
        assert self._spark is not None, "used outside of the context"
        from pyspark.sql import functions as f

        records = (
            self._spark.readStream.format("fenceline")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", FLIGHTS_PER_TRIGGER)
            .option("includeLeaderEpoch", True)
            .load()
        )
        parsed = f.from_json(f.col("value").cast("string"), SPARK_SCHEMA).alias("flight")
        flights = records.select("topic", "partition", "offset", "leader_epoch", parsed).select(
            "topic", "partition", "offset", "leader_epoch", "flight.*"
        )
        hourly = flights.groupBy("time_hour", "origin").agg(
            f.count("*").alias("flights"),
            f.sum("dep_delay").alias("departure_delay_minutes"),
            f.avg("dep_delay").alias("mean_departure_delay_minutes"),
            f.sum(f.col("dep_delay").isNull().cast("int")).alias("cancelled"),
        )
        self._queries = [
            self._write(flights, "raw", self.raw_table, "append"),
            self._write(hourly, "hourly", self.hourly_table, "complete"),
        ]

    def _write(self, frame: Any, name: str, table: Path, mode: str) -> StreamingQuery:
        query: StreamingQuery = (
            frame.writeStream.queryName(name)
            .format("fenceline_delta")
            .outputMode(mode)
            .option("checkpointLocation", str(self._directory / "checkpoints" / name))
            .start(str(table))
        )
        return query

    def check(self) -> None:
        """Raise what ended a query, if one has ended."""
        for query in self._queries:
            failure = query.exception()
            if failure is not None:
                raise failure

    def stop(self) -> None:
        """Stop both queries; what they have not committed is read again after the next start."""
        for query in self._queries:
            query.stop()
        self._queries = []
