"""Which of two sequence numbers comes later, also where they have wrapped."""

from __future__ import annotations

import pytest

from fenceline.records.sequences import MAX_SEQUENCE, is_after


@pytest.mark.parametrize("first", [0, 1, 1 << 30, MAX_SEQUENCE - 1, MAX_SEQUENCE])
@pytest.mark.parametrize("count", [1, 5, (1 << 30) - 1])
def test_what_was_counted_on_comes_after(first: int, count: int) -> None:
    later = (first + count) % (1 << 31)
    assert is_after(later, first)
    assert not is_after(first, later)


@pytest.mark.parametrize("sequence", [0, 7, MAX_SEQUENCE])
def test_none_comes_after_itself(sequence: int) -> None:
    assert not is_after(sequence, sequence)


def test_after_the_greatest_comes_0() -> None:
    assert is_after(0, MAX_SEQUENCE)
    assert not is_after(MAX_SEQUENCE, 0)


def test_of_two_that_are_half_the_way_apart_neither_comes_after() -> None:
    assert not is_after(1 << 30, 0)
    assert not is_after(0, 1 << 30)
