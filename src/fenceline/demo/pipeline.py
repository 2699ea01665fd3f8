"""The Spark side: a stream from `format("fenceline")` into `format("fenceline_delta")`, and what is derived from it.

Owns the session, its Java process and the queries. The raw table follows the topic, and goes back with it where the
log was cut. The aggregate looks at the raw table alone: each round adds the rows that came since the last one and takes
away those that went, so that it need not know of logs. Spark's own connector reads the same topic beside them where its
jars are given; what ends it is told and ends nothing else.

A query keeps its own checkpoint, so it can be stopped and started again anywhere. What Java prints goes to a file: a
query that is stopped on purpose has tasks that are killed, and Spark logs those as errors. What ends the stream is
raised by `keep_running`, but for a worker that was late: the stream is started again then.
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
from fenceline.demo.beside import DIGESTED, compared
from fenceline.demo.flights import SPARK_SCHEMA
from fenceline.demo.spark_processes import end_spark
from fenceline.demo.stopping import Stopping
from fenceline.demo.story import Connector
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_fenceline.audit_table import Verdict
    from pyspark_fenceline.errors import Loss

FLIGHTS_PER_TRIGGER: Final = 40_000
_OTHER_SPARKS: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""Variables that would lead to another Spark, or another set-up, than the one that is installed with the package."""
_FRESH: Final = {"kafka.metadata.max.age.ms": "1000"}
"""For both sources: a new leader is known within a second, and not only when the old one stays silent for long."""

LATE_WORKER: Final = "Python worker failed to connect back"
"""In Spark's error when a query's Python worker was not up within ten seconds, as on a machine that is busy. Spark has
no setting for them."""
_MOST_RESTARTS: Final = 5

_CONNECTOR_ROWS: Final = "partition int, offset long, value binary"


class Rewind(NamedTuple):
    """The stream went back. `at_wall_s`: when the batch that did so was planned."""

    at_wall_s: float
    loss: Loss

    def __str__(self) -> str:
        loss = self.loss
        name = f"{loss.topic}-{loss.partition}"
        return f"the stream goes back in {name}, from offset {loss.offset:,} to {loss.resume_offset:,}"


class Pipeline:
    """A Spark session and its queries. Use as a context manager: Spark's processes end with it. `jars`: those of
    Spark's own connector, which runs beside the stream where there are any.
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
        self.flights = 0
        """That the aggregate counts."""
        self.rewinds: list[Rewind] = []
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
                # Nothing outside of the demo's directory.
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
        if kind is None and self._session is not None:
            with contextlib.suppress(Exception):
                self.stop()
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
        """Start the queries, at the beginning of the topic or where their checkpoints say."""
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
        """Start the queries again when the stream has ended because a worker was late; whether that was so.

        Raises `OperatorError` with whatever else ended it, and when workers are late again and again.
        """
        assert self._java is not None, "used outside of the context"
        if self._java.poll() is not None:
            raise OperatorError(
                f"Spark's Java process has ended by itself, with {self._java.returncode}",
                f"What it printed is in {self.log_file}",
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
            f"The raw stream has ended: {str(failure).splitlines()[0]}",
            f"Spark's log has the whole story: {self.log_file}",
        ) from failure

    def stop(self) -> None:
        """Stop the queries; what they have not committed is read again after the next start."""
        self.note_rewinds()
        if self._stream is not None:
            self._stream.stop()
            self._stream = None
        if self._connector is not None:
            self._note_connector()
            self._connector.stop()
            self._connector = None

    def note_rewinds(self) -> list[Rewind]:
        """Those that the stream's progress tells of and that are new; all of them are in `rewinds`."""
        from pyspark_fenceline.errors import losses_of

        known = {rewind.loss for rewind in self.rewinds}
        new: list[Rewind] = []
        # An idle query reports its last offset again, with all that is in it.
        for progress in self._stream.recentProgress if self._stream is not None else ():
            for loss in losses_of(progress):
                if loss not in known:
                    known.add(loss)
                    began = datetime.fromisoformat(progress["timestamp"]).astimezone(UTC)
                    planning_ms = progress["durationMs"].get("latestOffset", 0)
                    new.append(Rewind(began.timestamp() + planning_ms / 1000, loss))
        self.rewinds += new
        return new

    # -- what is derived ---------------------------------------------------------------------------------------------

    def derive(self) -> None:
        """Bring the aggregate to the raw table's newest version. For one thread at a time."""
        from deltalake import DeltaTable
        from pyspark.sql import functions as f

        from pyspark_fenceline import changes

        if not DeltaTable.is_deltatable(str(self.raw_table)):
            return
        newest = DeltaTable(str(self.raw_table)).version()
        if newest > self.hourly.raw_version:
            came_and_went = changes(str(self.raw_table), self.hourly.raw_version + 1, newest, spark=self._spark)
            sums = came_and_went.groupBy("_change_type", "time_hour", "origin").agg(
                f.count("*").alias("flights"),
                f.sum("dep_delay").alias("departure_delay_minutes"),
                f.sum(f.col("dep_delay").isNull().cast("int")).alias("cancelled"),
            )
            self.hourly.take(sums.toArrow().to_pylist(), newest)
            self.hourly.save(self.hourly_table)
            self.flights = self.hourly.flights

    def audit(self) -> Verdict:
        """Does the raw table hold what the log holds?"""
        from pyspark_fenceline import audit

        return audit(str(self.raw_table), self._bootstrap, [self._topic], spark=self._spark).verdict

    # -- Spark's own connector ---------------------------------------------------------------------------------------

    def connector_has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether its table has everything up to these ends (exclusive), or never will."""
        if not self._jars or self._note_connector():
            return True
        if self._connector is None:
            return False
        progress = self._connector.lastProgress
        found = progress["sources"][0]["endOffset"] if progress else None
        offsets = json.loads(found) if isinstance(found, str) else found or {}
        at = offsets.get(self._topic, {})
        return all(at.get(str(partition), 0) >= end for partition, end in ends.items())

    def _note_connector(self) -> bool:
        """Whether an error has ended it."""
        failure = self._connector.exception() if self._connector is not None else None
        if failure is not None and not self._connector_error:
            self._connector_error = _first_sentence(str(failure))
        return bool(self._connector_error)

    def connector(self) -> Connector | None:
        """What its table holds beside the log as it is now; None where it did not run."""
        if not self._jars or not self._connector_table.exists():
            return None
        self._note_connector()
        from pyspark.sql import functions as f

        def digested(frame: DataFrame) -> Any:
            return frame.withColumn("digest", f.xxhash64("value")).select(*DIGESTED).toArrow()

        log = (
            self._spark.read.format("fenceline")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._topic)
            .load()
        )
        # Spark tells it apart from what was written and not committed.
        theirs = self._spark.read.schema(_CONNECTOR_ROWS).parquet(str(self._connector_table))
        return compared(digested(theirs), digested(log), self._connector_error)


def _first_sentence(failure: str) -> str:
    """Of what Spark says of a query's end, without the query's ids that come first."""
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    return lines[0][:300] if lines else "an error without words"
