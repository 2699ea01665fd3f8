"""Brokers whose answers are older than the state of a stream: it retries, and treats none of them as a loss. No
Spark session, no broker."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.ids import TopicPartition
from tests.spark.fakes import FakeCluster, FakeLog
from tests.spark.streams import ALL, cluster_with, ends, make, planned

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_a_leader_unaware_of_the_newest_epoch_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_broker_unaware_of_a_partition_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_stale_end_offset_is_requested_again() -> None:
    cluster = cluster_with(160)
    cluster.stale_ends[TopicPartition("t", 0)] = [120, 130]
    reader = make(cluster, onUnproven="accept")
    assert ends(reader.latestOffset({"t": {"0": 150}}, ALL)) == {"t-0": 160}


def test_a_high_watermark_lagging_behind_a_matching_epoch_is_no_loss() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(1)
    cluster.stale_ends[TopicPartition("t", 0)] = [140]
    reader = make(cluster)
    assert reader.latestOffset(end, ALL) == end


def test_requests_are_repeated_after_an_election_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
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
