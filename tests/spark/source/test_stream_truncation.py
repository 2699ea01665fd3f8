"""A stream whose log was truncated: while planning and while replaying, with the policies fail and rewind. No Spark
session, no broker."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import DataLossError, LossKind, losses_of
from tests.spark.fakes import FakeLog
from tests.spark.streams import ALL, cluster_with, ends, losing, make, planned, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_truncation_and_regrowth_is_detected_in_latest_offset() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    error = losing(cluster, end)
    assert error.kind is LossKind.LOG_TRUNCATED
    (loss,) = error.losses
    assert (loss.offset, loss.leader_epoch, loss.divergent_offset, loss.log_end_offset) == (150, 0, 100, 200)


@pytest.mark.parametrize("known", ["here", None])
def test_a_truncation_names_the_cluster_of_the_checkpoint(known: str | None) -> None:
    cluster = cluster_with(150)
    cluster.id = known
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(100)
    for error in (losing(cluster, second), losing(cluster, first, second)):
        assert error.kind is LossKind.LOG_TRUNCATED
        assert [(loss.cluster_id, loss.found_cluster_id) for loss in error.losses] == [(known, None)]
        assert f'"cluster_id": {json.dumps(known)}' in str(error)


def test_a_running_query_detects_a_truncation() -> None:
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


def test_the_end_of_a_batch_is_not_asked_again_under_the_leader_that_named_it() -> None:
    cluster = cluster_with(150)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    asked: list[int] = []
    for _ in range(3):
        cluster.log("t").append(10)
        begin, end = end, reader.latestOffset(end, ALL)
        cluster.questions.clear()
        reader.partitions(begin, end)
        asked.append(cluster.questions.count("epoch_ends"))
        assert cluster.questions.count("log_ends") == 1
    assert asked == [0, 0, 0]
    cluster.log("t").elect(2, keep=165)
    cluster.log("t").append(100)
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        reader.partitions(begin, end)


def test_truncation_is_detected_when_a_batch_is_replayed() -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(100)
    error = losing(cluster, first, second)
    assert (error.kind, error.losses[0].divergent_offset, error.losses[0].offset) == (LossKind.LOG_TRUNCATED, 180, 200)
    # Below the start as well: reported once, for the start.
    cluster.log("t").elect(3, keep=100)
    cluster.log("t").append(200)
    error = losing(cluster, first, second)
    assert [(loss.divergent_offset, loss.offset) for loss in error.losses] == [(100, 150)]


def test_a_tolerated_truncation_continues_from_the_divergence_point() -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    lax = make(cluster, failOnDataLoss="false")
    later = lax.latestOffset(end, ALL)
    assert ends(later) == {"t-0": 200}
    assert reads(lax, end, later) == {"t-0": (100, 200)}
    assert lax.latestOffset(later, ALL) == later


def test_tolerated_losses_may_move_offsets_back() -> None:
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


def test_each_policy_applies_to_its_own_kind() -> None:
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


def test_the_offset_reports_each_loss_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(20)
    reader = make(cluster, onTruncation="rewind")
    later = reader.latestOffset(end, ALL)
    assert later["truncations"] == [
        {
            "cluster_id": cluster.id,
            "current_leader_epoch": 2,
            "divergent_offset": 100,
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
    assert (loss.kind, loss.divergent_offset, loss.offset) == (LossKind.LOG_TRUNCATED, 100, 150)
    assert reads(reader, end, later) == {"t-0": (100, 120)}
    assert reader.latestOffset(later, ALL) == later
    cluster.log("t").append(1)
    assert "truncations" not in reader.latestOffset(later, ALL)


def test_a_rewind_is_replayed_as_it_was_planned() -> None:
    """Even if the log has returned to its earlier state by then: the plan is in the checkpoint."""
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


def test_a_replay_reads_the_rest_of_its_range_and_then_rewinds() -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    before = list(cluster.log("t").epochs)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(5)
    reader = make(cluster, onTruncation="rewind")
    assert reads(reader, first, second) == {"t-0": (150, 180)}
    # After another unclean election the log is in its earlier state: records that the batch skipped are still read.
    cluster.logs[TopicPartition("t", 0)] = FakeLog(before, leader_epoch=3)
    third = reader.latestOffset(second, ALL)
    assert reads(reader, second, third) == {"t-0": (180, 200)}
    assert third["truncations"][0]["resume_offset"] == 180


def test_two_elections_within_a_batch_cause_a_reread() -> None:
    """A task may have read the log of the first election and skipped records, and the second may have restored them."""
    cluster = cluster_with(150)
    reader = make(cluster, onTruncation="rewind")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").append(50)
    second = reader.latestOffset(first, ALL)
    assert reads(reader, first, second) == {"t-0": (150, 200)}
    cluster.log("t").elect(2)
    third = reader.latestOffset(second, ALL)
    assert reads(reader, second, third) == {"t-0": (150, 200)}
    # After the reread, elections are ignored.
    assert reader.latestOffset(third, ALL) == third
    cluster.log("t").elect(9)
    assert reader.latestOffset(third, ALL) == third
    assert make(cluster).latestOffset(second, ALL) == second


def test_batches_reread_after_two_elections_have_distinct_end_offsets() -> None:
    """Spark runs no batch whose end offset equals, as text, the current one (S4): later records would never be read."""
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
    # The leader of epoch 3 had 107 records, appended 20, and is elected.
    cluster.logs[TopicPartition("t", 0)] = FakeLog([0] * 100 + [2] * 7 + [3] * 50, leader_epoch=6)
    with pytest.raises(DataLossError) as caught:
        make(cluster).latestOffset(end, ALL)
    assert [(loss.divergent_offset, loss.offset) for loss in caught.value.losses] == [(107, 130)]
    again = make(cluster, onTruncation="rewind")
    later = again.latestOffset(end, ALL)
    assert reads(again, end, later) == {"t-0": (107, 157)}
    place = {"epochs": [[0, 0], [2, 100], [3, 107]], "leader_epoch": 3, "offset": 157}
    assert later["topics"]["t"]["partitions"]["0"] == place


def test_an_election_without_loss_is_not_reported() -> None:
    cluster = cluster_with(5)
    begin, end = planned(cluster)
    cluster.log("t").elect(7)
    cluster.log("t").append(5)
    reader = make(cluster)
    assert reads(reader, begin, end) == {"t-0": (0, 5)}
    assert ends(reader.latestOffset(end, ALL)) == {"t-0": 10}
