"""`format("fenceline")` under Spark against a Fenceline node: features without a counterpart in Spark's connector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import LossKind, parse
from tests.spark.conftest import Broker
from tests.spark.queries import batch, drain, rows, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_columns_can_be_chosen_and_leader_epochs_added(spark: SparkSession, fenceline_node: Broker, topic: str) -> None:
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(10))
    frame = batch(spark, fenceline_node.bootstrap, topic, includeLeaderEpoch=True)
    assert frame.columns[-1] == "leader_epoch"
    assert {row.leader_epoch for row in frame.collect()} == {0}
    reader = spark.read.format("fenceline").schema("offset long, value binary")
    chosen = reader.option("kafka.bootstrap.servers", fenceline_node.bootstrap).option("subscribe", topic).load()
    assert [tuple(row) for row in chosen.orderBy("offset").collect()] == [(i, b"%d" % i) for i in range(10)]


def test_filters_narrow_the_ranges_when_enabled(spark: SparkSession, fenceline_node: Broker, topic: str) -> None:
    fenceline_node.create(topic, 2)
    for partition in (0, 1):
        fenceline_node.produce(topic, range(100), partition=partition)
    frame = batch(spark, fenceline_node.bootstrap, topic, filterPushdown=True, minPartitions=20)
    kept = frame.where("partition = 1 and offset >= 30 and offset < 40 and timestamp >= timestamp_seconds(35)")
    assert sorted(row.offset for row in kept.collect()) == list(range(35, 40))
    assert kept.rdd.getNumPartitions() == 5
    assert frame.where("value = '7'").count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "do not exist: no-such-topic"),
        ({"kafka.auto.offset.reset": "latest"}, "Kafka option 'auto.offset.reset' is not supported"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest"),
        ({"endingOffsets": '{"TOPIC":{"0":99}}'}, "beyond the end of the log"),
        ({"startingOffsets": '{"TOPIC":{"0":1,"1":1}}'}, "you must specify all TopicPartitions"),
    ],
)
def test_invalid_input_is_rejected_with_a_clear_message(
    spark: SparkSession, fenceline_node: Broker, topic: str, options: dict[str, str], message: str
) -> None:
    topic = topic.replace("[", "").replace("]", "")[-40:].lstrip("_-")
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(5))
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(Exception, match=message.replace("[", r"\[")):
        batch(spark, fenceline_node.bootstrap, topic, **given).count()


def test_a_refused_connection_is_reported(spark: SparkSession) -> None:
    frame = spark.read.format("fenceline").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    frame = frame.option("kafka.default.api.timeout.ms", "500").option("kafka.request.timeout.ms", "500")
    frame = frame.option("fetchOffset.numRetries", "1")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        frame.load().count()


def test_a_restarted_stream_writes_every_row_once(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 3)
    table = str(tmp_path / "table")
    expected = []
    for run in range(3):
        for partition in range(3):
            values = range(run * 100, run * 100 + 50 + partition)
            first = sum(50 + partition for _ in range(run))
            fenceline_node.produce(topic, values, partition=partition)
            expected += [(partition, first + i, b"%d" % v) for i, v in enumerate(values)]
        if run == 1:
            # The last commit is lost: Spark replays the batch from the checkpoint's offsets.
            newest = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        drain(stream(spark, fenceline_node.bootstrap, topic, maxOffsetsPerTrigger=70), table, checkpoint)
        assert rows(table) == sorted(expected)


def test_progress_shows_offsets_with_epochs(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    fenceline_node.create(topic, 2)
    fenceline_node.produce(topic, range(9), partition=1)
    query = drain(stream(spark, fenceline_node.bootstrap, topic), str(tmp_path / "table"), checkpoint)
    progress = query.lastProgress
    source = progress["sources"][0]
    position = '"1": {"epochs": [[0, 0]], "leader_epoch": 0, "offset": 9}'
    assert position in str(source["endOffset"]).replace("'", '"')
    assert progress["numInputRows"] in (0, 9)


def test_an_idle_query_polls_rarely_and_stops_immediately(
    spark: SparkSession, fenceline_node: Broker, topic: str, checkpoint: str
) -> None:
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(3))
    frame = stream(spark, fenceline_node.bootstrap, topic)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    assert query.lastProgress is not None
    before = query.lastProgress["batchId"]
    fenceline_node.produce(topic, range(3))
    query.processAllAvailable()
    assert query.isActive
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] >= before
    query.stop()
    assert query.exception() is None


def test_a_recreated_topic_ends_the_query_with_a_parsable_message(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    table = str(tmp_path / "table")
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(5))
    drain(stream(spark, fenceline_node.bootstrap, topic), table, checkpoint)
    fenceline_node.admin.delete_topics([topic])
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(50))
    with pytest.raises(Exception, match="TOPIC_RECREATED") as caught:
        drain(stream(spark, fenceline_node.bootstrap, topic), table, checkpoint)
    losses = parse(caught.value)
    assert losses is not None
    assert (losses[0].kind, losses[0].topic, losses[0].offset) == (LossKind.TOPIC_RECREATED, topic, 5)
    drain(stream(spark, fenceline_node.bootstrap, topic, failOnDataLoss=False), table, checkpoint)
    assert len(rows(table)) == 55


def test_expired_offsets_end_the_query(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    table = str(tmp_path / "table")
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(5))
    drain(stream(spark, fenceline_node.bootstrap, topic), table, checkpoint)
    fenceline_node.produce(topic, range(20))
    fenceline_node.admin.delete_records({TopicPartition(topic, 0): 12})
    with pytest.raises(Exception, match="OFFSETS_EXPIRED") as caught:
        drain(stream(spark, fenceline_node.bootstrap, topic), table, checkpoint)
    losses = parse(caught.value)
    assert losses is not None
    assert (losses[0].offset, losses[0].log_start_offset) == (5, 12)
    drain(stream(spark, fenceline_node.bootstrap, topic, failOnDataLoss=False), table, checkpoint)
    assert [offset for _, offset, _ in rows(table)] == [*range(5), *range(12, 25)]


def test_writing_and_reading_a_stream_of_topics(
    spark: SparkSession, fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    source, target = fenceline_node.create(topic + "-in"), fenceline_node.create(topic + "-out", 2)
    fenceline_node.produce(source, range(100))
    frame = stream(spark, fenceline_node.bootstrap, source).selectExpr("key", "value", f"'{target}' as topic")
    writer = frame.writeStream.format("fenceline").option("kafka.bootstrap.servers", fenceline_node.bootstrap)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    found = sorted(int(row.value) for row in batch(spark, fenceline_node.bootstrap, target).collect())
    assert found == list(range(100))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'x' as v"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["'x' as value"], {}, "topic option required"),
        (["1 as value"], {"topic": "t"}, "value attribute unsupported type int"),
        (["'x' as value", "cast(null as string) as topic"], {}, "null topic present in the data"),
    ],
)
def test_invalid_writes_are_rejected_with_a_clear_message(
    spark: SparkSession, fenceline_node: Broker, columns: list[str], options: dict[str, str], message: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)
    writer = frame.write.format("fenceline").option("kafka.bootstrap.servers", fenceline_node.bootstrap)
    with pytest.raises(Exception, match=message):
        writer.options(**options).mode("append").save()
