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

from benchmarks.harness import Figures
from benchmarks.spark import PARTITIONS, fill, spark_and_node
from benchmarks.workloads import create_topic, delete_topics
from pyspark_fenceline import exactly_once

RECORDS, ROWS_A_BATCH = 2_000_000, 500_000
SOURCE, TARGET = "rows", "copied"
COLUMNS = {"with keys": ("key", "value"), "without keys": ("value",)}


def run(figures: Figures, repeats: int) -> None:
    with spark_and_node() as (spark, node, directory):
        fill(node.bootstrap, SOURCE, RECORDS)
        for name, columns in COLUMNS.items():
            compare(figures, repeats, name, partial(copy, spark, node.bootstrap, directory, columns))


def compare(figures: Figures, repeats: int, name: str, copied_s: Callable[[str], float]) -> None:
    for attempt in range(1 + repeats):
        once, least, connector = (RECORDS / copied_s(way) for way in ("exactly once", "fenceline", "kafka"))
        if attempt:
            for side, value in (("fenceline", once), ("at least once", least)):
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
