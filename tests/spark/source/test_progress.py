"""How far a query is behind, from progress reports. No session, no broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fenceline.ids import TopicPartition
from pyspark_fenceline import lag_of
from tests.spark.checkpoints import offset_of
from tests.spark.fakes import FakeCluster
from tests.spark.streams import make

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


def test_the_metrics_are_those_of_the_kafka_source_of_spark() -> None:
    end = offset_of({T0: (90, 0), T1: (50, 0)}, {"t": "id"})
    latest = offset_of({T0: (100, 0), T1: (50, 1), T2: (20, 0)}, {"t": "id"})
    theirs = {"endOffset": json.dumps({"t": {"0": 1}}), "latestOffset": json.dumps({"t": {"0": 9}})}
    unread = {"endOffset": None, "latestOffset": None}
    progress = {"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}, theirs, unread]}
    lag = lag_of(progress)
    assert dict(lag.partitions) == {T0: 10, T1: 0, T2: 20}
    assert lag.metrics() == {
        "minOffsetsBehindLatest": "0",
        "avgOffsetsBehindLatest": "10.0",
        "maxOffsetsBehindLatest": "20",
    }
    assert str(lag) == "Fenceline[t-2: 20, t-0: 10, t-1: 0 behind]"
    assert (str(lag_of({"sources": []})), lag_of({"sources": []}).average) == ("Fenceline[]", 0.0)


@pytest.mark.usefixtures("no_idle_wait")
def test_a_reader_reports_both_ends() -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    cluster = FakeCluster(t=2)
    cluster.log("t").append(60)
    cluster.log("t", 1).append(40)
    reader = make(cluster, maxOffsetsPerTrigger="10")
    end: dict[str, Any] = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    lag = lag_of({"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(reader.reportLatestOffset())}]})
    assert dict(lag.partitions) == {T0: 54, T1: 36}
