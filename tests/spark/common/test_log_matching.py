"""The rule that identifies stale rows, against simulated histories: replicas, unclean elections, lost leaders,
retention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_epochs import LogEpochsCache, existing_partitions
from pyspark_fenceline.common.log_matching import (
    LogEpochs,
    SpanVerdict,
    held_interval,
    judge_span,
    stale_rows,
)
from tests.spark.fakes import FakeCluster, FakeLog
from tests.spark.row_verdicts import RowVerdict, judge_row, view_of

TP = TopicPartition("t", 0)


def arrays(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([o for o, _ in rows], dtype=np.int64), np.array([e for _, e in rows], dtype=np.int64)


class Replicas:
    """Three copies of a log. `logs[i][o]` is the epoch of record `o`; every replica may become leader."""

    def __init__(self) -> None:
        self.logs: list[list[int]] = [[], [], []]
        self.leader, self.epoch, self.start = 0, 0, 0
        self.rows: set[tuple[int, int]] = set()

    def append(self, count: int) -> None:
        self.logs[self.leader] += [self.epoch] * count

    def replicate(self, to: int, share: float) -> None:
        """A follower first truncates records that its leader lacks, then copies a part of the rest (log matching)."""
        ours, theirs = self.logs[self.leader], self.logs[to]
        if to == self.leader:
            return
        common = 0
        while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
            common += 1
        theirs[common:] = ours[common : common + round((len(ours) - common) * share)]

    def read(self, of: int) -> None:
        """Read from replica `of`: the leader, or a deposed leader that is unaware of it."""
        self.rows |= {(offset, epoch) for offset, epoch in enumerate(self.logs[of]) if offset >= self.start}

    def elect(self, leader: int, skip: int) -> None:
        self.epoch += 1 + skip
        self.leader = leader

    def write_alone(self, by: int, epoch: int, count: int) -> None:
        """An isolated leader that continues to accept acks=1 records in its own epoch."""
        if by != self.leader and self.logs[by] and self.logs[by][-1] == epoch:
            self.logs[by] += [epoch] * count

    def expire(self, share: float) -> None:
        self.start = max(self.start, round(len(self.logs[self.leader]) * share))


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4)),
    st.tuples(st.just("replicate"), st.integers(0, 2), st.floats(0, 1)),
    st.tuples(st.just("read"), st.integers(0, 2)),
    st.tuples(st.just("elect"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("write_alone"), st.integers(0, 2), st.integers(0, 6), st.integers(1, 3)),
    st.tuples(st.just("expire"), st.floats(0, 1)),
)


def run(steps: list[tuple[object, ...]]) -> tuple[Replicas, FakeLog]:
    replicas = Replicas()
    for name, *arguments in steps:
        getattr(replicas, str(name))(*arguments)
    leader = replicas.logs[replicas.leader]
    replicas.start = min(replicas.start, len(leader))
    return replicas, FakeLog(list(leader), replicas.epoch, replicas.start)


@settings(max_examples=1500, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_exactly_the_rows_missing_from_the_log_are_stale(steps: list[tuple[object, ...]]) -> None:
    replicas, log = run(steps)
    view = view_of(log)
    rows = sorted(replicas.rows)
    offsets, epochs = arrays(rows)
    for (offset, epoch), is_stale in zip(rows, stale_rows(view, offsets, epochs).tolist(), strict=True):
        verdict = judge_row(view, offset, epoch)
        held = offset < len(log.epochs) and log.epochs[offset] == epoch
        assert not (is_stale and held), f"({offset}, {epoch}) is in the log"
        if offset >= log.start and (epoch < log.leader_epoch or offset < len(log.epochs)):
            # No verdict is unknown: the log decides every offset that it has, and all above its end.
            assert is_stale is not held
        assert (verdict is RowVerdict.STALE) is is_stale
        assert (verdict is RowVerdict.IN_LOG) is (held and offset >= log.start)


@settings(max_examples=500, deadline=None)
@given(st.lists(STEPS, max_size=40), st.data())
def test_bounds_of_many_rows_prove_no_more_than_the_rows(steps: list[tuple[object, ...]], data: st.DataObject) -> None:
    _, log = run(steps)
    view = view_of(log)
    size = len(log.epochs)
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, size + 3), st.integers(0, log.leader_epoch + 1)), min_size=1, max_size=8)
    )
    offsets, epochs = arrays(rows)
    stale = stale_rows(view, offsets, epochs)
    verdict = judge_span(view, int(offsets.min()), int(offsets.max()), int(epochs.min()), int(epochs.max()))
    assert verdict is not SpanVerdict.NONE_STALE or not stale.any()
    assert verdict is not SpanVerdict.ALL_STALE or stale.all()


def test_checking_newer_epochs_alone_would_miss_a_row() -> None:
    # Read at offset 9 from a leader of epoch 5 that was lost; the log continued in epoch 6 at offset 12.
    log = FakeLog([3] * 12 + [6] * 4, leader_epoch=6)
    view = view_of(log)
    assert view.epochs == (EpochStart(3, 0), EpochStart(6, 12))
    newer_epoch_at_or_before = any(start.epoch > 5 and start.offset <= 9 for start in view.epochs)
    assert not newer_epoch_at_or_before
    assert stale_rows(view, *arrays([(9, 5), (9, 3), (12, 5), (12, 6), (13, 3)])).tolist() == [
        True, False, True, False, True,
    ]  # fmt: skip


def test_rows_above_the_end_are_stale_only_when_a_later_leader_ends_there() -> None:
    view = view_of(FakeLog([1] * 10, leader_epoch=2))
    rows = [(10, 1), (10, 2), (10, 3), (9, 3), (9, 1), (9, -1), (10, -1)]
    assert [judge_row(view, *row) for row in rows] == [
        RowVerdict.STALE, RowVerdict.BEYOND, RowVerdict.NEWER, RowVerdict.NEWER, RowVerdict.IN_LOG,
        RowVerdict.UNKNOWN, RowVerdict.BEYOND,
    ]  # fmt: skip


def test_below_the_log_start_only_provably_stale_rows_are_stale() -> None:
    log = FakeLog([1] * 5 + [3] * 10, leader_epoch=3, start=8)
    view = view_of(log)
    rows = [(2, 1), (2, 4), (6, 3), (4, 3), (7, 2)]
    # (4, 3) never was in the log, but retention deleted the proof.
    assert [judge_row(view, *row) for row in rows] == [
        RowVerdict.EXPIRED, RowVerdict.NEWER, RowVerdict.EXPIRED, RowVerdict.EXPIRED, RowVerdict.EXPIRED,
    ]  # fmt: skip


def test_rows_that_no_leader_wrote_are_stale_on_both_sides_of_their_epoch() -> None:
    view = LogEpochs(4, 0, 30, (EpochStart(0, 0), EpochStart(2, 10), EpochStart(4, 20)))
    rows = [(9, 2), (10, 2), (19, 2), (20, 2), (19, 4), (20, 4), (29, 4), (30, 4), (10, 0), (5, 1), (5, 3)]
    assert stale_rows(view, *arrays(rows)).tolist() == [
        *(True, False, False, True),
        *(True, False, False, False),
        *(True, True, True),
    ]
    spans = [judge_span(view, first, last, 2, 2) for first, last in ((5, 9), (5, 10), (10, 19), (19, 20), (20, 25))]
    all_stale, some, none = SpanVerdict.ALL_STALE, SpanVerdict.SOME_STALE, SpanVerdict.NONE_STALE
    assert spans == [all_stale, some, none, some, all_stale]
    # A leader that has written nothing yet.
    view = LogEpochs(4, 0, 20, (EpochStart(0, 0), EpochStart(2, 10), EpochStart(4, 20)))
    assert stale_rows(view, *arrays([(19, 4), (20, 4), (20, 2)])).tolist() == [True, False, True]
    # A log with no known epochs: only rows above its end can be proven stale.
    view = LogEpochs(4, 0, 20)
    assert stale_rows(view, *arrays([(5, 3), (19, 3), (20, 3), (20, 4)])).tolist() == [False, False, True, False]


def test_brokers_without_epochs_prove_nothing() -> None:
    view = LogEpochs(-1, 5, 10)
    rows = [(3, 1), (7, 1), (10, 1), (7, -1)]
    assert not stale_rows(view, *arrays(rows)).any()
    assert [judge_row(view, *row) for row in rows] == [
        RowVerdict.EXPIRED, RowVerdict.UNKNOWN, RowVerdict.BEYOND, RowVerdict.UNKNOWN,
    ]  # fmt: skip


def test_an_answer_older_than_the_row_proves_nothing() -> None:
    view = view_of(FakeLog([1] * 10, leader_epoch=1))
    assert held_interval(view, 2) == held_interval(view, -1)
    assert not stale_rows(view, *arrays([(3, 2), (50, 2)])).any()


def test_partitions_are_queried_in_rounds_and_cached_while_leaders_stay() -> None:
    cluster = FakeCluster(t=40, gone=1)
    for index in range(40):
        log = cluster.log("t", index)
        for epoch in range(1, index % 4 + 1):
            log.append(3)
            log.elect(epoch)
        log.append(2)
    views = LogEpochsCache(cluster)
    wanted = existing_partitions(cluster, [*cluster.logs, TopicPartition("t", 99), TopicPartition("nothing", 0)])
    assert len(wanted) == 41
    found = views.get(wanted)
    # One round for the log ends, and one for each epoch of the longest history.
    assert cluster.questions.count("epoch_ends") <= 5
    for index in range(40):
        assert found[TopicPartition("t", index)].epochs == view_of(cluster.log("t", index)).epochs
    cluster.questions.clear()
    assert views.get(wanted) == found
    assert "epoch_ends" not in cluster.questions
    cluster.log("t", 3).elect(9, keep=4)
    assert views.get(wanted)[TopicPartition("t", 3)].leader_epoch == 9


def test_requests_are_repeated_after_an_election_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(t=1)
    log = cluster.log("t")
    log.append(5)
    log.elect(1)
    log.append(5)
    real, elected = cluster.epoch_ends, []

    def elect_first(epochs: dict[TopicPartition, tuple[int, int]]) -> object:
        if not elected:
            elected.append(True)
            log.elect(2, keep=7)
        return real(epochs)

    monkeypatch.setattr(cluster, "epoch_ends", elect_first)
    view = LogEpochsCache(cluster).get(existing_partitions(cluster, [TP]))[TP]
    assert view.leader_epoch == 2
    assert view.epochs == (EpochStart(0, 0), EpochStart(1, 5), EpochStart(2, 7))
