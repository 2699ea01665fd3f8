"""Delta tables that match the log: the sink against Spark's connector into Parquet, audit, backfill, end to end.

Spark in local[2]; the node is on the same machine. "stream into a table": 10 M records of 100 B in 4 partitions, 2 M
per batch, with epochs, exactly once and compared with the log; the connector writes Parquet. "end to end": from the
send of a record to the commit of its row, at 10,000 rows/s with trigger 0. "audit": a table of 10 M rows, in Spark and
by the command, where no row is missing and where the complete log is read. "adoption": a table without epochs, of a log
that lost a batch and has two epochs, with different values in all records: the audit, which names the receipt, and the
backfill, as a dry run and applied. `BENCH_ROWS` selects the rows (comma-separated): stream, audit, adoption, end to
end; `BENCH_TABLE_ROWS` is the size of the table of "adoption". `spark_repair` measures the cost of a repair.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Figures, run_rows
from benchmarks.spark import PARTITIONS, RECORDS, TOPIC, fill, spark_and_node
from benchmarks.workloads import create_topic
from fenceline.client import Producer
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually

ROWS_A_SECOND = 10_000
SECONDS = 30
TABLE, PARQUET = "table", "parquet"
ADOPTED = "adopted"
LOST_ROWS = 10_000
ADOPTED_ROWS = int(os.environ.get("BENCH_TABLE_ROWS", RECORDS))


def run(figures: Figures, repeats: int) -> None:
    with spark_and_node() as (spark, node, directory):
        bootstrap = node.bootstrap
        rows = {
            "stream": partial(streams, figures, repeats, spark, bootstrap, directory),
            "audit": partial(audits, figures, repeats, spark, bootstrap, directory),
            "adoption": partial(adoptions, figures, repeats, spark, node, directory),
            "end to end": partial(latencies, figures, repeats, spark, bootstrap, directory),
        }
        run_rows(figures, rows)


def source(spark: Any, form: str, bootstrap: str, topic: str, **options: Any) -> Any:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
    if form == "fenceline":
        given["includeLeaderEpoch"] = True
    return spark.readStream.format(form).options(**given).load()


def sink(frame: Any, bootstrap: str, directory: Path, name: str) -> Any:
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", str(directory / f"{name}-state"))
    return writer.option("kafka.bootstrap.servers", bootstrap).option("path", str(directory / name))


def clear(directory: Path, *names: str) -> None:
    for name in names:
        for path in (directory / name, directory / f"{name}-state"):
            shutil.rmtree(path, ignore_errors=True)


def streams(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    fill(bootstrap)
    sides = {"fenceline": fill_table, "connector": fill_parquet}
    for attempt in range(1 + repeats):
        for side, fill_from_log in sides.items():
            clear(directory, TABLE, PARQUET)
            started = time.perf_counter()
            fill_from_log(spark, bootstrap, directory)
            if attempt:
                figures.add("stream into a table", side, RECORDS / (time.perf_counter() - started), "rows/s")


def fill_table(spark: Any, bootstrap: str, directory: Path) -> None:
    frame = source(spark, "fenceline", bootstrap, TOPIC, maxOffsetsPerTrigger=2_000_000)
    sink(frame, bootstrap, directory, TABLE).trigger(availableNow=True).start().awaitTermination()


def fill_parquet(spark: Any, bootstrap: str, directory: Path) -> None:
    frame = source(spark, "kafka", bootstrap, TOPIC, maxOffsetsPerTrigger=2_000_000)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / f"{PARQUET}-state"))
    writer.trigger(availableNow=True).start(str(directory / PARQUET)).awaitTermination()


def audits(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    import pyspark_fenceline
    from pyspark_fenceline.auditing.table import audit_here, settings

    fill(bootstrap)
    clear(directory, TABLE)
    fill_table(spark, bootstrap, directory)
    table = str(directory / TABLE)
    ways = {
        "audit in Spark": lambda: pyspark_fenceline.audit(table, bootstrap, TOPIC, spark=spark),
        "audit in Spark, all of the log": lambda: pyspark_fenceline.audit(
            table, bootstrap, TOPIC, spark=spark, everything=True
        ),
        "audit by the command": lambda: audit_here(table, settings(bootstrap, TOPIC)),
        "audit by the command, all of the log": lambda: audit_here(table, settings(bootstrap, TOPIC, everything=True)),
    }
    for name, way in ways.items():
        for attempt in range(1 + repeats):
            started = time.perf_counter()
            found = way()
            elapsed = time.perf_counter() - started
            assert found.verdict.is_equal, str(found)
            if attempt:
                figures.add(name, "fenceline", RECORDS / elapsed, "rows/s")


def adoptions(figures: Figures, repeats: int, spark: Any, node: EmbeddedNode, directory: Path) -> None:
    import pyspark_fenceline
    from pyspark_fenceline.auditing.backfill_table import backfill_here
    from pyspark_fenceline.auditing.table import audit_here, settings

    bootstrap, kept = node.bootstrap, directory / f"{ADOPTED}-kept"
    lose_a_batch(node, spark, kept)
    table, chosen = str(directory / ADOPTED), settings(bootstrap, ADOPTED)
    by_values = settings(bootstrap, ADOPTED, by_values=True)
    ways: dict[str, Any] = {
        "audit with receipts, in Spark": lambda: pyspark_fenceline.audit(table, bootstrap, ADOPTED, spark=spark),
        "audit with receipts, by the command": lambda: audit_here(table, chosen),
        "backfill in Spark, looked at": lambda: pyspark_fenceline.backfill(table, bootstrap, ADOPTED, spark=spark),
        "backfill in Spark, applied": lambda: pyspark_fenceline.backfill(
            table, bootstrap, ADOPTED, spark=spark, apply=True
        ),
        "backfill by the command, looked at": lambda: backfill_here(table, by_values),
        "backfill by the command, applied": lambda: backfill_here(table, by_values, apply=True),
    }
    for name, way in ways.items():
        for attempt in range(1 + repeats):
            shutil.rmtree(table, ignore_errors=True)
            # Data files are replaced, never changed, so links are safe.
            shutil.copytree(kept, table, copy_function=os.link)
            started = time.perf_counter()
            found = way()
            elapsed = time.perf_counter() - started
            if name.startswith("audit"):
                assert found.verdict.outcome == "unproven", str(found)
                findings = found.findings.toArrow() if hasattr(found.findings, "toArrow") else found.findings
                assert any("receipt" in detail for detail in findings["detail"].to_pylist()), str(found)
            else:
                assert found.stale_rows > 0, found.sentence()
                assert found.proven_rows + found.stale_rows == ADOPTED_ROWS, found.sentence()
            if attempt:
                figures.add(name, "fenceline", ADOPTED_ROWS / elapsed, "rows/s")


def lose_a_batch(node: EmbeddedNode, spark: Any, table: Path) -> None:
    """A topic that loses its newest batch in a crash half-way, after the rows are in a table without epochs."""
    from deltalake import write_deltalake

    from fenceline.client.reader.reader import RangeReader
    from pyspark_fenceline.auditing.receipts import read_receipts
    from pyspark_fenceline.common.connect import connect

    first = TopicPartition(ADOPTED, 0)
    create_topic(node.bootstrap, ADOPTED, PARTITIONS)
    half = ADOPTED_ROWS // 2
    write_different(node.bootstrap, half - LOST_ROWS, range(PARTITIONS))
    into_table(spark, node.bootstrap, table, "earliest")
    # The lost records were not flushed when the node was killed.
    start = ends(node.bootstrap)[0]
    write_different(node.bootstrap, LOST_ROWS, range(1))
    before = ends(node.bootstrap)
    with RangeReader({"bootstrap.servers": node.bootstrap}) as reader:
        read = pa.Table.from_batches(list(reader.read({first: (start, before[0])}, timestamp_unit="us")))
    node.kill()
    (folder,) = node.log_dir.rglob(f"{ADOPTED}-0")
    newest = max(folder.glob("*.log"))
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 3)
    node.start()
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type"]
    write_deltalake(table, read.select(columns).rename_columns([*columns[:-1], "timestampType"]), mode="append")
    lost = before[0] - ends(node.bootstrap)[0]
    write_different(node.bootstrap, lost, range(1))
    write_different(node.bootstrap, half, range(PARTITIONS))
    offsets = ",".join(f'"{partition}":{end}' for partition, end in before.items())
    into_table(spark, node.bootstrap, table, f'{{"{ADOPTED}":{{{offsets}}}}}')
    client = {"bootstrap.servers": node.bootstrap}
    cluster = connect(client)
    ids = {first: cluster.topics([ADOPTED])[ADOPTED].id}
    eventually(lambda: read_receipts(cluster, client, ids).lost, "the receipt")


def write_different(bootstrap: str, count: int, partitions: range) -> None:
    """Write records of 100 B, all different, the same number to each partition."""
    with Producer(bootstrap) as producer:
        for partition in partitions:
            left = count // len(partitions)
            while left > 0:
                size = min(left, 250_000)
                noise = os.urandom(50 * size).hex().encode()
                values = [noise[at * 100 : at * 100 + 100] for at in range(size)]
                rows = pa.table({"key": pa.array([each[:8] for each in values]), "value": pa.array(values)})
                producer.send_arrow(rows, ADOPTED, key="key", value="value", partition=partition)
                left -= size
        producer.flush()


def ends(bootstrap: str) -> dict[int, int]:
    from pyspark_fenceline.common.connect import connect

    found = connect({"bootstrap.servers": bootstrap}).log_ends(
        [TopicPartition(ADOPTED, partition) for partition in range(PARTITIONS)]
    )
    return {tp.partition: end.offset for tp, end in found.items()}


def into_table(spark: Any, bootstrap: str, table: Path, starting: str) -> None:
    """Write rows without epochs, as Spark's connector does."""
    frame = spark.read.format("fenceline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", ADOPTED)
    rows = frame.option("startingOffsets", starting).load()
    rows.write.format("fenceline_delta").option("path", str(table)).mode("append").save()


def latencies(figures: Figures, repeats: int, spark: Any, bootstrap: str, directory: Path) -> None:
    for attempt in range(1 + repeats):
        name = f"latency-{attempt}"
        create_topic(bootstrap, name, PARTITIONS)
        query = sink(source(spark, "fenceline", bootstrap, name), bootstrap, directory, name).start()
        try:
            sent = trickle(bootstrap, name)
            query.processAllAvailable()
        finally:
            query.stop()
        delays = sorted(row_delays(directory / name, sent))
        if attempt:
            figures.add("end to end, p50", "fenceline", statistics.median(delays) * 1000, "ms")
            figures.add("end to end, p99", "fenceline", delays[int(len(delays) * 0.99)] * 1000, "ms")


def trickle(bootstrap: str, topic: str) -> int:
    """Send records whose value is the send time (ns), a hundred at a time. Returns their number."""
    sent = 0
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        started = time.perf_counter()
        while sent < ROWS_A_SECOND * SECONDS:
            due = started + sent / ROWS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            stamp = b"%020d" % time.time_ns()
            for number in range(100):
                producer.send(topic, stamp, partition=number % PARTITIONS)
            sent += 100
        producer.flush()
    return sent


def row_delays(table: Path, sent: int) -> list[float]:
    """Seconds from the send to the commit of the row's file, of all records after the first five seconds."""
    import json

    import pyarrow.parquet as pq

    delays: list[float] = []
    count = 0
    first: int | None = None
    for entry in sorted((table / "_delta_log").glob("*.json")):
        # The file of a log entry is created by its commit.
        committed_ns = entry.stat().st_mtime_ns
        for line in entry.read_text().splitlines():
            add = json.loads(line).get("add")
            if add is None:
                continue
            values = pq.ParquetFile(table / add["path"]).read(columns=["value"])["value"].to_pylist()
            count += len(values)
            for value in values:
                stamp = int(value)
                first = stamp if first is None else min(first, stamp)
                if stamp - first > 5_000_000_000:
                    delays.append((committed_ns - stamp) / 1e9)
    assert count == sent, f"{count} rows of {sent}"
    return delays
