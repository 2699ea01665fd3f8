from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import ReadableEnd
from pyspark_fenceline.common.offsets import EPOCHS_KEPT, PartitionPosition
from pyspark_fenceline.source.history import Diverged, EpochHistories, Holds
from tests.spark.fakes import FakeCluster, FakeLog

TP = TopicPartition("t", 0)


def cluster_of(log: FakeLog) -> FakeCluster:
    cluster = FakeCluster(t=1)
    cluster.logs[TP] = log
    return cluster


def tag(cluster: FakeCluster, offset: int, history: EpochHistories | None = None) -> PartitionPosition:
    history = history or EpochHistories(cluster)
    return history.tag({TP: offset}, cluster.log_starts([TP]), cluster.log_ends([TP]))[TP]


def check(cluster: FakeCluster, position: PartitionPosition) -> Holds | Diverged:
    return EpochHistories(cluster).check({TP: position}, cluster.log_ends([TP]))[TP]


def starts(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(epoch, offset) for epoch, offset in pairs)


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 3, 7], leader_epoch=9))
    assert [tag(cluster, offset).leader_epoch for offset in range(7)] == [-1, 0, 0, 3, 3, 3, 7]


def test_the_epoch_is_unknown_when_the_previous_record_expired() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 7], leader_epoch=7, start=3))
    assert [tag(cluster, offset).leader_epoch for offset in (2, 3, 4, 5)] == [-1, -1, 3, 7]


def test_a_broker_without_epochs_leaves_positions_untagged() -> None:
    cluster = FakeCluster(t=1)
    cluster.keeps_epochs = False
    cluster.log("t").append(5)
    assert tag(cluster, 5) == PartitionPosition(5, -1)
    assert check(cluster, PartitionPosition(9, 3)) == Holds()


def test_epoch_boundaries_are_requested_once_per_leader() -> None:
    cluster = cluster_of(FakeLog([1, 1, 4], leader_epoch=4))
    history = EpochHistories(cluster)
    tag(cluster, 3, history)
    asked = cluster.questions.count("epoch_ends")
    assert asked == 2
    cluster.logs[TP].append(5)
    assert tag(cluster, 8, history) == PartitionPosition(8, 4, starts((1, 0), (4, 2)))
    assert cluster.questions.count("epoch_ends") == asked
    cluster.logs[TP].elect(6)
    cluster.logs[TP].append(1)
    assert tag(cluster, 9, history) == PartitionPosition(9, 6, starts((1, 0), (4, 2), (6, 8)))
    assert cluster.questions.count("epoch_ends") == asked + 3


def test_truncation_is_detected_when_the_epoch_ends_earlier() -> None:
    log = FakeLog([4] * 150, leader_epoch=4)
    cluster = cluster_of(log)
    position = tag(cluster, 150)
    log.elect(6, keep=100)
    log.append(100)
    assert check(cluster, position) == Diverged(100, 4, 100)


def test_truncation_is_detected_when_the_log_never_had_the_epoch() -> None:
    # Two leaders wrote past 60 in epochs 4 and 5; the reader followed 5, then the leader of 4 was elected (gaps.md G6).
    cluster = cluster_of(FakeLog([3] * 60 + [4] * 90, leader_epoch=6))
    assert check(cluster, PartitionPosition(120, 5, starts((3, 0), (5, 60)))) == Diverged(60, 3, 60)
    # Without the earlier epochs only the log start is certain.
    assert check(cluster, PartitionPosition(120, 5)) == Diverged(None, 4, 0)


def test_the_divergence_point_is_exact_over_several_elections() -> None:
    # What was read: 1@0 2@10 4@20 7@30. The log: 1@0 2@10 3@15 5@40 8@50.
    cluster = cluster_of(FakeLog([1] * 10 + [2] * 5 + [3] * 25 + [5] * 10 + [8] * 50, leader_epoch=8))
    assert check(cluster, PartitionPosition(45, 7, starts((1, 0), (2, 10), (4, 20), (7, 30)))) == Diverged(15, 2, 15)
    # None of the remembered epochs matches: the log start is used, not a point that may skip stale rows.
    assert check(cluster, PartitionPosition(45, 7, starts((4, 20), (7, 30)))) == Diverged(None, 3, 0)


def test_a_position_remembers_a_bounded_number_of_epochs() -> None:
    log = _build([(1, 1)] * (EPOCHS_KEPT + 5))
    position = tag(cluster_of(log), len(log.epochs))
    assert len(position.epochs) == EPOCHS_KEPT
    assert position.epochs[-1] == EpochStart(log.epochs[-1], len(log.epochs) - 1)


def test_tagging_with_the_leader_epoch_would_miss_the_truncation() -> None:
    # Why tags are exact: position 100 read in epoch 3 under leader epoch 5, then a replica with epoch 4 becomes leader.
    cluster = cluster_of(FakeLog([3] * 90 + [4] * 60, leader_epoch=6))
    assert cluster.logs[TP].epoch_end(5).end_offset >= 100
    assert isinstance(check(cluster, PartitionPosition(100, 3)), Diverged)


def test_a_future_epoch_is_a_truncation() -> None:
    cluster = cluster_of(FakeLog([1] * 5, leader_epoch=1))
    assert check(cluster, PartitionPosition(5, 9)) == Diverged(None, -1, 0)
    assert check(cluster, PartitionPosition(5, 9, starts((1, 0), (9, 4)))) == Diverged(4, 1, 4)


def test_untagged_positions_and_expired_epochs_hold() -> None:
    cluster = cluster_of(FakeLog([0, 0, 3, 3, 7], leader_epoch=7, start=4))
    assert check(cluster, PartitionPosition(2, -1)) == Holds()
    assert check(cluster, PartitionPosition(2, 0)) == Holds()


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
def test_a_truncation_below_a_tagged_position_is_always_detected(
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
    verdict = EpochHistories(cluster).check({TP: position}, {TP: ReadableEnd(len(log.epochs), log.leader_epoch)})[TP]
    if keep < offset:
        # `elect` truncates one history, so the histories agree up to `keep`, and the remembered epochs reach that far.
        assert isinstance(verdict, Diverged)
        assert (verdict.offset, verdict.resume_offset) == (keep, keep)
    else:
        assert verdict == Holds()


_branches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 30)), min_size=2, max_size=14)


@given(_branches, st.data())
@settings(max_examples=500)
def test_the_divergence_of_two_replicas_is_exact_or_below(
    elections: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Four replicas, unclean elections in turn: each leader appends to its own log, and followers copy any part of
    it. A reader of one log finds exactly where another log diverges from it."""
    replicas: list[list[int]] = [[] for _ in range(4)]
    for epoch, (leader, appended, copied) in enumerate(elections):
        replicas[leader] += [epoch] * appended
        follower = data.draw(st.integers(0, 3))
        source = replicas[leader]
        if follower != leader:
            # A follower truncates to the divergence point, then copies a part of the rest.
            agreed = _agreed(replicas[follower], source)
            replicas[follower] = source[: max(agreed, min(copied, len(source)))]
    read, current = data.draw(st.sampled_from(replicas)), data.draw(st.sampled_from(replicas))
    offset = data.draw(st.integers(0, len(read)))
    position = tag(cluster_of(FakeLog(list(read), leader_epoch=len(elections))), offset)
    verdict = check(cluster_of(FakeLog(list(current), leader_epoch=len(elections) + 1)), position)
    agreed = min(_agreed(read, current), offset)
    if agreed == offset:
        assert verdict == Holds()
        return
    assert isinstance(verdict, Diverged)
    if verdict.offset is None:
        # None of the remembered epochs is in the log.
        assert verdict.resume_offset == 0
        assert agreed == 0 or len(position.epochs) == EPOCHS_KEPT
    else:
        assert (verdict.offset, verdict.resume_offset) == (agreed, agreed)


def _agreed(one: list[int], other: list[int]) -> int:
    """Log matching: two records at one offset are the same if their epochs are."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
