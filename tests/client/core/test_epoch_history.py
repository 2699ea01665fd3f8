"""The search for the divergence point of two logs: `gaps.md G6`, `epochs.md` E13 and E25."""

from __future__ import annotations

import pytest

from fenceline.client.core.epoch_history import Divergence, EpochHistory, EpochQuery, EpochStart
from fenceline.client.core.offsets import EpochEnd

_READ = (EpochStart(1, 0), EpochStart(3, 10), EpochStart(5, 20))
"""Up to offset 30."""


def _unsure(offset: int, epoch: int = -1) -> Divergence:
    return Divergence(offset, epoch, is_exact=False)


@pytest.mark.parametrize(
    ("asked", "answer", "step"),
    [
        (EpochQuery(5, 30), EpochEnd(5, 30), Divergence(30, 5)),
        (EpochQuery(5, 30), EpochEnd(5, 90), Divergence(30, 5)),
        (EpochQuery(5, 30), EpochEnd(5, 25), Divergence(25, 5)),
        # The leader has an older epoch there, which was read too.
        (EpochQuery(5, 30), EpochEnd(3, 15), Divergence(15, 3)),
        (EpochQuery(5, 30), EpochEnd(3, 90), Divergence(20, 3)),
        # The leader has an epoch that was never read: the logs diverge in an older one.
        (EpochQuery(5, 30), EpochEnd(4, 90), EpochQuery(3, 20)),
        (EpochQuery(5, 30), EpochEnd(4, 15), EpochQuery(3, 15)),
        (EpochQuery(3, 20), EpochEnd(2, 90), EpochQuery(1, 10)),
        (EpochQuery(1, 10), EpochEnd(1, 7), Divergence(7, 1)),
        (EpochQuery(1, 10), EpochEnd(0, 7), _unsure(0)),
        # The leader does not know the requested epoch, but may know older ones.
        (EpochQuery(5, 30), EpochEnd(-1, -1), EpochQuery(3, 20)),
        (EpochQuery(5, 30), EpochEnd(5, -1), EpochQuery(3, 20)),
        (EpochQuery(1, 10), EpochEnd(-1, -1), _unsure(-1)),
        # No broker responds like this, but the search must still terminate.
        (EpochQuery(3, 20), EpochEnd(4, 90), _unsure(20)),
    ],
)
def test_each_response_narrows_the_search(asked: EpochQuery, answer: EpochEnd, step: EpochQuery | Divergence) -> None:
    assert EpochHistory.remembered(30, _READ).compare(asked, answer) == step


def test_search_with_only_the_last_epoch_finds_at_most_its_end() -> None:
    for history in (EpochHistory(30, 5), EpochHistory.remembered(30, [EpochStart(5, -1)])):
        assert history.compare(EpochQuery(5, 30), EpochEnd(5, 12)) == Divergence(12, 5)
        assert history.compare(EpochQuery(5, 30), EpochEnd(3, 12)) == _unsure(12, 3)
        assert history.compare(EpochQuery(5, 30), EpochEnd(3, 90)) == _unsure(29)
        assert history.compare(EpochQuery(5, 30), EpochEnd(-1, -1)) == _unsure(-1)


def test_search_without_read_records_finds_only_a_bound() -> None:
    history = EpochHistory(30)
    assert history.compare(EpochQuery(5, 30), EpochEnd(4, 12)) == _unsure(12, 4)
    assert history.compare(EpochQuery(5, 30), EpochEnd(-1, -1)) == _unsure(-1)


def test_epochs_of_lost_records() -> None:
    history = EpochHistory.remembered(30, _READ)
    assert [history.read_from(offset) for offset in (-1, 9, 10, 25)] == [(1, 3, 5), (1, 3, 5), (3, 5), (5,)]
    history.note(EpochStart(4, 40))
    assert history.read_from(25) == (5,), "epochs never decrease"
    history.note(EpochStart(6, 40))
    assert history.read_from(25) == (5, 6)
