"""Stream readers on in-memory clusters: construction, calls, and the contents of their offsets and batches."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.errors import DataLossError
from pyspark_fenceline.source.options import read_options
from pyspark_fenceline.source.stream import FencelineStreamReader
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan
from tests.spark.fakes import FakeCluster

ALL: Final = ReadAllAvailable()
Offset = dict[str, Any]


def make(cluster: FakeCluster, **options: str) -> FencelineStreamReader:
    """A reader of a stateless query, unless `options` override that."""
    given = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "0",
        **({} if {"statefulQuery", "checkpointLocation"} & options.keys() else {"statefulQuery": "false"}),
        **options,
    }
    if "subscribePattern" in options or "assign" in options:
        del given["subscribe"]
    parsed = read_options(given, streaming=True)
    plan = ReadPlan(parsed.client, spark_schema(include_headers=False, include_leader_epoch=False), parsed.policy)
    return FencelineStreamReader(parsed, plan, cluster)


def ends(offset: Offset) -> dict[str, int]:
    return {
        f"{topic}-{index}": position["offset"]
        for topic, content in offset["topics"].items()
        for index, position in content["partitions"].items()
    }


def reads(reader: FencelineStreamReader, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
    found = {}
    for partition in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        assert isinstance(partition, RangesPartition)
        for one in partition.task:
            found[str(one.topic_partition)] = (one.start_offset, one.end_offset_exclusive)
    return found


def cluster_with(*counts: int) -> FakeCluster:
    cluster = FakeCluster(t=len(counts))
    for index, count in enumerate(counts):
        cluster.log("t", index).append(count)
    return cluster


def losing(cluster: FakeCluster, start: Offset, end: Offset | None = None) -> DataLossError:
    """The loss reported when planning from `start`, or when replaying the batch from `start` to `end`."""
    reader = make(cluster)
    with pytest.raises(DataLossError) as caught:
        reader.latestOffset(start, ALL) if end is None else reader.partitions(start, end)
    return caught.value


def planned(cluster: FakeCluster, start: Offset | None = None) -> tuple[Offset, Offset]:
    reader = make(cluster)
    begin = reader.initialOffset() if start is None else start
    return begin, reader.latestOffset(begin, ALL)
