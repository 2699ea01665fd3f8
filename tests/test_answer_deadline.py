"""When an answer is overdue, for a process that may not have been running (`fenceline.answer_deadline`)."""

from __future__ import annotations

import pytest

from fenceline.answer_deadline import AGAIN_MS, LATE_MS, AnswerDeadline

SILENCE_MS = 300
DUE_MS = 1_000


def expecting(silence_ms: int = SILENCE_MS) -> AnswerDeadline:
    deadline = AnswerDeadline(silence_ms)
    deadline.expect(DUE_MS)
    return deadline


def check(deadline: AnswerDeadline, late_ms: int = 0, **arriving: bool) -> bool:
    """The check that is due, so much too late."""
    assert deadline.check_at_ms is not None
    return deadline.is_overdue(deadline.check_at_ms + late_ms, **arriving)


def test_answer_is_overdue_if_it_is_missing_at_two_checks() -> None:
    deadline = expecting()
    assert deadline.check_at_ms == DUE_MS + SILENCE_MS
    assert not check(deadline)
    assert deadline.check_at_ms == DUE_MS + SILENCE_MS + AGAIN_MS
    assert check(deadline, LATE_MS - 1)
    assert deadline.check_at_ms is None


@pytest.mark.parametrize("at_second_check", [False, True])
def test_late_check_gives_the_answer_its_time_again(at_second_check: bool) -> None:
    deadline = expecting()
    if at_second_check:
        assert not check(deadline)
    before_ms = deadline.check_at_ms
    assert before_ms is not None
    assert not check(deadline, LATE_MS)
    assert deadline.check_at_ms == before_ms + LATE_MS + SILENCE_MS
    assert not check(deadline), "there are two checks again"
    assert check(deadline)


def test_answer_that_arrives_gets_its_time_again() -> None:
    deadline = expecting()
    assert not check(deadline)
    assert not check(deadline, is_arriving=True)
    assert not check(deadline)
    assert check(deadline)


def test_next_check_is_never_at_once() -> None:
    """With a timeout of 0 a late check waits for a moment all the same."""
    deadline = expecting(0)
    assert not check(deadline, LATE_MS)
    assert deadline.check_at_ms == DUE_MS + LATE_MS + AGAIN_MS


def test_next_answer_begins_anew() -> None:
    deadline = expecting()
    assert not check(deadline)
    deadline.expect(2 * DUE_MS)
    assert deadline.check_at_ms == 2 * DUE_MS + SILENCE_MS
    assert not check(deadline)
    deadline.clear()
    assert deadline.check_at_ms is None
