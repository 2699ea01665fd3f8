"""What a query may meet: brokers that are away, damaged segments, huge records, a thousand partitions, nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline.errors import parse
from tests.spark.conftest import Broker
from tests.spark.test_source import batch, drain, rows, stream
from tests.support.refused_attempts import RefusedAttempts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
QUICK = {
    "kafka.default.api.timeout.ms": 1000,
    "kafka.request.timeout.ms": 1000,
    "kafka.retry.backoff.ms": 20,
    "fetchOffset.retryIntervalMs": 50,
}


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """One that the test may stop."""
    with EmbeddedNode() as running:
        yield running


def test_brokers_that_stay_away_end_the_query_in_clear_words(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    broker, table = Broker("fenceline", node.bootstrap), str(tmp_path / "table")
    broker.create("t")
    broker.produce("t", range(10))
    drain(stream(spark, broker, "t", **QUICK), table, checkpoint)
    node.stop()
    with pytest.raises(Exception, match="No broker answered") as caught:
        drain(stream(spark, broker, "t", **QUICK, **{"fetchOffset.numRetries": 2}), table, checkpoint)
    assert "fetchOffset.numRetries: 2" in str(caught.value)
    assert parse(caught.value) is None


def test_brokers_that_come_back_in_time_are_waited_for(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    broker, table = Broker("fenceline", node.bootstrap), str(tmp_path / "table")
    broker.create("t")
    broker.produce("t", range(10))
    frame = stream(spark, broker, "t", **QUICK, **{"fetchOffset.numRetries": 1000})
    query = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint).start(table)
    try:
        query.processAllAvailable()
        broker.admin.close()
        node.stop()
        with RefusedAttempts(node.port) as refused:
            # One look-up may last that long; the query must not end for that.
            longer_ms = 2 * QUICK["kafka.default.api.timeout.ms"]
            eventually(lambda: refused.lasted_ms > longer_ms or not query.isActive, "the query to miss its brokers")
        assert query.isActive
        node.start()
        Broker("fenceline", node.bootstrap).produce("t", range(10, 20))
        eventually(lambda: len(rows(table)) == 20, "rows that came after the node")
    finally:
        query.stop()
    assert [offset for _, offset, _ in rows(table)] == list(range(20))


def test_a_damaged_batch_in_the_middle_is_named_and_nothing_behind_it_is_skipped(
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
            drain(stream(spark, broker, "t", failOnDataLoss=not lenient), table, checkpoint)
        assert "offset 10" in str(caught.value)
        assert parse(caught.value) is None


def test_records_of_10_mb_and_of_nothing(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    from fenceline.client.admin import NewTopic
    from fenceline.client.producer import Producer

    size = 10 * 1024 * 1024
    fenceline_node.admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": str(2 * size)})])
    with Producer(fenceline_node.bootstrap, **{"max.request.size": 2 * size}) as producer:
        for number in range(3):
            producer.send(topic, bytes([number]) * size, b"key")
            producer.send(topic, None, b"tombstone")
            producer.send(topic, b"", None)
            producer.send(topic, None, None)
        producer.flush()
    expected = [size, None, 0, None] * 3
    frame = batch(spark, fenceline_node, topic)
    found = frame.orderBy("offset").selectExpr("octet_length(value) as size", "key").collect()
    assert [row["size"] for row in found] == expected
    assert [row["key"] for row in found] == [b"key", b"tombstone", None, None] * 3
    target = str(tmp_path / "out")
    writer = stream(spark, fenceline_node, topic).selectExpr("offset", "octet_length(value) as size")
    query = writer.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start(target).awaitTermination()
    assert [row["size"] for row in spark.read.parquet(target).orderBy("offset").collect()] == expected


def test_a_thousand_partitions_and_most_of_them_empty(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 1000)
    filled = (0, 7, 499, 999)
    for partition in filled:
        fenceline_node.produce(topic, range(5), partition=partition)
    frame = batch(spark, fenceline_node, topic)
    assert frame.count() == 20
    assert frame.rdd.getNumPartitions() == 1
    table = str(tmp_path / "table")
    drain(stream(spark, fenceline_node, topic), table, checkpoint)
    fenceline_node.produce(topic, range(5), partition=3)
    drain(stream(spark, fenceline_node, topic), table, checkpoint)
    assert sorted({partition for partition, _, _ in rows(table)}) == [0, 3, 7, 499, 999]
    assert len(rows(table)) == 25


def test_a_stream_of_an_empty_topic_waits_for_its_first_record(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 2)
    table = str(tmp_path / "table")
    frame = stream(spark, fenceline_node, topic)
    query = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint).start(table)
    try:
        query.processAllAvailable()
        fenceline_node.produce(topic, range(3), partition=1)
        eventually(lambda: len(rows(table)) == 3, "the first records")
    finally:
        query.stop()
