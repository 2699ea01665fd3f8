"""A batch that Spark replays may read more than the first time: the batch number in the table does not identify its
content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError

from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta.options import DeltaOptions, delta_options
from pyspark_fenceline.delta.table_files import open_table, table_files
from tests.spark.delta.test_plan import files_on_disk, log_rows, records, table_rows, write
from tests.spark.fakes import FakeCluster, install_fake_cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


@pytest.fixture(params=[None, ""], ids=["by partition", "flat"])
def options(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaOptions:
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"}
    return delta_options(given if request.param is None else {**given, "partitionBy": request.param})


def test_a_replay_adds_records_missing_when_the_batch_was_first_read(
    cluster: FakeCluster, options: DeltaOptions
) -> None:
    """Two unclean elections, one before the batch is read, one before its replay: the log is in the same state as
    when the batch was planned, and no later batch reads these offsets again."""
    log = cluster.log("t")
    log.append(10)
    planned = list(log.epochs)
    write(options, 0, records(cluster, 0, 4))
    log.elect(2, keep=6)
    assert write(options, 1, records(cluster, 4, 6))
    log.epochs = planned
    log.elect(3)
    assert not write(options, 1, records(cluster, 4, 10))
    assert table_rows(options) == log_rows(cluster)
    table = open_table(options)
    assert table is not None
    version = table.version()
    assert not write(options, 1, records(cluster, 4, 10))
    again = open_table(options)
    assert again is not None
    assert again.version() == version
    assert files_on_disk(options) == {Path(file.path).name for file in table_files(again)}


def test_a_replay_whose_commit_landed_without_an_answer_keeps_its_files(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, [])
    real = delta_commit.commit_entry
    failures = [CommitFailedError("landed all the same")]

    def commit_without_answer(*positional: Any, **named: Any) -> None:
        real(*positional, **named)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(delta_commit, "commit_entry", commit_without_answer)
    assert not write(options, 0, records(cluster, 0, 10))
    assert table_rows(options) == log_rows(cluster)
    assert not failures
