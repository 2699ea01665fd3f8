"""Micro-batches from a topic into a topic: exactly once, and at least once beside Spark's connector.

Spark in local[2]; one node on the same machine holds both topics. 2 M records of 100 B in 4 partitions, 500,000 per
batch, with keys (each row goes to the partition of its key) and without. "exactly once" is compared with the sink of
`format("fenceline")`, "at least once" compares that sink with Spark's connector.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Figures, scratch, start_fenceline
from benchmarks.spark import session
from benchmarks.workloads import create_topic, delete_topics
from fenceline.client import Producer
from pyspark_fenceline import exactly_once

RECORDS, ROWS_A_BATCH, PARTITIONS = 2_000_000, 500_000, 4
SOURCE, TARGET = "rows", "copied"
COLUMNS = {"with keys": ("key", "value"), "without keys": ("value",)}


def run(figures: Figures, repeats: int) -> None:
    node = start_fenceline()
    try:
        with scratch() as directory:
            spark = session(directory)
            try:
                fill(node.bootstrap)
                for name, columns in COLUMNS.items():
                    compare(figures, repeats, name, partial(copy, spark, node.bootstrap, directory, columns))
            finally:
                spark.stop()
    finally:
        node.close()


def fill(bootstrap: str) -> None:
    create_topic(bootstrap, SOURCE, PARTITIONS)
    rows = 250_000
    keys = pa.array([b"%08d" % number for number in range(rows)], pa.binary())
    table = pa.table({"key": keys, "value": pa.array([b"x" * 100] * rows, pa.binary())})
    with Producer(bootstrap) as producer:
        for number in range(RECORDS // rows):
            producer.send_arrow(table, SOURCE, key="key", value="value", partition=number % PARTITIONS)
        producer.flush()


def compare(figures: Figures, repeats: int, name: str, copied_s: Callable[[str], float]) -> None:
    for attempt in range(1 + repeats):
        once, least, connector = (RECORDS / copied_s(way) for way in ("exactly once", "fenceline", "kafka"))
        if attempt:
            for side, value in (("fenceline", once), ("before", least)):
                figures.add(f"exactly once beside at least once, {name}", side, value, "rows/s")
            for side, value in (("fenceline", least), ("connector", connector)):
                figures.add(f"at least once, {name}", side, value, "rows/s")


def copy(spark: Any, bootstrap: str, directory: Path, columns: tuple[str, ...], way: str) -> float:
    """Seconds until the topic is copied by a query of its own."""
    create_topic(bootstrap, TARGET, PARTITIONS)
    state = directory / "state"
    source = {"subscribe": SOURCE, "startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS_A_BATCH}
    frame = spark.readStream.format("kafka" if way == "kafka" else "fenceline").options(
        **{"kafka.bootstrap.servers": bootstrap}, **source
    )
    writer = frame.load().select(*columns).writeStream.option("checkpointLocation", str(state))
    options = {"kafka.bootstrap.servers": bootstrap, "topic": TARGET}
    if way == "exactly once":
        writer = writer.foreachBatch(exactly_once(f"{TARGET} {time.monotonic_ns()}", options))
    else:
        writer = writer.format(way).options(**options)
    started = time.perf_counter()
    writer.trigger(availableNow=True).start().awaitTermination()
    elapsed = time.perf_counter() - started
    shutil.rmtree(state)
    delete_topics(bootstrap, [TARGET])
    return elapsed
