"""Records that expire after a batch was planned: Spark's Kafka connector with failOnDataLoss=false, compared with
`format("fenceline")` and `onExpired`: one Apache Kafka, one Spark session (`pyspark.md` S8).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import LossKind, losses_of, parse
from tests.spark.conftest import NEEDS_CONNECTOR, Broker
from tests.spark.sinks import OURS, THEIRS, Row, Sinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(400),
    NEEDS_CONNECTOR,
]
GO_ON: dict[str, dict[str, Any]] = {OURS: {"onExpired": "continue"}, THEIRS: {"failOnDataLoss": False}}


def rows_of(first: int, end: int) -> list[Row]:
    """Rows whose value is their offset."""
    return [(offset, b"%d" % offset) for offset in range(first, end)]


def losses_in_progress(query: StreamingQuery) -> list[tuple[LossKind, int, int, int]]:
    """For each loss in the query's progress: kind, first offset, log start offset, end of the possibly read range."""
    losses = [loss for progress in query.recentProgress if has_run(progress) for loss in losses_of(progress)]
    return [(loss.kind, loss.offset, loss.log_start_offset, loss.maybe_read_to) for loss in losses]


def has_run(progress: Any) -> bool:
    """Whether the progress is of a batch; an idle query reports its last offset again."""
    (source,) = progress.sources
    return bool(source.startOffset != source.endOffset)


def forget_newest_commit(checkpoint: Path, sink: Path) -> None:
    """As if the driver died before it recorded the commit of the batch."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for written in (newest, *(sink / "_spark_metadata").glob(f"*{newest.name}*")):
        written.unlink()
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)


def test_records_expired_before_a_batch_is_replayed(
    spark: SparkSession, apache_kafka: Broker, topic: str, tmp_path: Path
) -> None:
    apache_kafka.create(topic)
    apache_kafka.produce(topic, range(100))
    sinks = Sinks(spark, apache_kafka.bootstrap, topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
    apache_kafka.produce(topic, range(100, 150))
    for word in (OURS, THEIRS):
        sinks.drain(word)
        forget_newest_commit(tmp_path / f"{word}-checkpoint", tmp_path / word)
    apache_kafka.admin.delete_records({TopicPartition(topic, 0): 120})

    # With failOnDataLoss=false the connector skips the expired records, and its progress does not report them.
    query = sinks.drain(THEIRS, **GO_ON[THEIRS])
    assert sinks.rows(THEIRS) == [*rows_of(0, 100), *rows_of(120, 150)]
    assert losses_in_progress(query) == []

    with pytest.raises(Exception, match="OFFSETS_EXPIRED") as caught:
        sinks.drain(OURS)
    assert [(loss.offset, loss.log_start_offset) for loss in parse(caught.value) or ()] == [(100, 120)]
    query = sinks.drain(OURS, **GO_ON[OURS])
    assert sinks.rows(OURS) == [*rows_of(0, 100), *rows_of(120, 150)]
    assert losses_in_progress(query) == [(LossKind.OFFSETS_EXPIRED, 100, 120, -1)]


@pytest.mark.parametrize("word", [OURS, THEIRS])
def test_records_expired_between_planning_and_reading_a_batch(
    spark: SparkSession, apache_kafka: Broker, topic: str, tmp_path: Path, word: str
) -> None:
    read: list[Row] = []
    expires = False

    def write(frame: DataFrame, _: int) -> None:
        # By now Spark has the batch's tasks, and has run none of them.
        nonlocal expires
        if expires:
            expires = False
            apache_kafka.admin.delete_records({TopicPartition(topic, 0): 120})
        read.extend((row.offset, bytes(row.value)) for row in frame.collect())

    def drain() -> StreamingQuery:
        given = {"kafka.bootstrap.servers": apache_kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format(word).options(**given, **GO_ON[word]).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    apache_kafka.create(topic)
    apache_kafka.produce(topic, range(100))
    drain()
    apache_kafka.produce(topic, range(100, 150))
    expires = True
    query = drain()
    assert not expires
    assert sorted(read) == [*rows_of(0, 100), *rows_of(120, 150)]
    # The driver does not know whether its tasks were in time.
    assert losses_in_progress(query) == ([(LossKind.OFFSETS_EXPIRED, 100, 120, 120)] if word == OURS else [])
    # It is reported once.
    assert losses_in_progress(drain()) == []
