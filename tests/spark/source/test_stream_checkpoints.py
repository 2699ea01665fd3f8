"""A stream that continues from a checkpoint of an older release (of Spark's Kafka source: `test_adoption`). No
session, no broker."""

from __future__ import annotations

import pytest

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import LossKind
from tests.spark.fakes import FakeLog
from tests.spark.streams import ALL, cluster_with, losing, make, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_an_old_checkpoint_with_unknown_divergence_restarts_at_the_beginning() -> None:
    cluster = cluster_with(100)
    cluster.logs[TopicPartition("t", 0)] = FakeLog([3] * 60 + [4] * 90, leader_epoch=6)
    ids = cluster.ids["t"]
    old = {"topics": {"t": {"id": ids, "partitions": {"0": {"leader_epoch": 5, "offset": 120}}}}, "version": 1}
    reader = make(cluster, onTruncation="rewind")
    later = reader.latestOffset(old, ALL)
    assert reads(reader, old, later) == {"t-0": (0, 150)}
    assert "divergent_offset" not in later["truncations"][0]
    # If it is still valid it gets its epochs with the next batch.
    fine = {"topics": {"t": {"id": ids, "partitions": {"0": {"leader_epoch": 4, "offset": 120}}}}, "version": 1}
    later = reader.latestOffset(fine, ALL)
    assert later["topics"]["t"]["partitions"]["0"]["epochs"] == [[3, 0], [4, 60]]


def test_a_checkpoint_without_epochs_detects_a_shorter_log() -> None:
    cluster = cluster_with(100)
    error = losing(cluster, {"t": {"0": 150}})
    assert (error.kind, error.losses[0].offset) == (LossKind.LOG_TRUNCATED, 150)
    # The divergence point is unknown: the complete log is reread rather than less than what changed.
    reader = make(cluster, onTruncation="rewind")
    assert reads(reader, {"t": {"0": 150}}, reader.latestOffset({"t": {"0": 150}}, ALL)) == {"t-0": (0, 100)}
