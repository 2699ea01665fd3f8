"""A stream whose topic was recreated, has expired, or was deleted. No Spark session, no broker."""

from __future__ import annotations

import pytest

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import DataLossError, LossKind
from tests.spark.fakes import FakeCluster
from tests.spark.streams import ALL, cluster_with, ends, losing, make, planned, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_the_history_of_a_deleted_topic_is_forgotten() -> None:
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


def test_a_recreated_topic_is_detected_even_when_it_is_longer() -> None:
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


def test_a_checkpoint_of_another_cluster_is_reported_as_such() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    other = FakeCluster(t=1)
    other.id = "another-cluster"
    other.create("t", 1, id="another-id")
    error = losing(other, end)
    assert error.kind is LossKind.TOPIC_RECREATED
    assert "checkpoint is of cluster a-cluster" in str(error)
    # Brokers without topic ids: the cluster id shows it.
    cluster.ids["t"] = other.ids["t"] = None
    _, end = planned(cluster)
    assert losing(other, end).kind is LossKind.TOPIC_RECREATED
    # A migrated cluster keeps its topic ids, and is checked by its epochs.
    cluster.ids["t"] = other.ids["t"] = "same"
    other.log("t").append(9)
    _, end = planned(cluster)
    assert ends(make(other).latestOffset(end, ALL)) == {"t-0": 9}
    del other.ids["t"]
    assert "leads to cluster another-cluster" in str(losing(other, end))


def test_expired_offsets_are_detected() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.log("t").append(20)
    cluster.log("t").start = 9
    error = losing(cluster, end)
    assert (error.kind, error.losses[0].offset, error.losses[0].log_start_offset) == (LossKind.OFFSETS_EXPIRED, 5, 9)
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert reads(lax, end, later) == {"t-0": (9, 25)}


def test_expiry_of_read_records_is_no_loss() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.log("t").start = 5
    reader = make(cluster)
    assert reader.latestOffset(end, ALL) == end


def test_a_new_partition_that_lost_its_first_records_is_detected() -> None:
    cluster = cluster_with(5)
    _, end = planned(cluster)
    cluster.logs[TopicPartition("t", 1)] = type(cluster.log("t"))([0] * 9, start=4)
    assert losing(cluster, end).kind is LossKind.OFFSETS_EXPIRED


def test_deleted_partitions_are_detected() -> None:
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
