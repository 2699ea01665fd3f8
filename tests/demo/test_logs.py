"""A table is compared with the logs in spans: matching, stale and missing rows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fenceline.client.core.epoch_history import EpochStart
from fenceline.demo.leader_history import LeaderHistory
from fenceline.demo.logs import LogRun, compare_with_logs, epochs_in, runs_of
from fenceline.demo.loss import NO_LEADER, LeaderAtLoss
from fenceline.demo.report import ReportedSpan, RowState
from pyspark_fenceline.common.log_matching import LogEpochs

CUT = LogEpochs(2, 0, 100, (EpochStart(0, 0), EpochStart(2, 40)))
"""Epoch 1 also wrote from offset 40 on and was truncated."""


def rows(*given: tuple[int, int, int]) -> pa.Table:
    partitions, offsets, epochs = zip(*given, strict=True) if given else ((), (), ())
    return pa.table(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "leader_epoch": pa.array(epochs, pa.int32()),
        }
    )


def test_rows_become_runs() -> None:
    assert runs_of(rows()) == []
    given = [(1, 5, 0), (0, 0, 0), (0, 1, 0), (0, 3, 0), (0, 2, 1), (1, 6, 0)]
    assert runs_of(rows(*given)) == [LogRun(0, 0, 2, 0), LogRun(0, 2, 3, 1), LogRun(0, 3, 4, 0), LogRun(1, 5, 7, 0)]


def test_duplicate_rows_are_one_run() -> None:
    assert runs_of(rows((0, 1, 0), (0, 1, 0), (0, 2, 0))) == [LogRun(0, 1, 3, 0)]


def test_an_epoch_ends_where_the_next_one_starts() -> None:
    assert epochs_in(CUT) == [(0, 0, 40), (2, 40, 100)]
    assert epochs_in(LogEpochs(0, 0, 0)) == []


def test_before_and_after_a_repair() -> None:
    before = compare_with_logs("before", [LogRun(0, 0, 40, 0), LogRun(0, 40, 70, 1)], {0: CUT}, {0: 60})
    assert list(before.spans) == [
        ReportedSpan(0, 0, 40, 0, RowState.MATCHING),
        ReportedSpan(0, 40, 60, 2, RowState.MISSING),
        ReportedSpan(0, 40, 70, 1, RowState.STALE),
    ]
    after = compare_with_logs("after", [LogRun(0, 0, 40, 0), LogRun(0, 40, 100, 2)], {0: CUT})
    assert {span.state for span in after.spans} == {RowState.MATCHING}
    assert after.count(RowState.MATCHING) == 100


def test_only_the_middle_of_a_run_may_match() -> None:
    view = LogEpochs(3, 0, 30, (EpochStart(0, 0), EpochStart(1, 10), EpochStart(3, 20)))
    found = compare_with_logs("now", [LogRun(0, 5, 25, 1)], {0: view})
    assert [span for span in found.spans if span.state is not RowState.MISSING] == [
        ReportedSpan(0, 5, 10, 1, RowState.STALE),
        ReportedSpan(0, 10, 20, 1, RowState.MATCHING),
        ReportedSpan(0, 20, 25, 1, RowState.STALE),
    ]
    assert found.count(RowState.MISSING) == 20


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5),
    st.sets(st.tuples(st.integers(0, 25), st.integers(0, 8))),
)
def test_a_row_matches_where_the_log_has_its_epoch(log: list[tuple[int, int]], held: set[tuple[int, int]]) -> None:
    starts, at, epoch = [], 0, -1
    for length, step in log:
        epoch += 1 + step
        starts.append(EpochStart(epoch, at))
        at += length
    view = LogEpochs(epoch, 0, at, tuple(starts))
    table = rows(*((0, offset, of) for offset, of in sorted(held)))
    found = compare_with_logs("now", runs_of(table), {0: view})
    matching = sum(view.epoch_at(offset) == of for offset, of in held)
    assert found.count(RowState.MATCHING) == matching
    assert found.count(RowState.STALE) == len(held) - matching
    assert found.count(RowState.MISSING) == at - matching


def test_leaders_become_leadership_periods() -> None:
    history = LeaderHistory()
    history.record(1.0, {0: LeaderAtLoss(1, 0)})
    history.record(2.0, {0: LeaderAtLoss(1, 0)})
    history.record(5.0, {0: LeaderAtLoss(NO_LEADER, 1)})
    history.record(6.0, {0: LeaderAtLoss(2, 2)})
    history.record(7.0, {0: LeaderAtLoss(1, 0)})  # a late response
    first, second = history.periods({0: CUT}, unclean={(0, 2)})
    assert (first.leader, first.epoch, first.from_s, first.to_s, first.end_offset) == (1, 0, 1.0, 6.0, 40)
    assert (second.leader, second.epoch, second.to_s, second.start_offset) == (2, 2, None, 40)
    assert (first.unclean, second.unclean) == (False, True)
