"""The transition table: every (state, step) cell, and its picture in the docstring."""

from __future__ import annotations

import pytest

from fenceline.errors import InternalError
from fenceline.groups import states
from fenceline.groups.states import TRANSITIONS, GroupState, Step, next_state, transition_table

_E, _P, _C, _S, _D = GroupState
_LEGAL = {
    (_E, Step.REBALANCE): _P,
    (_P, Step.JOINED): _C,
    (_P, Step.EMPTIED): _E,
    (_C, Step.REBALANCE): _P,
    (_C, Step.ASSIGNED): _S,
    (_S, Step.REBALANCE): _P,
    **{(state, Step.REMOVED): _D for state in GroupState},
}


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("step", Step)
def test_every_cell(state: GroupState, step: Step) -> None:
    after = _LEGAL.get((state, step))
    if after is None:
        with pytest.raises(InternalError, match=state.value):
            next_state(state, step)
    else:
        assert next_state(state, step) is after


def test_the_table_covers_every_state() -> None:
    assert set(TRANSITIONS) == set(GroupState)


def test_the_docstring_shows_the_table() -> None:
    assert states.__doc__ is not None
    shown = [line.strip() for line in states.__doc__.splitlines()]
    for row in transition_table().splitlines():
        assert row in shown
