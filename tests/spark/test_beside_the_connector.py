"""Losses that Spark's Kafka connector does not report, compared with `format("fenceline")` on the same stream: one
Apache Kafka, one Spark session, the same topics (`pyspark.md` S25, S26, S32, S35).

The log is truncated in the stopped node's files, as after an unclean election.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.ids import TopicPartition
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from pyspark_fenceline.errors import LossKind, losses_of, parse
from tests.spark.conftest import NEEDS_CONNECTOR, Broker
from tests.spark.cut_log import restart_cut
from tests.spark.sinks import OURS, THEIRS, Row, Sinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(400),
    NEEDS_CONNECTOR,
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    """A broker that these tests may stop."""
    with small_kafka() as running:
        yield running


def old(first: int, end: int) -> list[Row]:
    """Rows whose value is their offset."""
    return [(offset, b"%d" % offset) for offset in range(first, end)]


def new(first: int, end: int, base: int = 100) -> list[Row]:
    """Rows written after the log was truncated to `base`."""
    return [(offset, b"%d" % (1000 + offset - base)) for offset in range(first, end)]


@pytest.fixture
def cut_at_100(spark: SparkSession, kafka: ApacheKafka, topic: str, tmp_path: Path) -> tuple[Sinks, Broker, str]:
    """150 records that both sources have read; then the log is truncated to 100 and the node restarts."""
    broker = Broker("kafka", kafka.bootstrap)
    broker.create(topic)
    broker.produce(topic, range(100))
    broker.produce(topic, range(100, 150))
    sinks = Sinks(spark, kafka.bootstrap, topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
        assert sinks.rows(word) == old(0, 150)
    broker.admin.close()
    restart_cut(kafka, topic, 100)
    return sinks, Broker("kafka", kafka.bootstrap), topic


def test_a_truncated_log_that_grew_again(cut_at_100: tuple[Sinks, Broker, str]) -> None:
    sinks, broker, topic = cut_at_100
    broker.produce(topic, range(1000, 1100))

    # The connector with failOnDataLoss=true: no error. It continues at 150; stale rows stay, new ones are never read.
    sinks.drain(THEIRS, failOnDataLoss=True)
    assert sinks.rows(THEIRS) == sorted([*old(0, 150), *new(150, 200)])

    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        sinks.drain(OURS)
    (loss,) = parse(caught.value) or ()
    assert (loss.kind, loss.divergent_offset, loss.offset) == (LossKind.LOG_TRUNCATED, 100, 150)
    assert sinks.rows(OURS) == old(0, 150)

    query = sinks.drain(OURS, onTruncation="rewind")
    assert sinks.rows(OURS) == sorted([*old(0, 150), *new(100, 200)])
    (loss,) = [loss for progress in query.recentProgress for loss in losses_of(progress)]
    assert (loss.divergent_offset, loss.offset, loss.resume_offset) == (100, 150, 100)
    # Stale rows can be identified: they carry the losing epoch.


def test_a_truncated_log_that_is_still_shorter(cut_at_100: tuple[Sinks, Broker, str]) -> None:
    sinks, broker, topic = cut_at_100
    broker.produce(topic, range(1000, 1030))

    # The connector stops without a divergence point; with failOnDataLoss=false it skips new records below 130.
    with pytest.raises(Exception, match="150 to 130"):
        sinks.drain(THEIRS, failOnDataLoss=True)
    sinks.drain(THEIRS, failOnDataLoss=False)
    broker.produce(topic, range(1030, 1050))
    sinks.drain(THEIRS, failOnDataLoss=False)
    assert sinks.rows(THEIRS) == sorted([*old(0, 150), *new(130, 150)])

    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        sinks.drain(OURS)
    assert [(loss.divergent_offset, loss.offset) for loss in parse(caught.value) or ()] == [(100, 150)]
    sinks.drain(OURS, onTruncation="rewind")
    assert sinks.rows(OURS) == sorted([*old(0, 150), *new(100, 150)])


def test_a_recreated_topic(spark: SparkSession, kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    broker = Broker("kafka", kafka.bootstrap)
    broker.create(topic)
    broker.produce(topic, range(50))
    sinks = Sinks(spark, kafka.bootstrap, topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
    broker.admin.delete_topics([topic])
    broker.create(topic)
    broker.produce(topic, range(1000, 1080))

    # The connector takes the new topic for the old one and skips its first 50 records.
    sinks.drain(THEIRS, failOnDataLoss=True)
    assert sinks.rows(THEIRS) == sorted([*old(0, 50), *new(50, 80, base=0)])

    with pytest.raises(Exception, match="TOPIC_RECREATED"):
        sinks.drain(OURS)
    query = sinks.drain(OURS, onRecreated="restart")
    assert sinks.rows(OURS) == sorted([*old(0, 50), *new(0, 80, base=0)])
    losses = [loss for progress in query.recentProgress for loss in losses_of(progress)]
    assert [(loss.kind, loss.offset, loss.resume_offset) for loss in losses] == [(LossKind.TOPIC_RECREATED, 50, 0)]


def test_expired_records(spark: SparkSession, kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    broker = Broker("kafka", kafka.bootstrap)
    broker.create(topic)
    broker.produce(topic, range(50))
    sinks = Sinks(spark, kafka.bootstrap, topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
    broker.produce(topic, range(50, 100))
    broker.admin.delete_records({TopicPartition(topic, 0): 70})

    with pytest.raises(Exception):  # noqa: B017 - each in words of its own
        sinks.drain(THEIRS, failOnDataLoss=True)
    # With failOnDataLoss=false the connector's progress does not report the skipped records.
    query = sinks.drain(THEIRS, failOnDataLoss=False)
    assert sinks.rows(THEIRS) == [*old(0, 50), *old(70, 100)]
    assert not [loss for progress in query.recentProgress for loss in losses_of(progress)]

    with pytest.raises(Exception, match="OFFSETS_EXPIRED") as caught:
        sinks.drain(OURS)
    assert [(loss.offset, loss.log_start_offset) for loss in parse(caught.value) or ()] == [(50, 70)]
    query = sinks.drain(OURS, onExpired="continue")
    assert sinks.rows(OURS) == [*old(0, 50), *old(70, 100)]
    (loss,) = [loss for progress in query.recentProgress for loss in losses_of(progress)]
    assert (loss.kind, loss.offset, loss.resume_offset) == (LossKind.OFFSETS_EXPIRED, 50, 70)


@pytest.fixture
def fifties(kafka: ApacheKafka, topic: str) -> Broker:
    """150 records in three producer batches of 50."""
    broker = Broker("kafka", kafka.bootstrap)
    broker.create(topic)
    for first in (0, 50):
        broker.produce(topic, range(first, first + 50))
    return broker


def cut_at_50_and_grow(kafka: ApacheKafka, broker: Broker, topic: str) -> None:
    """150 other records follow the first 50."""
    broker.admin.close()
    restart_cut(kafka, topic, 50)
    after = Broker("kafka", kafka.bootstrap)
    after.produce(topic, range(1000, 1150))
    after.admin.close()


def test_a_batch_replayed_after_a_truncation_below_it(
    spark: SparkSession, kafka: ApacheKafka, fifties: Broker, topic: str, tmp_path: Path
) -> None:
    """Spark replays a batch whose commit was lost without requesting offsets first (`pyspark.md` S8)."""
    sinks = Sinks(spark, kafka.bootstrap, topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
    fifties.produce(topic, range(100, 150))
    for word in (OURS, THEIRS):
        sinks.drain(word)
        assert sinks.rows(word) == old(0, 150)
        newest = max((tmp_path / f"{word}-checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for written in (newest, *(tmp_path / word / "_spark_metadata").glob(f"*{newest.name}*")):
            written.unlink()
            written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
    cut_at_50_and_grow(kafka, fifties, topic)

    # The connector replays 100 to 149 with different records, and skips the new records below.
    sinks.drain(THEIRS, failOnDataLoss=True)
    assert sinks.rows(THEIRS) == sorted([*old(0, 100), *new(100, 200, base=50)])

    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        sinks.drain(OURS)
    assert [(loss.divergent_offset, loss.offset) for loss in parse(caught.value) or ()] == [(50, 100)]
    assert sinks.rows(OURS) == old(0, 100)
    sinks.drain(OURS, onTruncation="rewind")
    assert set(sinks.rows(OURS)) == {*old(0, 100), *new(50, 200, base=50)}


@pytest.mark.parametrize("word", [OURS, THEIRS])
def test_a_log_truncated_between_planning_and_reading_a_batch(
    spark: SparkSession, kafka: ApacheKafka, fifties: Broker, topic: str, tmp_path: Path, word: str
) -> None:
    read: list[Row] = []
    is_to_be_cut = False

    def write(frame: DataFrame, _: int) -> None:
        # By now Spark has the batch's tasks, and has run none of them.
        nonlocal is_to_be_cut
        if is_to_be_cut:
            is_to_be_cut = False
            cut_at_50_and_grow(kafka, fifties, topic)
        read.extend((row.offset, bytes(row.value)) for row in frame.collect())

    def drain(**options: bool) -> None:
        given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format(word).options(**given, **options).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    drain()
    assert sorted(read) == old(0, 100)
    fifties.produce(topic, range(100, 150))
    is_to_be_cut = True
    if word == THEIRS:
        # It continues at 100 in the new history, without an error.
        drain(failOnDataLoss=True)
        assert not is_to_be_cut
        assert sorted(read) == sorted([*old(0, 100), *new(100, 150, base=50)])
        return
    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        drain()
    assert not is_to_be_cut
    # Up to the planned end of the batch.
    assert [(loss.divergent_offset, loss.offset) for loss in parse(caught.value) or ()] == [(50, 150)]
    assert sorted(read) == old(0, 100)
