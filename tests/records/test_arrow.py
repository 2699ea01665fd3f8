"""Columns from batches and batches from columns, compared with the rows of `decode.py`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenceline.errors import ErrorCode
from fenceline.records.arrow import ArrowDecoder, arrow_schema, arrow_to_batches, batches_to_arrow, hash_keys
from fenceline.records.batch import Codec, TimestampType, read_header
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.records.errors import RecordsError
from fenceline.records.kernel import murmur2

pytestmark = pytest.mark.usefixtures("twin")
NOW = 1_700_000_000_000
ROWS = [
    (
        NOW + index,
        None if index % 5 == 0 else b"key %d" % index,
        None if index % 7 == 0 else b"value" * (index % 9),
        (("h", b"x"), ("é", None)) if index % 4 == 0 else (),
    )
    for index in range(600)
]
LOG = b"".join(
    build_batch(ROWS[at : at + 100], base_offset=at, leader_epoch=at // 200, codec=Codec(at // 100 % 5))
    for at in range(0, 600, 100)
)


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    batch.validate(full=True)
    headers = batch.column("headers").to_pylist()
    return [
        (time, key, value, tuple((pair["key"], pair["value"]) for pair in pairs))
        for time, key, value, pairs in zip(
            batch.column("timestamp").cast(pa.int64()).to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            headers,
            strict=True,
        )
    ]


def test_every_column() -> None:
    batch = batches_to_arrow([("flights", 3, LOG)])
    assert batch.schema == arrow_schema()
    assert rows_of(batch) == ROWS
    assert batch.column("offset").to_pylist() == list(range(600))
    assert batch.column("leader_epoch").to_pylist() == [index // 200 for index in range(600)]
    assert set(batch.column("partition").to_pylist()) == {3}
    assert set(batch.column("topic").to_pylist()) == {"flights"}
    assert set(batch.column("timestamp_type").to_pylist()) == {0}
    assert batch.column("value").null_count == sum(row[2] is None for row in ROWS)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 600), (0, 1), (99, 101), (250, 250), (350, 420), (599, 600), (600, 900)]
)
def test_offset_range(start: int, end: int) -> None:
    batch = batches_to_arrow([("t", 0, LOG)], start_offsets=[start], end_offsets_exclusive=[end])
    assert batch.column("offset").to_pylist() == list(range(start, min(end, 600)))
    assert rows_of(batch) == ROWS[start:end]


def test_several_partitions_in_order() -> None:
    batch = batches_to_arrow(
        [("b", 1, LOG), ("a", 0, LOG), ("b", 1, LOG)],
        start_offsets=[0, 10, 2],
        end_offsets_exclusive=[2, 12, 4],
        dictionary_topic=True,
    )
    batch.validate(full=True)
    found = list(zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True))
    assert found == [("b", 1, 0), ("b", 1, 1), ("a", 0, 10), ("a", 0, 11), ("b", 1, 2), ("b", 1, 3)]
    assert pa.types.is_dictionary(batch.schema.field("topic").type)


def test_column_options() -> None:
    batch = batches_to_arrow([("t", 0, LOG)], include_headers=False, include_leader_epoch=False, timestamp_unit="us")
    assert batch.schema.names == ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value"]
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC"), "pyspark.md S1"
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [row[0] * 1000 for row in ROWS]
    nulls = batches_to_arrow([("t", 0, LOG)], empty_headers_as_null=True).column("headers")
    full = [{"key": "h", "value": b"x"}, {"key": "é", "value": None}]
    assert nulls.to_pylist()[:5] == [full, None, None, None, full]


def test_empty_input() -> None:
    for chunks in ([], [("t", 0, b"")]):
        batch = batches_to_arrow(chunks)
        batch.validate(full=True)
        assert (batch.num_rows, batch.schema) == (0, arrow_schema())


def test_log_append_time() -> None:
    stamped = build_batch(ROWS[:9], timestamp_type=TimestampType.LOG_APPEND_TIME)
    batch = batches_to_arrow([("t", 0, stamped)])
    assert set(batch.column("timestamp").cast(pa.int64()).to_pylist()) == {NOW + 8}
    assert set(batch.column("timestamp_type").to_pylist()) == {1}


def test_timestamps_that_do_not_fit() -> None:
    far = build_batch([(1 << 60, None, None, ())])
    assert batches_to_arrow([("t", 0, far)]).num_rows == 1
    with pytest.raises(RecordsError) as refused:
        batches_to_arrow([("t", 0, far)], timestamp_unit="us")
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def test_torn_tail_and_the_next_offset() -> None:
    decoder = ArrowDecoder()
    assert decoder.append("t", 0, LOG[:-1]) == 500
    assert decoder.append("t", 0, LOG, start_offset=500, end_offset_exclusive=550) == 550
    assert decoder.append("t", 0, LOG, start_offset=550, end_offset_exclusive=550) == 550
    assert decoder.append("t", 0, LOG, start_offset=0, end_offset_exclusive=0) == 0
    assert decoder.append("t", 0, LOG[:20], start_offset=7) == 7
    assert decoder.row_count == 550
    assert decoder.finish().column("offset").to_pylist() == list(range(550))
    assert decoder.row_count == 0


def test_bytes_after_the_range_are_not_read() -> None:
    broken = bytearray(LOG)
    broken[-1] ^= 1
    decoder = ArrowDecoder()
    assert decoder.append("t", 0, broken, end_offset_exclusive=450) == 450
    assert decoder.append("t", 0, broken, start_offset=450, end_offset_exclusive=500) == 500
    assert decoder.finish().num_rows == 500


def test_control_batches_yield_no_rows() -> None:
    marker = build_batch([(NOW, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], base_offset=600, control=True, transactional=True)
    decoder = ArrowDecoder()
    assert decoder.append("t", 0, LOG + marker) == 601
    assert decoder.finish().num_rows == 600


def transaction(offset: int, producer: int, count: int = 2) -> bytes:
    rows = [(NOW, b"%d" % producer, None, ())] * count
    return bytes(
        build_batch(
            rows, base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
    )


def marker(offset: int, producer: int, kind: int) -> bytes:
    rows = [(NOW, b"\0\0\0" + bytes([kind]), bytes(6), ())]
    return bytes(
        build_batch(rows, base_offset=offset, producer_id=producer, producer_epoch=0, control=True, transactional=True)
    )


def test_aborted_transactions_are_left_out() -> None:
    log = b"".join(
        [
            transaction(0, 7),
            transaction(2, 8),
            bytes(
                build_batch(
                    [(NOW, b"plain", None, ())], base_offset=4, producer_id=7, producer_epoch=0, base_sequence=2
                )
            ),
            marker(5, 7, 0),
            transaction(6, 7),
            marker(8, 7, 1),
            marker(9, 8, 1),
            transaction(10, 8),
            marker(12, 8, 0),
        ]
    )
    everything = batches_to_arrow([("t", 0, log)]).column("offset").to_pylist()
    assert everything == [0, 1, 2, 3, 4, 6, 7, 10, 11]
    committed = batches_to_arrow([("t", 0, log)], aborted=[[(8, 10), (7, 0)]]).column("offset").to_pylist()
    assert committed == [2, 3, 4, 6, 7]


def test_corrupt_batch_is_reported_and_intact_batches_are_returned() -> None:
    broken = bytearray(LOG)
    broken[-1] ^= 1
    decoder = ArrowDecoder()
    with pytest.raises(RecordsError, match="t-4, from offset 500") as refused:
        decoder.append("t", 4, broken)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert rows_of(decoder.finish()) == ROWS[:500]


def test_result_memory_is_not_reused_by_the_next_result() -> None:
    """The native kernel keeps freed memory for later columns."""
    first = batches_to_arrow([("t", 0, LOG)] * 50)
    kept = first.slice(5, 500)
    del first
    for _ in range(3):
        batches_to_arrow([("t", 0, bytes(build_batch([(NOW, b"x" * 50, b"y" * 500, ())] * 2000)))])
    assert rows_of(kept) == (ROWS * 50)[5:505]


def table_of(rows: list[Any]) -> pa.Table:
    return pa.table(
        {
            "time": pa.array([row[0] for row in rows], pa.timestamp("ms", "UTC")),
            "k": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
            "hs": pa.array(
                [[{"key": k, "value": v} for k, v in row[3]] for row in rows],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


ALL_COLUMNS: dict[str, Any] = {"key": "k", "timestamp": "time", "headers": "hs"}


def read_back(batches: list[bytearray]) -> list[Any]:
    return [record[1:] for batch in batches for _, records in decode_all(batch) for record in records]


@pytest.mark.parametrize("codec", list(Codec))
def test_to_batches_and_back(codec: Codec) -> None:
    batches = arrow_to_batches(table_of(ROWS), codec=codec, max_batch_bytes=3000, **ALL_COLUMNS)
    assert len(batches) > 5
    assert read_back(batches) == ROWS
    assert batches[0] == build_batch(ROWS[: read_header(batches[0]).record_count], codec=codec)
    if codec is Codec.NONE:
        assert max(map(len, batches)) <= 3000


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(-10_000, NOW),
            st.none() | st.binary(max_size=30),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=40,
    ),
    start=st.integers(0, 9),
    max_batch_bytes=st.integers(0, 2000),
)
def test_slices_with_nulls(rows: list[Any], start: int, max_batch_bytes: int) -> None:
    """The offset of a slice applies to every buffer, including the validity bits."""
    piece = table_of(rows).to_batches()[0].slice(start)
    batches = arrow_to_batches(piece, max_batch_bytes=max_batch_bytes, **ALL_COLUMNS)
    assert read_back(batches) == rows[start:]
    back = batches_to_arrow([("t", 0, batch) for batch in batches])
    assert rows_of(back) == rows[start:]


def test_sequences_count_up_and_wrap() -> None:
    batches = arrow_to_batches(
        table_of(ROWS), max_batch_bytes=2000, producer_id=5, producer_epoch=1, base_sequence=2**31 - 100
    )
    headers = [read_header(batch) for batch in batches]
    assert [h.base_sequence for h in headers[1:]] == [(h.last_sequence + 1) & 0x7FFFFFFF for h in headers[:-1]]
    assert {(h.producer_id, h.producer_epoch) for h in headers} == {(5, 1)}


def test_other_types_of_columns() -> None:
    wanted = [b"a", None, b"ccc"]
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view(), pa.string_view()):
        column = pa.array(wanted, pa.binary()).cast(pa.string()) if "string" in str(kind) else pa.array(wanted)
        table = pa.table({"value": column.cast(kind)})
        assert [row[2] for row in read_back(arrow_to_batches(table))] == wanted, kind
    table = pa.table({"value": pa.array(["a", None, "ccc"]).dictionary_encode()})
    assert [row[2] for row in read_back(arrow_to_batches(table))] == wanted
    times = pa.table({"value": wanted, "t": pa.array([1_500, None, -1_500], pa.timestamp("us"))})
    assert [row[0] for row in read_back(arrow_to_batches(times, timestamp="t", default_timestamp_ms=9))] == [1, 9, -2]
    plain = pa.table({"value": wanted, "t": pa.array([5, 4, None], pa.int64())})
    assert [row[0] for row in read_back(arrow_to_batches(plain, timestamp="t"))] == [5, 4, -1]


def test_columns_that_cannot_be_records_are_rejected() -> None:
    with pytest.raises(TypeError, match="int64"):
        arrow_to_batches(pa.table({"value": [1, 2]}))
    with pytest.raises(TypeError, match="timestamps"):
        arrow_to_batches(pa.table({"value": [b"x"], "t": ["x"]}), timestamp="t")
    with pytest.raises(TypeError, match="headers"):
        arrow_to_batches(pa.table({"value": [b"x"], "h": ["x"]}), headers="h")
    with pytest.raises(KeyError):
        arrow_to_batches(pa.table({"other": [b"x"]}))
    nameless = table_of([(NOW, None, None, (("a", b""),))]).set_column(
        3,
        "hs",
        pa.array([[{"key": None, "value": b"x"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    )
    with pytest.raises(ValueError, match="no name"):
        arrow_to_batches(nameless, headers="hs")


def test_hashes_of_keys() -> None:
    keys = [b"", b"a", None, b"ab", b"abc", b"abcd", b"hello kafka"]
    found = hash_keys(pa.array([b"cut off", *keys], pa.binary()).slice(1))
    assert found.to_pylist() == [None if key is None else murmur2(key) for key in keys]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536), ("abc", 479470107)],
)
def test_murmur2_is_kafkas(key: str, expected: int) -> None:
    """Values from Kafka's own tests."""
    from fenceline.records import kernel

    assert kernel.murmur2(key.encode()) == expected & 0x7FFFFFFF
