"""The size of one batch of a stream, by its options and its trigger. No Spark session, no broker."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows

from pyspark_fenceline.source import stream
from tests.spark.streams import ALL, cluster_with, ends, make

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_max_offsets_per_trigger() -> None:
    reader = make(cluster_with(900, 100), maxOffsetsPerTrigger="100")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert ends(end) == {"t-0": 90, "t-1": 10}
    assert ends(reader.latestOffset(end, limit)) == {"t-0": 180, "t-1": 20}


def test_trigger_once_ignores_the_limit() -> None:
    reader = make(cluster_with(900, 100), maxOffsetsPerTrigger="100")
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": 900, "t-1": 100}


def test_min_offsets_delay_a_batch_until_the_maximum_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(5)
    reader = make(cluster, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    now = 1_000_000
    monkeypatch.setattr(stream, "_now_ms", lambda: now)
    end = reader.latestOffset(reader.initialOffset(), limit)
    cluster.log("t").append(9)
    assert reader.latestOffset(end, limit) == end
    now += 59_999
    assert reader.latestOffset(end, limit) == end
    now += 1
    assert ends(reader.latestOffset(end, limit)) == {"t-0": 14}


def test_min_and_max_together() -> None:
    cluster = cluster_with(100)
    reader = make(cluster, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="50")
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert ends(end) == {"t-0": 50}
    end = reader.latestOffset(end, limit)
    cluster.log("t").append(9)
    assert reader.latestOffset(end, limit) == end


def test_available_now_stops_at_the_end_offsets_of_its_start() -> None:
    cluster = cluster_with(100)
    reader = make(cluster, maxOffsetsPerTrigger="60", minOffsetsPerTrigger="50")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    cluster.log("t").append(500)
    end = reader.latestOffset(end, limit)
    assert ends(end) == {"t-0": 100}
    assert reader.latestOffset(end, limit) == end
