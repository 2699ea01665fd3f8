"""Three streams read a topic, then the log loses 50 records that they have read, and continues with others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fenceline.testing.lab.cluster import LabCluster

KEPT = [f"kept-{number}".encode() for number in range(100)]
LOST = [f"lost-{number}".encode() for number in range(50)]
NEW = [f"new-{number}".encode() for number in range(100)]


@dataclass
class Story:
    """`drain` runs a stream until it has read everything; the rows that its table has: offset and value."""

    spark: SparkSession
    cluster: LabCluster
    topic: str
    folder: Path

    def drain(self, name: str, source: str, sink: str = "parquet", **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **options,
        }
        writer = self.spark.readStream.format(source).options(**given).load().writeStream.format(sink)
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        if sink == "fenceline_delta":
            writer = writer.option("kafka.bootstrap.servers", self.cluster.bootstrap_servers)
        query = writer.trigger(availableNow=True).start(str(self.folder / name))
        query.awaitTermination()

    def rows(self, name: str) -> list[tuple[int, bytes]]:
        found = self.spark.read.parquet(str(self.folder / name)).select("offset", "value").collect()
        return sorted((row.offset, bytes(row.value)) for row in found)

    def table_rows(self, name: str) -> list[tuple[int, bytes]]:
        found = DeltaTable(str(self.folder / name)).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
        return sorted((row["offset"], row["value"]) for row in found)

    def drain_repaired(self) -> None:
        """A stream that goes back to where the histories diverge, into a table that is repaired on the way."""
        self.drain(
            "repaired",
            "fenceline",
            "fenceline_delta",
            includeLeaderEpoch="true",
            onTruncation="rewind",
            statefulQuery="false",
        )


def numbered(values: list[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    return list(enumerate(values, first))


@pytest.fixture(scope="module")
def story(
    spark: SparkSession,
    kafka_cluster: LabCluster,
    connector_jars: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Story:
    """The streams have read all records, and the log has lost some of these since."""
    made = Story(spark, kafka_cluster, kafka_cluster.create_topic(), tmp_path_factory.mktemp("tables"))
    kafka_cluster.produce(made.topic, KEPT)

    def write_and_read() -> None:
        kafka_cluster.produce(made.topic, LOST)
        made.drain("failing", "fenceline")
        made.drain_repaired()
        if connector_jars:
            made.drain("connector", "kafka")

    situation = kafka_cluster.situations.unclean_election(made.topic, produce=write_and_read)
    assert situation.lost_values == LOST
    kafka_cluster.produce(made.topic, NEW)
    return made


def test_the_source_notices(story: Story) -> None:
    with pytest.raises(Exception, match="LOG_TRUNCATED"):
        story.drain("failing", "fenceline")
    assert story.rows("failing") == numbered(KEPT + LOST)


def test_the_table_equals_the_log_again(story: Story) -> None:
    assert story.table_rows("repaired") == numbered(KEPT + LOST)
    story.drain_repaired()
    log = story.cluster.read(story.topic)
    assert story.table_rows("repaired") == [(record.offset, record.value) for record in log] == numbered(KEPT + NEW)


def test_sparks_own_connector_does_not_notice(story: Story, connector_jars: list[str]) -> None:
    """Rows of the lost records stay, and the new records at their offsets are never read."""
    if not connector_jars:
        pytest.skip("SPARK_KAFKA_JARS names no folder with the jars of Spark's connector")
    story.drain("connector", "kafka", failOnDataLoss="true")
    assert story.rows("connector") == numbered(KEPT + LOST + NEW[len(LOST) :])
