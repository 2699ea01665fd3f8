"""For any bytes the kernels return a result or raise RecordsError, and both twins agree."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.client.core.fetched import ConsumerRecord
from fenceline.records import _columns_py, _kernel_py
from fenceline.records.batch import BATCH_OVERHEAD, Codec, read_header
from fenceline.records.build import Record, build_batch
from fenceline.records.compression import compress, decompress
from fenceline.records.decode import decode_all
from fenceline.records.errors import RecordsError

TIMES = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
CONTENT = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3).map(tuple)
ROWS = st.lists(st.tuples(TIMES, CONTENT, CONTENT, HEADERS), min_size=1, max_size=12)
MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4)
SMALL_NUMBERS = st.sampled_from((0, 1, 2, 3, 5, 12, 1 << 31, -1, (1 << 63) - 1))


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RecordsError as error:
        return error.code, error.message


def mutate(payload: bytes, mutations: list[tuple[int, int]], cut: int) -> bytes:
    out = bytearray(payload)
    for at, value in mutations:
        if out:
            out[at % len(out)] = value
    return bytes(out[: len(out) - cut % (len(out) + 1)])


def plain(columns: _columns_py.Columns) -> list[Any]:
    """The bytes of the columns, for any kind of buffer."""

    def flat(part: Any) -> Any:
        if part is None or isinstance(part, int):
            return part
        return [flat(p) for p in part] if isinstance(part, tuple) else bytes(part)

    return [flat(part) for part in columns]


@settings(max_examples=400, deadline=None)
@given(rows=ROWS, mutations=MUTATIONS, cut=st.just(0) | st.integers(0, 200), count=st.integers(0, 14), base=TIMES)
def test_mutated_records(
    natives: ModuleType, rows: list[Any], mutations: list[tuple[int, int]], cut: int, count: int, base: int
) -> None:
    payload = bytearray()
    _kernel_py.encode(payload, rows, rows[0][0])
    records = mutate(bytes(payload), mutations, cut)
    count = count if count else len(rows)

    def both(call: Callable[[ModuleType], Any]) -> None:
        assert outcome(lambda: call(natives)) == outcome(lambda: call(_kernel_py))

    both(lambda k: k.walk(records, 0, len(records), count, base))
    both(lambda k: k.decode(records, 0, len(records), count, 5, count, base, None, Record))
    both(lambda k: k.decode(records, 0, len(records), count, 5, count, base, 99, Record, False))
    of = (ConsumerRecord, ("t", 3), (1, 7))
    both(lambda k: k.decode_rows(records, 0, len(records), count, 5, count, base, None, *of, 0, 1 << 62))
    both(lambda k: k.decode_rows(records, 0, len(records), count, 5, count, base, 99, *of, 7, 9))


@settings(max_examples=400, deadline=None)
@given(
    rows=ROWS, mutations=MUTATIONS, cut=st.just(0) | st.integers(0, 200), with_headers=st.booleans(),
    scale=st.sampled_from((1, 1000, 1_000_000)), first=st.integers(0, 12), end=st.integers(0, 20),
)  # fmt: skip
def test_mutated_columns(
    natives: ModuleType, rows: list[Any], mutations: list[tuple[int, int]], cut: int, with_headers: bool, scale: int,
    first: int, end: int,
) -> None:  # fmt: skip
    good, bad = bytearray(), bytearray()
    safe = [(1_700_000_000_000, *row[1:]) for row in rows]
    _kernel_py.encode(good, safe, safe[0][0])
    _kernel_py.encode(bad, rows, rows[0][0])
    broken = mutate(bytes(bad), mutations, cut)
    native, pure = natives.ColumnBuilder(with_headers, scale), _columns_py.ColumnBuilder(with_headers, scale)
    # A batch that fails leaves no trace between two valid ones.
    for records, base in ((bytes(good), safe[0][0]), (broken, rows[0][0]), (bytes(good), safe[0][0])):
        results = [
            outcome(
                lambda b=builder, r=records, t=base: b.append(
                    r, 0, len(r), len(rows), 3, len(rows) - 1, t, None, first, end, 0, 1, 2, 0
                )
            )
            for builder in (native, pure)
        ]
        assert results[0] == results[1]
        assert (native.rows, native.size_bytes) == (pure.rows, pure.size_bytes)
    assert plain(native.finish()) == plain(pure.finish())
    assert native.rows == pure.rows == 0


@settings(max_examples=300, deadline=None)
@given(
    records=st.binary(max_size=120), start=SMALL_NUMBERS, end=st.integers(0, 130), count=SMALL_NUMBERS,
    base=SMALL_NUMBERS, last=SMALL_NUMBERS,
)  # fmt: skip
def test_any_bytes_and_any_bounds(
    natives: ModuleType, records: bytes, start: int, end: int, count: int, base: int, last: int
) -> None:
    for call in (
        lambda k: k.walk(records, start, end, count, base),
        lambda k: k.decode(records, start, end, count, base, last, 0, None, Record),
    ):
        assert outcome(lambda c=call: c(natives)) == outcome(lambda c=call: c(_kernel_py))


@settings(max_examples=300, deadline=None)
@given(rows=ROWS)
def test_both_kernels_encode_equally(natives: ModuleType, rows: list[Any]) -> None:
    native, pure = bytearray(b"x"), bytearray(b"x")
    assert natives.encode(native, rows, rows[0][0]) == _kernel_py.encode(pure, rows, rows[0][0])
    assert native == pure
    decoded = natives.decode(native, 1, len(native), len(rows), 0, len(rows) - 1, rows[0][0], None, tuple)
    assert [row[1:] for row in decoded] == rows


@settings(max_examples=100, deadline=None)
@given(rows=ROWS)
def test_rows_are_unchanged_and_not_tracked_by_the_garbage_collector(natives: ModuleType, rows: list[Any]) -> None:
    batch = bytes(build_batch([(0, *row[1:]) for row in rows]))
    header = read_header(batch)
    found = natives.decode_rows(
        batch, BATCH_OVERHEAD, len(batch), len(rows), 5, len(rows) - 1, header.base_timestamp, None,
        ConsumerRecord, ("t", 3), (1, 7), 0, 1 << 62,
    )  # fmt: skip
    assert found == [ConsumerRecord("t", 3, 5 + i, 0, 1, 7, *row[1:]) for i, row in enumerate(rows)]
    assert all(type(row) is ConsumerRecord for row in found)
    assert not any(map(gc.is_tracked, found))
    del found
    gc.collect(0)


@given(key=st.binary(max_size=40))
def test_both_kernels_hash_equally(natives: ModuleType, key: bytes) -> None:
    assert natives.murmur2(key) == _kernel_py.murmur2(key)


@settings(max_examples=300, deadline=None)
@given(codec=st.sampled_from(list(Codec)), rows=ROWS, mutations=MUTATIONS, cut=st.just(0) | st.integers(0, 300))
@pytest.mark.long
def test_mutated_batches_only_raise_records_errors(
    codec: Codec, rows: list[Any], mutations: list[tuple[int, int]], cut: int
) -> None:
    batch = mutate(bytes(build_batch(rows, codec=codec)), mutations, cut)
    try:
        for header, _ in decode_all(batch):
            assert header.size_bytes <= len(batch)
    except RecordsError:
        pass


@settings(max_examples=300, deadline=None)
@given(
    codec=st.sampled_from(list(Codec)), content=st.binary(max_size=3000), mutations=MUTATIONS, cut=st.integers(0, 50)
)
def test_mutated_compression_stays_within_its_bound(
    codec: Codec, content: bytes, mutations: list[tuple[int, int]], cut: int
) -> None:
    packed = mutate(compress(codec, content * 3), mutations, cut)
    with contextlib.suppress(RecordsError):
        assert len(decompress(codec, packed, 4000)) <= 4000


def test_header_of_any_magic_or_length_is_rejected_or_complete() -> None:
    batch = build_batch([(1, b"k", b"v", ())])
    for at in range(BATCH_OVERHEAD):
        for value in (0, 1, 127, 128, 255):
            out = bytearray(batch)
            out[at] = value
            result = outcome(lambda b=out: read_header(b))
            assert isinstance(result, tuple)
