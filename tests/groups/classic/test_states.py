"""The transition table: every (state, step) cell, and its copy in the docstring."""

from __future__ import annotations

import pytest

from fenceline.errors import InternalError
from fenceline.groups.classic import states
from fenceline.groups.classic.states import TRANSITIONS, GroupState, Step, next_state

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


def test_docstring_shows_the_table() -> None:
    assert states.__doc__ is not None
    shown = [line.strip() for line in states.__doc__.splitlines()]
    for row in _table():
        assert row in shown


def _table() -> list[str]:
    rows = [["state", *(step.value for step in Step)]]
    for state in GroupState:
        cells = (TRANSITIONS[state].get(step) for step in Step)
        rows.append([state.value, *(cell.value if cell else "-" for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    # The first column touches the second at one space: the longest state name sets the width of both.
    gaps = [1] + [2] * (len(widths) - 1)
    return [
        "".join(cell.ljust(width + gap) for cell, width, gap in zip(row, widths, gaps, strict=True)).rstrip()
        for row in rows
    ]
