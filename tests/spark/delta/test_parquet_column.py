"""Parquet files with an added column: the other columns are unchanged for every reader."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fenceline.errors import OperatorError
from pyspark_fenceline.delta import parquet_column
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.parquet_column import with_column
from pyspark_fenceline.delta.rewrite import with_epochs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
EPOCHS = pa.chunked_array([pa.array([None if row % 7 == 0 else row // 300 for row in range(ROWS)], pa.int32())])


def table(**others: Any) -> pa.Table:
    return pa.table(
        {
            "offset": pa.array(range(ROWS), pa.int64()),
            "value": pa.array([None if row % 5 == 0 else b"%d" % row * 3 for row in range(ROWS)], pa.binary()),
            "nested": pa.array(
                [{"a": row, "b": [{"c": str(row)}] * (row % 3)} for row in range(ROWS)],
                pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
            ),
            **others,
            "topic": ["t"] * ROWS,
            "map": pa.array([[("k", float(row))] for row in range(ROWS)], pa.map_(pa.string(), pa.float64())),
        }
    )


def written(rows: pa.Table, **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(rows, sink, **{"row_group_size": 300, **options})
    return sink


def copied(source: io.BytesIO, name: str = "leader_epoch", epochs: pa.ChunkedArray = EPOCHS) -> io.BytesIO:
    target = io.BytesIO()
    size = with_column(source, target, name, epochs, "snappy")
    assert size == len(target.getvalue())
    return target


def all_structs(found: Any) -> Iterator[parquet_column._Struct]:
    match found:
        case parquet_column._Struct():
            yield found
            for _, value in found.fields.values():
                yield from all_structs(value)
        case parquet_column._Sequence():
            for value in found.values:
                yield from all_structs(value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
        {"compression": "none", "use_dictionary": False, "store_schema": False, "data_page_size": 100},
        {"row_group_size": 10, "write_statistics": False},
    ],
)
def test_a_column_is_appended_after_the_others(options: dict[str, Any]) -> None:
    rows = table()
    source = written(rows, **options)
    found = pq.read_table(copied(source))
    assert found.drop_columns("leader_epoch").equals(rows)
    assert found["leader_epoch"].combine_chunks().equals(EPOCHS.combine_chunks())
    before, after = pq.read_metadata(source), pq.read_metadata(copied(source))
    assert (after.num_row_groups, after.num_columns) == (before.num_row_groups, before.num_columns + 1)
    for number in range(before.num_row_groups):
        sizes = [after.row_group(number).column(place).total_uncompressed_size for place in range(after.num_columns)]
        assert after.row_group(number).total_byte_size == sum(sizes)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.int16()])
def test_a_column_of_the_same_name_is_replaced_in_place(kind: pa.DataType) -> None:
    rows = table(leader_epoch=pa.nulls(ROWS, pa.int64()))
    epochs = EPOCHS.cast(kind)
    found = pq.read_table(copied(written(rows), epochs=epochs))
    place = rows.schema.get_field_index("leader_epoch")
    assert found.equals(rows.set_column(place, "leader_epoch", epochs))
    # Again, now in a file with unreferenced pages.
    again = pq.read_table(copied(copied(written(rows)), epochs=epochs))
    assert again.equals(found)


def test_rows_are_found_by_their_statistics() -> None:
    copy = copied(written(table()))
    group = pq.read_metadata(copy).row_group(1)
    place = next(n for n in range(group.num_columns) if group.column(n).path_in_schema == "leader_epoch")
    statistics = group.column(place).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (1, 1, 43)
    assert pq.read_table(copy, filters=[("leader_epoch", "=", 2)])["offset"].to_pylist() == [
        row for row in range(600, 900) if row % 7
    ]


def test_schema_metadata_of_the_writer_is_omitted() -> None:
    rows = table().replace_schema_metadata({"ours": "kept"})
    source = written(rows)
    assert b"ARROW:schema" in pq.read_metadata(source).metadata
    assert pq.read_metadata(copied(source)).metadata == {b"ours": b"kept"}


def test_a_footer_round_trips() -> None:
    for options in ({}, {"write_page_index": True, "sorting_columns": [pq.SortingColumn(0)]}, {"row_group_size": 1}):
        source = written(table(), **options)
        footer, begin = parquet_column._read_footer(source)
        for struct in all_structs(footer):
            struct.raw = None
        assert footer.encode() == source.getvalue()[begin:-8]


def test_every_thrift_type_round_trips() -> None:
    kinds = parquet_column._Type
    numbers = parquet_column._Sequence(kinds.I32, [0, -1, 1, -(1 << 31), *range(20)])
    pairs = parquet_column._Map(kinds.BINARY, kinds.TRUE, [(b"a", 1), (b"b", 2)])
    nothing = parquet_column._Map(0, 0, [])
    inner = parquet_column._Struct({20: (kinds.BYTE, 7), 400: (kinds.I64, -(1 << 63))})
    values = ((kinds.TRUE, 1), (kinds.FALSE, 2), (kinds.DOUBLE, b"8 bytes."), (kinds.BINARY, b"x" * 300))
    values += ((kinds.LIST, numbers), (kinds.MAP, pairs), (kinds.MAP, nothing), (kinds.STRUCT, inner))
    outer = parquet_column._Struct(dict(enumerate(values, 1)))
    read = parquet_column._Reader(outer.encode()).structure()
    assert read.raw == outer.encode()
    inner.raw = read.structure(8).raw
    assert read.fields == outer.fields
    with pytest.raises(OperatorError, match="type 14, which Thrift does not have"):
        parquet_column._Reader(b"\x1e\0").structure()


def test_bounds_missing_in_one_row_group_are_omitted(tmp_path: Path) -> None:
    whole = table(
        leader_epoch=EPOCHS,
        at=pa.array([row * 1000 + 1 for row in range(ROWS)], pa.timestamp("ns", "UTC")),
        number=pa.array([float("nan") if row == 5 else float(row) for row in range(ROWS)]),
    )
    source = written(whole)
    footer, begin = parquet_column._read_footer(source)
    # As by a writer that has no statistics for one row group.
    row_groups, columns, meta_data, path_in_schema, statistics = 4, 1, 3, 3, 12
    (chunk,) = [
        chunk
        for chunk in footer.rows(row_groups)[1].rows(columns)
        if chunk.structure(meta_data).fields[path_in_schema][1].values == [b"offset"]
    ]
    chunk.structure(meta_data).drop(statistics)
    reported = footer.encode()
    path = tmp_path / "f.snappy.parquet"
    path.write_bytes(source.getvalue()[:begin] + reported + len(reported).to_bytes(4, "little") + b"PAR1")
    copy = with_epochs(DeltaOptions(str(tmp_path)), path.name, {}, EPOCHS)
    assert copy.size_bytes == (tmp_path / copy.path).stat().st_size
    found = json.loads(copy.statistics)
    assert found["numRecords"] == ROWS
    assert (found["minValues"], found["maxValues"]) == (
        {"topic": "t", "leader_epoch": 0},
        {"topic": "t", "leader_epoch": 3},
    )
    assert found["nullCount"].keys() == {"value", "topic", "leader_epoch", "at", "number"}


def test_files_that_are_not_parquet_are_rejected() -> None:
    whole = written(table()).getvalue()
    for other in (b"", b"PAR1", whole[:-4] + b"PARE", whole[:-1]):
        with pytest.raises(OperatorError, match="no Parquet file with a plain footer"):
            copied(io.BytesIO(other))


@pytest.mark.spark
def test_spark_reads_its_own_files_with_an_added_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, ROWS, 1, 1).selectExpr(
        "id offset", "cast(id as string) value", "named_struct('a', id, 'b', array(id)) nested", "map(id, id / 2) map"
    )
    frame.write.parquet(str(tmp_path / "own"))
    (own,) = (tmp_path / "own").glob("*.parquet")
    (tmp_path / "copy").mkdir()
    with (tmp_path / "copy" / "copy.parquet").open("wb") as target, own.open("rb") as source:
        with_column(source, target, "leader_epoch", EPOCHS, "snappy")
    found = spark.read.parquet(str(tmp_path / "copy"))
    assert found.columns == [*frame.columns, "leader_epoch"]
    rows = found.orderBy("offset")
    assert rows.drop("leader_epoch").collect() == frame.orderBy("offset").collect()
    assert [row[0] for row in rows.select("leader_epoch").collect()] == EPOCHS.to_pylist()
    assert found.where("leader_epoch = 3").count() == sum(epoch == 3 for epoch in EPOCHS.to_pylist())
    footer, begin = parquet_column._read_footer(own.open("rb"))
    for struct in all_structs(footer):
        struct.raw = None
    assert footer.encode() == own.read_bytes()[begin:-8]
