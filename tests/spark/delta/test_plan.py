"""A table kept equal to the log: tasks and commits as Spark runs them, against an in-memory log that is truncated
and grows again, with crashes and concurrent drivers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_matching import LogEpochs
from pyspark_fenceline.delta import checkpoint_positions
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta import evidence as delta_evidence
from pyspark_fenceline.delta import plan as delta_plan
from pyspark_fenceline.delta.commit import commit_files, partition_columns
from pyspark_fenceline.delta.evidence import TruncationEvidence, gather_evidence, merge_evidence
from pyspark_fenceline.delta.files import DataFile, FileWriter
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions, delta_options
from pyspark_fenceline.delta.schema import file_schema, fit, new_shape
from pyspark_fenceline.delta.state import read_state
from pyspark_fenceline.delta.table_files import compared_epochs, open_table, table_files
from tests.spark.fakes import FakeCluster, install_fake_cluster
from tests.spark.schemas import struct
from tests.spark.table_readers import check_readers

SCHEMA = struct("value string, topic string, partition int, offset long, leader_epoch int")
Row = tuple[str, int, int, int | None]
"""Topic, partition, offset, epoch."""


class Crash(BaseException):
    """Simulates the death of the process; nothing catches it."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


@pytest.fixture(params=["by partition", "flat"])
def options(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaOptions:
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"}
    return delta_options(given if request.param == "by partition" else {**given, "partitionBy": ""})


def records(cluster: FakeCluster, first: int, end: int, partition: int = 0, topic: str = "t") -> list[Row]:
    log = cluster.log(topic, partition)
    return [(topic, partition, offset, log.epochs[offset]) for offset in range(first, min(end, len(log.epochs)))]


def arrow(rows: Iterable[Row]) -> pa.RecordBatch:
    found = list(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"{o} in {e}" for _, _, o, e in found], pa.string()),
            pa.array([t for t, _, _, _ in found], pa.string()),
            pa.array([p for _, p, _, _ in found], pa.int32()),
            pa.array([o for _, _, o, _ in found], pa.int64()),
            pa.array([e for _, _, _, e in found], pa.int32()),
        ],
        names=["value", "topic", "partition", "offset", "leader_epoch"],
    )


def task(
    options: DeltaOptions, rows: Iterable[Row], *, schema: Any = SCHEMA
) -> tuple[list[DataFile], TruncationEvidence]:
    """The work of one task: write files, then query the log."""
    table = open_table(options)
    shape = (
        new_shape(schema, partition_columns(options))
        if table is None
        else fit(table, schema, options.partition_by, options.path, may_grow=options.merge_schema)
    )
    writer = FileWriter(options, shape, file_schema(schema, shape), (), task_number=0, is_tracked=True)
    batch = arrow(rows)
    if len(schema) > len(SCHEMA):
        batch = batch.append_column("more", pa.array(["x"] * batch.num_rows))
    writer.write(batch)
    files = writer.finish()
    assert options.client is not None
    known = {} if table is None else compared_epochs(options, table)
    return files, gather_evidence(options.client, [span for file in files for span in file.spans], known)


def write(options: DeltaOptions, number: int, rows: Iterable[Row], *, app: str = "q") -> bool:
    files, evidence = task(options, rows)
    return commit(options, number, files, evidence, app=app)


def commit(
    options: DeltaOptions, number: int, files: list[DataFile], evidence: TruncationEvidence, *, app: str = "q"
) -> bool:
    return commit_files(
        options,
        SCHEMA,
        files,
        transaction=AppTransaction(app, number),
        overwrite=False,
        evidence=evidence,
        query_id=app,
    )


def files_on_disk(options: DeltaOptions) -> set[str]:
    return {file.name for file in Path(options.path).rglob("*.parquet") if "_delta_log" not in file.parts}


def table_rows(options: DeltaOptions) -> list[Row]:
    table = open_table(options)
    if table is None:
        return []
    columns = table.to_pyarrow_table(columns=["topic", "partition", "offset", "leader_epoch", "value"]).to_pylist()
    assert all(row["value"] == f"{row['offset']} in {row['leader_epoch']}" for row in columns)
    return sorted((r["topic"], r["partition"], r["offset"], r["leader_epoch"]) for r in columns)


def log_rows(cluster: FakeCluster, topic: str = "t") -> list[Row]:
    return sorted(
        row for tp in cluster.logs if tp.topic == topic for row in records(cluster, 0, 1 << 40, tp.partition, topic)
    )


def test_stale_rows_are_removed_with_the_next_batch(cluster: FakeCluster, options: DeltaOptions) -> None:
    log = cluster.log("t")
    log.append(10)
    cluster.log("t", 1).append(4)
    write(options, 0, records(cluster, 0, 5) + records(cluster, 0, 4, 1))
    write(options, 1, records(cluster, 5, 10))
    log.elect(1, keep=7)
    log.append(5)
    # Only the other partition has new records, and without a checkpoint the sink cannot know that the source rewound.
    cluster.log("t", 1).append(1)
    write(options, 2, records(cluster, 4, 5, 1))
    assert table_rows(options) == [("t", 0, offset, 0) for offset in range(10)] + records(cluster, 0, 5, 1)
    write(options, 3, records(cluster, 7, 9))
    assert table_rows(options) == records(cluster, 0, 9) + records(cluster, 0, 5, 1)
    table = open_table(options)
    assert table is not None
    reported = table.history(2)[1]["fenceline"]["repair"]
    assert reported["removed_rows"] == 3
    assert [(one["first_offset"], one["last_offset"], one["epoch"]) for one in reported["ranges"]] == [(7, 9, 0)]


def test_rows_of_a_lost_leader_are_removed_without_a_newer_epoch_below(
    cluster: FakeCluster, options: DeltaOptions
) -> None:
    log = cluster.log("t")
    log.elect(3)
    log.append(9)
    write(options, 0, records(cluster, 0, 9))
    lost = [("t", 0, offset, 5) for offset in (9, 10)]
    # Read from a leader of epoch 5 while it led; the log continued without its records.
    log.leader_epoch = 5
    write(options, 1, lost)
    log.leader_epoch = 3
    log.append(3)
    log.elect(6)
    log.append(2)
    write(options, 2, records(cluster, 9, 14))
    assert table_rows(options) == log_rows(cluster)


def test_only_the_affected_files_are_rewritten(cluster: FakeCluster, options: DeltaOptions) -> None:
    for index in (0, 1):
        cluster.log("t", index).append(30)
    for number in range(3):
        write(options, number, records(cluster, number * 10, number * 10 + 10))
    for number in range(3):
        write(options, 3 + number, records(cluster, number * 10, number * 10 + 10, 1))
    before = {file.path for file in table_files(open_table(options))}
    cluster.log("t").elect(1, keep=15)
    cluster.log("t").append(1)
    write(options, 6, records(cluster, 15, 16))
    after = {file.path for file in table_files(open_table(options))}
    # One file of the truncated partition was completely stale, one partly.
    assert len(before - after) == 2
    assert len(after - before) == 2
    assert table_rows(options) == log_rows(cluster)


def test_nothing_is_read_or_listed_while_leaders_are_unchanged(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.log("t")
    log.append(20)
    write(options, 0, records(cluster, 0, 5))

    def refuse(*_: Any) -> Any:
        raise AssertionError("looked at the table's files")

    monkeypatch.setattr(delta_plan, "table_files", refuse)
    monkeypatch.setattr(delta_plan, "read_log_columns", refuse)
    cluster.questions.clear()
    write(options, 1, records(cluster, 5, 10))
    assert "epoch_ends" not in cluster.questions
    assert table_rows(options) == records(cluster, 0, 10)


def test_records_already_in_the_table_are_not_added_again(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(20)
    write(options, 0, records(cluster, 0, 10))
    # A new checkpoint: a query that starts at the beginning, and one that starts in the middle.
    write(options, 0, records(cluster, 9, 11), app="last one")
    write(options, 0, records(cluster, 0, 12), app="again")
    write(options, 0, records(cluster, 3, 20), app="third")
    write(options, 1, records(cluster, 0, 20), app="third")
    assert table_rows(options) == log_rows(cluster)


def test_rows_truncated_while_a_batch_is_written_are_removed_with_the_next(
    cluster: FakeCluster, options: DeltaOptions
) -> None:
    log = cluster.log("t")
    log.append(10)
    rows = records(cluster, 0, 10)
    log.elect(1, keep=6)
    log.append(1)
    write(options, 0, rows)
    assert table_rows(options) == rows
    # The source has detected it and continues at the divergence point.
    write(options, 1, records(cluster, 6, 7))
    assert table_rows(options) == log_rows(cluster)
    # Rows of both histories in one batch: the rows that the source read last are in the log.
    mixed = [("t", 0, offset, 1) for offset in range(7, 12)]
    log.elect(2)
    log.append(2)
    write(options, 2, mixed + records(cluster, 7, 9))
    assert table_rows(options) == log_rows(cluster)


@pytest.mark.parametrize("committed", [0, 4, 10])
def test_rows_restored_by_an_old_leader_are_in_the_table(
    cluster: FakeCluster, options: DeltaOptions, committed: int
) -> None:
    """Two unclean elections between two plans of the source: it sees a log that it has already read, and continues."""
    log = cluster.log("t")
    log.append(10)
    rows = records(cluster, 0, 10)
    write(options, 0, rows[:committed])
    held = list(log.epochs)
    log.elect(1, keep=6)
    log.append(8)
    # A batch of the old history is committed under the leader that has lost it, then a batch without its rows.
    write(options, 1, rows[committed:])
    write(options, 2, [("t", 1, 0, 0)])
    cluster.log("t", 1).append(1)
    log.epochs = held
    log.elect(2)
    log.append(3)
    write(options, 3, records(cluster, 10, 13))
    assert table_rows(options) == log_rows(cluster)


def test_a_deposed_leader_unaware_of_it_proves_nothing(cluster: FakeCluster, options: DeltaOptions) -> None:
    log = cluster.log("t")
    log.append(5)
    log.elect(2)
    log.append(5)
    write(options, 0, records(cluster, 0, 10))
    held = list(log.epochs)
    # The old leader answers: its log ends where it was isolated.
    log.epochs, log.leader_epoch = held[:5] + [0] * 2, 0
    write(options, 1, [])
    assert len(table_rows(options)) == 10
    log.epochs, log.leader_epoch = held, 2
    write(options, 2, [])
    assert table_rows(options) == log_rows(cluster)


def test_answers_of_a_leader_older_than_the_newest_known_remove_no_rows(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    held = list(log.epochs)
    log.elect(2)
    files, evidence = task(options, [])
    # Between the task's request and the commit's request an old leader with a shorter log answers.
    log.epochs, log.leader_epoch = [*held[:5], 1], 1
    commit_files(options, SCHEMA, files, transaction=AppTransaction("q", 1), overwrite=False, evidence=evidence)
    assert len(table_rows(options)) == 10
    log.epochs, log.leader_epoch = [*held, 2], 2
    write(options, 2, records(cluster, 10, 11))
    assert table_rows(options) == log_rows(cluster)


def test_a_leader_older_than_the_batch_removes_no_rows(cluster: FakeCluster, options: DeltaOptions) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    held = [*log.epochs, 3]
    log.elect(2, keep=5)
    log.append(2)
    cut_off = list(log.epochs)
    # A third leader has what the second one lost; the source reads from it, and the sink queries the second one.
    log.epochs, log.leader_epoch = held, 3
    rows = records(cluster, 10, 11)
    log.epochs, log.leader_epoch = cut_off, 2
    write(options, 1, rows)
    log.epochs, log.leader_epoch = held, 3
    assert table_rows(options) == log_rows(cluster)


@pytest.mark.parametrize("newer_first", [True, False])
def test_the_newer_of_two_leaders_found_by_tasks_decides(newer_first: bool) -> None:
    tp = TopicPartition("t", 0)
    old = TruncationEvidence({tp: 2}, {tp: LogEpochs(2, 0, 5)}, {"t": "old id"})
    new = TruncationEvidence({tp: 3}, {tp: LogEpochs(3, 0, 4)}, {"t": "new id"})
    assert merge_evidence([new, old] if newer_first else [old, new]) == new
    # The newer one had nothing to look up: then the history of the older one is not used.
    bare = TruncationEvidence({tp: 3}, {}, {"t": "new id"})
    assert merge_evidence([bare, old] if newer_first else [old, bare]) == bare


def test_batches_from_brokers_without_epochs_are_written(
    cluster: FakeCluster, options: DeltaOptions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_evidence, "_has_warned", False)
    cluster.keeps_epochs = False
    cluster.log("t").append(10)
    rows = [(topic, partition, offset, None) for topic, partition, offset, _ in records(cluster, 0, 10)]
    write(options, 0, rows[:6])
    write(options, 0, rows, app="again")
    assert len(table_rows(options)) == 10
    assert caplog.text.count("truncation cannot be detected") == 1


@pytest.mark.long
def test_a_batch_of_a_thousand_partitions(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.create("many", 1000)
    for index in range(1000):
        cluster.log("many", index).append(3)
    rows = [row for index in range(1000) for row in records(cluster, 0, 2, index, "many")]
    write(options, 0, rows)
    for index in range(0, 1000, 100):
        cluster.log("many", index).elect(1, keep=1)
        cluster.log("many", index).append(1)
    before = {file.path for file in table_files(open_table(options))}
    # One partition has new records: its stale row is removed, and no other file changes.
    write(options, 1, records(cluster, 1, 2, 500, "many"))
    gone = before - {file.path for file in table_files(open_table(options))}
    assert len(gone) == 1
    rows.remove(("many", 500, 1, 0))
    assert table_rows(options) == sorted([*rows, ("many", 500, 1, 1)])


def test_a_query_of_empty_topics_creates_an_empty_table(cluster: FakeCluster, options: DeltaOptions) -> None:
    write(options, 0, [])
    assert table_rows(options) == []
    cluster.log("t").elect(4)
    write(options, 1, [])
    cluster.log("t").append(2)
    write(options, 2, records(cluster, 0, 2))
    assert table_rows(options) == log_rows(cluster)


def test_rows_of_deleted_topics_are_unchanged(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.create("u", 1)
    cluster.log("u").append(3)
    cluster.log("t").append(3)
    write(options, 0, records(cluster, 0, 3) + records(cluster, 0, 3, topic="u"))
    kept = records(cluster, 0, 3, topic="u")
    cluster.delete("u")
    cluster.log("t").elect(1, keep=2)
    write(options, 1, records(cluster, 1, 2))
    assert table_rows(options) == sorted(records(cluster, 0, 2) + kept)


def test_a_recreated_topic_is_rejected_or_replaced(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 10))
    cluster.delete("t")
    cluster.create("t", 2, id="another")
    cluster.log("t").append(4)
    with pytest.raises(OperatorError, match="deleted and recreated: t"):
        write(options, 1, records(cluster, 0, 4))
    write(replace(options, on_recreated="replace"), 1, records(cluster, 0, 4))
    assert table_rows(options) == log_rows(cluster)


def test_a_table_of_other_writers_is_compared_as_a_whole(cluster: FakeCluster, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    path = str(tmp_path / "table")
    cluster.log("t").append(6)
    strange = [("t", 0, 2, 0), ("t", 0, 6, 0), ("t", 1, 0, 0), ("t", 0, 3, 7)]
    write_deltalake(path, pa.Table.from_batches([arrow(strange)]))
    cluster.log("t").elect(1)
    cluster.log("t", 1).elect(1)
    cluster.log("t").append(1)
    cluster.log("t", 1).append(1)
    options = delta_options({"path": path, "kafka.bootstrap.servers": "fake"})
    write(options, 0, records(cluster, 0, 7) + records(cluster, 0, 1, 1))
    # (3, 7) is of an epoch unknown to the leader: this proves nothing.
    assert table_rows(options) == sorted([*log_rows(cluster), ("t", 0, 3, 7)])


def test_rows_without_an_epoch_stay_when_their_file_is_stale(cluster: FakeCluster, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    path = str(tmp_path / "table")
    cluster.log("t").append(3)
    cluster.log("t").elect(2)
    cluster.log("t").append(1)
    write_deltalake(path, pa.Table.from_batches([arrow([("t", 0, 5, 1), ("t", 0, 6, None), ("t", 0, 7, 1)])]))
    write(delta_options({"path": path, "kafka.bootstrap.servers": "fake"}), 0, records(cluster, 0, 4))
    found = DeltaTable(path).to_pyarrow_table().sort_by("offset").select(["offset", "leader_epoch"]).to_pylist()
    assert [(row["offset"], row["leader_epoch"]) for row in found] == [(0, 0), (1, 0), (2, 0), (3, 2), (6, None)]


def test_an_append_only_table_is_not_repaired(cluster: FakeCluster, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    options = delta_options({"path": path, "kafka.bootstrap.servers": "fake"})
    cluster.log("t").append(3)
    write(options, 0, records(cluster, 0, 3))
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    cluster.log("t").append(2)
    write(options, 1, records(cluster, 3, 5))
    cluster.log("t").elect(1, keep=4)
    cluster.log("t").append(1)
    with pytest.raises(OperatorError, match=r"delta\.appendOnly"):
        write(options, 2, records(cluster, 4, 5))
    assert len(table_rows(options)) == 5


def test_no_files_of_a_rewritten_batch_are_left(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(8)
    write(options, 0, records(cluster, 0, 5))
    write(options, 0, records(cluster, 3, 8), app="again")
    assert files_on_disk(options) == {Path(file.path).name for file in table_files(open_table(options))}


def test_a_table_opened_before_another_commit_is_reopened(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 4))
    files, evidence = task(options, records(cluster, 4, 8))
    opened = open_table(options)
    write(options, 0, records(cluster, 4, 6), app="other")
    assert commit_files(
        options,
        SCHEMA,
        files,
        transaction=AppTransaction("q", 1),
        overwrite=False,
        evidence=evidence,
        opened=opened,
    )
    assert table_rows(options) == records(cluster, 0, 8)


def test_new_columns_are_added_when_requested(cluster: FakeCluster, tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"}
    cluster.log("t").append(6)
    write(delta_options(given), 0, records(cluster, 0, 3))
    wide = struct("value string, topic string, partition int, offset long, leader_epoch int, more string")
    with pytest.raises(OperatorError, match=r"more .*not in the table.*mergeSchema"):
        task(delta_options(given), records(cluster, 3, 6), schema=wide)
    options = delta_options({**given, "mergeSchema": "true"})
    files, evidence = task(options, records(cluster, 3, 6), schema=wide)
    commit_files(options, wide, files, transaction=AppTransaction("q", 1), overwrite=False, evidence=evidence)
    table = open_table(options)
    assert table is not None
    found = table.to_pyarrow_table().sort_by("offset").column("more").to_pylist()
    assert found == [None] * 3 + ["x"] * 3


def test_rows_that_are_no_records_are_rejected(cluster: FakeCluster, options: DeltaOptions) -> None:
    with pytest.raises(OperatorError, match="no topic, partition or offset"):
        write(options, 0, [("t", 0, 1, 0), (None, 0, 2, 0)])  # type: ignore[list-item]


@pytest.mark.parametrize("lacking", ["topic", "partition", "offset", "leader_epoch"])
def test_a_table_without_the_columns_is_rejected_with_a_clear_message(
    cluster: FakeCluster, tmp_path: Path, lacking: str
) -> None:
    from deltalake import write_deltalake

    path = str(tmp_path / "table")
    cluster.log("t").append(6)
    write_deltalake(path, pa.Table.from_batches([arrow(records(cluster, 0, 2))]).drop_columns([lacking]))
    options = delta_options({"path": path, "kafka.bootstrap.servers": "fake"})
    with pytest.raises(OperatorError, match=f"does not fit the Delta table .*column {lacking} .*not in the table"):
        write(options, 0, records(cluster, 2, 6))
    table = open_table(options)
    assert table is not None
    assert (table.version(), table.count()) == (0, 2)


def test_a_frame_without_the_columns_is_rejected_with_a_clear_message(options: DeltaOptions) -> None:
    with pytest.raises(OperatorError, match="missing: leader_epoch") as caught:
        delta_commit.check_tracked(options, struct("topic string, partition int, offset long"))
    assert "includeLeaderEpoch" in caught.value.advice


# Crashes, zombies and other writers -----------------------------------------------------------------------------------


def before(owner: Any, name: str) -> Any:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(*_: Any, **__: Any) -> Any:
            raise Crash

        monkeypatch.setattr(owner, name, crash)

    return patch


def after(owner: Any, name: str) -> Any:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def crash(*positional: Any, **named: Any) -> Any:
            real(*positional, **named)
            raise Crash

        monkeypatch.setattr(owner, name, crash)

    return patch


STEPS = {
    "files written": before(delta_commit, "open_table"),
    "before the table is made": before(delta_commit, "_create"),
    "after the table was made": after(delta_commit, "_create"),
    "before columns are added": before(delta_commit, "_add_columns"),
    "after columns were added": after(delta_commit, "_add_columns"),
    "before the files are compared": before(delta_plan, "table_files"),
    "before the checkpoint is read": before(checkpoint_positions, "positions_after"),
    "after the checkpoint was read": after(checkpoint_positions, "positions_after"),
    "before a copy": before(delta_plan, "rewrite"),
    "after a copy": after(delta_plan, "rewrite"),
    "between a repair and its batch": after(delta_commit, "_commit_repair"),
    "before a repair is followed": before(delta_commit, "advance"),
    "before the entry": before(delta_commit, "commit_entry"),
    "after the entry": after(delta_commit, "commit_entry"),
    "before the left-overs go": before(delta_commit, "delete_files"),
    "after the left-overs went": after(delta_commit, "delete_files"),
}


@pytest.mark.parametrize("step", [step for step in STEPS if "table" not in step])
@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_at_any_step_of_a_repair_is_recovered_by_a_replay(
    cluster: FakeCluster, options: DeltaOptions, step: str, crashes: int
) -> None:
    options = replace(options, merge_schema=True)
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    log.elect(1, keep=7)
    log.append(5)
    # Some of the rows are already in the table, so that the batch's own file is rewritten too.
    rows = records(cluster, 5, 12)
    for _ in range(crashes):
        with pytest.MonkeyPatch.context() as patch:
            STEPS[step](patch)
            with contextlib.suppress(Crash):
                write(options, 1, rows)
        # In between the table is a prefix of the log: truncated rows are removed, new ones not yet added.
        assert table_rows(options) in (records_before(), records_before()[:7], log_rows(cluster))
        check_readers(options.path)
    write(options, 1, rows)
    assert table_rows(options) == log_rows(cluster)
    check_readers(options.path)


def records_before() -> list[Row]:
    return [("t", 0, offset, 0) for offset in range(10)]


def test_only_one_of_two_drivers_of_a_query_repairs(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    log.elect(1, keep=7)
    log.append(5)
    real, raced = delta_commit.commit_entry, []

    def zombie_first(*positional: Any, **named: Any) -> None:
        if not raced:
            raced.append(True)
            assert write(options, 1, records(cluster, 7, 12))
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "commit_entry", zombie_first)
    assert not write(options, 1, records(cluster, 7, 12))
    assert table_rows(options) == log_rows(cluster)


def test_rows_added_concurrently_by_another_writer_are_seen(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.log("t").append(12)
    write(options, 0, records(cluster, 0, 4))
    real, raced = delta_commit.commit_entry, []

    def other_first(*positional: Any, **named: Any) -> None:
        if not raced:
            raced.append(True)
            assert write(options, 0, records(cluster, 2, 9), app="other")
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "commit_entry", other_first)
    assert write(options, 1, records(cluster, 4, 12))
    assert table_rows(options) == log_rows(cluster)


@pytest.mark.parametrize("seed", range(60))
def test_the_table_always_converges_to_the_log(cluster: FakeCluster, tmp_path: Path, seed: int) -> None:
    """A query that rewinds to any offset, elections that truncate, crashes at any step, drivers that replay."""
    chance = random.Random(seed)
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake", "mergeSchema": str(seed % 3 > 0)}
    options = delta_options(given if seed % 2 else {**given, "partitionBy": ""})
    batch, epoch = 0, 0
    for _ in range(14):
        for index in (0, 1):
            log = cluster.log("t", index)
            if chance.random() < 0.4:
                epoch += chance.randint(1, 2)
                keep = chance.randint(0, len(log.epochs)) if chance.random() < 0.7 else None
                log.elect(max(epoch, log.leader_epoch + 1), keep=keep)
            log.append(chance.randint(0, 6))
        rows: list[Row] = []
        for index in (0, 1):
            size = len(cluster.log("t", index).epochs)
            first = chance.randint(0, size)
            rows += records(cluster, first, chance.randint(first, size), index)
        if chance.random() < 0.3:
            cluster.log("t").elect(cluster.log("t").leader_epoch + 1, keep=chance.randint(0, size))
        crashed = False
        if chance.random() < 0.5:
            with pytest.MonkeyPatch.context() as patch:
                STEPS[chance.choice(list(STEPS))](patch)
                try:
                    write(options, batch, rows)
                except Crash:
                    crashed = True
        if crashed or chance.random() < 0.9:
            write(options, batch, rows)
        batch += 1
    for index in (0, 1):
        log = cluster.log("t", index)
        log.elect(log.leader_epoch + 1)
        # Stale rows are removed only with a batch that has rows of their partition.
        log.append(1)
    write(options, batch, records(cluster, 0, 1 << 40) + records(cluster, 0, 1 << 40, 1))
    assert table_rows(options) == log_rows(cluster), f"seed {seed}"
    check_readers(options.path)
    state = read_state(open_table(options))
    assert state is not None
    assert all(
        state.partitions[TopicPartition("t", index)].leader_epoch == cluster.log("t", index).leader_epoch
        for index in (0, 1)
        if cluster.log("t", index).epochs
    )
