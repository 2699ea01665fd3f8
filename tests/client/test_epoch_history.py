"""The search for where two logs part: `gaps.md G6`, `epochs.md` E13 and E25."""

from __future__ import annotations

import pytest

from fenceline.client.epoch_history import EpochHistory, EpochStart, Parting, Question
from fenceline.client.offsets import EpochEnd

_READ = (EpochStart(1, 0), EpochStart(3, 10), EpochStart(5, 20))
"""Up to offset 30."""


def _unsure(offset: int, epoch: int = -1) -> Parting:
    return Parting(offset, epoch, is_exact=False)


@pytest.mark.parametrize(
    ("asked", "answer", "step"),
    [
        (Question(5, 30), EpochEnd(5, 30), Parting(30, 5)),
        (Question(5, 30), EpochEnd(5, 90), Parting(30, 5)),
        (Question(5, 30), EpochEnd(5, 25), Parting(25, 5)),
        # The leader has an older epoch there, and that was read too.
        (Question(5, 30), EpochEnd(3, 15), Parting(15, 3)),
        (Question(5, 30), EpochEnd(3, 90), Parting(20, 3)),
        # It has one that was never read: where the histories part lies in an older one.
        (Question(5, 30), EpochEnd(4, 90), Question(3, 20)),
        (Question(5, 30), EpochEnd(4, 15), Question(3, 15)),
        (Question(3, 20), EpochEnd(2, 90), Question(1, 10)),
        (Question(1, 10), EpochEnd(1, 7), Parting(7, 1)),
        (Question(1, 10), EpochEnd(0, 7), _unsure(0)),
        # It knows nothing of the epoch asked about, though it may of older ones.
        (Question(5, 30), EpochEnd(-1, -1), Question(3, 20)),
        (Question(5, 30), EpochEnd(5, -1), Question(3, 20)),
        (Question(1, 10), EpochEnd(-1, -1), _unsure(-1)),
        # No broker answers so; the search must end nevertheless.
        (Question(3, 20), EpochEnd(4, 90), _unsure(20)),
    ],
)
def test_each_answer_leads_on(asked: Question, answer: EpochEnd, step: Question | Parting) -> None:
    assert EpochHistory.remembered(30, _READ).compare(asked, answer) == step


def test_who_knows_the_last_epoch_only_finds_no_more_than_its_end() -> None:
    for history in (EpochHistory(30, 5), EpochHistory.remembered(30, [EpochStart(5, -1)])):
        assert history.compare(Question(5, 30), EpochEnd(5, 12)) == Parting(12, 5)
        assert history.compare(Question(5, 30), EpochEnd(3, 12)) == _unsure(12, 3)
        assert history.compare(Question(5, 30), EpochEnd(3, 90)) == _unsure(29)
        assert history.compare(Question(5, 30), EpochEnd(-1, -1)) == _unsure(-1)


def test_who_was_given_nothing_yet_knows_a_bound_only() -> None:
    history = EpochHistory(30)
    assert history.compare(Question(5, 30), EpochEnd(4, 12)) == _unsure(12, 4)
    assert history.compare(Question(5, 30), EpochEnd(-1, -1)) == _unsure(-1)


def test_the_epochs_of_what_is_gone() -> None:
    history = EpochHistory.remembered(30, _READ)
    assert [history.read_from(offset) for offset in (-1, 9, 10, 25)] == [(1, 3, 5), (1, 3, 5), (3, 5), (5,)]
    history.note(EpochStart(4, 40))
    assert history.read_from(25) == (5,), "epochs do not go down"
    history.note(EpochStart(6, 40))
    assert history.read_from(25) == (5, 6)
