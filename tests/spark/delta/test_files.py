from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fenceline.errors import OperatorError
from pyspark_fenceline.delta.files import DataFile, FileWriter, dictionary_columns
from pyspark_fenceline.delta.options import delta_options
from pyspark_fenceline.delta.schema import file_schema, new_shape
from tests.spark.schemas import struct

UTC = datetime.UTC


def written(
    path: Path, ddl: str, *batches: dict[str, list[Any]], required: tuple[str, ...] = (), **options: str
) -> list[DataFile]:
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen = delta_options({"path": str(path), **options})
    schema = struct(ddl)
    shape = new_shape(schema, chosen.partition_by)
    writer = FileWriter(chosen, shape, file_schema(schema, shape), required, task_number=3)
    # As Spark passes rows: timestamps in the session's time zone, not in UTC.
    arriving = to_arrow_schema(schema, timezone="Asia/Tokyo")
    try:
        for batch in batches:
            writer.write(pa.RecordBatch.from_pydict(batch, schema=arriving))
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def test_one_file_with_statistics(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 5, 1, 12, 30, 1, 123456, tzinfo=UTC)
    (file,) = written(
        tmp_path,
        "a long, s string, t timestamp, d date, b binary, x double",
        {
            "a": [3, None],
            "s": ["q", "r"],
            "t": [moment] * 2,
            "d": [moment.date()] * 2,
            "b": [b"1", b"2"],
            "x": [1.0, 2.5],
        },
    )
    assert file.record_count == 2
    assert file.size_bytes == (tmp_path / file.path).stat().st_size
    assert file.path.startswith("part-00003-")
    statistics = json.loads(file.statistics)
    assert statistics["numRecords"] == 2
    assert statistics["minValues"] == {
        "a": 3, "s": "q", "t": "2024-05-01T12:30:01.123456Z", "d": "2024-05-01", "x": 1.0,
    }  # fmt: skip
    assert statistics["maxValues"]["s"] == "r"
    assert statistics["nullCount"]["a"] == 1
    assert pq.read_schema(tmp_path / file.path).field("t").type == pa.timestamp("us", "UTC")


def test_unreliable_bounds_are_omitted(tmp_path: Path) -> None:
    (file,) = written(
        tmp_path,
        "x double, s string, d decimal(10,2)",
        {"x": [1.0, float("nan")], "s": ["a", "b" * 300], "d": [Decimal("1.50"), Decimal("2.50")]},
        {"x": [2.0], "s": ["c"], "d": [Decimal("3.50")]},
    )
    statistics = json.loads(file.statistics)
    assert statistics["minValues"] == {}
    assert statistics["maxValues"] == {}
    assert statistics["nullCount"] == {"x": 0, "s": 0, "d": 0}


def test_rows_go_to_the_file_of_their_partition_values(tmp_path: Path) -> None:
    files = written(
        tmp_path,
        "topic string, p int, v long",
        {"topic": ["b", "a", "b", None, ""], "p": [1, 1, 1, 2, 2], "v": [1, 2, 3, 4, 5]},
        {"topic": ["a b/ü", "b"], "p": [1, 1], "v": [6, 7]},
        partitionBy="topic, P",
    )
    found = {
        (f.partition_values["topic"], f.partition_values["p"]): pq.read_table(tmp_path / f.path).column("v").to_pylist()
        for f in files
    }
    # Delta stores the empty string as null.
    assert found == {("b", "1"): [1, 3, 7], ("a", "1"): [2], (None, "2"): [4, 5], ("a b/ü", "1"): [6]}
    for file in files:
        assert "v" in json.loads(file.statistics)["minValues"]
        assert file.path.replace("=", "").replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum()


@pytest.mark.parametrize(
    ("ddl", "value", "text"),
    [
        ("date", datetime.date(2024, 2, 29), "2024-02-29"),
        ("timestamp", datetime.datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC), "2024-01-01 00:00:00.000005"),
        ("boolean", True, "true"),
        ("double", 0.1, "0.1"),
        ("decimal(5,2)", Decimal("1.50"), "1.50"),
        ("long", -7, "-7"),
    ],
)
def test_partition_values_are_written_as_delta_reads_them(tmp_path: Path, ddl: str, value: Any, text: str) -> None:
    (file,) = written(tmp_path, f"k {ddl}, v long", {"k": [value], "v": [1]}, partitionBy="k")
    assert file.partition_values == {"k": text}


def test_large_output_is_split_into_files(tmp_path: Path) -> None:
    rows = {"v": list(range(1000))}
    files = written(tmp_path, "v long", *[rows] * 5, targetFileSizeBytes="1")
    assert sum(file.record_count for file in files) == 5000
    assert len(files) >= 2


def test_many_partition_values_do_not_keep_many_files_open(tmp_path: Path) -> None:
    rows = {"k": list(range(200)), "v": list(range(200))}
    files = written(tmp_path, "k int, v long", rows, rows, partitionBy="k")
    assert sum(file.record_count for file in files) == 400


def test_a_null_in_a_required_column_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="must not be null"):
        written(tmp_path, "a long", {"a": [1]}, {"a": [None]}, required=("a",))
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_written_without_rows(tmp_path: Path) -> None:
    assert written(tmp_path, "a long", {"a": []}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the table's path"),
        ({"path": "/x", "mergeSchema": "maybe"}, "true or false"),
        ({"path": "/x", "compression": "brotli"}, "compression"),
        ({"path": "/x", "targetFileSizeBytes": "big"}, "targetFileSizeBytes"),
        ({"path": "/x", "partitionBy": "a,A"}, "twice"),
        ({"path": "/x", "txnAppId": "a"}, "belong together"),
        ({"path": "/x", "txnAppId": "a", "txnVersion": "b"}, "whole number"),
    ],
)
def test_invalid_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        delta_options(options)


def test_local_paths_may_be_uris() -> None:
    assert delta_options({"path": "file:///tmp/t"}).path == "/tmp/t"
    assert delta_options({"path": "s3://b/t", "storage.aws_region": "eu"}).storage == {"aws_region": "eu"}


def test_only_repeated_values_get_a_dictionary() -> None:
    rows = pa.table({"unique": list(range(1000)), "same": ["x"] * 1000, "few": [number % 9 for number in range(1000)]})
    assert dictionary_columns(rows) == ["same", "few"]
    # Too few rows are no evidence, and fields of nested columns have their own names.
    assert dictionary_columns(rows.slice(0, 20)) == ["unique", "same", "few"]
    assert dictionary_columns(rows.append_column("nested", pa.array([[1]] * 1000))) is True
