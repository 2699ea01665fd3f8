"""Micro-batches of `format("fenceline")` beside Spark's own Kafka connector, and what many partitions, two workers and
100 M rows cost.

Spark in local[2], one node on the same machine, and the same session for both sides, in turns. "batches": batches of
20,000 rows of 100 B from 4 partitions (`maxOffsetsPerTrigger`, AvailableNow, noop), the median of `triggerExecution`
and of Spark's phases; once with Spark's default checkpoint files and once with `FileSystemBasedCheckpointFileManager`,
which starts no process for each file of a local directory. "handful": 4 rows every 50 ms, default trigger. "wide": the
same 20,000 rows from 4 partitions, and from 1,000 partitions of 200 topics. "timeline": draws a batch. "workers": a
standalone cluster of two workers with one core each that reads two brokers, beside one worker and one broker, and
beside two processes that only compute, which shows what the machine allows. "audit": 100 M rows as a Spark job, with
the memory of its processes. `BENCH_ROWS` selects the rows; `BENCH_AUDIT_ROWS` is the size of "audit".
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import ROOT, Figures, run_rows, scratch, start_fenceline
from benchmarks.spark import PARTITIONS, SIDES, fill, small_batches, spark_and_node
from benchmarks.workloads import create_topic
from fenceline.client import Admin, NewTopic, Producer

ROWS_A_BATCH = 20_000
WARM_UP = 4
TOPIC = "batches"
TOPICS, PARTITIONS_EACH = 200, 5
RECORDS_A_BATCH = 20
AUDIT_ROWS = int(os.environ.get("BENCH_AUDIT_ROWS", 100_000_000))
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_RENAMING = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
PICTURE = ROOT / "docs" / "spark-batch.svg"


def run(figures: Figures, repeats: int) -> None:
    shared: dict[str, Callable[[Any, str, Path], None]] = {
        "batches": partial(batches, figures, repeats),
        "handful": partial(handfuls, figures, repeats),
        "wide": partial(wide, figures, repeats),
        "timeline": partial(timeline, figures),
        "audit": partial(audits, figures, repeats),
    }

    def in_session(job: Callable[[Any, str, Path], None]) -> None:
        with spark_and_node() as (spark, node, directory):
            job(spark, node.bootstrap, directory)

    rows: dict[str, Callable[[], None]] = {name: partial(in_session, job) for name, job in shared.items()}
    rows["workers"] = partial(workers, figures, repeats)
    run_rows(figures, rows)


# Batches ------------------------------------------------------------------------------------------------------------


def backlog(
    spark: Any,
    form: str,
    bootstrap: str,
    directory: Path,
    *,
    warm_up: int = WARM_UP,
    batches: int | None = None,
    **options: Any,
) -> list[Any]:
    """Progress of the batches with rows of a query that reads everything, without the first ones. `batches`: stop
    after so many more. Raises what the query raised, RuntimeError if there are no batches to measure."""
    checkpoint = directory / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    given = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS_A_BATCH}
    frame = spark.readStream.format(form).options(**given, **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if batches is None:
        query.awaitTermination()
    else:
        while query.isActive and len(_with_rows(query)) < warm_up + batches:
            time.sleep(0.1)
        if (failure := query.exception()) is not None:
            raise failure
        query.stop()
    found = _with_rows(query)[warm_up:]
    if not found:
        raise RuntimeError(f"{form} ended before batch {warm_up + 1}")
    return found


def _with_rows(query: Any) -> list[Any]:
    return [one for one in query.recentProgress if one["numInputRows"]]


def median_ms(progress: list[Any], phase: str = "triggerExecution") -> float:
    return statistics.median(float(one["durationMs"].get(phase, 0)) for one in progress)


@contextmanager
def checkpoints_by(spark: Any, manager: str | None) -> Iterator[None]:
    if manager is not None:
        spark.conf.set(MANAGER, manager)
    try:
        yield
    finally:
        spark.conf.unset(MANAGER)


def batches(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    fill(bootstrap, TOPIC, 1_000_000)
    for manager, how in ((None, ""), (BY_RENAMING, ", checkpoint files by renaming")):
        for attempt in range(2 + repeats):
            for side, form in SIDES.items():
                with checkpoints_by(spark, manager):
                    found = backlog(spark, form, bootstrap, directory, subscribe=TOPIC)
                if attempt < 2:
                    continue
                figures.add(f"micro-batch of 20,000 rows{how}, p50", side, median_ms(found), "ms")
                for phase in PHASES:
                    figures.add(f"micro-batch of 20,000 rows{how}: {phase}", side, median_ms(found, phase), "ms")


def handfuls(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    for manager, how in ((None, ""), (BY_RENAMING, ", checkpoint files by renaming")):
        for attempt in range(1 + repeats):
            for side, form in SIDES.items():
                topic = f"handful-{manager is None}-{side}-{attempt}"
                with checkpoints_by(spark, manager):
                    durations = small_batches(spark, form, bootstrap, directory, topic, trickles=True)
                if attempt:
                    figures.add(f"micro-batch of a handful of rows{how}, p50", side, statistics.median(durations), "ms")


def fill_wide(bootstrap: str, batches_each: int) -> None:
    """200 topics with 5 partitions each, in record batches of 20 records."""
    names = [f"wide-{number:03d}" for number in range(TOPICS)]
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS_EACH, 1, {"retention.ms": "-1"}) for name in names])
    table = pa.table({"value": pa.array([b"x" * 100] * RECORDS_A_BATCH, pa.binary())})
    with Producer({"bootstrap.servers": bootstrap, "batch.size": 2_500}) as producer:
        for _ in range(batches_each):
            for name in names:
                for partition in range(PARTITIONS_EACH):
                    producer.send_arrow(table, name, value="value", partition=partition)
            producer.flush()


def wide(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    """The connector runs one task with a consumer of its own for each partition, which takes a minute or more for a
    batch: one batch is measured, after one that creates the consumers."""
    fill(bootstrap, TOPIC, 1_000_000)
    fill_wide(bootstrap, 16)
    for attempt in range(1 + repeats):
        found = {
            "4 partitions": backlog(spark, "fenceline", bootstrap, directory, subscribe=TOPIC),
            "fenceline": backlog(spark, "fenceline", bootstrap, directory, subscribePattern="wide-.*"),
        }
        for side, progress in found.items():
            if attempt:
                figures.add("20,000 rows from 1,000 partitions of 200 topics", side, median_ms(progress), "ms")
                for phase in ("latestOffset", "addBatch"):
                    name = f"20,000 rows from 1,000 partitions of 200 topics: {phase}"
                    figures.add(name, side, median_ms(progress, phase), "ms")
    connector = backlog(spark, "kafka", bootstrap, directory, subscribePattern="wide-.*", warm_up=1, batches=1)
    figures.add("20,000 rows from 1,000 partitions of 200 topics", "connector", median_ms(connector), "ms")


def timeline(figures: Figures, spark: Any, bootstrap: str, directory: Path) -> None:
    """Draw the batch whose length is the median."""
    from pyspark_fenceline import batch_timeline

    fill(bootstrap, TOPIC, 1_000_000)
    for _ in range(2):
        spans = directory / f"spans-{time.monotonic_ns()}"
        found = backlog(spark, "fenceline", bootstrap, directory, subscribe=TOPIC, timelineDirectory=str(spans))
    typical = sorted(found, key=lambda one: one["durationMs"]["triggerExecution"])[len(found) // 2]
    drawn = batch_timeline(typical, spans)
    PICTURE.write_text(drawn.svg())
    figures.note(f"timeline of a batch of 20,000 rows, written to {PICTURE.relative_to(ROOT)}:\n{drawn}")


# A cluster ----------------------------------------------------------------------------------------------------------


def compute(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def computed_at_once(processes: int, rounds: int = 15_000_000) -> float:
    """Rounds a second of processes that only compute."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(compute, [1000] * processes)
        started = time.perf_counter()
        pool.map(compute, [rounds] * processes, chunksize=1)
        return processes * rounds / (time.perf_counter() - started)


def workers(figures: Figures, repeats: int) -> None:
    from tests.spark.sessions import session
    from tests.spark.standalone_cluster import standalone_cluster

    for _ in range(repeats):
        one, two = computed_at_once(1), computed_at_once(2)
        figures.add("two processes that only compute, beside one", "fenceline", two / one, "x")
    nodes = [start_fenceline() for _ in range(2)]
    try:
        with scratch() as directory, standalone_cluster(directory) as master:
            for node in nodes:
                fill(node.bootstrap, TOPIC, 4_000_000)
            settings = {"spark__executor__memory": "512m", "spark__cores__max": "2"}
            spark = session(master, directory, **settings)
            try:
                for attempt in range(2 + repeats):
                    # One task reads one broker; the two tasks of a union read a broker each.
                    rates = {count: read_rate(spark, nodes[:count]) for count in (1, 2)}
                    if attempt >= 2:
                        figures.add("standalone cluster, one worker and broker", "fenceline", rates[1], "rows/s")
                        figures.add("standalone cluster, two of each", "fenceline", rates[2], "rows/s")
                        figures.add("standalone cluster, two beside one", "fenceline", rates[2] / rates[1], "x")
            finally:
                spark.stop()
    finally:
        for node in nodes:
            node.close()


def read_rate(spark: Any, nodes: list[Any]) -> float:
    frames = [
        spark.read.format("fenceline")
        .option("kafka.bootstrap.servers", node.bootstrap)
        .option("subscribe", TOPIC)
        .option("maxPartitions", 1)
        .load()
        for node in nodes
    ]
    frame = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
    started = time.perf_counter()
    assert frame.count() == 4_000_000 * len(nodes)
    return 4_000_000 * len(nodes) / (time.perf_counter() - started)


# An audit -----------------------------------------------------------------------------------------------------------


def audits(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    """Rows of an own table in Parquet, and the log of as many small records."""
    from pyspark_fenceline import audit

    create_topic(bootstrap, "audited", PARTITIONS)
    each, chunk = AUDIT_ROWS // PARTITIONS, 250_000
    table = pa.table({"value": pa.array([b"0123456789"] * chunk, pa.binary())})
    with Producer(bootstrap) as producer:
        for _ in range(each // chunk):
            for partition in range(PARTITIONS):
                producer.send_arrow(table, "audited", value="value", partition=partition)
        producer.flush()
    path = str(directory / "audited")
    columns = f"'audited' AS topic, CAST(id DIV {each} AS INT) AS partition, id % {each} AS offset, 0 AS leader_epoch"
    spark.range(0, AUDIT_ROWS, 1, 32).selectExpr(*columns.split(", ")).write.mode("overwrite").parquet(path)
    rows = spark.read.parquet(path)
    process = spark.sparkContext._gateway.proc.pid
    for attempt in range(1 + min(repeats, 3)):
        for name, everything in (("gaps only", None), ("whole log", True)):
            with peak_memory(process) as peak:
                started = time.perf_counter()
                found = audit(rows, bootstrap, "audited", spark=spark, everything=everything)
                elapsed = time.perf_counter() - started
            assert found.verdict.is_equal, str(found)
            assert found.verdict.row_count == AUDIT_ROWS, str(found)
            if attempt:
                what = f"audit of {AUDIT_ROWS:,} rows in Spark, {name}"
                figures.add(what, "fenceline", AUDIT_ROWS / elapsed, "rows/s")
                for part, most in peak.items():
                    figures.add(f"{what}: peak memory of {part}", "fenceline", most, "MB")


@contextmanager
def peak_memory(pid: int) -> Iterator[Mapping[str, float]]:
    """The highest resident memory of this process, of the JVM, and of the JVM's Python processes together, sampled
    every 100 ms."""
    import psutil

    ended = threading.Event()
    highest = {"the driver's Python": 0.0, "the JVM (driver and executor)": 0.0, "Spark's Python workers": 0.0}

    def sample() -> None:
        own, java = psutil.Process(), psutil.Process(pid)
        while not ended.wait(0.1):
            try:
                below = java.children(recursive=True)
                workers = sum(one.memory_info().rss for one in below if "python" in one.name())
                found = (own.memory_info().rss, java.memory_info().rss, workers)
                for part, size_bytes in zip(highest, found, strict=True):
                    highest[part] = max(highest[part], size_bytes / 1e6)
            except psutil.NoSuchProcess:
                continue

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield highest
    finally:
        ended.set()
        sampler.join()
