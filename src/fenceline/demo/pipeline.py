"""The Spark side: two streaming queries from `format("fenceline")` into `format("fenceline_delta")`.

Owns the session, its Java process and the queries. Reads nothing but the topic; each query keeps its own checkpoint, so
it can be stopped and started again anywhere. What Java prints goes to a file: a query that is stopped on purpose has
tasks that are killed, and Spark logs those as errors. What ends a query is raised by `check`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fenceline.demo.flights import SPARK_SCHEMA
from fenceline.demo.stopping import Stopping
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS_PER_TRIGGER = 40_000
_OTHER_SPARKS: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""Variables that would lead to another Spark, or another set-up, than the one that is installed with the package."""
_END_WITHIN_S: Final = 10.0


class Pipeline:
    """A Spark session and the two queries. Use as a context manager: Spark's processes end with it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, stopping: Stopping) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._stopping = stopping
        self.raw_table = directory / "flights"
        self.hourly_table = directory / "hourly_delays"
        self.log_file = directory / "spark.log"
        self._java: subprocess.Popen[bytes] | None = None
        self._spark: SparkSession | None = None
        self._queries: list[StreamingQuery] = []

    def __enter__(self) -> Pipeline:
        from pyspark import SparkConf, SparkContext, java_gateway
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        for name in _OTHER_SPARKS:
            os.environ.pop(name, None)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        scratch = self._directory / "spark"
        scratch.mkdir()
        settings = SparkConf(loadDefaults=False).setAll(
            [
                ("spark.master", "local[2]"),
                ("spark.app.name", "fenceline-demo"),
                ("spark.ui.enabled", "false"),
                ("spark.ui.showConsoleProgress", "false"),
                ("spark.driver.host", "127.0.0.1"),
                ("spark.driver.bindAddress", "127.0.0.1"),
                ("spark.sql.shuffle.partitions", "2"),
                ("spark.sql.session.timeZone", "UTC"),
                ("spark.local.dir", str(scratch)),
                ("spark.sql.warehouse.dir", str(scratch)),
                # Nothing outside of the demo's directory.
                ("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData'),
            ]
        )
        try:
            launch: Callable[..., Any] = java_gateway.launch_gateway
            with self._stopping.held(), self.log_file.open("wb") as log:
                gateway = launch(settings, {"stdout": log, "stderr": log})
                self._java = gateway.proc
            self._spark = SparkSession(SparkContext(conf=settings, gateway=gateway))
            # Spark has set a handler of its own.
            self._stopping.install()
        except PySparkRuntimeError as error:
            self._end()
            raise OperatorError(f"Spark did not start: {error}", f"What it printed is in {self.log_file}") from error
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None and self._spark is not None:
            with contextlib.suppress(Exception):
                self.stop()
                self._spark.stop()
        self._end()

    def _end(self) -> None:
        """End Java, and with it its Python processes, within seconds."""
        from pyspark import SparkContext

        java, self._java = self._java, None
        if java is None:
            return
        java.terminate()
        try:
            java.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()
        # Another session in this process needs another Java.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None

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
        """Raises `OperatorError` with what ended a query, if one has ended."""
        assert self._java is not None, "used outside of the context"
        if self._java.poll() is not None:
            raise OperatorError(
                f"Spark's Java process has ended by itself, with {self._java.returncode}",
                f"What it printed is in {self.log_file}",
            )
        for query in self._queries:
            failure = query.exception()
            if failure is not None:
                raise OperatorError(
                    f"The {query.name} stream has ended: {str(failure).splitlines()[0]}",
                    f"Spark's log has the whole story: {self.log_file}",
                ) from failure

    def stop(self) -> None:
        """Stop both queries; what they have not committed is read again after the next start."""
        for query in self._queries:
            query.stop()
        self._queries = []
