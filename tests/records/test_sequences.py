"""Which of two sequence numbers is later, also after a wrap."""

from __future__ import annotations

import pytest

from fenceline.records.sequences import MAX_SEQUENCE, is_after


@pytest.mark.parametrize("first", [0, 1, 1 << 30, MAX_SEQUENCE - 1, MAX_SEQUENCE])
@pytest.mark.parametrize("count", [1, 5, (1 << 30) - 1])
def test_incremented_sequence_is_later(first: int, count: int) -> None:
    later = (first + count) % (1 << 31)
    assert is_after(later, first)
    assert not is_after(first, later)


@pytest.mark.parametrize("sequence", [0, 7, MAX_SEQUENCE])
def test_no_sequence_is_later_than_itself(sequence: int) -> None:
    assert not is_after(sequence, sequence)


def test_zero_follows_the_maximum() -> None:
    assert is_after(0, MAX_SEQUENCE)
    assert not is_after(MAX_SEQUENCE, 0)


def test_neither_of_two_sequences_half_the_range_apart_is_later() -> None:
    assert not is_after(1 << 30, 0)
    assert not is_after(0, 1 << 30)
