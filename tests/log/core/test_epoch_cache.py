"""The epoch cache, sentence by sentence of `epochs.md` C."""

from __future__ import annotations

import pytest

from fenceline.log.core.epoch_cache import EpochCache

E12 = [(0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17)]


def cache(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(entries)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (10, (10, 17)),
        (11, (-1, -1)),
        (0, (0, 2)),
        (2, (0, 2)),
        (3, (3, 8)),
        (5, (4, 13)),
        (6, (4, 13)),
        (9, (9, 17)),
    ],
)
def test_look_up_e13(epoch: int, expected: tuple[int, int]) -> None:
    assert cache(*E12).end_offset_for(epoch, 17) == expected


def test_look_up_in_an_empty_cache_and_below_the_first_e13() -> None:
    assert cache().end_offset_for(0, 5) == (-1, -1)
    assert cache((4, 7), (6, 9)).end_offset_for(2, 20) == (2, 7)


def test_assign_removes_contradicting_entries_e14() -> None:
    assert cache((2, 9), (3, 9)).entries == ((3, 9),)
    kept = cache((5, 11), (6, 12), (7, 13))
    assert kept.assign(7, 12)
    assert kept.entries == ((5, 11), (7, 12))
    assert not kept.assign(7, 40)
    assert kept.entries == ((5, 11), (7, 12))


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_assign_rejects_negative_values_e14(epoch: int, start: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        cache().assign(epoch, start)


def test_truncate_from_end_e15() -> None:
    kept = cache(*E12)
    kept.truncate_from_end(-1)
    assert kept.entries == tuple(E12)
    kept.truncate_from_end(13)
    assert kept.entries == ((0, 0), (3, 2), (4, 8))


def test_truncate_from_start_e15() -> None:
    kept = cache((2, 6), (3, 8), (4, 11))
    kept.truncate_from_start(5)
    assert kept.entries == ((2, 6), (3, 8), (4, 11))
    kept.truncate_from_start(9)
    assert kept.entries == ((3, 9), (4, 11))
    kept.truncate_from_start(30)
    assert kept.entries == ((4, 30),)


def test_epoch_for_offset_e20() -> None:
    kept = cache((2, 6), (3, 8))
    assert [kept.epoch_for_offset(offset) for offset in (5, 6, 7, 8, 99)] == [-1, 2, 2, 3, 3]


def test_changed_is_set_by_a_change_only() -> None:
    kept = cache((2, 6))
    assert not kept.changed
    kept.assign(2, 9)
    kept.truncate_from_end(99)
    kept.truncate_from_start(6)
    assert not kept.changed
    kept.assign(3, 9)
    assert kept.changed


def test_last_deleted_epoch_is_that_of_the_last_deleted_record() -> None:
    kept = cache((2, 6), (3, 8), (4, 11))
    assert kept.last_deleted_epoch_is(2), (
        "a record of epoch 2 below offset 6 was written by the leader of the record at 6"
    )
    assert not kept.last_deleted_epoch_is(3)
    kept.truncate_from_start(8)
    assert kept.last_deleted_epoch_is(2)
    assert not kept.last_deleted_epoch_is(3)
    kept.truncate_from_start(9)
    assert kept.last_deleted_epoch_is(3)
    kept.truncate_from_end(9)
    assert kept.last_deleted_epoch_is(3), "the log start is unchanged"
    kept.clear()
    assert not kept.last_deleted_epoch_is(3)
