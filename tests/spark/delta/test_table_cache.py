"""A table kept open between batches always reflects the current table at its newest version."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake

from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta import evidence as delta_evidence
from pyspark_fenceline.delta import table_cache as delta_table_cache
from pyspark_fenceline.delta import table_files as delta_table_files
from pyspark_fenceline.delta.options import DeltaOptions, delta_options
from pyspark_fenceline.delta.sink import DeltaDataSource, FilesWritten
from pyspark_fenceline.delta.state import KEY, PartitionProgress, TableState, read_state
from pyspark_fenceline.delta.table_cache import cached_table, refresh, table_summary
from tests.spark.delta.test_plan import SCHEMA, arrow, records, table_rows, task
from tests.spark.fakes import FakeCluster


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of reopened tables."""
    monkeypatch.setattr(delta_table_cache, "_handles", OrderedDict())
    paths: list[str] = []
    real = delta_table_files.open_table

    def counted(options: DeltaOptions) -> DeltaTable | None:
        paths.append(options.path)
        return real(options)

    monkeypatch.setattr(delta_table_files, "open_table", counted)
    monkeypatch.setattr(delta_commit, "open_table", counted)
    return paths


def put(path: Path, *values: int, **options: Any) -> None:
    write_deltalake(str(path), pa.table({"v": list(values)}), mode="append", **options)


def table_values(options: DeltaOptions) -> list[int]:
    table = cached_table(options)
    assert table is not None
    assert table.version() == DeltaTable(options.path).version()
    return sorted(table.to_pyarrow_table()["v"].to_pylist())


def test_commits_of_other_writers_are_seen_without_reopening(tmp_path: Path, opens: list[str]) -> None:
    options = DeltaOptions(str(tmp_path / "t"))
    assert cached_table(options) is None
    for number in range(5):
        put(tmp_path / "t", number)
        assert table_values(options) == list(range(number + 1))
        assert table_values(options) == list(range(number + 1))
    assert len(opens) == 2


def test_a_recreated_table_is_reopened(tmp_path: Path, opens: list[str]) -> None:
    options = DeltaOptions(str(tmp_path / "t"))
    for number in range(3):
        put(tmp_path / "t", number)
    assert table_values(options) == [0, 1, 2]
    shutil.rmtree(tmp_path / "t")
    assert cached_table(options) is None
    for number in range(10, 14):
        put(tmp_path / "t", number)
        assert table_values(options) == list(range(10, number + 1))
    shutil.rmtree(tmp_path / "t")
    # More versions than the previous table, with no access in between.
    for number in range(20, 26):
        put(tmp_path / "t", number)
    assert table_values(options) == list(range(20, 26))


def test_a_table_with_deleted_log_entries_is_reopened(tmp_path: Path, opens: list[str]) -> None:
    """As after another writer has written a checkpoint and cleaned up the log."""
    options = DeltaOptions(str(tmp_path / "t"))
    put(tmp_path / "t", 0)
    assert table_values(options) == [0]
    put(tmp_path / "t", 1)
    put(tmp_path / "t", 2)
    DeltaTable(options.path).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    assert table_values(options) == [0, 1, 2]
    assert len(opens) == 2


def test_few_tables_are_cached_and_none_indefinitely(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table_cache, "_MAX_HANDLES", 2)
    monkeypatch.setattr(delta_table_cache, "_MAX_USES", 3)
    every = [DeltaOptions(str(tmp_path / name)) for name in "abc"]
    for number, options in enumerate(every):
        put(Path(options.path), number)
        assert table_values(options) == [number]
    assert len(delta_table_cache._handles) == 2
    assert table_values(every[0]) == [0]
    assert len(opens) == 4
    for _ in range(4):
        assert table_values(every[0]) == [0]
    assert len(opens) == 5


def commit_with_state(options: DeltaOptions, end: int) -> None:
    """What the sink's commits record: a file, and a state."""
    state = TableState({TopicPartition("t", 0): PartitionProgress(0, end)})
    table = pa.Table.from_batches([arrow([("t", 0, end - 1, 0)])])
    properties = CommitProperties(custom_metadata={KEY: {"state": state.encode()}})
    write_deltalake(options.path, table, mode="append", commit_properties=properties)


def test_a_glance_reads_schema_and_state_without_a_refresh(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = delta_options({"path": str(tmp_path / "t"), "kafka.bootstrap.servers": "fake:1"})
    updates: list[int] = []
    real = DeltaTable.update_incremental
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda table: (updates.append(1), real(table)))
    assert table_summary(options) is None
    for end in range(1, 6):
        commit_with_state(options, end)
        seen = table_summary(options)
        assert seen is not None
        assert seen.state is not None
        assert seen.state == read_state(DeltaTable(options.path))
        assert seen.state.partitions[TopicPartition("t", 0)].end_offset == end
    assert not updates
    assert len(opens) == 2
    # A writer without a state: then the files count, and they are the newest ones.
    write_deltalake(options.path, pa.Table.from_batches([arrow([("t", 0, 9, 0)])]), mode="append")
    seen = table_summary(options)
    assert seen is not None
    assert seen.state is None
    assert len(seen.table.file_uris()) == 6
    commit_with_state(options, 11)
    # A new column is seen immediately.
    DeltaTable(options.path).alter.add_columns([Field("more", "string")])
    stated_before = table_summary(options)
    assert stated_before is not None
    assert "more" in [field.name for field in stated_before.table.schema().fields]
    # So are a property and a recreated table.
    DeltaTable(options.path).alter.set_table_properties({"delta.appendOnly": "true"})
    seen = table_summary(options)
    assert seen is not None
    assert seen.table.metadata().configuration == {"delta.appendOnly": "true"}
    shutil.rmtree(options.path)
    assert table_summary(options) is None


def test_lookups_wait_for_a_background_refresh(tmp_path: Path, opens: list[str]) -> None:
    options = DeltaOptions(str(tmp_path / "t"))
    put(tmp_path / "t", 0)
    table = cached_table(options)
    assert table is not None
    for number in range(1, 5):
        put(tmp_path / "t", number)
        refresh(options)
        assert table_values(options) == list(range(number + 1))
    # It failed: the next access reports the error.
    shutil.rmtree(tmp_path / "t")
    refresh(options)
    assert cached_table(options) is None
    assert len(opens) == 2


def test_batches_are_planned_and_committed_on_one_open_table(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(t=2)
    monkeypatch.setattr(connect, "connect", lambda _: cluster)
    monkeypatch.setattr(delta_evidence, "_caches", {})
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake:1"}
    options = delta_options(given)
    opened: list[int] = []
    cluster.log("t", 1).append(8)
    for batch in range(6):
        cluster.log("t").append(3)
        files, evidence = task(options, records(cluster, batch * 3, batch * 3 + 3))
        opens.clear()
        writer = DeltaDataSource(given).streamWriter(SCHEMA, False)
        if batch == 4:
            # Another writer commits after the table was read and before the commit.
            write_deltalake(options.path, pa.Table.from_batches([arrow([("t", 1, 7, 0)])]), mode="append")
        writer.commit([FilesWritten(files, "q", evidence)], batch)
        opened.append(len(opens))
    # No table twice, then the one that the first batch creates and the second opens. The commit checks again, so it
    # sees commits made after the plan.
    assert opened == [3, 1, 0, 0, 0, 0]
    assert table_rows(options) == [*records(cluster, 0, 18), ("t", 1, 7, 0)]
