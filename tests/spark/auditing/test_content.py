"""Rows without an epoch against the log's records: which are equal, which differ, and which cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing import content as audit_content
from pyspark_fenceline.auditing.content import ByValues, comparable, content_columns, equal
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, SAME_VALUES
from pyspark_fenceline.common.log_columns import log_columns
from pyspark_fenceline.delta import table_files as delta_table_files
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile
from tests.spark.fakes import FakeCluster, install_fake_cluster

TP = TopicPartition("t", 0)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def in_log(values: list[bytes | None], epochs: list[int]) -> pa.RecordBatch:
    """Records from offset 0 on, as the client reads them; None: no record."""
    offsets = [offset for offset, value in enumerate(values) if value is not None]
    size = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * size, pa.binary()),
            "value": pa.array([values[offset] for offset in offsets], pa.binary()),
            "topic": pa.array(["t"] * size),
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([AT] * size, pa.timestamp("us", "UTC")),
            "timestamp_type": pa.array([0] * size, pa.int32()),
            "leader_epoch": pa.array([epochs[offset] for offset in offsets], pa.int32()),
        }
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=1)


def keep_log(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, batch: pa.RecordBatch, end: int) -> None:
    cluster.log("t").append(end)

    def read(client: Any, ranges: Any, level: str = "", **options: Any) -> Iterator[pa.RecordBatch]:
        for _, start, stop in ranges:
            inside = (np.asarray(batch["offset"]) >= start) & (np.asarray(batch["offset"]) < stop)
            if inside.any():
                yield batch.filter(pa.array(inside))

    monkeypatch.setattr(audit_content, "read_log", read)


def found(rows: pa.Table, columns: tuple[str, ...] = ("value",)) -> list[int]:
    return ByValues({}, columns).of_rows(rows, log_columns({**{n: rows[n] for n in rows.column_names}})).epochs.tolist()


def rows(values: list[Any], offsets: list[int], epochs: list[int | None] | None = None) -> pa.Table:
    return pa.table(
        {
            "topic": ["t"] * len(offsets),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "leader_epoch": pa.array(epochs or [None] * len(offsets), pa.int32()),
            "value": values,
        }
    )


def test_equal_values_get_the_epoch_of_the_record_and_others_are_stale(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_log(cluster, monkeypatch, in_log([b"a", b"b", None, b"d", b"e"], [1, 1, 1, 2, -1]), 5)
    # In any order, duplicated, as text; one row has an epoch, one has no record, and one is above the end.
    table = rows(["d", "x", "a", "d", "c", "b", "e", "z"], [3, 3, 0, 3, 2, 1, 4, 9], [None] * 5 + [7, None, None])
    assert found(table) == [2, NOT_IN_LOG, 1, 2, -1, 7, SAME_VALUES, -1]


def test_every_shared_column_must_be_equal(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_log(cluster, monkeypatch, in_log([b"a", b"b", b"c"], [1, 1, 1]), 3)
    table = rows(["a", "b", "c"], [0, 1, 2])
    # Timestamps of another unit and without a time zone are equal.
    late = AT.replace(tzinfo=None, second=1)
    table = table.append_column("timestamp", pa.array([AT.replace(tzinfo=None), late, None], pa.timestamp("ms")))
    assert found(table, ("value", "timestamp")) == [1, NOT_IN_LOG, NOT_IN_LOG]
    table = table.append_column("key", pa.array([None, b"k", b"k"]))
    assert found(table, ("value", "key")) == [NOT_IN_LOG, 1, 1]


def test_null_is_equal_to_null_only() -> None:
    assert equal(pa.array([None, None, b"", b"a"]), pa.array([None, b"", None, b"a"])).tolist() == [
        True,
        False,
        False,
        True,
    ]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    one = pa.array([None, [], [{"key": "a", "value": b"1"}], [{"key": "a", "value": b"1"}]], headers)
    other = pa.array([[], None, [{"key": "a", "value": b"1"}], [{"key": "a", "value": None}]], headers)
    assert equal(one, other).tolist() == [True, True, True, False]


def test_rows_of_a_topic_unknown_to_the_cluster_are_not_compared(cluster: FakeCluster) -> None:
    table = rows(["a"], [0]).set_column(0, "topic", pa.array(["elsewhere"]))
    assert found(table) == [-1]


def test_a_file_is_compared_a_few_row_groups_at_a_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    keep_log(cluster, monkeypatch, in_log([b"%d" % n for n in range(100)], [1] * 60 + [2] * 40), 100)
    monkeypatch.setattr(delta_table_files, "PIECE_ROWS", 30)
    kept = rows([b"%d" % n for n in range(99)] + [b"?"], list(range(100)))
    pq.write_table(kept, tmp_path / "f.parquet", row_group_size=7)
    file = TableFile("f.parquet", 0, {})
    columns = log_columns({name: kept[name] for name in kept.column_names[:4]})
    refined = ByValues({}, ("value", "key")).of_file(DeltaOptions(str(tmp_path)), file, columns)
    # The file has no column `key`: it reads as null, unlike the key in the log.
    assert set(refined.epochs.tolist()) == {NOT_IN_LOG}
    refined = ByValues({}, ("value",)).of_file(DeltaOptions(str(tmp_path)), file, columns)
    assert refined.epochs.tolist() == [1] * 60 + [2] * 39 + [NOT_IN_LOG]


def test_columns_that_would_prove_nothing_are_rejected() -> None:
    place = ["topic", "partition", "offset"]
    assert content_columns([*place, "value", "parsed", "timestamp"], "it") == ("value", "timestamp")
    assert content_columns([*place, "timestamp"], "it") == ("timestamp",)
    for names in (place, [*place, "parsed"], [*place, "timestamp", "parsed"]):
        with pytest.raises(OperatorError, match="no column value") as caught:
            content_columns(names, "it")
        assert "transform" in caught.value.advice
    with pytest.raises(OperatorError, match="Column timestamp of the table is of type int64"):
        comparable("timestamp", pa.array([1]))
    write = pa.array([[1]], pa.list_(pa.int64()))
    with pytest.raises(OperatorError, match="cannot be compared with the log's value"):
        comparable("value", write)
