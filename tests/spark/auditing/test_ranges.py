"""Set operations on ranges of offsets."""

from __future__ import annotations

from pyspark_fenceline.auditing.ranges import merged


def test_near_ranges_are_merged() -> None:
    assert merged([(0, 1), (5, 9), (100, 101)], near=10) == [(0, 9), (100, 101)]


def test_ranges_in_any_order_that_overlap_or_touch_are_merged() -> None:
    assert merged([(5, 9), (0, 3), (3, 3), (2, 5), (1, 2), (11, 12)]) == [(0, 9), (11, 12)]
