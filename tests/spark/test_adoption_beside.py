"""One query under Spark's Kafka connector, under Fenceline, and under the connector again, on one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.producer.producer import Producer
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline import export_checkpoint, lag_of
from pyspark_fenceline.common.connect import connect
from pyspark_fenceline.errors import LossKind, parse
from pyspark_fenceline.source.losses_table import known_losses
from tests.spark.conftest import NEEDS_CONNECTOR
from tests.spark.cut_log import restart_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    NEEDS_CONNECTOR,
]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[ApacheKafka]:
    with small_kafka() as running:
        yield running


@pytest.fixture(scope="module")
def own_node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as running:
        yield running


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def node(request: pytest.FixtureRequest) -> Any:
    """A broker that these tests may stop."""
    return request.getfixturevalue("own_kafka" if request.param == "kafka" else "own_node")


def produce(bootstrap: str, topic: str, first: int, end: int, *, at_ms: int) -> None:
    """Records whose value is their offset, with that timestamp."""
    with Producer(bootstrap) as producer:
        for value in range(first, end):
            producer.send(topic, b"%d" % value, timestamp_ms=at_ms)
        producer.flush()


class Query:
    """One query that writes a parquet table."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._topic = spark, bootstrap, topic
        self.checkpoint, self.table = str(folder / "checkpoint"), str(folder / "table")

    def drain(self, word: str, **options: Any) -> Any:
        given = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": self._topic, "startingOffsets": "earliest"}
        frame = self._spark.readStream.format(word).options(**given, **options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start(self.table)
        query.awaitTermination()
        return query

    def rows(self) -> list[tuple[int, bytes]]:
        return sorted((row.offset, bytes(row.value)) for row in self._spark.read.parquet(self.table).collect())


@pytest.fixture
def query(spark: SparkSession, node: ApacheKafka | EmbeddedNode, topic: str, tmp_path: Path) -> Query:
    """150 records, written an hour ago, that the connector has read in two batches."""
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    made = Query(spark, node.bootstrap, topic, tmp_path)
    for first, end in ((0, 100), (100, 150)):
        produce(node.bootstrap, topic, first, end, at_ms=_now_ms() - HOUR_MS)
        made.drain("kafka")
    assert made.rows() == expected(150)
    return made


def expected(end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(end)]


def test_switching_to_fenceline_and_back(
    query: Query, node: ApacheKafka | EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    produce(node.bootstrap, topic, 150, 170, at_ms=_now_ms())
    with pytest.raises(Exception, match="CHECKPOINT_UNPROVEN") as caught:
        query.drain("fenceline")
    assert "no option checkpointLocation" in str(caught.value)
    ours = query.drain("fenceline", checkpointLocation=query.checkpoint)
    assert query.rows() == expected(170)
    assert lag_of(ours.lastProgress).maximum == 0
    # A checkpoint with epochs needs no proof.
    produce(node.bootstrap, topic, 170, 180, at_ms=_now_ms())
    query.drain("fenceline")
    assert query.rows() == expected(180)

    # The connector cannot read this checkpoint; it continues from the exported one.
    produce(node.bootstrap, topic, 180, 200, at_ms=_now_ms())
    with pytest.raises(Exception):  # noqa: B017 - in words of its own
        query.drain("kafka")
    done = export_checkpoint(query.checkpoint, tmp_path / "exported")
    assert list(done.positions.values()) == [180]
    query.checkpoint = done.target
    query.drain("kafka")
    assert query.rows() == expected(200)
    # Fenceline continues from there again.
    produce(node.bootstrap, topic, 200, 210, at_ms=_now_ms())
    query.drain("fenceline", onUnproven="accept")
    assert query.rows() == expected(210)


def test_a_log_truncated_below_the_position_is_detected(
    query: Query, node: ApacheKafka | EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    restart_cut(node, topic, 100)
    produce(node.bootstrap, topic, 1000, 1070, at_ms=_now_ms() + HOUR_MS)
    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        query.drain("fenceline", checkpointLocation=query.checkpoint)
    (loss,) = parse(caught.value) or ()
    assert (loss.kind, loss.offset) == (LossKind.LOG_TRUNCATED, 150)
    with pytest.raises(Exception, match="CHECKPOINT_UNPROVEN") as caught:
        query.drain("fenceline")
    assert "from 100" in str(caught.value)
    assert query.rows() == expected(150)


def test_a_receipt_decides_where_timestamps_do_not(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Record timestamps are event times long past; a crash loses the end of the log, and recovery writes the
    receipt."""
    with EmbeddedNode() as node:
        with Admin(node.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"})])
        query = Query(spark, node.bootstrap, topic, tmp_path)
        for first, end in ((0, 100), (100, 150)):
            produce(node.bootstrap, topic, first, end, at_ms=1000)
            query.drain("kafka")
        node.kill()
        (segment,) = next(node.log_dir.rglob(f"{topic}-0")).glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-3])
        node.start()
        client = {"bootstrap.servers": node.bootstrap}
        (receipt,) = eventually(lambda: known_losses(connect(client), client), "the receipt")
        assert 100 <= receipt.start_offset < 150
        produce(node.bootstrap, topic, receipt.start_offset, 200, at_ms=1000)
        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            query.drain("fenceline", checkpointLocation=query.checkpoint)
        assert [loss.divergent_offset for loss in parse(caught.value) or ()] == [receipt.start_offset]
        assert query.rows() == expected(150)
        query.drain("fenceline", checkpointLocation=query.checkpoint, onTruncation="rewind", statefulQuery=False)
        assert query.rows() == sorted(expected(200) + expected(150)[receipt.start_offset :])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
