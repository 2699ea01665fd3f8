"""Range verdicts of an audit against single-row verdicts, for random logs and tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.judge import ExpectedRows, TableFinding, TableFindingKind, judge
from pyspark_fenceline.auditing.log import RecordRanges
from pyspark_fenceline.auditing.ranges import merged
from pyspark_fenceline.auditing.runs import runs_of
from pyspark_fenceline.common.log_columns import LogColumns, log_columns
from pyspark_fenceline.common.log_matching import LogEpochs
from tests.spark.fakes import FakeLog
from tests.spark.row_verdicts import RowVerdict, judge_row, view_of

TP = TopicPartition("t", 0)
BUCKET = 8


def columns(rows: list[tuple[int, int]]) -> LogColumns:
    return LogColumns(
        (TP,),
        np.zeros(len(rows), dtype=np.int64),
        np.array([o for o, _ in rows], dtype=np.int64),
        np.array([e for _, e in rows], dtype=np.int64),
    )


def finder(present: set[int], hidden: set[int]) -> object:
    def find(ranges: list[tuple[int, int]], isolation_level: str) -> RecordRanges:
        found = RecordRanges()
        for start, end in merged(ranges, near=2):
            for offset in range(start, end):
                if offset in present or (isolation_level == "read_uncommitted" and offset in hidden):
                    found.add(offset, offset + 1)
        return found

    return find


def all_findings(
    expected: ExpectedRows, rows: list[tuple[int, int]], present: set[int], hidden: set[int]
) -> list[TableFinding]:
    runs = pa.Table.from_batches([runs_of(columns(rows), BUCKET)])
    findings = []
    for bucket in range(8):
        own = runs.filter(pa.compute.equal(runs["bucket"], bucket))
        arrays = [
            np.asarray(own[name].combine_chunks()).astype(np.int64) for name in ("first_offset", "end_offset", "epoch")
        ]
        findings += judge(expected, (bucket * BUCKET, (bucket + 1) * BUCKET), *arrays, finder(present, hidden))  # type: ignore[arg-type]
    return findings


@settings(max_examples=600, deadline=None)
@given(st.data())
@pytest.mark.long
def test_range_verdicts_equal_single_row_verdicts(data: st.DataObject) -> None:
    epochs = data.draw(st.lists(st.integers(0, 3), max_size=30).map(sorted))
    leader = (epochs[-1] if epochs else 0) + data.draw(st.integers(0, 1))
    start = data.draw(st.integers(0, len(epochs)))
    log = FakeLog(list(epochs), leader, start)
    view = view_of(log) if data.draw(st.booleans()) else LogEpochs(-1, start, len(epochs))
    offsets = st.integers(0, 40)
    hidden = data.draw(st.sets(offsets)) & set(range(len(epochs)))
    holes = data.draw(st.sets(offsets))
    present = set(range(start, len(epochs))) - hidden - holes
    true_rows = [(o, epochs[o]) for o in data.draw(st.lists(offsets)) if o < len(epochs)]
    other_rows = data.draw(st.lists(st.tuples(offsets, st.integers(-1, 4)), max_size=6))
    rows = sorted(true_rows + other_rows)
    readable = data.draw(st.integers(start, len(epochs)))
    rows_end = data.draw(offsets)
    everything = data.draw(st.booleans())
    expected = ExpectedRows(view, readable, 0, rows_end, everything, committed_only=bool(hidden))
    findings = all_findings(expected, rows, present, hidden if expected.committed_only else set())

    verdicts = [judge_row(view, *row) for row in rows]
    held = [row[0] for row, v in zip(rows, verdicts, strict=True) if v in (RowVerdict.IN_LOG, RowVerdict.UNKNOWN)]
    expired = [row[0] for row, v in zip(rows, verdicts, strict=True) if v is RowVerdict.EXPIRED]

    def offsets_of_kind(kind: TableFindingKind) -> list[int]:
        return sorted(o for f in findings if f.kind is kind for o in range(f.start_offset, f.end_offset_exclusive))

    for kind, meant in (
        (TableFindingKind.STALE, (RowVerdict.STALE,)),
        (TableFindingKind.BEYOND, (RowVerdict.BEYOND,)),
        (TableFindingKind.NEWER, (RowVerdict.NEWER,)),
        (TableFindingKind.UNPROVEN, (RowVerdict.UNKNOWN,)),
    ):
        assert offsets_of_kind(kind) == sorted(row[0] for row, v in zip(rows, verdicts, strict=True) if v in meant), (
            kind
        )
        assert sum(f.rows for f in findings if f.kind is kind) == len(offsets_of_kind(kind))
    extra = {o: (held + expired).count(o) - 1 for o in {*held, *expired}}
    assert sum(f.rows for f in findings if f.kind is TableFindingKind.DUPLICATE) == sum(extra.values())
    assert offsets_of_kind(TableFindingKind.DUPLICATE) == sorted(o for o, more in extra.items() if more)
    lacking = {o for o in present if o < readable} - set(held)
    assert offsets_of_kind(TableFindingKind.MISSING) == sorted(o for o in lacking if o < rows_end)
    assert offsets_of_kind(TableFindingKind.BEHIND) == sorted(o for o in lacking if o >= rows_end)
    assert sorted(set(offsets_of_kind(TableFindingKind.EXPIRED))) == sorted(
        {*expired, *(set(range(start)) - set(expired))}
    )
    inside = {o for o in held if start <= o < readable}
    if everything:
        assert offsets_of_kind(TableFindingKind.ABORTED) == sorted(
            inside & hidden if expected.committed_only else set()
        )
        assert offsets_of_kind(TableFindingKind.COMPACTED) == sorted(
            inside - present - (hidden if expected.committed_only else set())
        )


def test_rows_out_of_order_and_without_an_offset_are_counted() -> None:
    found = log_columns(
        {
            "topic": pa.array(["b", "a", None, "a", "a", "b"]),
            "partition": pa.array([0, 1, 1, 1, 1, None], pa.int32()),
            "offset": pa.array([5, 9, 1, 7, 8, 3]),
            "leader_epoch": pa.array([1, 2, 2, 2, None, 1], pa.int32()),
        }
    )
    rows = [tuple(row.values()) for row in runs_of(found, 100).to_pylist()]
    assert sorted(rows, key=lambda row: (row[0] is None, row)) == [
        ("a", 1, 0, 7, 8, 2),
        ("a", 1, 0, 8, 9, -1),
        ("a", 1, 0, 9, 10, 2),
        ("b", 0, 0, 5, 6, 1),
        (None, None, -1, 0, 2, -1),
    ]


def test_runs_end_at_bucket_boundaries() -> None:
    rows = [(offset, 0) for offset in range(5, 21)]
    found = [(r["bucket"], r["first_offset"], r["end_offset"]) for r in runs_of(columns(rows), 8).to_pylist()]
    assert found == [(0, 5, 8), (1, 8, 16), (2, 16, 21)]
