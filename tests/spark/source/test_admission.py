from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fenceline.ids import TopicPartition
from pyspark_fenceline.source.admission import TriggerGate, limit_offsets

_sizes = st.dictionaries(
    st.builds(TopicPartition, st.just("t"), st.integers(0, 30)), st.integers(0, 10_000), min_size=1
)


@given(_sizes, st.integers(1, 20_000))
def test_a_limited_batch_uses_the_whole_limit_and_starves_no_partition(
    sizes: dict[TopicPartition, int], limit: int
) -> None:
    starts = {tp: tp.partition * 7 for tp in sizes}
    ends = {tp: starts[tp] + size for tp, size in sizes.items()}
    taken = {tp: end - starts[tp] for tp, end in limit_offsets(limit, starts, ends).items()}
    waiting = [tp for tp, size in sizes.items() if size]
    assert all(0 <= taken[tp] <= sizes[tp] for tp in sizes)
    assert all(taken[tp] >= 1 for tp in waiting)
    total = sum(sizes.values())
    assert sum(taken.values()) <= max(min(limit, total), min(limit, total) + len(waiting))
    if limit >= len(waiting) ** 2:
        assert abs(sum(taken.values()) - min(limit, total)) <= len(waiting)


def test_shares_are_proportional_to_available_records() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert limit_offsets(100, {a: 0, b: 50}, {a: 900, b: 150}) == {a: 90, b: 60}


def test_the_first_trigger_always_runs_and_later_ones_wait_for_the_minimum() -> None:
    gate = TriggerGate(100, 1000)
    assert gate.admit(1, 5)
    assert not gate.admit(99, 6)
    assert gate.admit(100, 7)
    assert not gate.admit(1, 1006)
    assert gate.admit(1, 1007)


def test_without_a_minimum_every_trigger_runs() -> None:
    gate = TriggerGate(None, 1000)
    assert gate.admit(1, 0)
    assert gate.admit(1, 0)
