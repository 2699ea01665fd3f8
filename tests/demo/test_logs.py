"""What a table holds of logs, in spans: each row is right or stale, and what is missing is told."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fenceline.client.epoch_history import EpochStart
from fenceline.demo.leaders import Leaders
from fenceline.demo.logs import Run, epochs_in, held_against, runs_of
from fenceline.demo.loss import NOBODY, Leader
from fenceline.demo.story import Rows, Span
from pyspark_fenceline.log_matching import LogEpochs

CUT = LogEpochs(2, 0, 100, (EpochStart(0, 0), EpochStart(2, 40)))
"""Epoch 1 wrote from 40 on, too, and is gone."""


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
    assert runs_of(rows(*given)) == [Run(0, 0, 2, 0), Run(0, 2, 3, 1), Run(0, 3, 4, 0), Run(1, 5, 7, 0)]


def test_rows_that_are_there_twice_are_one_run() -> None:
    assert runs_of(rows((0, 1, 0), (0, 1, 0), (0, 2, 0))) == [Run(0, 1, 3, 0)]


def test_an_epoch_goes_up_to_the_next_one() -> None:
    assert epochs_in(CUT) == [(0, 0, 40), (2, 40, 100)]
    assert epochs_in(LogEpochs(0, 0, 0)) == []


def test_before_and_after_a_repair() -> None:
    before = held_against("before", [Run(0, 0, 40, 0), Run(0, 40, 70, 1)], {0: CUT}, {0: 60})
    assert list(before.spans) == [
        Span(0, 0, 40, 0, Rows.RIGHT),
        Span(0, 40, 60, 2, Rows.MISSING),
        Span(0, 40, 70, 1, Rows.STALE),
    ]
    after = held_against("after", [Run(0, 0, 40, 0), Run(0, 40, 100, 2)], {0: CUT})
    assert {span.rows for span in after.spans} == {Rows.RIGHT}
    assert after.rows(Rows.RIGHT) == 100


def test_a_run_may_be_right_in_its_middle_only() -> None:
    view = LogEpochs(3, 0, 30, (EpochStart(0, 0), EpochStart(1, 10), EpochStart(3, 20)))
    found = held_against("now", [Run(0, 5, 25, 1)], {0: view})
    assert [span for span in found.spans if span.rows is not Rows.MISSING] == [
        Span(0, 5, 10, 1, Rows.STALE),
        Span(0, 10, 20, 1, Rows.RIGHT),
        Span(0, 20, 25, 1, Rows.STALE),
    ]
    assert found.rows(Rows.MISSING) == 20


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5),
    st.sets(st.tuples(st.integers(0, 25), st.integers(0, 8))),
)
def test_every_row_is_right_where_the_log_has_its_epoch_there(
    log: list[tuple[int, int]], held: set[tuple[int, int]]
) -> None:
    starts, at, epoch = [], 0, -1
    for length, step in log:
        epoch += 1 + step
        starts.append(EpochStart(epoch, at))
        at += length
    view = LogEpochs(epoch, 0, at, tuple(starts))
    table = rows(*((0, offset, of) for offset, of in sorted(held)))
    found = held_against("now", runs_of(table), {0: view})
    right = sum(view.epoch_at(offset) == of for offset, of in held)
    assert found.rows(Rows.RIGHT) == right
    assert found.rows(Rows.STALE) == len(held) - right
    assert found.rows(Rows.MISSING) == at - right


def test_leaders_become_reigns() -> None:
    seen = Leaders()
    seen.seen(1.0, {0: Leader(1, 0)})
    seen.seen(2.0, {0: Leader(1, 0)})
    seen.seen(5.0, {0: Leader(NOBODY, 1)})
    seen.seen(6.0, {0: Leader(2, 2)})
    seen.seen(7.0, {0: Leader(1, 0)})  # an answer that came late
    first, second = seen.reigns({0: CUT}, unclean={(0, 2)})
    assert (first.leader, first.epoch, first.from_s, first.to_s, first.end_offset) == (1, 0, 1.0, 6.0, 40)
    assert (second.leader, second.epoch, second.to_s, second.start_offset) == (2, 2, None, 40)
    assert (first.unclean, second.unclean) == (False, True)
