from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.ids import TopicPartition
from pyspark_fenceline.cluster import LogEnd
from pyspark_fenceline.history import Diverged, History, Holds
from pyspark_fenceline.offsets import Position
from tests.spark.fakes import FakeCluster, FakeLog

TP = TopicPartition("t", 0)


def cluster_of(log: FakeLog) -> FakeCluster:
    cluster = FakeCluster(t=1)
    cluster.logs[TP] = log
    return cluster


def tag(cluster: FakeCluster, offset: int, history: History | None = None) -> Position:
    history = history or History(cluster)
    return history.tag({TP: offset}, cluster.log_starts([TP]), cluster.log_ends([TP]))[TP]


def check(cluster: FakeCluster, position: Position) -> Holds | Diverged:
    return History(cluster).check({TP: position}, cluster.log_ends([TP]))[TP]


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 3, 7], leader_epoch=9))
    assert [tag(cluster, offset).leader_epoch for offset in range(7)] == [-1, 0, 0, 3, 3, 3, 7]


def test_where_the_record_before_has_expired_nothing_is_known() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 7], leader_epoch=7, start=3))
    assert [tag(cluster, offset).leader_epoch for offset in (2, 3, 4, 5)] == [-1, -1, 3, 7]


def test_a_broker_without_epochs_leaves_positions_untagged() -> None:
    cluster = FakeCluster(t=1)
    cluster.keeps_epochs = False
    cluster.log("t").append(5)
    assert tag(cluster, 5) == Position(5, -1)
    assert check(cluster, Position(9, 3)) == Holds()


def test_boundaries_are_asked_for_once_while_the_leader_stays() -> None:
    cluster = cluster_of(FakeLog([1, 1, 4], leader_epoch=4))
    history = History(cluster)
    tag(cluster, 3, history)
    asked = cluster.questions.count("epoch_ends")
    assert asked == 1
    cluster.logs[TP].append(5)
    assert tag(cluster, 8, history) == Position(8, 4)
    assert cluster.questions.count("epoch_ends") == asked
    cluster.logs[TP].elect(6)
    cluster.logs[TP].append(1)
    assert tag(cluster, 9, history) == Position(9, 6)
    assert cluster.questions.count("epoch_ends") == asked + 1


def test_truncation_is_seen_when_the_epoch_ends_earlier() -> None:
    log = FakeLog([4] * 150, leader_epoch=4)
    cluster = cluster_of(log)
    position = tag(cluster, 150)
    log.elect(6, keep=100)
    log.append(100)
    assert check(cluster, position) == Diverged(100, 4, 100)


def test_truncation_is_seen_when_the_log_never_had_the_epoch() -> None:
    # Two leaders wrote past 60 in epochs 4 and 5; the reader followed 5, then the leader of 4 won.
    cluster = cluster_of(FakeLog([3] * 80 + [4] * 70, leader_epoch=6))
    assert check(cluster, Position(120, 5)) == Diverged(None, 4, 80)


def test_the_leaders_own_epoch_as_a_tag_would_have_missed_it() -> None:
    # Why tags are exact: position 100 read in epoch 3 under leader 5, then a log of epoch 4 takes over.
    cluster = cluster_of(FakeLog([3] * 90 + [4] * 60, leader_epoch=6))
    assert cluster.logs[TP].epoch_end(5).end_offset >= 100
    assert isinstance(check(cluster, Position(100, 3)), Diverged)


def test_an_epoch_from_the_future_is_a_truncation() -> None:
    assert check(cluster_of(FakeLog([1] * 5, leader_epoch=1)), Position(5, 9)) == Diverged(None, -1, -1)


def test_untagged_positions_and_expired_epochs_hold() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 7], leader_epoch=7, start=4))
    assert check(cluster, Position(2, -1)) == Holds()
    assert check(cluster, Position(2, 0)) == Holds()


_grown = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=6)


def _build(steps: list[tuple[int, int]]) -> FakeLog:
    log = FakeLog()
    for count, jump in steps:
        log.append(count)
        log.elect(log.leader_epoch + jump)
    return log


@given(_grown, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=300)
def test_tags_are_exact_for_any_log(steps: list[tuple[int, int]], offset: int, start: int) -> None:
    log = _build(steps)
    end = len(log.epochs)
    log.start, offset = min(start, end), min(offset, end)
    found = tag(cluster_of(log), offset)
    assert found.leader_epoch == (log.epochs[offset - 1] if offset > log.start else -1)


@given(_grown, st.integers(0, 40), st.integers(0, 40), _grown)
@settings(max_examples=300)
def test_a_cut_below_a_tagged_position_never_goes_unnoticed(
    steps: list[tuple[int, int]], offset: int, keep: int, later: list[tuple[int, int]]
) -> None:
    log = _build(steps)
    offset, keep = min(offset, len(log.epochs)), min(keep, len(log.epochs))
    cluster = cluster_of(log)
    position = tag(cluster, offset)
    log.elect(log.leader_epoch + 1, keep=keep)
    for count, jump in later:
        log.append(count)
        log.elect(log.leader_epoch + jump)
    verdict = History(cluster).check({TP: position}, {TP: LogEnd(len(log.epochs), log.leader_epoch)})[TP]
    if keep < offset:
        # `elect` cut one history: what remains agrees up to `keep`, so the point is exact.
        assert isinstance(verdict, Diverged)
        assert verdict.resume_offset <= keep
    else:
        assert verdict == Holds()
