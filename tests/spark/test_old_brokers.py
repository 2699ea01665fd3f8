"""Planning and reading against brokers of several ages, over real sockets: no Spark session."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fenceline.client.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from pyspark_fenceline import connect
from pyspark_fenceline.errors import DataLossError
from pyspark_fenceline.options import read_options
from pyspark_fenceline.schema import spark_schema
from pyspark_fenceline.stream import FencelineStreamReader
from pyspark_fenceline.tasks import ReadPlan, read_ranges
from tests.client.scripted_cluster import ScriptedCluster

QUICK = {"retry.backoff.ms": "10", "retry.backoff.max.ms": "50", "fetch.max.wait.ms": "50"}
OLD = {
    # Kafka 2.0: no epochs in ListOffsets, Fetch and Metadata, OffsetForLeaderEpoch is for replicas.
    ApiKey.FETCH: (4, 8),
    ApiKey.LIST_OFFSETS: (1, 3),
    ApiKey.METADATA: (0, 6),
}
KAFKA_2_1 = {ApiKey.FETCH: (4, 10), ApiKey.LIST_OFFSETS: (1, 4), ApiKey.METADATA: (0, 7)}
KAFKA_2_4 = {ApiKey.FETCH: (4, 11), ApiKey.LIST_OFFSETS: (1, 5), ApiKey.METADATA: (0, 9)}


class Driver:
    """One process's life of a query, without Spark."""

    def __init__(self, cluster: ScriptedCluster, **options: str) -> None:
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        given |= {f"kafka.{key}": value for key, value in QUICK.items()}
        parsed = read_options({**given, "fetchOffset.retryIntervalMs": "10", **options}, streaming=True)
        self._plan = ReadPlan(
            parsed.client, spark_schema(include_headers=False, include_leader_epoch=True), parsed.policy
        )
        self.source = FencelineStreamReader(parsed, self._plan)

    def batch(self, at: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, int, bytes]]]:
        end = json.loads(json.dumps(self.source.latestOffset(at, ReadAllAvailable())))
        rows: list[tuple[int, int, bytes]] = []
        for task in self.source.partitions(at, end):
            for batch in read_ranges(self._plan, task):
                columns = batch.to_pydict()
                rows += zip(columns["offset"], columns["leader_epoch"], columns["value"], strict=True)
        return end, rows

    def close(self) -> None:
        for kind in ("cluster", "reader"):
            connect.forget(kind, self._plan.client)


def write(cluster: ScriptedCluster, tp: TopicPartition, first: int, count: int) -> None:
    with Producer(cluster.bootstrap, **QUICK, **{"batch.size": 1, "linger.ms": 0}) as producer:
        for number in range(first, first + count):
            producer.send(tp.topic, b"%d" % number, partition=tp.partition)
            producer.flush()


@pytest.mark.parametrize("versions", [{}, KAFKA_2_4, KAFKA_2_1])
def test_a_truncation_is_noticed_and_gone_back_from(versions: dict[ApiKey, tuple[int, int]]) -> None:
    with ScriptedCluster(versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        strict, lax = Driver(cluster), Driver(cluster, onTruncation="rewind")
        try:
            end, rows = strict.batch(strict.source.initialOffset())
            assert [value for _, _, value in rows] == [b"%d" % number for number in range(15)]
            cluster.logs[tp].elect(1, cut_to=10)
            write(cluster, tp, 100, 10)
            with pytest.raises(DataLossError) as error:
                strict.batch(end)
            assert [(loss.divergence_offset, loss.offset) for loss in error.value.losses] == [(10, 15)]
            end, rows = lax.batch(end)
            assert rows == [(10 + number, 1, b"%d" % (100 + number)) for number in range(10)]
            assert [one["resume_offset"] for one in end["truncations"]] == [10]
        finally:
            strict.close()
            lax.close()


def test_brokers_without_epochs_work_and_it_is_said_that_they_are_blind(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(versions=OLD) as cluster:
        del cluster.versions[ApiKey.OFFSET_FOR_LEADER_EPOCH]
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        driver = Driver(cluster)
        try:
            end, rows = driver.batch(driver.source.initialOffset())
            assert len(rows) == 15
            assert "leader_epoch" in str(end)
            assert caplog.text.count("keep no leader epochs") == 1
            cluster.logs[tp].elect(1, cut_to=10)
            with pytest.raises(DataLossError) as error:
                driver.batch(end)
            assert [(loss.divergence_offset, loss.offset) for loss in error.value.losses] == [(None, 15)]
            # The log has grown again: nothing tells that it is another one.
            write(cluster, tp, 100, 10)
            _, rows = driver.batch(end)
            assert [offset for offset, _, _ in rows] == list(range(15, 20))
        finally:
            driver.close()
