"""The driver's commit, with a crash between every two of its steps and two drivers at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from fenceline.errors import OperatorError
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta.commit import commit_files
from pyspark_fenceline.delta.files import DataFile, FileWriter
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions
from pyspark_fenceline.delta.schema import file_schema, fit, new_shape
from pyspark_fenceline.delta.table_files import open_table
from tests.spark.schemas import struct

SCHEMA = struct("topic string, offset long")


class Crash(BaseException):
    """Simulates the death of the process; nothing catches it."""


def write(options: DeltaOptions, *offsets: int, topic: str = "t") -> list[DataFile]:
    shape = new_shape(SCHEMA, options.partition_by)
    writer = FileWriter(options, shape, file_schema(SCHEMA, shape), (), task_number=0)
    writer.write(pa.RecordBatch.from_pydict({"topic": [topic] * len(offsets), "offset": list(offsets)}))
    return writer.finish()


def batch(options: DeltaOptions, number: int, *, app: str = "q", overwrite: bool = False) -> bool:
    """One micro-batch of three rows, as Spark runs it: tasks, then the commit."""
    files = write(options, *range(number * 3, number * 3 + 3))
    return commit_files(options, SCHEMA, files, transaction=AppTransaction(app, number), overwrite=overwrite)


def rows(options: DeltaOptions) -> list[int]:
    table = open_table(options)
    return [] if table is None else sorted(table.to_pyarrow_table().column("offset").to_pylist())


@pytest.fixture(params=[(), ("topic",)], ids=["flat", "partitioned"])
def options(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaOptions:
    return DeltaOptions(str(tmp_path / "table"), partition_by=request.param)


def test_a_missing_table_is_created(options: DeltaOptions) -> None:
    assert batch(options, 0)
    assert batch(options, 1)
    assert rows(options) == list(range(6))
    table = open_table(options)
    assert table is not None
    assert tuple(table.metadata().partition_columns) == options.partition_by
    assert table.transaction_version("q") == 1


def test_a_replayed_batch_adds_nothing_and_leaves_no_files(options: DeltaOptions) -> None:
    batch(options, 0)
    before = sorted(Path(options.path).rglob("*.parquet"))
    assert not batch(options, 0)
    assert rows(options) == [0, 1, 2]
    assert sorted(Path(options.path).rglob("*.parquet")) == before


def test_an_older_batch_adds_nothing_although_delta_would_accept_it(options: DeltaOptions) -> None:
    batch(options, 0)
    batch(options, 1)
    assert not batch(options, 0)
    assert rows(options) == list(range(6))


def test_another_query_has_its_own_batches(options: DeltaOptions) -> None:
    batch(options, 0)
    assert batch(options, 0, app="other")
    assert rows(options) == [0, 0, 1, 1, 2, 2]


def _crash_before(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise Crash

    monkeypatch.setattr(target, name, crash)


def _crash_after(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(target, name)

    def crash(*positional: Any, **named: Any) -> Any:
        real(*positional, **named)
        raise Crash

    monkeypatch.setattr(target, name, crash)


STEPS = [
    pytest.param(_crash_before, "open_table", id="only files written"),
    pytest.param(_crash_before, "_create", id="before the table is created"),
    pytest.param(_crash_after, "_create", id="after the table is created"),
    pytest.param(_crash_before, "commit_entry", id="before the log entry"),
    pytest.param(_crash_after, "commit_entry", id="after the log entry, before Spark is notified"),
]


@pytest.mark.parametrize(("how", "step"), STEPS)
@pytest.mark.parametrize("crashing_batch", [0, 1])
@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_between_any_two_steps_and_a_replay_write_every_row_once(
    options: DeltaOptions, how: Any, step: str, crashing_batch: int, crashes: int
) -> None:
    for number in range(crashing_batch):
        batch(options, number)
    for _ in range(crashes):
        with pytest.MonkeyPatch.context() as patch:
            how(patch, delta_commit, step)
            with contextlib.suppress(Crash):
                batch(options, crashing_batch)
    for number in range(crashing_batch, 3):
        batch(options, number)
    assert rows(options) == list(range(9))


def test_only_one_of_two_drivers_of_a_query_commits(options: DeltaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(options, 0)
    real = delta_commit.commit_entry
    raced: list[bool] = []

    def zombie_first(*positional: Any, **named: Any) -> None:
        # A second driver replays the same batch after this driver read the table and before its commit.
        if not raced:
            raced.append(True)
            assert batch(options, 1)
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "commit_entry", zombie_first)
    assert not batch(options, 1)
    assert rows(options) == list(range(6))


def test_a_failed_commit_that_landed_keeps_its_files(options: DeltaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake.exceptions import CommitFailedError

    real = delta_commit.commit_entry

    def lands_and_fails(*positional: Any, **named: Any) -> None:
        real(*positional, **named)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(delta_commit, "commit_entry", lands_and_fails)
    assert not batch(options, 0)
    assert rows(options) == [0, 1, 2]


def test_other_writers_may_append_concurrently(options: DeltaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    real = delta_commit.commit_entry
    raced: list[bool] = []

    def other_first(*positional: Any, **named: Any) -> None:
        if not raced:
            raced.append(True)
            batch(options, 0, app="other")
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "commit_entry", other_first)
    assert batch(options, 1)
    assert rows(options) == list(range(6))


def test_complete_mode_replaces_all_rows_once(options: DeltaOptions) -> None:
    batch(options, 0, overwrite=True)
    batch(options, 1, overwrite=True)
    assert rows(options) == [3, 4, 5]
    assert not batch(options, 0, overwrite=True)
    assert rows(options) == [3, 4, 5]
    commit_files(options, SCHEMA, [], transaction=AppTransaction("q", 2), overwrite=True)
    assert rows(options) == []


def test_a_batch_write_without_rows_makes_no_commit(options: DeltaOptions) -> None:
    commit_files(options, SCHEMA, [], transaction=None, overwrite=False)
    assert open_table(options) is None


# Incompatible tables --------------------------------------------------------------------------------------------------


def made(path: Path, fields: str, **table: Any) -> DeltaTable:
    return DeltaTable.create(str(path), schema=Schema.from_json(struct(fields).json()), **table)


def misfit(table: DeltaTable, ddl: str, *partition_by: str) -> str:
    with pytest.raises(OperatorError) as caught:
        fit(table, struct(ddl), partition_by, "there")
    return str(caught.value)


def test_another_schema_is_rejected_with_a_clear_message(tmp_path: Path) -> None:
    table = made(tmp_path / "a", "topic string, offset long, extra array<int>", partition_by=["topic"])
    text = misfit(table, "topic string, offset int, more double, extra array<long>")
    assert "column offset is integer here and long in the table" in text
    assert "column more (double) is not in the table" in text
    assert "array<long> here and array<integer> in the table" in text
    assert "partitionBy is offset here and topic in the table" in misfit(table, "topic string, offset long", "offset")
    assert "partition column topic is missing" in misfit(table, "offset long")
    shape = fit(table, struct("OFFSET long, topic string"), ("TOPIC",), "there")
    assert shape.column_names == ("offset", "topic")


def test_missing_columns_become_null(tmp_path: Path) -> None:
    made(tmp_path / "table", "topic string, offset long, more double")
    options = DeltaOptions(str(tmp_path / "table"))
    assert batch(options, 0)
    table = open_table(options)
    assert table is not None
    assert table.to_pyarrow_table().column("more").to_pylist() == [None] * 3


def test_a_missing_required_column_is_rejected(tmp_path: Path) -> None:
    table = made(tmp_path / "a", "topic string, offset long not null")
    assert "must not be null and is missing" in misfit(table, "topic string")


def test_tables_whose_constraints_an_append_would_break_are_rejected(tmp_path: Path) -> None:
    table = made(tmp_path / "a", "offset long")
    table.alter.add_constraint({"positive": "offset > 0"})
    assert "constraints" in misfit(table, "offset long")
    mapped = made(tmp_path / "b", "offset long")
    entry = tmp_path / "b" / "_delta_log" / "00000000000000000000.json"
    entry.write_text(
        entry.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    )
    mapped = DeltaTable(str(tmp_path / "b"))
    assert "mapped by name" in misfit(mapped, "offset long")


def test_types_unknown_to_delta_are_rejected(tmp_path: Path) -> None:
    options = DeltaOptions(str(tmp_path / "table"))
    with pytest.raises(OperatorError, match="cannot hold"):
        commit_files(options, struct("a interval day"), [], transaction=None, overwrite=True)


def test_partition_columns_must_exist_and_leave_other_columns() -> None:
    schema = struct("a int, b array<int>")
    with pytest.raises(OperatorError, match="does not have"):
        new_shape(schema, ("c",))
    with pytest.raises(OperatorError, match="cannot be a partition column"):
        new_shape(schema, ("b",))
    with pytest.raises(OperatorError, match="All columns"):
        new_shape(struct("a int"), ("a",))


def test_a_file_in_place_of_the_table_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("x")
    with pytest.raises(OperatorError, match="is a file, not a Delta table"):
        open_table(DeltaOptions(str(tmp_path / "table")))


def test_a_table_with_an_unreadable_log_is_rejected(tmp_path: Path) -> None:
    options = DeltaOptions(str(tmp_path / "table"))
    batch(options, 0)
    first = next((tmp_path / "table" / "_delta_log").glob("*.json"))
    first.write_text("not a log")
    with pytest.raises(OperatorError, match="cannot be opened") as caught:
        open_table(options)
    assert "storage.*" in caught.value.advice


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OperatorError, match="cannot be created"):
        write(DeltaOptions(str(tmp_path / "file" / "table")), 1)
