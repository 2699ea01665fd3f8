"""Adverse input of a query: unavailable brokers, corrupt segments, huge records, a thousand partitions, empty
topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline.auditing.table import audit_here, settings
from pyspark_fenceline.errors import parse
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.queries import batch, drain, keep_equal, rows, stream, tracked
from tests.support.refused_attempts import RefusedAttempts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]
QUICK = {
    "kafka.default.api.timeout.ms": 1000,
    "kafka.request.timeout.ms": 1000,
    "kafka.retry.backoff.ms": 20,
    "fetchOffset.retryIntervalMs": 50,
}


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """A broker that the test may stop."""
    with EmbeddedNode() as running:
        yield running


def test_unavailable_brokers_end_the_query_with_a_clear_error(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    broker, table = Broker("fenceline", node.bootstrap), str(tmp_path / "table")
    broker.create("t")
    broker.produce("t", range(10))
    drain(stream(spark, broker.bootstrap, "t", **QUICK), table, checkpoint)
    node.stop()
    with pytest.raises(Exception, match="No broker answered") as caught:
        drain(stream(spark, broker.bootstrap, "t", **QUICK, **{"fetchOffset.numRetries": 2}), table, checkpoint)
    assert "fetchOffset.numRetries: 2" in str(caught.value)
    assert parse(caught.value) is None


def test_a_query_waits_for_brokers_that_return_in_time(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    broker, table = Broker("fenceline", node.bootstrap), str(tmp_path / "table")
    broker.create("t")
    broker.produce("t", range(10))
    frame = stream(spark, broker.bootstrap, "t", **QUICK, **{"fetchOffset.numRetries": 1000})
    query = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint).start(table)
    try:
        query.processAllAvailable()
        broker.admin.close()
        node.stop()
        with RefusedAttempts(node.port) as refused:
            # One lookup may last that long; the query must survive it.
            longer_ms = 2 * QUICK["kafka.default.api.timeout.ms"]
            eventually(lambda: refused.lasted_ms > longer_ms or not query.isActive, "the query to miss its brokers")
        assert query.isActive
        node.start()
        Broker("fenceline", node.bootstrap).produce("t", range(10, 20))
        eventually(lambda: len(rows(table)) == 20, "rows that came after the node")
    finally:
        query.stop()
    assert [offset for _, offset, _ in rows(table)] == list(range(20))


def test_a_corrupt_batch_is_reported_and_no_later_record_is_skipped(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    broker, table = Broker("fenceline", node.bootstrap), str(tmp_path / "table")
    broker.create("t")
    for first in range(0, 30, 10):
        broker.produce("t", range(first, first + 10))
    broker.admin.close()
    node.stop()
    (segment,) = next(node.log_dir.rglob("t-0")).glob("*.log")
    raw = bytearray(segment.read_bytes())
    damaged = next(header for header in iter_headers(raw) if header.base_offset == 10)
    raw[damaged.end_position - 2] ^= 1
    segment.write_bytes(raw)
    node.start()
    for lenient in (False, True):
        with pytest.raises(Exception, match="wrong checksum") as caught:
            drain(stream(spark, broker.bootstrap, "t", failOnDataLoss=not lenient), table, checkpoint)
        assert "offset 10" in str(caught.value)
        assert parse(caught.value) is None


BIG: Final = 10 * 1024 * 1024
ODD: Final = [(b"key", BIG), (b"tombstone", None), (None, 0), (None, None)] * 3
"""Keys and sizes of values, in the order of their offsets."""


def send_unusual_records(broker: Broker, topic: str) -> None:
    from fenceline.client.producer.producer import Producer

    with Producer(broker.bootstrap, **{"max.request.size": 2 * BIG}) as producer:
        for number, (key, size) in enumerate(ODD):
            producer.send(topic, None if size is None else bytes([number]) * size, key)
        producer.flush()


def create_large_record_topic(broker: Broker, topic: str) -> None:
    from fenceline.client.admin.admin import NewTopic

    broker.admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": str(2 * BIG)})])


def test_empty_and_10_mb_records(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    create_large_record_topic(fenceline_node, topic)
    send_unusual_records(fenceline_node, topic)
    frame = batch(spark, fenceline_node.bootstrap, topic)
    found = frame.orderBy("offset").selectExpr("key", "octet_length(value) as size").collect()
    assert [tuple(row) for row in found] == ODD
    target = str(tmp_path / "out")
    writer = stream(spark, fenceline_node.bootstrap, topic).selectExpr("offset", "key", "octet_length(value) as size")
    query = writer.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start(target).awaitTermination()
    written = spark.read.parquet(target).orderBy("offset").drop("offset").collect()
    assert [tuple(row) for row in written] == ODD


def test_empty_and_10_mb_records_in_a_compared_table(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """The log is truncated between them, so that the sink rewrites one of their files without the stale rows."""
    table, topic = str(tmp_path / "table"), "odd"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        create_large_record_topic(broker, topic)
        for _ in range(2):
            send_unusual_records(broker, topic)
        keep_equal(tracked(spark, node.bootstrap, topic), table, checkpoint, node.bootstrap)
        assert keys_and_sizes(table) == ODD * 2
        assert audit_here(table, settings(node.bootstrap, topic)).verdict.is_equal
        broker.admin.close()
        restart_cut(node, topic, len(ODD))
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(5))
        keep_equal(tracked(spark, node.bootstrap, topic), table, checkpoint, node.bootstrap)
        assert keys_and_sizes(table) == ODD + [(b"k%d" % number, 1) for number in range(5)]
        assert audit_here(table, settings(node.bootstrap, topic)).verdict.is_equal
        values = DeltaTable(table).to_pyarrow_table(columns=["offset", "value"]).sort_by("offset")["value"]
        assert values[4].as_py() == bytes([4]) * BIG


def keys_and_sizes(table: str) -> list[tuple[bytes | None, int | None]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["offset", "key", "value"]).sort_by("offset")
    sizes = pc.binary_length(found["value"]).to_pylist()
    return list(zip(found["key"].to_pylist(), sizes, strict=True))


def test_a_thousand_mostly_empty_partitions(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 1000)
    filled = (0, 7, 499, 999)
    for partition in filled:
        fenceline_node.produce(topic, range(5), partition=partition)
    frame = batch(spark, fenceline_node.bootstrap, topic)
    assert frame.count() == 20
    assert frame.rdd.getNumPartitions() == 1
    table = str(tmp_path / "table")
    for added in (None, 3):
        if added is not None:
            fenceline_node.produce(topic, range(5), partition=added)
        tracked_frame = tracked(spark, fenceline_node.bootstrap, topic)
        keep_equal(tracked_frame, table, checkpoint, fenceline_node.bootstrap)
        assert audit_here(table, settings(fenceline_node.bootstrap, topic)).verdict.is_equal
    assert sorted({partition for partition, _, _ in rows(table)}) == [0, 3, 7, 499, 999]
    assert len(rows(table)) == 25


@pytest.mark.parametrize("partition_by", ["topic,partition", ""])
def test_a_thousand_partitions_in_a_compared_table(
    spark: SparkSession, tmp_path: Path, checkpoint: str, partition_by: str
) -> None:
    """Two batches, an election between them, and rows of the first epoch that the log has in the second."""
    from fenceline.client.producer.producer import Producer

    table, topic = str(tmp_path / "table"), "wide"

    def send(bootstrap: str) -> None:
        with Producer(bootstrap) as producer:
            promises = [producer.send(topic, b"%d" % index, partition=index) for index in range(1000)]
            producer.flush()
            for promise in promises:
                promise.result()

    def run() -> None:
        frame = tracked(spark, node.bootstrap, topic)
        keep_equal(frame, table, checkpoint, node.bootstrap, partitionBy=partition_by)

    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic, 1000)
        broker.admin.close()
        send(node.bootstrap)
        run()
        assert audit_here(table, settings(node.bootstrap, topic)).verdict.is_equal
        known = DeltaTable(table).to_pyarrow_table().slice(0, 3)
        later = known.set_column(known.schema.get_field_index("offset"), "offset", pa.array([1] * 3, pa.int64()))
        write_deltalake(table, later, mode="append")
        node.stop()
        node.start()
        send(node.bootstrap)
        run()
        found = audit_here(table, settings(node.bootstrap, topic))
        assert found.verdict.is_equal, str(found)
        assert rows(table) == [(index, offset, b"%d" % index) for index in range(1000) for offset in (0, 1)]


def test_a_stream_of_an_empty_topic_waits_for_its_first_record(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 2)
    table = str(tmp_path / "table")
    frame = tracked(spark, fenceline_node.bootstrap, topic)
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint)
    query = writer.option("kafka.bootstrap.servers", fenceline_node.bootstrap).start(table)
    try:
        query.processAllAvailable()
        fenceline_node.produce(topic, range(3), partition=1)
        eventually(lambda: len(rows(table)) == 3, "the first records")
    finally:
        query.stop()
    assert audit_here(table, settings(fenceline_node.bootstrap, topic)).verdict.is_equal


def test_an_empty_topic_reads_as_an_empty_table(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    """Twice empty, then together with a topic that has records."""
    other, table = f"{topic}-other", str(tmp_path / "table")
    broker.create(topic, 3)
    broker.create(other)
    for _ in range(2):
        keep_equal(tracked(spark, broker.bootstrap, f"{topic},{other}"), table, checkpoint, broker.bootstrap)
    found = audit_here(table, settings(broker.bootstrap, [topic, other]))
    assert (found.verdict.outcome, found.verdict.row_count, found.verdict.partition_count) == ("equal", 0, 4)
    broker.produce(other, range(3))
    keep_equal(tracked(spark, broker.bootstrap, f"{topic},{other}"), table, checkpoint, broker.bootstrap)
    found = audit_here(table, settings(broker.bootstrap, [topic, other]))
    assert (found.verdict.outcome, found.verdict.row_count, found.verdict.partition_count) == ("equal", 3, 4)
