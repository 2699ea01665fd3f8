"""Records a batch loses after its end was fixed, and how the next plan reports them: an in-memory cluster, no Spark
session.

`DriverRun` is one run of a driver. Spark requests a plan, then the tasks of the batch; after a restart it requests the
tasks of the uncommitted batch before it plans anything (`pyspark.md` S8).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import TopicFacts
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.errors import DataLossError, LossKind, losses_named
from pyspark_fenceline.source import stream
from pyspark_fenceline.source.options import read_options
from pyspark_fenceline.source.stream import FencelineStreamReader
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan
from tests.spark.fakes import FakeCluster

Offset = dict[str, Any]
EXPIRED, RECREATED, GONE = LossKind.OFFSETS_EXPIRED, LossKind.TOPIC_RECREATED, LossKind.PARTITIONS_GONE
SECOND = TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "IDLE_WAIT_MS", 0)


class DriverRun:
    def __init__(self, cluster: FakeCluster, **options: str) -> None:
        given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}
        parsed = read_options({**given, "fetchOffset.retryIntervalMs": "0", **options}, streaming=True)
        schema = spark_schema(include_headers=False, include_leader_epoch=False)
        self._reader = FencelineStreamReader(parsed, ReadPlan(parsed.client, schema, parsed.policy), cluster)

    def plan(self, at: Offset | None = None) -> Offset:
        """The end of the batch after `at` (None: the first one); `at` itself if there is no batch to run."""
        start = self._reader.initialOffset() if at is None else at
        end: Offset = json.loads(json.dumps(self._reader.latestOffset(start, ReadAllAvailable())))
        return end

    def tasks(self, start: Offset, end: Offset) -> dict[int, tuple[int, int]]:
        """The range of each partition that the batch's tasks read."""
        return {
            one.topic_partition.partition: (one.start_offset, one.end_offset_exclusive)
            for partition in self._reader.partitions(start, end)
            if isinstance(partition, RangesPartition)
            for one in partition.task
        }

    def first(self) -> Offset:
        """A first batch, planned and read."""
        end = self.plan()
        self._reader.partitions(self._reader.initialOffset(), end)
        return end


def losses_in(offset: Offset) -> list[tuple[LossKind, int, int, int]]:
    """For each loss in an offset: kind, first offset, log start offset, end of the doubtful range."""
    return [(loss.kind, loss.offset, loss.log_start_offset, loss.maybe_read_to) for loss in losses_named(offset)]


def ends(offset: Offset) -> list[int]:
    return [place["offset"] for place in offset["topics"]["t"]["partitions"].values()]


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster(t=1)
    found.log("t").append(5)
    return found


@pytest.fixture
def batch(cluster: FakeCluster) -> tuple[Offset, Offset]:
    """A batch that reads 5 to 24, not committed when its driver died."""
    life = DriverRun(cluster)
    start = life.first()
    cluster.log("t").append(20)
    return start, life.plan(start)


@pytest.mark.parametrize("options", [{"onExpired": "continue"}, {"failOnDataLoss": "false"}])
def test_expiry_before_a_replay_is_reported_without_new_records(
    cluster: FakeCluster, batch: tuple[Offset, Offset], options: dict[str, str]
) -> None:
    start, end = batch
    cluster.log("t").start = 12
    life = DriverRun(cluster, **options)
    assert life.tasks(start, end) == {0: (12, 25)}
    after = life.plan(end)
    assert losses_in(after) == [(EXPIRED, 5, 12, -1)]
    assert ends(after) == [25]
    # No offset moves, nothing is read again, and it is reported once.
    assert life.tasks(end, after) == {}
    assert life.plan(after) == after
    cluster.log("t").append(3)
    later = life.plan(after)
    assert losses_in(later) == []
    assert life.tasks(after, later) == {0: (25, 28)}


def test_expiry_before_a_replay_is_reported_by_a_batch_with_records(
    cluster: FakeCluster, batch: tuple[Offset, Offset]
) -> None:
    start, end = batch
    cluster.log("t").start = 12
    life = DriverRun(cluster, onExpired="continue")
    life.tasks(start, end)
    cluster.log("t").append(3)
    after = life.plan(end)
    assert (losses_in(after), ends(after)) == ([(EXPIRED, 5, 12, -1)], [28])
    assert life.tasks(end, after) == {0: (25, 28)}
    # And when that batch is replayed.
    assert DriverRun(cluster, onExpired="continue").tasks(end, after) == {0: (25, 28)}


def test_expiry_beyond_a_replayed_batch_is_reported_from_its_start(
    cluster: FakeCluster, batch: tuple[Offset, Offset]
) -> None:
    start, end = batch
    cluster.log("t").append(20)
    cluster.log("t").start = 30
    life = DriverRun(cluster, onExpired="continue")
    assert life.tasks(start, end) == {}
    after = life.plan(end)
    assert losses_in(after) == [(EXPIRED, 5, 30, -1)]
    assert life.tasks(end, after) == {0: (30, 45)}


def test_two_losses_with_records_between_them_stay_separate(cluster: FakeCluster, batch: tuple[Offset, Offset]) -> None:
    start, end = batch
    cluster.log("t").append(20)
    cluster.log("t").start = 12
    life = DriverRun(cluster, onExpired="continue")
    assert life.tasks(start, end) == {0: (12, 25)}
    cluster.log("t").start = 30
    after = life.plan(end)
    # In the second loss, records that tasks were reading may have been delivered.
    assert losses_in(after) == [(EXPIRED, 12, 30, 25), (EXPIRED, 5, 12, -1)]
    assert life.tasks(end, after) == {0: (30, 45)}


def test_expiry_between_plan_and_tasks_is_reported(cluster: FakeCluster) -> None:
    life = DriverRun(cluster, onExpired="continue")
    start = life.first()
    cluster.log("t").append(20)
    end = life.plan(start)
    cluster.log("t").start = 12
    assert life.tasks(start, end) == {0: (12, 25)}
    assert losses_in(life.plan(end)) == [(EXPIRED, 5, 12, -1)]


def test_expiry_while_tasks_read_is_reported_as_possibly_read(cluster: FakeCluster) -> None:
    life = DriverRun(cluster, onExpired="continue")
    start = life.first()
    cluster.log("t").append(20)
    end = life.plan(start)
    assert life.tasks(start, end) == {0: (5, 25)}
    # From here on the driver cannot learn what its tasks encountered.
    cluster.log("t").start = 12
    after = life.plan(end)
    assert losses_in(after) == [(EXPIRED, 5, 12, 12)]
    (loss,) = losses_named(after)
    assert "may already have read those below 12" in loss.sentence()
    assert life.tasks(end, after) == {}
    assert life.plan(after) == after


def test_expiry_after_a_batch_was_read_is_no_loss(cluster: FakeCluster) -> None:
    life = DriverRun(cluster, onExpired="continue")
    start = life.first()
    cluster.log("t").append(20)
    end = life.plan(start)
    life.tasks(start, end)
    assert life.plan(end) == end
    cluster.log("t").start = 20
    assert life.plan(end) == end


def test_with_the_fail_policy_tasks_end_the_query_without_doubtful_records(cluster: FakeCluster) -> None:
    life = DriverRun(cluster)
    start = life.first()
    cluster.log("t").append(20)
    end = life.plan(start)
    life.tasks(start, end)
    cluster.log("t").start = 12
    assert life.plan(end) == end


def test_a_replay_with_the_fail_policy_ends_the_query(cluster: FakeCluster, batch: tuple[Offset, Offset]) -> None:
    start, end = batch
    cluster.log("t").start = 12
    with pytest.raises(DataLossError) as caught:
        DriverRun(cluster).tasks(start, end)
    assert [(loss.offset, loss.log_start_offset) for loss in caught.value.losses] == [(5, 12)]


def test_a_topic_recreated_before_a_replay_is_reported_from_the_batch_start(
    cluster: FakeCluster, batch: tuple[Offset, Offset]
) -> None:
    start, end = batch
    cluster.delete("t")
    cluster.create("t", 1, id="other")
    cluster.log("t").append(40)
    life = DriverRun(cluster, onRecreated="restart")
    assert life.tasks(start, end) == {}
    after = life.plan(end)
    assert losses_in(after) == [(RECREATED, 5, 0, -1)]
    assert life.tasks(end, after) == {0: (0, 40)}


def test_a_topic_recreated_while_tasks_read_is_reported_from_the_batch_start(cluster: FakeCluster) -> None:
    life = DriverRun(cluster, onRecreated="restart")
    start = life.first()
    cluster.log("t").append(20)
    end = life.plan(start)
    life.tasks(start, end)
    cluster.delete("t")
    cluster.create("t", 1, id="other")
    cluster.log("t").append(40)
    after = life.plan(end)
    assert losses_in(after) == [(RECREATED, 5, 0, 25)]
    assert life.tasks(end, after) == {0: (0, 40)}


def test_a_late_expiry_report_does_not_move_a_recreated_topic(
    cluster: FakeCluster, batch: tuple[Offset, Offset]
) -> None:
    start, end = batch
    cluster.log("t").append(20)
    cluster.log("t").start = 30
    life = DriverRun(cluster, failOnDataLoss="false")
    assert life.tasks(start, end) == {}
    cluster.delete("t")
    cluster.create("t", 1, id="other")
    cluster.log("t").append(40)
    after = life.plan(end)
    assert sorted(losses_in(after)) == sorted([(EXPIRED, 5, 30, -1), (RECREATED, 25, 0, -1)])
    assert life.tasks(end, after) == {0: (0, 40)}


@pytest.fixture
def two_partitions() -> tuple[FakeCluster, Offset, Offset]:
    """A batch that reads 5 to 24 of each partition, not committed."""
    cluster = FakeCluster(t=2)
    for index in (0, 1):
        cluster.log("t", index).append(5)
    life = DriverRun(cluster)
    start = life.first()
    for index in (0, 1):
        cluster.log("t", index).append(20)
    return cluster, start, life.plan(start)


def test_a_partition_deleted_before_a_replay_is_reported_from_the_batch_start(
    two_partitions: tuple[FakeCluster, Offset, Offset],
) -> None:
    cluster, start, end = two_partitions
    del cluster.logs[SECOND]
    life = DriverRun(cluster, failOnDataLoss="false")
    assert life.tasks(start, end) == {0: (5, 25)}
    after = life.plan(end)
    assert losses_in(after) == [(GONE, 5, -1, -1)]
    assert ends(after) == [25]
    assert life.plan(after) == after


def test_a_temporarily_invisible_partition_is_read_again(
    two_partitions: tuple[FakeCluster, Offset, Offset],
) -> None:
    cluster, start, end = two_partitions
    hidden = cluster.logs.pop(SECOND)
    life = DriverRun(cluster, failOnDataLoss="false")
    assert life.tasks(start, end) == {0: (5, 25)}
    cluster.logs[SECOND] = hidden
    after = life.plan(end)
    assert [(loss.kind, loss.offset, loss.resume_offset) for loss in losses_named(after)] == [(GONE, 5, 5)]
    assert life.tasks(end, after) == {1: (5, 25)}


def test_a_partition_missing_from_one_metadata_answer_is_read_again(
    two_partitions: tuple[FakeCluster, Offset, Offset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a batch is checked against the logs before its end; each check waits for metadata."""
    cluster, start, end = two_partitions
    life = DriverRun(cluster, failOnDataLoss="false", **{"fetchOffset.numRetries": "3"})
    hidden, everything = iter([True] * 3), cluster.topics

    def topics(names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        found = everything(names)
        return {"t": TopicFacts(found["t"].id, (0,))} if next(hidden, False) else found

    monkeypatch.setattr(cluster, "topics", topics)
    assert life.tasks(start, end) == {0: (5, 25)}
    after = life.plan(end)
    assert [(loss.kind, loss.offset, loss.resume_offset) for loss in losses_named(after)] == [(GONE, 5, 5)]
    assert life.tasks(end, after) == {1: (5, 25)}


def test_only_the_affected_partition_is_reported(two_partitions: tuple[FakeCluster, Offset, Offset]) -> None:
    cluster, start, end = two_partitions
    cluster.log("t", 1).start = 7
    life = DriverRun(cluster, onExpired="continue")
    assert life.tasks(start, end) == {0: (5, 25), 1: (7, 25)}
    found = losses_named(life.plan(end))
    assert [(loss.partition, loss.offset, loss.log_start_offset) for loss in found] == [(1, 5, 7)]
