"""A stream that continues from a checkpoint of Spark's Kafka source: which positions are proven, and which are not.
No session, no broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import DataLossError, LossKind
from pyspark_fenceline.source import stream
from pyspark_fenceline.source.adoption import CODE, UnprovenCheckpointError
from tests.spark.checkpoints import entry, write_commit, write_entry
from tests.spark.fakes import FakeCluster, FakeLog
from tests.spark.streams import ALL, ends, make, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")
HOUR_MS = 3_600_000
PLANNED_MS = 500_000 * HOUR_MS
COMMITTED_MS = PLANNED_MS + 10_000
AT_1500: dict[str, Any] = {"t": {"0": 1500}}


def dated(epochs: list[tuple[int, int, int]], *, leader_epoch: int | None = None, start: int = 0) -> FakeLog:
    """A log of runs of records: epoch, record count, and the timestamp of the first record; records are one second
    apart."""
    log = FakeLog([], start=start)
    for epoch, count, first_ms in epochs:
        for number in range(count):
            log.timestamps[len(log.epochs)] = first_ms + 1000 * number
            log.epochs.append(epoch)
    log.leader_epoch = epochs[-1][0] if leader_epoch is None else leader_epoch
    log.timestamps = {offset: at for offset, at in log.timestamps.items() if offset >= start}
    return log


def cluster_of(log: FakeLog) -> FakeCluster:
    cluster = FakeCluster(t=1)
    cluster.logs[TopicPartition("t", 0)] = log
    return cluster


@pytest.fixture(autouse=True)
def gaps(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """Offset ranges removed by compaction."""
    taken: list[range] = []

    def holding(_: object, ranges: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        return {
            tp
            for tp, (start, end) in ranges.items()
            if any(not any(offset in gap for gap in taken) for offset in range(start, end))
        }

    monkeypatch.setattr(stream, "partitions_with_records", holding)
    return taken


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A checkpoint of one batch, up to 1500."""
    write_entry(tmp_path, "q", 0, entry(AT_1500, planned_ms=PLANNED_MS))
    write_commit(tmp_path, 0, COMMITTED_MS)
    return str(tmp_path)


BEFORE_MS = PLANNED_MS - HOUR_MS
AFTER_MS = PLANNED_MS + HOUR_MS
CUT = [(0, 1000, BEFORE_MS), (1, 700, AFTER_MS)]
"""As in the issue: 1500 were read, the log was truncated to 1000 and has grown to 1700."""


def test_a_truncation_below_the_position_is_detected(place: str) -> None:
    reader = make(cluster_of(dated(CUT)), checkpointLocation=place)
    with pytest.raises(DataLossError) as caught:
        reader.latestOffset(AT_1500, ALL)
    (loss,) = caught.value.losses
    assert (loss.kind, loss.offset, loss.divergent_offset) == (LossKind.LOG_TRUNCATED, 1500, 1000)
    reader = make(cluster_of(dated(CUT)), checkpointLocation=place, onTruncation="rewind", statefulQuery="false")
    later = reader.latestOffset(AT_1500, ALL)
    assert reads(reader, AT_1500, later) == {"t-0": (1000, 1700)}


def test_an_unknown_divergence_point_restarts_at_the_log_start(place: str) -> None:
    # The query may also have read a leader of epoch 1, which may have lost records below 1000.
    log = dated([(0, 1000, BEFORE_MS), (2, 700, AFTER_MS)])
    with pytest.raises(DataLossError) as caught:
        make(cluster_of(log), checkpointLocation=place).latestOffset(AT_1500, ALL)
    assert [(loss.offset, loss.divergent_offset) for loss in caught.value.losses] == [(1500, None)]
    reader = make(cluster_of(log), checkpointLocation=place, onTruncation="rewind", statefulQuery="false")
    assert reads(reader, AT_1500, reader.latestOffset(AT_1500, ALL)) == {"t-0": (0, 1700)}


@pytest.mark.parametrize(
    "log",
    [
        dated([(0, 1700, BEFORE_MS)]),
        dated([(0, 1000, BEFORE_MS), (4, 700, BEFORE_MS + 1_000_000)]),
        dated([(0, 1500, BEFORE_MS), (1, 200, AFTER_MS)]),
        dated([(0, 1700, BEFORE_MS)], start=1400),
    ],
    ids=["one epoch", "its leader led before", "a later epoch begins above", "old records expired"],
)
def test_a_proven_checkpoint_continues_with_epochs(place: str, log: FakeLog, caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_of(log)
    reader = make(cluster, checkpointLocation=place)
    with caplog.at_level(logging.WARNING, "pyspark_fenceline"):
        later = reader.latestOffset(AT_1500, ALL)
    assert "Spark's source can no longer read it" in caplog.text
    assert reads(reader, AT_1500, later) == {"t-0": (1500, 1700)}
    assert later["topics"]["t"]["id"] == cluster.ids["t"]
    assert later["topics"]["t"]["partitions"]["0"]["epochs"]
    # From now on it is an ordinary checkpoint.
    log.elect(9, keep=1600)
    log.append(200)
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        make(cluster).latestOffset(json.loads(json.dumps(later)), ALL)


def test_epochs_are_added_to_the_checkpoint_without_new_records(place: str) -> None:
    log = dated([(0, 1500, BEFORE_MS)])
    reader = make(cluster_of(log), checkpointLocation=place)
    later = reader.latestOffset(AT_1500, ALL)
    assert later["topics"]["t"]["partitions"]["0"] == {"epochs": [[0, 0]], "leader_epoch": 0, "offset": 1500}
    assert reads(reader, AT_1500, later) == {}
    # A running query detects a truncation below its first position.
    log.elect(1, keep=1000)
    log.append(700)
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        reader.latestOffset(later, ALL)


def unproven(log: FakeLog, **options: str) -> str:
    with pytest.raises(UnprovenCheckpointError, match=CODE) as caught:
        make(cluster_of(log), **options).latestOffset(AT_1500, ALL)
    assert "onUnproven" in caught.value.advice
    return str(caught.value)


def test_a_checkpoint_without_commit_times_proves_nothing() -> None:
    message = unproven(dated(CUT))
    assert message.startswith(
        "The records before the checkpoint's positions are not proven to be in the log: t-0 at 1500: "
    )
    assert "no option checkpointLocation" in message
    assert "its epochs: 0 from 0, 1 from 1000" in message
    # Nor in a log of one epoch: a recreated topic also begins with epoch 0.
    assert "no option checkpointLocation" in unproven(dated([(0, 1700, BEFORE_MS)]))


def test_an_unproven_checkpoint_continues_when_the_option_accepts_it(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"onUnproven": "accept"}, {"failOnDataLoss": "false"}):
        reader = make(cluster_of(dated(CUT)), **options)
        caplog.clear()
        later = reader.latestOffset(AT_1500, ALL)
        assert reads(reader, AT_1500, later) == {"t-0": (1500, 1700)}
        assert CODE in caplog.text
        assert later["topics"]["t"]["partitions"]["0"]["epochs"] == [[0, 0], [1, 1000]]
        # The progress reports it, too.
        assert later["unproven"] == AT_1500
        grown = cluster_of(dated([*CUT[:1], (1, 800, AFTER_MS)]))
        assert "unproven" not in make(grown).latestOffset(later, ALL)
    with pytest.raises(UnprovenCheckpointError):
        make(cluster_of(dated(CUT)), failOnDataLoss="false", onUnproven="fail").latestOffset(AT_1500, ALL)


def test_accepting_does_not_apply_to_a_proven_truncation(place: str) -> None:
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        make(cluster_of(dated(CUT)), checkpointLocation=place, onUnproven="accept").latestOffset(AT_1500, ALL)


@pytest.mark.parametrize(
    ("log", "because"),
    [
        (dated([(0, 1000, 0), (1, 700, 1_000_000)]), "not append times"),
        (dated([(0, 1700, AFTER_MS)]), "not append times, or this is another log"),
        (dated([(0, 1000, BEFORE_MS), (1, 700, PLANNED_MS + 2000)]), "epoch 1 of the log begins at 1000"),
        (dated([(0, 1500, BEFORE_MS)], leader_epoch=2), r"epochs 1"),
        (dated([(0, 1500, BEFORE_MS), (3, 200, AFTER_MS)]), r"epochs 1 to 2"),
    ],
    ids=["dates of events", "a topic made anew, with other dates", "between plan and commit", "no records", "a gap"],
)
def test_ambiguous_timestamps_prove_nothing(place: str, log: FakeLog, because: str) -> None:
    if because.endswith("another log"):
        # All records are dated after the commit: this is a proven truncation.
        with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
            make(cluster_of(log), checkpointLocation=place).latestOffset(AT_1500, ALL)
        return
    assert because in unproven(log, checkpointLocation=place)


def test_one_record_with_a_future_timestamp_is_no_truncation(place: str) -> None:
    log = dated([(0, 1700, BEFORE_MS)])
    log.timestamps[700] = AFTER_MS
    reader = make(cluster_of(log), checkpointLocation=place)
    assert ends(reader.latestOffset(AT_1500, ALL)) == {"t-0": 1700}


def test_an_epoch_without_a_record_dated_before_the_commit_proves_nothing(place: str, gaps: list[range]) -> None:
    log = dated([(0, 1000, BEFORE_MS), (1, 700, AFTER_MS)])
    gaps.append(range(1000, 1003))
    for offset in gaps[0]:
        del log.timestamps[offset]
    assert "epoch 1 of the log begins at 1000, below the position" in unproven(log, checkpointLocation=place)
    # An epoch that kept a later record dated before the plan does.
    log = dated([(0, 1000, BEFORE_MS), (1, 700, BEFORE_MS + 1_000_000)])
    reader = make(cluster_of(log), checkpointLocation=place)
    assert ends(reader.latestOffset(AT_1500, ALL)) == {"t-0": 1700}


def receipt(**fields: Any) -> LossReceipt:
    known: dict[str, Any] = {
        "id": "a1b2c3",
        "topic": "t",
        "topic_id": "t-0-id",
        "partition": 0,
        "start_offset": 1000,
        "end_offset_exclusive": 1500,
        "leader_epochs": (0,),
        "records": 500,
        "size_bytes": 5000,
        "loss_class": "committed",
        "cause": "divergence",
        "replica": 2,
        "leader": 1,
        "time_ms": AFTER_MS,
        "evidence": (),
    }
    return LossReceipt(**{**known, **fields})


@pytest.fixture
def set_receipts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def replace_receipts(*receipts: LossReceipt) -> None:
        monkeypatch.setattr(stream, "known_losses", lambda *_: list(receipts))

    return replace_receipts


def test_a_receipt_decides_where_timestamps_do_not(place: str, set_receipts: Callable[..., None]) -> None:
    set_receipts(receipt())
    log = dated([(0, 1000, 0), (2, 700, 1_000_000)])
    with pytest.raises(DataLossError) as caught:
        make(cluster_of(log), checkpointLocation=place).latestOffset(AT_1500, ALL)
    assert [(loss.offset, loss.divergent_offset) for loss in caught.value.losses] == [(1500, 1000)]
    # Without commit times the loss may have happened before the read.
    assert "a1b2c3 (node 2 lost offsets 1000 to 1499" in unproven(log)


def test_a_receipt_that_contradicts_the_timestamps_proves_nothing(
    place: str, set_receipts: Callable[..., None]
) -> None:
    log = dated([(0, 1000, BEFORE_MS), (2, 700, BEFORE_MS + 1_000_000)])
    set_receipts(receipt())
    assert "a loss receipt contradicts it" in unproven(log, checkpointLocation=place)
    set_receipts(receipt(topic_id="older-id", cause="topic_deleted", loss_class="expired"))
    assert "another id existed after the plan" in unproven(log, checkpointLocation=place)


@pytest.mark.parametrize(
    "fields",
    [
        {"time_ms": BEFORE_MS},
        {"loss_class": "never_acknowledged"},
        {"loss_class": "expired"},
        {"leader_epochs": (0, 2), "end_offset_exclusive": 1200},
        {"start_offset": 1500, "end_offset_exclusive": 1600},
        {"partition": 1},
    ],
    ids=["before the plan", "not readable", "deleted on purpose", "fetched again", "above", "another partition"],
)
def test_receipts_of_other_records_are_ignored(
    place: str, set_receipts: Callable[..., None], fields: dict[str, Any]
) -> None:
    set_receipts(receipt(**fields))
    log = dated([(0, 1100, BEFORE_MS), (2, 600, BEFORE_MS + 1_100_000)])
    reader = make(cluster_of(log), checkpointLocation=place)
    assert ends(reader.latestOffset(AT_1500, ALL)) == {"t-0": 1700}


def test_the_commit_time_is_of_the_last_batch_that_read_the_partition(tmp_path: Path) -> None:
    both = {"t": {"0": 1500, "1": 20}}
    write_entry(tmp_path, "q", 4, entry({"t": {"0": 900, "1": 10}}, planned_ms=PLANNED_MS - HOUR_MS))
    write_entry(tmp_path, "q", 5, entry({"t": {"0": 1500, "1": 10}}, planned_ms=PLANNED_MS))
    write_entry(tmp_path, "q", 6, entry(both, planned_ms=AFTER_MS + HOUR_MS))
    for batch, at in ((4, PLANNED_MS - HOUR_MS), (5, COMMITTED_MS), (6, AFTER_MS + HOUR_MS)):
        write_commit(tmp_path, batch, at)
    cluster = FakeCluster(t=2)
    cluster.logs[TopicPartition("t", 0)] = dated(CUT)
    cluster.logs[TopicPartition("t", 1)] = dated([(0, 20, AFTER_MS)])
    with pytest.raises(DataLossError) as caught:
        make(cluster, checkpointLocation=str(tmp_path)).latestOffset(both, ALL)
    assert [(loss.partition, loss.divergent_offset) for loss in caught.value.losses] == [(0, 1000)]


def test_a_replayed_batch_of_the_other_source_is_checked(tmp_path: Path) -> None:
    first: dict[str, Any] = {"t": {"0": 1200}}
    write_entry(tmp_path, "q", 0, entry(first, planned_ms=PLANNED_MS - 60_000))
    write_entry(tmp_path, "q", 1, entry(AT_1500, planned_ms=PLANNED_MS))
    write_commit(tmp_path, 0, PLANNED_MS - 50_000)
    options = {"checkpointLocation": str(tmp_path)}
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        make(cluster_of(dated(CUT)), **options).partitions(first, AT_1500)
    reader = make(cluster_of(dated([(0, 1700, BEFORE_MS)])), **options)
    assert reads(reader, first, AT_1500) == {"t-0": (1200, 1500)}
    with pytest.raises(UnprovenCheckpointError):
        make(cluster_of(dated(CUT))).partitions(first, AT_1500)


def test_a_checkpoint_at_the_first_offset_has_read_nothing() -> None:
    log = dated([(3, 20, 0)])
    assert ends(make(cluster_of(log)).latestOffset({"t": {"0": 0}}, ALL)) == {"t-0": 20}


@pytest.mark.parametrize("kind", ["missing", "of another format", "another query's"])
def test_a_checkpoint_without_usable_commit_times_is_unproven(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "checkpoint"
    if kind == "of another format":
        write_entry(folder, "q", 0, entry(AT_1500, version="v2"))
    elif kind == "another query's":
        write_entry(folder, "q", 0, entry({"t": {"0": 1400}}, planned_ms=PLANNED_MS))
    assert f"checkpointLocation {folder}" in unproven(dated(CUT), checkpointLocation=str(folder))
