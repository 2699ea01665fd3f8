"""Crashes while a table is created or gets new columns: steps with a separate entry, before the batch's entry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta.commit import commit_files
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions, delta_options
from tests.spark.delta.test_plan import Crash, Row, after, before, log_rows, records, table_rows, task, write
from tests.spark.fakes import FakeCluster, install_fake_cluster
from tests.spark.schemas import struct

WIDE: Final = struct("value string, topic string, partition int, offset long, leader_epoch int, more string")
CRASHES: Final = [(moment, count) for moment in (before, after) for count in (1, 2)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


@pytest.fixture
def options(tmp_path: Path) -> DeltaOptions:
    return delta_options({"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake", "mergeSchema": "true"})


def write_wide(options: DeltaOptions, number: int, rows: Iterable[Row]) -> bool:
    files, evidence = task(options, rows, schema=WIDE)
    transaction = AppTransaction("q", number)
    return commit_files(options, WIDE, files, transaction=transaction, overwrite=False, evidence=evidence, query_id="q")


@pytest.mark.parametrize(("moment", "crashes"), CRASHES)
def test_a_crash_while_the_table_is_created(
    cluster: FakeCluster, options: DeltaOptions, moment: Any, crashes: int
) -> None:
    cluster.log("t").append(10)
    met = 0
    for _ in range(crashes):
        with pytest.MonkeyPatch.context() as patch:
            moment(delta_commit, "_create")(patch)
            with contextlib.suppress(Crash):
                write(options, 0, records(cluster, 0, 10))
                met -= 1
            met += 1
        assert table_rows(options) in ([], log_rows(cluster))
        assert DeltaTable.is_deltatable(options.path) == (moment is after)
    # A driver that finds the table does not create it again.
    assert met == (crashes if moment is before else 1)
    write(options, 0, records(cluster, 0, 10))
    assert table_rows(options) == log_rows(cluster)
    assert DeltaTable(options.path).metadata().partition_columns == ["topic", "partition"]


@pytest.mark.parametrize(("moment", "crashes"), CRASHES)
def test_a_crash_while_columns_are_added(
    cluster: FakeCluster, options: DeltaOptions, moment: Any, crashes: int
) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 10))
    held = table_rows(options)
    # The batch also has stale rows to remove.
    log.elect(1, keep=7)
    log.append(5)
    for _ in range(crashes):
        with pytest.MonkeyPatch.context() as patch:
            moment(delta_commit, "_add_columns")(patch)
            with pytest.raises(Crash):
                write_wide(options, 1, records(cluster, 7, 12))
        assert table_rows(options) == held
        names = [field.name for field in DeltaTable(options.path).schema().fields]
        assert ("more" in names) == (moment is after)
    assert DeltaTable(options.path).version() == (2 if moment is after else 1)
    assert write_wide(options, 1, records(cluster, 7, 12))
    assert not write_wide(options, 1, records(cluster, 7, 12))
    assert table_rows(options) == log_rows(cluster)
    found = DeltaTable(options.path).to_pyarrow_table().sort_by("offset")["more"].to_pylist()
    assert found == [None] * 7 + ["x"] * 5


def test_writers_with_and_without_the_new_column_coexist(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 4))
    with pytest.MonkeyPatch.context() as patch:
        after(delta_commit, "_add_columns")(patch)
        with pytest.raises(Crash):
            write_wide(options, 1, records(cluster, 4, 8))
    assert write(options, 0, records(cluster, 2, 6), app="other")
    assert write_wide(options, 1, records(cluster, 4, 8))
    assert table_rows(options) == records(cluster, 0, 8)
    found = DeltaTable(options.path).to_pyarrow_table().sort_by("offset")["more"].to_pylist()
    assert found == [None] * 6 + ["x"] * 2
