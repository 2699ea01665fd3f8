"""The stream reader against an in-memory cluster: the content of offsets, and its requests when idle. No Spark
session, no broker."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.source import stream
from pyspark_fenceline.source.source import FencelineDataSource
from pyspark_fenceline.source.stream import FencelineStreamReader, RefusedStreamReader
from tests.spark.fakes import FakeCluster, FakeLog
from tests.spark.streams import ALL, cluster_with, ends, make, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_the_first_batch_stores_its_start_for_replays() -> None:
    cluster = cluster_with(5, 3)
    first = make(cluster)
    end = first.latestOffset(first.initialOffset(), ALL)
    assert ends(end) == {"t-0": 5, "t-1": 3}
    cluster.log("t", 0).append(9)
    again = make(cluster)
    assert reads(again, again.initialOffset(), end) == {"t-0": (0, 5), "t-1": (0, 3)}


def test_latest_is_pinned_by_the_first_batch() -> None:
    cluster = cluster_with(5)
    reader = make(cluster, startingOffsets="latest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert ends(end) == {"t-0": 5}
    assert reads(reader, reader.initialOffset(), end) == {}
    cluster.log("t").append(2)
    later = reader.latestOffset(end, ALL)
    assert reads(make(cluster), end, later) == {"t-0": (5, 7)}
    # A replay of batch 0 by another process, after "latest" has moved.
    assert reads(make(cluster, startingOffsets="latest"), reader.initialOffset(), end) == {}


def test_latest_does_not_move_while_the_first_batch_is_planned() -> None:
    cluster = cluster_with(5)
    reader = make(cluster, startingOffsets="latest")
    reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").append(2)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reads(reader, reader.initialOffset(), end) == {"t-0": (5, 7)}


def test_without_new_records_the_start_is_returned_unchanged() -> None:
    reader = make(cluster_with(5))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    kept = json.loads(json.dumps(end))
    assert json.dumps(reader.latestOffset(kept, ALL)) == json.dumps(end)
    assert "from" in kept


def test_an_idle_query_only_polls_for_new_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REFRESH_S", math.inf)
    cluster = cluster_with(10)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    cluster.has_news = False
    cluster.questions.clear()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert cluster.questions == ["await_news"] * 3
    cluster.log("t").append(1)
    cluster.has_news = True
    assert ends(reader.latestOffset(end, ALL)) == {"t-0": 11}


class Clock:
    """Replaces `time`: sleeping advances the clock by the requested time."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def idle_reader(monkeypatch: pytest.MonkeyPatch) -> tuple[FencelineStreamReader, FakeCluster, dict[str, Any], Clock]:
    """A reader that has read ten records, and then found none once."""
    clock = Clock()
    monkeypatch.setattr(stream, "time", clock)
    monkeypatch.setattr(stream, "IDLE_WAIT_MS", 2_000)
    monkeypatch.setattr(stream, "REFRESH_S", math.inf)
    cluster = cluster_with(10)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    return reader, cluster, end, clock


def test_brokers_that_answer_early_are_polled_again_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after the rest of the poll timeout, with no poll waiting for records."""
    reader, cluster, end, clock = idle_reader(monkeypatch)
    answers = iter([False, False, True])
    monkeypatch.setattr(cluster, "await_news", lambda positions, timeout_ms: next(answers))
    monkeypatch.setattr(stream, "_FIRST_IDLE_WAIT_MS", 200)
    cluster.log("t").append(1)
    began_s = clock.now_s
    assert ends(reader.latestOffset(end, ALL)) == {"t-0": 11}
    assert not list(answers)
    assert clock.now_s - began_s == pytest.approx(0.4)


@pytest.mark.parametrize(("interval_s", "waits_ms"), [(0.01, [40, 80, 160, 320, 640, 1280, 2000, 2000]), (1, [20] * 8)])
def test_polls_grow_longer_up_to_the_trigger_interval(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, waits_ms: list[int]
) -> None:
    """Spark warns if a query falls behind its trigger."""
    reader, cluster, end, clock = idle_reader(monkeypatch)
    found: list[int] = []

    def wait(_: object, timeout_ms: int) -> bool:
        found.append(timeout_ms)
        clock.sleep(timeout_ms / 1000)
        return False

    monkeypatch.setattr(cluster, "await_news", wait)
    for _ in waits_ms:
        clock.sleep(interval_s)
        assert reader.latestOffset(end, ALL) == end
    assert found == waits_ms


def test_an_idle_query_periodically_discovers_topics_and_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REFRESH_S", -1.0)
    cluster = cluster_with(10)
    cluster.has_news = False
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    cluster.logs[TopicPartition("t", 1)] = FakeLog([0] * 5)
    assert ends(reader.latestOffset(end, ALL)) == {"t-0": 10, "t-1": 5}


def test_the_start_is_dropped_from_later_offsets() -> None:
    cluster = cluster_with(5)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").append(1)
    assert "from" not in reader.latestOffset(end, ALL)


def test_positions_have_the_epoch_of_the_previous_record() -> None:
    cluster = cluster_with(5)
    cluster.log("t").elect(4)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["topics"]["t"]["partitions"]["0"] == {"epochs": [[0, 0]], "leader_epoch": 0, "offset": 5}
    assert end["topics"]["t"]["id"] == cluster.ids["t"]


def test_the_pickled_reader_has_no_connection() -> None:
    reader = make(cluster_with(5))
    reader.latestOffset(reader.initialOffset(), ALL)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._connected is None


def test_a_rejected_reader_reports_its_error_on_first_use() -> None:
    source = FencelineDataSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": "latest"})
    reader = source.streamReader(spark_schema(include_headers=False, include_leader_epoch=False))
    assert isinstance(reader, RefusedStreamReader)
    for ask in (
        reader.getDefaultReadLimit,
        reader.initialOffset,
        lambda: reader.latestOffset({}, ALL),
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(OperatorError, match="ending offset not valid"):
            ask()
