"""`format("fenceline")` against Spark's own Kafka connector: one session, one node, the same topic.

10 M records of 100 B (key 8 B) in 4 partitions, local[2]. Both sides are warmed up first. Small batches are measured in
two ways: with a continuous trickle of records, and with records sent when the query is idle, where the connector waits
for its own long poll (`docs/decisions/008-small-batches-of-the-connector.md`). The idle query measures the cost of a
query without data, compared with a session without any query. `BENCH_ROWS` selects the rows (keys of `rows`,
comma-separated).
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Figures, cpu_in, run_rows, scratch, start_fenceline
from benchmarks.workloads import create_topic
from fenceline.client import Producer
from fenceline.testing.apache_kafka import DEFAULT_JARS
from fenceline.testing.node import EmbeddedNode

PARTITIONS = 4
RECORDS = 10_000_000
TOPIC = "spark-100"
SIDES = {"fenceline": "fenceline", "connector": "kafka"}
SMALL_BATCHES = 20
IDLE_S = 20
IDLE = "idle query, CPU of the driver and its Python"


def run(figures: Figures, repeats: int) -> None:
    with spark_and_node() as (spark, node, directory):
        run_rows(figures, rows(figures, repeats, spark, node.bootstrap, directory))


@contextmanager
def spark_and_node() -> Iterator[tuple[Any, EmbeddedNode, Path]]:
    """A session, a node, and a directory for both."""
    node = start_fenceline()
    try:
        with scratch() as directory:
            spark = session(directory)
            try:
                yield spark, node, directory
            finally:
                spark.stop()
    finally:
        node.close()


@cache
def fill(bootstrap: str, topic: str = TOPIC, records: int = RECORDS) -> None:
    """Write the topic, once per node."""
    create_topic(bootstrap, topic, PARTITIONS)
    rows = 250_000
    keys = pa.array([b"%08d" % number for number in range(rows)], pa.binary())
    table = pa.table({"key": keys, "value": pa.array([b"x" * 100] * rows, pa.binary())})
    with Producer(bootstrap) as producer:
        for number in range(records // rows):
            producer.send_arrow(table, topic, key="key", value="value", partition=number % PARTITIONS)
        producer.flush()


def session(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = ",".join(str(jar) for jar in sorted((DEFAULT_JARS / "connector").glob("*.jar")))
    return (
        SparkSession.builder.master("local[2]")
        .appName("fenceline-bench")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def rows(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> dict[str, Callable[[], None]]:
    jobs: dict[str, Callable[[str], object]] = {
        "batch count": lambda form: read(spark, form, bootstrap).count(),
        "batch noop": lambda form: read(spark, form, bootstrap).write.format("noop").mode("overwrite").save(),
        "stream noop": lambda form: drain(spark, form, bootstrap, directory, "noop"),
        "stream parquet": lambda form: drain(spark, form, bootstrap, directory, "parquet"),
    }
    found: dict[str, Callable[[], None]] = {
        name: partial(whole_topic, figures, repeats, bootstrap, name, job) for name, job in jobs.items()
    }
    for name, trickles in (("trickling in", True), ("after a pause", False)):
        found[name] = partial(handfuls, figures, repeats, spark, bootstrap, directory, name, trickles)
    return {**found, "idle": partial(idle, figures, repeats, spark, bootstrap, directory)}


def whole_topic(figures: Figures, repeats: int, bootstrap: str, name: str, job: Callable[[str], object]) -> None:
    fill(bootstrap)
    for attempt in range(1 + repeats):
        for side, form in SIDES.items():
            started = time.perf_counter()
            job(form)
            elapsed = time.perf_counter() - started
            if attempt:
                figures.add(name, side, RECORDS / elapsed, "rows/s")


def handfuls(
    figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path, name: str, trickles: bool
) -> None:
    for attempt in range(1 + repeats):
        for side, form in SIDES.items():
            topic = f"small-{trickles}-{side}-{attempt}"
            durations = small_batches(spark, form, bootstrap, directory, topic, trickles)
            if attempt:
                figures.add(f"micro-batch of a handful of rows {name}, p50", side, statistics.median(durations), "ms")


def idle(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    for _ in range(repeats):
        figures.add(IDLE, "no query", idle_percent(spark), "% of a core")
        for side, form in SIDES.items():
            with idle_query(spark, form, bootstrap, directory):
                figures.add(IDLE, side, idle_percent(spark), "% of a core")


def read(spark: Any, form: str, bootstrap: str) -> Any:
    reader = spark.read.format(form).option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    return reader.option("startingOffsets", "earliest").load()


def stream(spark: Any, form: str, bootstrap: str, topic: str) -> Any:
    reader = spark.readStream.format(form).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest")


def drain(spark: Any, form: str, bootstrap: str, directory: Path, sink: str) -> None:
    """Read the complete topic with Trigger.AvailableNow, 2 M rows per batch."""
    target, checkpoint = directory / "target", directory / "checkpoint"
    for path in (target, checkpoint):
        shutil.rmtree(path, ignore_errors=True)
    frame = stream(spark, form, bootstrap, TOPIC).option("maxOffsetsPerTrigger", 2_000_000).load()
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start(str(target)) if sink == "parquet" else writer.start()
    query.awaitTermination()


def small_batches(spark: Any, form: str, bootstrap: str, directory: Path, topic: str, trickles: bool) -> list[float]:
    """Milliseconds of each micro-batch, with records every 50 ms or one round of records after each batch."""
    create_topic(bootstrap, topic, PARTITIONS)
    frame = stream(spark, form, bootstrap, topic).load()
    durations: dict[int, float] = {}
    with Producer(bootstrap) as producer:
        query = frame.writeStream.format("noop").option("checkpointLocation", str(directory / topic)).start()
        try:
            with trickle(producer, topic) if trickles else nullcontext():
                while len(durations) < SMALL_BATCHES:
                    if not trickles:
                        send_round(producer, topic)
                    await_batch(query, durations)
            query.processAllAvailable()
        finally:
            query.stop()
    # The first batches include the start of the query.
    return [duration for _, duration in sorted(durations.items())][3:]


@contextmanager
def idle_query(spark: Any, form: str, bootstrap: str, directory: Path) -> Iterator[None]:
    """A query with trigger 0 that has read all records."""
    topic = f"idle-{form}-{time.monotonic_ns()}"
    create_topic(bootstrap, topic, PARTITIONS)
    with Producer(bootstrap) as producer:
        send_round(producer, topic)
    frame = stream(spark, form, bootstrap, topic).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(directory / topic)).start()
    try:
        query.processAllAvailable()
        # Let the JIT compiler and garbage collector finish with the first batch.
        time.sleep(IDLE_S / 2)
        yield
        if (failure := query.exception()) is not None:
            raise failure
    finally:
        query.stop()


def idle_percent(spark: Any) -> float:
    """Percent of one core, used by the JVM and its Python processes."""
    return 100 * cpu_in(spark.sparkContext._gateway.proc.pid, IDLE_S) / IDLE_S


def send_round(producer: Producer, topic: str) -> None:
    """One record to each partition."""
    for partition in range(PARTITIONS):
        producer.send(topic, b"x" * 100, partition=partition)
    producer.flush()


@contextmanager
def trickle(producer: Producer, topic: str) -> Iterator[None]:
    """Send a round of records every 50 ms, independently of the query."""
    ended = threading.Event()

    def feed() -> None:
        while not ended.wait(0.05):
            send_round(producer, topic)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()


def await_batch(query: Any, durations: dict[int, float]) -> None:
    """Wait for the next completed batch with rows, and add it to `durations`."""
    seen = len(durations)
    while len(durations) == seen:
        if (failure := query.exception()) is not None:
            raise failure
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                durations[progress["batchId"]] = float(progress["durationMs"]["triggerExecution"])
        time.sleep(0.02)
