"""Downstream readers of a repaired table: streams, streams that skip changes, the change data feed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta.commit import commit_files
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions, delta_options
from pyspark_fenceline.delta.state import read_state
from tests.spark.delta.test_plan import (
    SCHEMA,
    Crash,
    after,
    arrow,
    commit,
    log_rows,
    records,
    table_rows,
    task,
    write,
)
from tests.spark.fakes import FakeCluster, install_fake_cluster
from tests.spark.table_readers import (
    ChangeFound,
    change_feed,
    check_readers,
    stream,
    stream_without_changes,
    versions,
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


@pytest.fixture(params=["by partition", "flat"])
def options(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaOptions:
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"}
    return delta_options(given if request.param == "by partition" else {**given, "partitionBy": ""})


@pytest.fixture
def fed(options: DeltaOptions) -> DeltaOptions:
    """The table is created with a change data feed."""
    return replace(options, properties={"delta.enableChangeDataFeed": "true"})


def cut(cluster: FakeCluster, options: DeltaOptions) -> None:
    """Ten rows of partition 0 are in the table, three of them not in the log, which has five new records."""
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    log.elect(1, keep=7)
    log.append(5)


def test_a_repair_is_a_separate_entry_before_the_new_rows(cluster: FakeCluster, options: DeltaOptions) -> None:
    cut(cluster, options)
    before = DeltaTable(options.path).version()
    assert write(options, 1, records(cluster, 7, 12))
    repair, append = versions(options.path, before + 1)
    assert repair.removed - repair.added == {("t", 0, offset, 0): 1 for offset in (7, 8, 9)}
    assert not repair.added - repair.removed
    assert append.added == {("t", 0, offset, 1): 1 for offset in range(7, 12)}
    assert not append.removed
    check_readers(options.path)
    # A reader that skips changes has every record of the log; a reader without options fails at the repair.
    assert set(log_rows(cluster)) <= set(stream_without_changes(options.path))
    with pytest.raises(ChangeFound):
        stream(options.path)
    # The batch number is recorded with the rows, not with the repair.
    assert DeltaTable(options.path, version=before + 1).transaction_version("q") == 0
    assert DeltaTable(options.path).transaction_version("q") == 1
    assert read_state(DeltaTable(options.path, version=before + 1)) is not None


def test_a_reader_starting_between_repair_and_rows_continues(cluster: FakeCluster, options: DeltaOptions) -> None:
    """The reader starts from a snapshot of that version, and then reads added rows."""
    cut(cluster, options)
    with pytest.MonkeyPatch.context() as patch:
        after(delta_commit, "_commit_repair")(patch)
        with pytest.raises(Crash):
            write(options, 1, records(cluster, 7, 12))
    version = DeltaTable(options.path).version()
    begun = set(table_rows(options))
    assert begun == {("t", 0, offset, 0) for offset in range(7)}
    write(options, 1, records(cluster, 7, 12))
    assert begun | set(stream(options.path, version + 1)) == set(log_rows(cluster))


def test_a_repair_without_new_rows_is_one_entry_with_the_batch(cluster: FakeCluster, options: DeltaOptions) -> None:
    cut(cluster, options)
    write(options, 1, records(cluster, 7, 12))
    cluster.log("t").elect(2, keep=9)
    version = DeltaTable(options.path).version()
    # The source rereads records that are already in the table.
    write(options, 2, records(cluster, 8, 9))
    assert DeltaTable(options.path).version() == version + 1
    assert DeltaTable(options.path).transaction_version("q") == 2
    assert table_rows(options) == log_rows(cluster)
    check_readers(options.path)


def test_a_batch_without_repair_is_one_entry(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 5))
    version = DeltaTable(options.path).version()
    write(options, 1, records(cluster, 5, 10))
    assert DeltaTable(options.path).version() == version + 1
    assert sum(stream(options.path).values()) == 10


def test_another_writer_between_repair_and_rows_is_seen(cluster: FakeCluster, options: DeltaOptions) -> None:
    """It adds some of the batch's rows; they are not duplicated."""
    cut(cluster, options)
    real, raced = delta_commit.advance, []

    def other_first(*positional: Any) -> None:
        if not raced:
            raced.append(True)
            assert write(options, 0, records(cluster, 8, 10), app="other")
        real(*positional)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_commit, "advance", other_first)
        assert write(options, 1, records(cluster, 7, 12))
    assert raced
    assert table_rows(options) == log_rows(cluster)
    check_readers(options.path)


def test_a_driver_suspended_between_repair_and_rows_changes_nothing(
    cluster: FakeCluster, options: DeltaOptions
) -> None:
    """Meanwhile another driver has written the batch and the next one, and the log was truncated again."""
    cut(cluster, options)
    real, raced = delta_commit.advance, []

    def successor_first(*positional: Any) -> None:
        if not raced:
            raced.append(True)
            assert write(options, 1, records(cluster, 7, 12))
            cluster.log("t").elect(3, keep=9)
            cluster.log("t").append(2)
            assert write(options, 2, records(cluster, 9, 11))
        real(*positional)

    rows = records(cluster, 7, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_commit, "advance", successor_first)
        assert not write(options, 1, rows)
    assert raced
    assert table_rows(options) == log_rows(cluster)
    assert DeltaTable(options.path).transaction_version("q") == 2
    check_readers(options.path)


def test_a_failed_repair_that_landed_is_not_repeated(cluster: FakeCluster, options: DeltaOptions) -> None:
    from deltalake.exceptions import CommitFailedError

    cut(cluster, options)
    real, failures = delta_commit.commit_entry, [CommitFailedError("the answer was lost")]

    def lands_and_fails(*positional: Any, **named: Any) -> None:
        real(*positional, **named)
        if failures:
            raise failures.pop()

    version = DeltaTable(options.path).version()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_commit, "commit_entry", lands_and_fails)
        assert write(options, 1, records(cluster, 7, 12))
    assert DeltaTable(options.path).version() == version + 2
    assert table_rows(options) == log_rows(cluster)


# The change data feed ------------------------------------------------------------------------------------------------


def test_a_repair_writes_removed_rows_to_the_change_feed(cluster: FakeCluster, fed: DeltaOptions) -> None:
    cut(cluster, fed)
    before = DeltaTable(fed.path).version()
    write(fed, 1, records(cluster, 7, 12))
    assert table_rows(fed) == log_rows(cluster)
    check_readers(fed.path)
    assert change_feed(fed.path) == dict.fromkeys(log_rows(cluster), 1)
    feed = pa.table(DeltaTable(fed.path).load_cdf(starting_version=before + 1).read_all()).to_pylist()
    reported = sorted((row["_commit_version"] - before, row["_change_type"], row["offset"]) for row in feed)
    assert reported == [(1, "delete", offset) for offset in (7, 8, 9)] + [(2, "insert", o) for o in range(7, 12)]
    repair = DeltaTable(fed.path).history(2)[1]
    assert repair["fenceline"]["repair"]["removed_rows"] == 3
    assert DeltaTable(fed.path).transaction_version("q") == 1


@pytest.mark.parametrize("seed", range(8))
def test_the_condition_removes_only_stale_rows(cluster: FakeCluster, fed: DeltaOptions, seed: int) -> None:
    """Lost epochs between others, rows without an epoch, a column name that must be quoted."""
    import random

    chance = random.Random(seed)
    name = "it's"
    cluster.create(name, 2)
    plain = replace(fed, path=f"{fed.path}-plain", properties={})
    for number in range(8):
        for topic in ("t", name):
            for index in (0, 1):
                log = cluster.log(topic, index)
                if chance.random() < 0.5:
                    log.elect(log.leader_epoch + chance.randint(1, 3), keep=chance.randint(0, len(log.epochs)))
                log.append(chance.randint(0, 5))
        rows = [
            row
            for topic in ("t", name)
            for index in (0, 1)
            for row in records(cluster, chance.randint(0, 9), 1 << 40, index, topic)
        ]
        for options in (plain, fed):
            write(options, number, rows)
        assert table_rows(fed) == table_rows(plain), f"seed {seed}, batch {number}"
    check_readers(fed.path)
    check_readers(plain.path)


@pytest.mark.long
def test_a_thousand_truncated_partitions_in_a_table_with_a_change_feed(cluster: FakeCluster, fed: DeltaOptions) -> None:
    cluster.create("many", 1000)
    for index in range(1000):
        cluster.log("many", index).append(3)
    write(fed, 0, [row for index in range(1000) for row in records(cluster, 0, 3, index, "many")])
    for index in range(1000):
        cluster.log("many", index).elect(1, keep=1)
        cluster.log("many", index).append(1)
    write(fed, 1, [row for index in range(1000) for row in records(cluster, 1, 2, index, "many")])
    assert table_rows(fed) == log_rows(cluster, "many")


def test_a_recreated_topic_in_a_table_with_a_change_feed(cluster: FakeCluster, fed: DeltaOptions) -> None:
    cluster.create("u", 1)
    cluster.log("u").append(2)
    cluster.log("t").append(10)
    write(fed, 0, records(cluster, 0, 10) + records(cluster, 0, 2, topic="u"))
    cluster.delete("t")
    cluster.create("t", 2, id="another")
    cluster.log("t").append(4)
    write(replace(fed, on_recreated="replace"), 1, records(cluster, 0, 4))
    assert table_rows(fed) == sorted(log_rows(cluster) + log_rows(cluster, "u"))
    check_readers(fed.path)


# Other tables --------------------------------------------------------------------------------------------------------


def test_two_queries_into_one_table_and_their_readers(cluster: FakeCluster, options: DeltaOptions) -> None:
    """One query per partition; both logs are truncated, and each query repairs the rows that it would reread."""
    for index in (0, 1):
        cluster.log("t", index).append(10)
        write(options, 0, records(cluster, 0, 10, index), app=f"q{index}")
    for index in (0, 1):
        cluster.log("t", index).elect(1, keep=6)
        cluster.log("t", index).append(3)
    held = [task(options, records(cluster, 6, 9, index)) for index in (0, 1)]
    for index, (files, evidence) in enumerate(held):
        commit(options, 1, files, evidence, app=f"q{index}")
    assert table_rows(options) == log_rows(cluster)
    check_readers(options.path)


def test_a_table_of_another_topic_keeps_its_rows(cluster: FakeCluster, tmp_path: Path) -> None:
    """The cluster has no such topic, so nothing proves the rows stale; `audit` reports them as foreign."""
    path = str(tmp_path / "table")
    foreign = [("elsewhere", 0, offset, 0) for offset in range(5)]
    write_deltalake(path, pa.Table.from_batches([arrow(foreign)]))
    options = delta_options({"path": path, "kafka.bootstrap.servers": "fake"})
    cut(cluster, options)
    write(options, 1, records(cluster, 7, 12))
    assert table_rows(options) == sorted(foreign + log_rows(cluster))
    check_readers(path)


@pytest.mark.parametrize("name", ["a b", "it's", "x%y", "ü"])
def test_files_with_escaped_paths_are_removed(cluster: FakeCluster, tmp_path: Path, name: str) -> None:
    """As other writers and OPTIMIZE write them if a partition value has special characters."""
    path = str(tmp_path / "table")
    cluster.create(name, 1)
    log = cluster.log(name)
    log.append(12)
    rows = records(cluster, 0, 12, topic=name)
    for part in (rows[:8], rows[8:]):
        write_deltalake(path, pa.Table.from_batches([arrow(part)]), partition_by=["topic"], mode="append")
    options = delta_options({"path": path, "kafka.bootstrap.servers": "fake"})
    # One file is removed partly, one completely; then the rest of the first one partly again.
    for keep in (6, 3):
        log.elect(log.leader_epoch + 1, keep=keep)
        log.append(1)
        write(options, 10 - keep, records(cluster, keep, keep + 1, topic=name))
        assert table_rows(options) == log_rows(cluster, name)
    check_readers(path)


def test_the_history_has_the_metrics_of_delta_writers(cluster: FakeCluster, options: DeltaOptions) -> None:
    cut(cluster, options)
    write(options, 1, records(cluster, 7, 12))
    append, repair = DeltaTable(options.path).history(2)
    numbers = {name: append["operationMetrics"][name] for name in ("numOutputRows", "numAddedFiles", "numFiles")}
    assert numbers == {"numOutputRows": "5", "numAddedFiles": "1", "numFiles": "1"}
    assert int(append["operationMetrics"]["numOutputBytes"]) > 0
    names = ("numDeletedRows", "numCopiedRows", "numRemovedFiles", "numAddedFiles")
    assert [repair["operationMetrics"][name] for name in names] == ["3", "7", "1", "1"]
    assert int(repair["operationMetrics"]["numRemovedBytes"]) > 0


def test_a_batch_write_is_in_the_history(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(4)
    files, _ = task(options, records(cluster, 0, 4))
    plain = replace(options, client=None, partition_by=("topic", "partition") if options.partition_by else ())
    plain = plain if options.is_partitioning_given else replace(plain, partition_by=("topic", "partition"))
    commit_files(plain, SCHEMA, files, transaction=AppTransaction("q", 0), overwrite=False)
    assert DeltaTable(options.path).history(1)[0]["operationMetrics"]["numOutputRows"] == "4"
