"""The Spark side: a stream from `format("fenceline")` into `format("fenceline_delta")`, and an aggregate table.

Owns the session, its Java process and the queries. The raw table follows the topic, and rewinds with it after a
truncation. The aggregate reads the raw table only: each round adds the rows inserted since the last one and subtracts
the deleted ones, so it needs no knowledge of logs; what has changed goes into a topic, in one transaction. If its jars
are given, Spark's own connector reads the same topic in the same session; its failure is reported and stops nothing
else.

Each query has its own checkpoint, so it can be stopped and restarted at any point. Java's output goes to a file: Spark
logs the killed tasks of a stopped query as errors. `keep_running` raises the error that ended the stream, except a
Python worker that did not start in time: then it restarts the stream.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.demo.aggregate import Hourly
from fenceline.demo.connector_comparison import DIGESTED, compare
from fenceline.demo.flights import SPARK_SCHEMA
from fenceline.demo.published import Publisher
from fenceline.demo.report import ConnectorResult
from fenceline.demo.spark_processes import end_spark
from fenceline.demo.stopping import Stopping
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_fenceline.auditing.table import AuditVerdict
    from pyspark_fenceline.errors import Loss

FLIGHTS_PER_TRIGGER: Final = 40_000
_OTHER_SPARKS: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""Variables that would select another Spark, or another configuration, than the installed package."""
_FRESH: Final = {"kafka.metadata.max.age.ms": "1000"}
"""For both sources: a new leader is found within a second, not after a request timeout."""

LATE_WORKER: Final = "Python worker failed to connect back"
"""Spark's error if a query's Python worker does not start within ten seconds, as on a busy machine. This timeout is not
configurable."""
_MOST_RESTARTS: Final = 5

_CONNECTOR_ROWS: Final = "partition int, offset long, value binary"


class DemoRewind(NamedTuple):
    """A rewind of the stream. `at_wall_s`: when its batch was planned."""

    at_wall_s: float
    loss: Loss

    def __str__(self) -> str:
        loss = self.loss
        name = f"{loss.topic}-{loss.partition}"
        return f"The stream rewinds {name} from offset {loss.offset:,} to {loss.resume_offset:,}"


class Pipeline:
    """A Spark session and its queries. Use as a context manager: Spark's processes end with it.

    `jars`: Spark's own connector, which runs as well if there are any.
    """

    def __init__(
        self, bootstrap: str, topic: str, directory: Path, stopping: Stopping, jars: Sequence[Path] = ()
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._stopping = stopping
        self._jars = list(jars)
        self.raw_table = directory / "flights"
        self.hourly_table = directory / "hourly_delays"
        self.log_file = directory / "spark.log"
        self.hourly = Hourly()
        self.publisher = Publisher(bootstrap)
        self.flights = 0
        """Number of flights in the aggregate."""
        self.rewinds: list[DemoRewind] = []
        self._connector_table = directory / "connector"
        self._connector_error = ""
        self._java: subprocess.Popen[bytes] | None = None
        self._session: SparkSession | None = None
        self._stream: StreamingQuery | None = None
        self._connector: StreamingQuery | None = None
        self._restarts = 0

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
                ("spark.sql.streaming.numRecentProgressUpdates", "1000"),
                ("spark.local.dir", str(scratch)),
                ("spark.sql.warehouse.dir", str(scratch)),
                # No files outside of the demo's directory.
                ("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData'),
            ]
        )
        if self._jars:
            settings.set("spark.jars", ",".join(map(str, self._jars)))
        try:
            launch: Callable[..., Any] = java_gateway.launch_gateway
            with self._stopping.held(), self.log_file.open("wb") as log:
                gateway = launch(settings, {"stdout": log, "stderr": log})
                self._java = gateway.proc
            self._session = SparkSession(SparkContext(conf=settings, gateway=gateway))
            # Spark has replaced the signal handlers.
            self._stopping.install()
        except PySparkRuntimeError as error:
            self._end()
            raise OperatorError(f"Spark did not start: {error}", f"See its output in {self.log_file}") from error
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None and self._session is not None:
            with contextlib.suppress(Exception):
                self.stop()
                self.publisher.close()
                self._spark.stop()
        self._end()

    def _end(self) -> None:
        java, self._java = self._java, None
        if java is not None:
            end_spark(java)

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None, "used outside of the context"
        return self._session

    # -- the queries -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the queries, from the earliest offsets or from their checkpoints."""
        from pyspark.sql import functions as f

        records = self._records("fenceline", includeLeaderEpoch="true", onTruncation="rewind", statefulQuery="false")
        parsed = f.from_json(f.col("value").cast("string"), SPARK_SCHEMA).alias("flight")
        flights = records.select("topic", "partition", "offset", "leader_epoch", parsed).select(
            "topic", "partition", "offset", "leader_epoch", "flight.*"
        )
        self._stream = (
            flights.writeStream.queryName("raw")
            .format("fenceline_delta")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("checkpointLocation", str(self._directory / "checkpoints" / "raw"))
            .start(str(self.raw_table))
        )
        if self._jars:
            self._connector = (
                self._records("kafka")
                .select("partition", "offset", "value")
                .writeStream.queryName("connector")
                .format("parquet")
                .option("checkpointLocation", str(self._directory / "checkpoints" / "connector"))
                .start(str(self._connector_table))
            )

    def _records(self, source: str, **options: str) -> DataFrame:
        return (
            self._spark.readStream.format(source)
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", FLIGHTS_PER_TRIGGER)
            .options(**_FRESH, **options)
            .load()
        )

    def keep_running(self) -> bool:
        """Restart the queries if the stream ended because a Python worker started too late. Returns whether it did.

        Raises OperatorError if the stream ended for another reason, or after too many restarts.
        """
        assert self._java is not None, "used outside of the context"
        if self._java.poll() is not None:
            raise OperatorError(
                f"Spark's Java process ended unexpectedly with exit code {self._java.returncode}",
                f"See its output in {self.log_file}",
            )
        failure = self._stream.exception() if self._stream is not None else None
        if failure is None:
            return False
        if LATE_WORKER in str(failure) and self._restarts < _MOST_RESTARTS:
            self._restarts += 1
            self.stop()
            self.start()
            return True
        raise OperatorError(
            f"The raw stream failed: {str(failure).splitlines()[0]}",
            f"See Spark's log for details: {self.log_file}",
        ) from failure

    def stop(self) -> None:
        """Stop the queries. Uncommitted batches are read again after the next start."""
        self.collect_rewinds()
        if self._stream is not None:
            self._stream.stop()
            self._stream = None
        if self._connector is not None:
            self._check_connector()
            self._connector.stop()
            self._connector = None

    def collect_rewinds(self) -> list[DemoRewind]:
        """Read new rewinds from the stream's progress, add them to `rewinds` and return them."""
        from pyspark_fenceline.errors import losses_of

        known = {rewind.loss for rewind in self.rewinds}
        new: list[DemoRewind] = []
        # An idle query reports its last offsets, with their losses, again.
        for progress in self._stream.recentProgress if self._stream is not None else ():
            for loss in losses_of(progress):
                if loss not in known:
                    known.add(loss)
                    began = datetime.fromisoformat(progress["timestamp"]).astimezone(UTC)
                    planning_ms = progress["durationMs"].get("latestOffset", 0)
                    new.append(DemoRewind(began.timestamp() + planning_ms / 1000, loss))
        self.rewinds += new
        return new

    # -- the aggregate -----------------------------------------------------------------------------------------------

    def update_aggregate(self) -> None:
        """Update the aggregate, and the topic that has it, to the newest version of the raw table. Not thread-safe."""
        from deltalake import DeltaTable
        from pyspark.sql import functions as f

        from pyspark_fenceline import changes

        if not DeltaTable.is_deltatable(str(self.raw_table)):
            return
        newest = DeltaTable(str(self.raw_table)).version()
        if newest > self.hourly.raw_version:
            changed = changes(str(self.raw_table), self.hourly.raw_version + 1, newest, spark=self._spark)
            sums = changed.groupBy("_change_type", "time_hour", "origin").agg(
                f.count("*").alias("flights"),
                f.sum("dep_delay").alias("departure_delay_minutes"),
                f.sum(f.col("dep_delay").isNull().cast("int")).alias("cancelled"),
            )
            self.hourly.apply(sums.toArrow().to_pylist(), newest)
            self.hourly.save(self.hourly_table)
            self.publisher.publish(self._spark, self.hourly)
            self.flights = self.hourly.flights

    def audit(self) -> AuditVerdict:
        """Compare the raw table with the log."""
        from pyspark_fenceline import audit

        return audit(str(self.raw_table), self._bootstrap, [self._topic], spark=self._spark).verdict

    # -- Spark's own connector ---------------------------------------------------------------------------------------

    def connector_caught_up(self, ends: Mapping[int, int]) -> bool:
        """Whether the connector has read up to these end offsets (exclusive), or has failed."""
        if not self._jars or self._check_connector():
            return True
        if self._connector is None:
            return False
        progress = self._connector.lastProgress
        found = progress["sources"][0]["endOffset"] if progress else None
        offsets = json.loads(found) if isinstance(found, str) else found or {}
        at = offsets.get(self._topic, {})
        return all(at.get(str(partition), 0) >= end for partition, end in ends.items())

    def _check_connector(self) -> bool:
        """Whether the connector's query has failed."""
        failure = self._connector.exception() if self._connector is not None else None
        if failure is not None and not self._connector_error:
            self._connector_error = _first_line(str(failure))
        return bool(self._connector_error)

    def connector(self) -> ConnectorResult | None:
        """Compare the connector's table with the current log; None if the connector did not run."""
        if not self._jars or not self._connector_table.exists():
            return None
        self._check_connector()
        from pyspark.sql import functions as f

        def digested(frame: DataFrame) -> Any:
            return frame.withColumn("digest", f.xxhash64("value")).select(*DIGESTED).toArrow()

        log = (
            self._spark.read.format("fenceline")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .load()
        )
        # Spark ignores files that were written and not committed.
        theirs = self._spark.read.schema(_CONNECTOR_ROWS).parquet(str(self._connector_table))
        return compare(digested(theirs), digested(log), self._connector_error)


def _first_line(failure: str) -> str:
    """The first line of a query's error."""
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    return lines[0][:300] if lines else "an error without a message"
