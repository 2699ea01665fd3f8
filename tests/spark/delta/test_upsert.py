"""`upsertKeys`: a batch's rows replace the table's rows with equal keys exactly once, also after crashes and
replays."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fenceline.errors import OperatorError
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta import upsert as delta_upsert
from pyspark_fenceline.delta.commit import commit_files
from pyspark_fenceline.delta.files import FileWriter
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions, delta_options
from pyspark_fenceline.delta.schema import file_schema, new_shape
from pyspark_fenceline.delta.upsert import check_keys
from tests.spark.delta.test_plan import Crash, after, before
from tests.spark.schemas import struct

SCHEMA = struct("region string, id long, v string")
Row = tuple[str | None, int | None, str]


@pytest.fixture(params=["", "region"], ids=["flat", "partitioned"])
def options(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaOptions:
    return delta_options({"path": str(tmp_path / "t"), "upsertKeys": "region, ID", "partitionBy": request.param})


def batch(options: DeltaOptions, number: int | None, *rows: Row, app: str = "q") -> bool:
    shape = new_shape(SCHEMA, options.partition_by)
    writer = FileWriter(options, shape, file_schema(SCHEMA, shape), (), task_number=0)
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    arrays = [
        pa.array(column, kind) for column, kind in zip(columns, (pa.string(), pa.int64(), pa.string()), strict=True)
    ]
    writer.write(pa.RecordBatch.from_arrays(arrays, names=["region", "id", "v"]))
    transaction = None if number is None else AppTransaction(app, number)
    return commit_files(options, SCHEMA, writer.finish(), transaction=transaction, overwrite=False)


def table_rows(options: DeltaOptions) -> list[tuple[Any, ...]]:
    rows = DeltaTable(options.path).to_pyarrow_table().to_pylist()
    return sorted(((row["region"], row["id"], row["v"]) for row in rows), key=str)


def test_equal_keys_are_replaced_and_others_added(options: DeltaOptions) -> None:
    assert batch(options, 0, ("a", 1, "x"), ("a", 2, "x"), ("b", 1, "x"), (None, None, "x"))
    assert batch(options, 1, ("a", 2, "y"), ("b", 2, "y"), (None, None, "y"))
    assert table_rows(options) == [("a", 1, "x"), ("a", 2, "y"), ("b", 1, "x"), ("b", 2, "y"), (None, None, "y")]
    assert not batch(options, 1, ("a", 2, "again"))
    assert not batch(options, 0, ("a", 1, "again"))
    assert batch(options, 0, ("a", 1, "z"), app="other")
    assert ("a", 1, "z") in table_rows(options)
    assert len(table_rows(options)) == 5
    # The tasks' files were only read: the files on disk are those that an entry has added.
    log = "".join(entry.read_text() for entry in Path(options.path, "_delta_log").glob("*.json"))
    assert all(file.name in log for file in Path(options.path).rglob("part-*.parquet"))


def test_a_batch_without_rows_and_a_write_without_a_number(options: DeltaOptions) -> None:
    assert batch(options, 0)
    assert batch(options, None, ("a", 1, "x"))
    assert batch(options, None, ("a", 1, "y"))
    assert table_rows(options) == [("a", 1, "y")]


def test_duplicate_keys_in_a_batch_are_rejected(options: DeltaOptions) -> None:
    batch(options, 0, ("a", 1, "x"))
    version = DeltaTable(options.path).version()
    with pytest.raises(OperatorError, match=r"1 keys \(region, id\) have several rows in one batch") as caught:
        batch(options, 1, ("a", 7, "y"), ("a", 7, "z"), ("a", 1, "y"))
    assert "foreachBatch" in caught.value.advice
    assert DeltaTable(options.path).version() == version


STEPS = [
    moment(owner, name)
    for owner, name in ((delta_commit, "open_table"), (delta_commit, "upsert"), (delta_commit, "delete_files"))
    for moment in (before, after)
]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_and_a_replay_write_every_key_once(options: DeltaOptions, step: Any) -> None:
    batch(options, 0, ("a", 1, "x"), ("a", 2, "x"))
    with pytest.MonkeyPatch.context() as patch:
        step(patch)
        with contextlib.suppress(Crash):
            batch(options, 1, ("a", 2, "y"), ("a", 3, "y"))
    batch(options, 1, ("a", 2, "y"), ("a", 3, "y"))
    assert table_rows(options) == [("a", 1, "x"), ("a", 2, "y"), ("a", 3, "y")]
    assert DeltaTable(options.path).transaction_version("q") == 1


def test_updates_of_two_writers_are_both_applied(options: DeltaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one merges into the result of the first one; a second driver of the same batch changes nothing."""
    batch(options, 0, ("a", 1, "x"))
    real, raced = delta_upsert.upsert, []

    def others_first(*positional: Any, **named: Any) -> None:
        if not raced:
            raced.append(True)
            assert batch(options, 0, ("a", 1, "other"), ("a", 5, "other"), app="other")
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "upsert", others_first)
    assert batch(options, 1, ("a", 1, "y"))
    assert table_rows(options) == [("a", 1, "y"), ("a", 5, "other")]
    raced.clear()

    def zombie_first(*positional: Any, **named: Any) -> None:
        if not raced:
            raced.append(True)
            assert batch(options, 2, ("a", 1, "z"))
        real(*positional, **named)

    monkeypatch.setattr(delta_commit, "upsert", zombie_first)
    assert not batch(options, 2, ("a", 1, "z"))
    assert table_rows(options) == [("a", 1, "z"), ("a", 5, "other")]


def test_the_change_feed_contains_updates(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "t"), "upsertKeys": "id", "delta.enablechangedatafeed": "true"}
    options = delta_options(given)
    batch(options, 0, ("a", 1, "x"))
    batch(options, 1, ("a", 1, "y"), ("a", 2, "y"))
    feed = pa.table(DeltaTable(options.path).load_cdf(starting_version=2).read_all()).to_pylist()
    assert sorted((row["_change_type"], row["id"], row["v"]) for row in feed) == [
        ("insert", 2, "y"),
        ("update_postimage", 1, "y"),
        ("update_preimage", 1, "x"),
    ]


def test_unknown_key_columns_are_rejected(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "t")}
    with pytest.raises(OperatorError, match="names column idd, which the DataFrame does not have"):
        check_keys(delta_options({**given, "upsertKeys": "idd"}), SCHEMA, overwrite=False)
    with pytest.raises(OperatorError, match="cannot be a key"):
        check_keys(delta_options({**given, "upsertKeys": "a"}), struct("a array<int>"), overwrite=False)
    with pytest.raises(OperatorError, match="replace all rows"):
        check_keys(delta_options({**given, "upsertKeys": "id"}), SCHEMA, overwrite=True)
    with pytest.raises(OperatorError, match="names no column"):
        delta_options({**given, "upsertKeys": " , "})
    with pytest.raises(OperatorError, match="cannot be combined with a comparison with the log"):
        delta_options({**given, "upsertKeys": "id", "kafka.bootstrap.servers": "b"})
    assert delta_options({**given, "upsertKeys": "id", "kafka.bootstrap.servers": "b", "repair": "false"}).upsert_keys
