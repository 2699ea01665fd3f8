"""The stream reader against a cluster in memory: no Spark session, no broker."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline import stream
from pyspark_fenceline.errors import DataLossError, LossKind, losses_of
from pyspark_fenceline.options import read_options
from pyspark_fenceline.schema import spark_schema
from pyspark_fenceline.source import FencelineDataSource
from pyspark_fenceline.stream import FencelineStreamReader, RefusedStreamReader
from pyspark_fenceline.tasks import RangesPartition, ReadPlan
from tests.spark.fakes import FakeCluster, FakeLog

ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "IDLE_WAIT_MS", 0)


def make(cluster: FakeCluster, **options: str) -> FencelineStreamReader:
    given = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "0",
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


def test_the_first_batch_carries_its_start_so_that_a_replay_reads_the_same() -> None:
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
    # A replay of batch 0 by another process, when "latest" has moved on.
    assert reads(make(cluster, startingOffsets="latest"), reader.initialOffset(), end) == {}


def test_latest_does_not_drift_while_the_first_batch_is_planned() -> None:
    cluster = cluster_with(5)
    reader = make(cluster, startingOffsets="latest")
    reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").append(2)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reads(reader, reader.initialOffset(), end) == {"t-0": (5, 7)}


def test_without_news_the_start_comes_back_unchanged() -> None:
    reader = make(cluster_with(5))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    kept = json.loads(json.dumps(end))
    assert json.dumps(reader.latestOffset(kept, ALL)) == json.dumps(end)
    assert "from" in kept


def test_an_idle_query_asks_nothing_but_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOOK_AGAIN_S", math.inf)
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


def test_an_idle_query_looks_for_new_topics_and_partitions_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOOK_AGAIN_S", -1.0)
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


def test_positions_carry_the_epoch_of_the_record_before() -> None:
    cluster = cluster_with(5)
    cluster.log("t").elect(4)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["topics"]["t"]["partitions"]["0"] == {"epochs": [[0, 0]], "leader_epoch": 0, "offset": 5}
    assert end["topics"]["t"]["id"] == cluster.ids["t"]


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


def test_min_offsets_hold_a_batch_back_until_the_delay_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_available_now_stops_at_what_was_there_when_it_began() -> None:
    cluster = cluster_with(100)
    reader = make(cluster, maxOffsetsPerTrigger="60", minOffsetsPerTrigger="50")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    cluster.log("t").append(500)
    end = reader.latestOffset(end, limit)
    assert ends(end) == {"t-0": 100}
    assert reader.latestOffset(end, limit) == end


def test_new_partitions_are_read_from_their_beginning() -> None:
    cluster = cluster_with(5)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.logs[TopicPartition("t", 1)] = type(cluster.log("t"))()
    assert reader.latestOffset(end, ALL) == end
    cluster.log("t", 1).append(3)
    later = reader.latestOffset(end, ALL)
    assert reads(reader, end, later) == {"t-1": (0, 3)}


def test_patterns_pick_new_topics_up_and_leave_internal_ones_out() -> None:
    cluster = FakeCluster(ta=1, x=1)
    cluster.create("t__internal", 1)
    cluster.internal.add("t__internal")
    cluster.log("ta").append(1)
    reader = make(cluster, subscribePattern="t.*")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert ends(end) == {"ta-0": 1}
    cluster.create("tb", 1)
    cluster.log("tb").append(2)
    assert ends(reader.latestOffset(end, ALL)) == {"ta-0": 1, "tb-0": 2}


def test_assigned_partitions_only() -> None:
    cluster = cluster_with(1, 2, 3)
    reader = make(cluster, assign='{"t":[0,2]}')
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": 1, "t-2": 3}


def test_a_topic_that_does_not_exist_is_named() -> None:
    reader = make(FakeCluster(), subscribe="nosuch")
    with pytest.raises(OperatorError, match="nosuch"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_explicit_starting_offsets_must_name_all_and_exist() -> None:
    cluster = cluster_with(5, 5)
    for wrong in ('{"t":{"0":1}}', '{"t":{"0":1,"1":1,"2":1}}'):
        reader = make(cluster, startingOffsets=wrong)
        with pytest.raises(OperatorError, match="you must specify all TopicPartitions"):
            reader.latestOffset(reader.initialOffset(), ALL)
    reader = make(cluster, startingOffsets='{"t":{"0":1,"1":9}}')
    with pytest.raises(OperatorError, match="beyond the end"):
        reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").start = 3
    reader = make(cluster, startingOffsets='{"t":{"0":1,"1":0}}')
    with pytest.raises(DataLossError, match="OFFSETS_EXPIRED"):
        reader.latestOffset(reader.initialOffset(), ALL)
    lax = make(cluster, startingOffsets='{"t":{"0":1,"1":9}}', failOnDataLoss="false")
    end = lax.latestOffset(lax.initialOffset(), ALL)
    assert reads(lax, lax.initialOffset(), end) == {"t-0": (3, 5)}


def test_starting_timestamps() -> None:
    cluster = cluster_with(5)
    cluster.log("t").timestamps = {i: i * 10 for i in range(5)}
    reader = make(cluster, startingTimestamp="25")
    assert reads(reader, reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": (3, 5)}
    reader = make(cluster, startingTimestamp="99")
    with pytest.raises(OperatorError, match="No offset matched"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader = make(cluster, startingTimestamp="99", startingOffsetsByTimestampStrategy="latest")
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": 5}


# Losses -----------------------------------------------------------------------------------------------------------


def losing(cluster: FakeCluster, start: Offset, end: Offset | None = None) -> DataLossError:
    """The loss that planning from `start` meets, or replaying the batch from `start` to `end`."""
    reader = make(cluster)
    with pytest.raises(DataLossError) as caught:
        reader.latestOffset(start, ALL) if end is None else reader.partitions(start, end)
    return caught.value


def planned(cluster: FakeCluster, start: Offset | None = None) -> tuple[Offset, Offset]:
    reader = make(cluster)
    begin = reader.initialOffset() if start is None else start
    return begin, reader.latestOffset(begin, ALL)


def test_truncation_and_regrowth_is_noticed_in_latest_offset() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    error = losing(cluster, end)
    assert error.kind is LossKind.LOG_TRUNCATED
    (loss,) = error.losses
    assert (loss.offset, loss.leader_epoch, loss.divergence_offset, loss.log_end_offset) == (150, 0, 100, 200)


def test_a_running_query_notices_it_too() -> None:
    cluster = cluster_with(150)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    asked = cluster.questions.count("epoch_ends")
    assert reader.latestOffset(end, ALL) == end
    assert cluster.questions.count("epoch_ends") == asked
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        reader.latestOffset(end, ALL)


def test_what_was_known_of_a_topic_is_forgotten_with_it() -> None:
    cluster = cluster_with(0)
    cluster.log("t").elect(3)
    cluster.log("t").append(50)
    reader = make(cluster, failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.delete("t")
    cluster.create("t", 1, id="new")
    cluster.log("t").append(30)
    cluster.log("t").elect(3)
    later = reader.latestOffset(end, ALL)
    place = {"epochs": [[0, 0]], "leader_epoch": 0, "offset": 30}
    assert later["topics"]["t"] == {"id": "new", "partitions": {"0": place}}


def test_truncation_is_noticed_when_a_batch_is_replayed() -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(100)
    error = losing(cluster, first, second)
    assert (error.kind, error.losses[0].divergence_offset, error.losses[0].offset) == (LossKind.LOG_TRUNCATED, 180, 200)
    # Below the start as well: told once, for the start.
    cluster.log("t").elect(3, keep=100)
    cluster.log("t").append(200)
    error = losing(cluster, first, second)
    assert [(loss.divergence_offset, loss.offset) for loss in error.losses] == [(100, 150)]


def test_truncation_without_failing_goes_on_from_the_divergence_point() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert ends(later) == {"t-0": 200}
    assert reads(lax, end, later) == {"t-0": (100, 200)}
    assert lax.latestOffset(later, ALL) == later


def test_without_failing_offsets_may_go_back() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(20)
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert ends(later) == {"t-0": 120}
    assert reads(lax, end, later) == {"t-0": (100, 120)}
    cluster.log("t").append(5)
    assert reads(lax, later, lax.latestOffset(later, ALL)) == {"t-0": (120, 125)}


def test_each_policy_is_for_its_own_kind() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    assert ends(make(cluster, onTruncation="rewind").latestOffset(end, ALL)) == {"t-0": 200}
    strict = make(cluster, failOnDataLoss="false", onTruncation="fail")
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        strict.latestOffset(end, ALL)
    other = make(cluster, onExpired="continue", onRecreated="restart")
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        other.latestOffset(end, ALL)


def test_the_offset_tells_what_was_lost_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(20)
    reader = make(cluster, onTruncation="rewind")
    later = reader.latestOffset(end, ALL)
    assert later["truncations"] == [
        {
            "current_leader_epoch": 2,
            "divergence_offset": 100,
            "found_topic_id": cluster.ids["t"],
            "leader_epoch": 0,
            "log_end_offset": 120,
            "log_epoch": 0,
            "log_start_offset": 0,
            "offset": 150,
            "partition": 0,
            "resume_offset": 100,
            "topic": "t",
            "topic_id": cluster.ids["t"],
        }
    ]
    assert "LOG_TRUNCATED" in caplog.text
    (loss,) = losses_of({"sources": [{"endOffset": json.dumps(later)}]})
    assert (loss.kind, loss.divergence_offset, loss.offset) == (LossKind.LOG_TRUNCATED, 100, 150)
    assert reads(reader, end, later) == {"t-0": (100, 120)}
    assert reader.latestOffset(later, ALL) == later
    cluster.log("t").append(1)
    assert "truncations" not in reader.latestOffset(later, ALL)


def test_a_rewind_is_replayed_as_it_was_planned() -> None:
    """Also when by then the log is again what it was before: what was planned is in the checkpoint."""
    cluster = cluster_with(150)
    _, end = planned(cluster)
    before = list(cluster.log("t").epochs)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(20)
    later = make(cluster, onTruncation="rewind").latestOffset(end, ALL)
    again = make(cluster, onTruncation="rewind")
    assert reads(again, end, later) == {"t-0": (100, 120)}
    cluster.logs[TopicPartition("t", 0)] = FakeLog(before, leader_epoch=3)
    again = make(cluster, onTruncation="rewind")
    assert reads(again, end, later) == {}
    third = again.latestOffset(later, ALL)
    assert (third["truncations"][0]["resume_offset"], ends(third)) == (100, {"t-0": 150})
    assert reads(again, later, third) == {"t-0": (100, 150)}


def test_a_replay_reads_what_is_left_of_its_range_and_goes_back_for_the_rest() -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    before = list(cluster.log("t").epochs)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(5)
    reader = make(cluster, onTruncation="rewind")
    assert reads(reader, first, second) == {"t-0": (150, 180)}
    # An unclean election later the log is what it was: what the batch left out is read nevertheless.
    cluster.logs[TopicPartition("t", 0)] = FakeLog(before, leader_epoch=3)
    third = reader.latestOffset(second, ALL)
    assert reads(reader, second, third) == {"t-0": (180, 200)}
    assert third["truncations"][0]["resume_offset"] == 180


def test_two_elections_within_a_batch_are_reason_to_read_it_again() -> None:
    """A task may have met the log of the first one and have left something out, and the second may have undone it."""
    cluster = cluster_with(150)
    reader = make(cluster, onTruncation="rewind")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").append(50)
    second = reader.latestOffset(first, ALL)
    assert reads(reader, first, second) == {"t-0": (150, 200)}
    cluster.log("t").elect(2)
    third = reader.latestOffset(second, ALL)
    assert reads(reader, second, third) == {"t-0": (150, 200)}
    # Once that is settled, elections are of no interest.
    assert reader.latestOffset(third, ALL) == third
    cluster.log("t").elect(9)
    assert reader.latestOffset(third, ALL) == third
    assert make(cluster).latestOffset(second, ALL) == second


def test_a_batch_that_is_read_again_for_two_elections_each_time_differs_each_time() -> None:
    """Spark runs no batch whose end is, as text, where the query stands (S4): what lies behind it would wait for
    ever."""
    cluster = cluster_with(5)
    reader = make(cluster, onTruncation="rewind")
    limit = ReadMaxRows(4)
    at = reader.latestOffset(reader.initialOffset(), limit)
    reads(reader, reader.initialOffset(), at)
    for epoch in (2, 4):
        cluster.log("t").elect(epoch)
        end = reader.latestOffset(at, limit)
        assert end != at
        assert reads(reader, at, end) == {"t-0": (0, 4)}
        at = end
    assert ends(reader.latestOffset(at, limit)) == {"t-0": 5}


def test_a_rewind_over_several_elections_is_exact() -> None:
    cluster = cluster_with(100)
    log = cluster.log("t")
    reader = make(cluster, onTruncation="rewind")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    for epoch in (2, 4, 5):
        log.elect(epoch)
        log.append(10)
        end = reader.latestOffset(end, ALL)
    # The leader of epoch 3 had 107 records, wrote 20 of its own, and wins.
    cluster.logs[TopicPartition("t", 0)] = FakeLog([0] * 100 + [2] * 7 + [3] * 50, leader_epoch=6)
    with pytest.raises(DataLossError) as caught:
        make(cluster).latestOffset(end, ALL)
    assert [(loss.divergence_offset, loss.offset) for loss in caught.value.losses] == [(107, 130)]
    again = make(cluster, onTruncation="rewind")
    later = again.latestOffset(end, ALL)
    assert reads(again, end, later) == {"t-0": (107, 157)}
    place = {"epochs": [[0, 0], [2, 100], [3, 107]], "leader_epoch": 3, "offset": 157}
    assert later["topics"]["t"]["partitions"]["0"] == place


def test_a_checkpoint_of_an_older_release_goes_back_to_the_beginning_when_it_can_not_know_better() -> None:
    cluster = cluster_with(100)
    cluster.logs[TopicPartition("t", 0)] = FakeLog([3] * 60 + [4] * 90, leader_epoch=6)
    ids = cluster.ids["t"]
    old = {"topics": {"t": {"id": ids, "partitions": {"0": {"leader_epoch": 5, "offset": 120}}}}, "version": 1}
    reader = make(cluster, onTruncation="rewind")
    later = reader.latestOffset(old, ALL)
    assert reads(reader, old, later) == {"t-0": (0, 150)}
    assert "divergence_offset" not in later["truncations"][0]
    # Where it still holds it learns its epochs with the next batch.
    fine = {"topics": {"t": {"id": ids, "partitions": {"0": {"leader_epoch": 4, "offset": 120}}}}, "version": 1}
    later = reader.latestOffset(fine, ALL)
    assert later["topics"]["t"]["partitions"]["0"]["epochs"] == [[3, 0], [4, 60]]


def test_a_checkpoint_without_epochs_notices_at_least_a_shorter_log() -> None:
    cluster = cluster_with(100)
    error = losing(cluster, {"t": {"0": 150}})
    assert (error.kind, error.losses[0].offset) == (LossKind.LOG_TRUNCATED, 150)
    # Where the histories part is not known: all of the log is read again rather than less than what changed.
    reader = make(cluster, onTruncation="rewind")
    assert reads(reader, {"t": {"0": 150}}, reader.latestOffset({"t": {"0": 150}}, ALL)) == {"t-0": (0, 100)}


def test_a_leader_that_does_not_know_the_newest_epoch_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(100)
    cluster.log("t").elect(3)
    cluster.log("t").append(50)
    _, end = planned(cluster)
    newest = cluster.logs[TopicPartition("t", 0)]
    cluster.logs[TopicPartition("t", 0)] = FakeLog([0] * 100, leader_epoch=2)
    looks = []

    def look(partitions: Any) -> Any:
        looks.append(partitions)
        if len(looks) > 1:
            cluster.logs[TopicPartition("t", 0)] = newest
        return FakeCluster.log_starts(cluster, partitions)

    monkeypatch.setattr(cluster, "log_starts", look)
    assert make(cluster).latestOffset(end, ALL) == end
    assert len(looks) > 1


def test_a_broker_that_has_not_heard_of_a_partition_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(5, 3)
    _, end = planned(cluster)
    log = cluster.logs.pop(TopicPartition("t", 1))
    looks: list[Any] = []

    def look(names: Any) -> Any:
        looks.append(names)
        if len(looks) > 1:
            cluster.logs[TopicPartition("t", 1)] = log
        return FakeCluster.topics(cluster, names)

    monkeypatch.setattr(cluster, "topics", look)
    assert make(cluster, failOnDataLoss="false").latestOffset(end, ALL) == end
    assert len(looks) > 1


def test_a_checkpoint_of_another_cluster_is_named_as_that() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    other = FakeCluster(t=1)
    other.id = "another-cluster"
    other.create("t", 1, id="another-id")
    error = losing(other, end)
    assert error.kind is LossKind.TOPIC_RECREATED
    assert "checkpoint is of cluster a-cluster" in str(error)
    # Brokers that give topics no ids: the cluster's tells it.
    cluster.ids["t"] = other.ids["t"] = None
    _, end = planned(cluster)
    assert losing(other, end).kind is LossKind.TOPIC_RECREATED
    # A cluster that was moved as it was keeps its topics' ids, and is held against its epochs.
    cluster.ids["t"] = other.ids["t"] = "same"
    other.log("t").append(9)
    _, end = planned(cluster)
    assert ends(make(other).latestOffset(end, ALL)) == {"t-0": 9}
    del other.ids["t"]
    assert "leads to cluster another-cluster" in str(losing(other, end))


def test_an_end_that_was_stale_is_looked_at_again() -> None:
    cluster = cluster_with(160)
    cluster.stale_ends[TopicPartition("t", 0)] = [120, 130]
    assert ends(make(cluster).latestOffset({"t": {"0": 150}}, ALL)) == {"t-0": 160}


def test_a_high_watermark_that_lags_behind_a_matching_epoch_is_no_loss() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(1)
    cluster.stale_ends[TopicPartition("t", 0)] = [140]
    reader = make(cluster)
    assert reader.latestOffset(end, ALL) == end


def test_a_checkpoint_of_sparks_kafka_source_goes_on() -> None:
    cluster = cluster_with(150)
    reader = make(cluster)
    later = reader.latestOffset({"t": {"0": 100}}, ALL)
    assert reads(reader, {"t": {"0": 100}}, later) == {"t-0": (100, 150)}
    assert later["topics"]["t"]["id"] == cluster.ids["t"]


def test_a_recreated_topic_is_noticed_even_when_it_is_longer() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    old = cluster.ids["t"]
    cluster.delete("t")
    cluster.create("t", 1, id="new")
    cluster.log("t").append(50)
    error = losing(cluster, end)
    assert (error.kind, error.losses[0].topic_id, error.losses[0].found_topic_id) == (
        LossKind.TOPIC_RECREATED,
        old,
        "new",
    )
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert reads(lax, end, later) == {"t-0": (0, 50)}
    assert later["topics"]["t"]["id"] == "new"


def test_expired_offsets_are_noticed() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.log("t").append(20)
    cluster.log("t").start = 9
    error = losing(cluster, end)
    assert (error.kind, error.losses[0].offset, error.losses[0].log_start_offset) == (LossKind.OFFSETS_EXPIRED, 5, 9)
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert reads(lax, end, later) == {"t-0": (9, 25)}


def test_expiry_of_what_is_read_already_is_no_loss() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.log("t").start = 5
    reader = make(cluster)
    assert reader.latestOffset(end, ALL) == end


def test_a_new_partition_that_lost_its_first_records_is_noticed() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.logs[TopicPartition("t", 1)] = type(cluster.log("t"))([0] * 9, start=4)
    assert losing(cluster, end).kind is LossKind.OFFSETS_EXPIRED


def test_partitions_that_are_gone_are_noticed() -> None:
    cluster = cluster_with(5)
    cluster.create("u", 1)
    cluster.log("u").append(2)
    reader = make(cluster, subscribe="t,u")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.delete("u")
    with pytest.raises(DataLossError) as caught:
        make(cluster, subscribe="t,u").latestOffset(end, ALL)
    assert [(loss.kind, loss.topic) for loss in caught.value.losses] == [(LossKind.PARTITIONS_GONE, "u")]
    lax = make(cluster, subscribe="t,u", failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert ends(later) == {"t-0": 5}
    assert lax.latestOffset(later, ALL) == later


def test_an_election_without_loss_goes_unremarked() -> None:
    cluster = cluster_with(5)
    begin, end = planned(cluster)
    cluster.log("t").elect(7)
    cluster.log("t").append(5)
    reader = make(cluster)
    assert reads(reader, begin, end) == {"t-0": (0, 5)}
    assert ends(reader.latestOffset(end, ALL)) == {"t-0": 10}


def test_an_election_between_two_questions_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    real = cluster.epoch_ends
    calls: list[Any] = []

    def elect_once(epochs: Any) -> Any:
        if not calls:
            cluster.log("t").elect(9)
        calls.append(epochs)
        return real(epochs)

    monkeypatch.setattr(cluster, "epoch_ends", elect_once)
    reader = make(cluster)
    assert reader.latestOffset(end, ALL) == end
    assert len(calls) == 2


def test_an_executors_copy_carries_no_connection() -> None:
    reader = make(cluster_with(5))
    reader.latestOffset(reader.initialOffset(), ALL)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._connected is None


def test_a_reader_that_is_refused_is_made_and_says_why_when_it_is_asked() -> None:
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
