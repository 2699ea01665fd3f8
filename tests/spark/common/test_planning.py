from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.planning import RECORDS_WORTH_A_TASK, PlannedRange, plan_tasks, split


def ranges(*counts: int) -> list[PlannedRange]:
    return [PlannedRange(TopicPartition("t", i), 10, 10 + count, 3, 4) for i, count in enumerate(counts)]


def test_small_ranges_share_a_task() -> None:
    assert len(plan_tasks(ranges(5, 5, 5, 5))) == 1


def test_large_ranges_have_their_own_tasks() -> None:
    assert len(plan_tasks(ranges(*[10 * RECORDS_WORTH_A_TASK] * 4))) == 4


def test_empty_ranges_cost_nothing() -> None:
    assert plan_tasks(ranges(0, 0)) == []
    assert [r.topic_partition.partition for task in plan_tasks(ranges(0, 5)) for r in task] == [1]


def test_min_partitions_splits_the_largest_ranges() -> None:
    tasks = plan_tasks(ranges(10, 90), min_partitions=10)
    assert len(tasks) == 10
    assert sum(1 for task in tasks for r in task if r.topic_partition.partition == 1) == 9


def test_min_partitions_is_not_undone_by_packing() -> None:
    assert len(plan_tasks(ranges(1, 1, 1, 1), min_partitions=3)) == 3


def test_max_records_per_partition_holds() -> None:
    for task in plan_tasks(ranges(95, 7, 7), max_records_per_partition=10):
        assert sum(r.record_count for r in task) <= 10


def test_max_partitions_packs_large_ranges() -> None:
    tasks = plan_tasks(ranges(*[5 * RECORDS_WORTH_A_TASK] * 20), max_partitions=2)
    assert [len(task) for task in tasks] == [10, 10]


def test_only_the_first_split_keeps_the_previous_epoch() -> None:
    first, second = split(ranges(10)[0], 2)
    assert (first.start_epoch, second.start_epoch) == (3, -1)
    assert (first.end_epoch, second.end_epoch) == (4, 4)


def test_splits_know_their_own_epochs() -> None:
    epochs = (EpochStart(2, 5), EpochStart(3, 12), EpochStart(4, 17))
    whole = PlannedRange(TopicPartition("t", 0), 10, 20, 2, 4, epochs)
    first, second = split(whole, 2)
    assert first == PlannedRange(TopicPartition("t", 0), 10, 15, 2, 3, epochs[:2])
    assert second == PlannedRange(TopicPartition("t", 0), 15, 20, 3, 4, epochs)


@given(
    st.lists(st.integers(0, 200_000), max_size=12),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1000, 50_000),
)
def test_every_record_is_read_once_and_in_order(
    counts: list[int], least: int | None, most: int | None, records: int | None
) -> None:
    if least is not None and most is not None and least > most:
        least = most
    tasks = plan_tasks(ranges(*counts), min_partitions=least, max_partitions=most, max_records_per_partition=records)
    for index, count in enumerate(counts):
        pieces = [r for task in tasks for r in task if r.topic_partition.partition == index]
        pieces.sort(key=lambda r: r.start_offset)
        assert sum(r.record_count for r in pieces) == count
        assert all(a.end_offset_exclusive == b.start_offset for a, b in pairwise(pieces))
    for task in tasks:
        assert list(task) == sorted(task, key=lambda r: (r.topic_partition, r.start_offset))
        assert all(r.record_count > 0 for r in task)
    if most is not None:
        assert len(tasks) <= most
