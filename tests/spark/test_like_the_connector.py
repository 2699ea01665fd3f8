"""The same notebook code with `format("kafka")` and `format("fenceline")` gives the same DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import NEEDS_CONNECTOR, Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    NEEDS_CONNECTOR,
]


only_kafka = pytest.mark.parametrize("broker", ["kafka"], indirect=True)
only_fenceline = pytest.mark.parametrize("broker", ["fenceline"], indirect=True)


def read(spark: SparkSession, word: str, broker: Broker, **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    return spark.read.format(word).options(**given).load()


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def same(spark: SparkSession, broker: Broker, **options: Any) -> list[Row]:
    """Rows of Fenceline's source, after comparing schema and rows with the connector's."""
    theirs, ours = (read(spark, word, broker, **options) for word in ("kafka", "fenceline"))
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert found == rows(theirs)
    return found


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    broker.create(topic, 3)
    for partition in range(3):
        broker.produce(topic, range(partition * 100, partition * 100 + 50), partition=partition)
    return topic


def test_batch(spark: SparkSession, broker: Broker, filled: str) -> None:
    assert len(same(spark, broker, subscribe=filled)) == 150


@only_kafka
def test_bounds(spark: SparkSession, broker: Broker, filled: str) -> None:
    starts = f'{{"{filled}":{{"0":10,"1":-2,"2":49}}}}'
    ends = f'{{"{filled}":{{"0":20,"1":1,"2":-1}}}}'
    assert len(same(spark, broker, subscribe=filled, startingOffsets=starts, endingOffsets=ends)) == 12
    # Partition p holds p*100 to p*100+49 seconds.
    assert len(same(spark, broker, subscribe=filled, startingTimestamp=30_000, endingTimestamp=120_000)) == 40
    by_time = f'{{"{filled}":{{"0":1000,"1":149000,"2":1}}}}'
    until = f'{{"{filled}":{{"0":2000,"1":999000,"2":200000}}}}'
    found = same(spark, broker, subscribe=filled, startingOffsetsByTimestamp=by_time, endingOffsetsByTimestamp=until)
    assert len(found) == 2
    latest = {"startingTimestamp": 149_000, "startingOffsetsByTimestampStrategy": "latest"}
    assert len(same(spark, broker, subscribe=filled, **latest)) == 51


@only_kafka
def test_subscriptions(spark: SparkSession, broker: Broker, filled: str) -> None:
    other = broker.create(filled + "-other", 1)
    broker.produce(other, range(7))
    assert len(same(spark, broker, subscribe=f"{filled}, {other}")) == 157
    assert len(same(spark, broker, subscribePattern=f"{filled}.*")) == 157
    assert len(same(spark, broker, assign=f'{{"{filled}":[1,2]}}')) == 100


@only_fenceline
def test_splitting_keeps_rows(spark: SparkSession, broker: Broker, filled: str) -> None:
    for options in ({"minPartitions": 10}, {"maxRecordsPerPartition": 7}, {"minPartitions": 1}):
        frame = read(spark, "fenceline", broker, subscribe=filled, **options)
        assert rows(frame) == rows(read(spark, "kafka", broker, subscribe=filled))
    assert read(spark, "fenceline", broker, subscribe=filled, minPartitions=10).rdd.getNumPartitions() == 10
    assert read(spark, "fenceline", broker, subscribe=filled).rdd.getNumPartitions() == 1
    frame = read(spark, "fenceline", broker, subscribe=filled, maxRecordsPerPartition=7)
    assert max(frame.rdd.glom().map(len).collect()) <= 7


def test_headers_nulls_and_compression(spark: SparkSession, broker: Broker, topic: str) -> None:
    from fenceline.client.producer.producer import Producer

    broker.create(topic)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(broker.bootstrap, **{"compression.type": codec}) as producer:
            producer.send(topic, b"v" * 100, key=None, headers=[("a", b"1"), ("a", None), ("ü", b"")])
            producer.send(topic, None, key=b"tombstone")
            producer.send(topic, b"", key=b"")
            producer.flush()
    found = same(spark, broker, subscribe=topic, includeHeaders=True)
    assert len(found) == 15
    assert found[0].headers is not None
    assert found[1].headers is None


@only_kafka
def test_an_empty_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    assert same(spark, broker, subscribe=topic) == []
    assert read(spark, "fenceline", broker, subscribe=topic).count() == 0
    assert read(spark, "fenceline", broker, subscribePattern=topic + "nothing.*").count() == 0


def test_streams(spark: SparkSession, broker: Broker, filled: str, tmp_path: Path) -> None:
    def run(word: str) -> list[Row]:
        frame = spark.readStream.format(word).options(
            **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled, "startingOffsets": "earliest"},
            maxOffsetsPerTrigger=40,
        )
        target = str(tmp_path / word)
        query = (
            frame.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", target + "-checkpoint")
            .trigger(availableNow=True)
            .start(target)
        )
        query.awaitTermination()
        return rows(spark.read.parquet(target))

    first = run("kafka"), run("fenceline")
    assert first[0] == first[1]
    broker.produce(filled, range(900, 950), partition=1)
    second = run("kafka"), run("fenceline")
    assert second[0] == second[1]
    assert len(second[1]) == 200


@only_kafka
def test_a_checkpoint_of_the_connector_is_continued(
    spark: SparkSession, broker: Broker, filled: str, tmp_path: Path
) -> None:
    target, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(word: str, **options: Any) -> int:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled, "startingOffsets": "earliest"}
        frame = spark.readStream.format(word).options(**given, **options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(target).awaitTermination()
        return spark.read.parquet(target).count()

    assert run("kafka") == 150
    broker.produce(filled, range(10), partition=2)
    # Test records are dated 1970: their timestamps prove nothing (`test_adoption_beside`).
    assert run("fenceline", onUnproven="accept") == 160
    broker.produce(filled, range(10), partition=0)
    assert run("fenceline") == 170


def test_writes(spark: SparkSession, broker: Broker, topic: str) -> None:
    theirs, ours = broker.create(topic + "-theirs", 4), broker.create(topic + "-ours", 4)
    frame = spark.range(1000).selectExpr(
        "case when id % 10 = 0 then null else cast(id % 37 as string) end as key",
        "encode(cast(id as string), 'utf-8') as value",
        "array(named_struct('key', 'h', 'value', encode(cast(id as string), 'utf-8'))) as headers",
        "id as ignored",
    )
    keyed = frame.where("key is not null")
    for word, name in (("kafka", theirs), ("fenceline", ours)):
        keyed.write.format(word).option("kafka.bootstrap.servers", broker.bootstrap).option("topic", name).mode(
            "append"
        ).save()

    def content(name: str) -> list[Any]:
        frame = read(spark, "kafka", broker, subscribe=name, includeHeaders=True)
        return sorted((row.partition, bytes(row.key), bytes(row.value), row.headers) for row in frame.collect())

    assert content(ours) == content(theirs)
    chosen = frame.selectExpr(f"'{ours}' as topic", "2 as partition", "'x' as value")
    chosen.write.format("fenceline").option("kafka.bootstrap.servers", broker.bootstrap).mode("append").save()
    counts = {
        r.partition: r["count"]
        for r in read(spark, "kafka", broker, subscribe=ours)
        .where("value = 'x'")
        .groupBy("partition")
        .count()
        .collect()
    }
    assert counts == {2: 1000}


@only_kafka
def test_transactions(spark: SparkSession, broker: Broker, topic: str) -> None:
    import confluent_kafka

    broker.create(topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for value in range(5):
            producer.produce(topic, f"{number}-{value}".encode(), timestamp=1000)
        producer.flush()
        producer.commit_transaction() if number % 2 else producer.abort_transaction()
    assert len(same(spark, broker, subscribe=topic)) == 30
    assert len(same(spark, broker, subscribe=topic, **{"kafka.isolation.level": "read_committed"})) == 15
