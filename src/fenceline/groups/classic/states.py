"""The state machine of a classic group as a table. Owns which step is legal in which state, nothing else.

Theory of operation. A group is `Empty` until a member joins; then members join (`PreparingRebalance`), the leader gets
them and its assignment is awaited (`CompletingRebalance`), and the group is `Stable` until membership or subscriptions
change. `Dead` groups are deleted, expired, or coordinated elsewhere.

    state               rebalance           joined               emptied  assigned  removed
    Empty               PreparingRebalance  -                    -        -         Dead
    PreparingRebalance  -                   CompletingRebalance  Empty    -         Dead
    CompletingRebalance PreparingRebalance  -                    -        Stable    Dead
    Stable              PreparingRebalance  -                    -        -         Dead
    Dead                -                   -                    -        -         Dead

`tests/groups/classic/test_states.py` compares this table with `TRANSITIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

from fenceline.errors import InternalError


class GroupState(StrEnum):
    """The value is the name that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Step(Enum):
    REBALANCE = "rebalance"
    """Members must (re)join."""
    JOINED = "joined"
    """The join phase is over with members: a new generation waits for its assignment."""
    EMPTIED = "emptied"
    """The join phase is over without members."""
    ASSIGNED = "assigned"
    """The leader's assignment is committed to the log."""
    REMOVED = "removed"
    """The group is deleted, or another broker coordinates its partition."""


TRANSITIONS: Final[Mapping[GroupState, Mapping[Step, GroupState]]] = {
    GroupState.EMPTY: {
        Step.REBALANCE: GroupState.PREPARING_REBALANCE,
        Step.REMOVED: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        Step.JOINED: GroupState.COMPLETING_REBALANCE,
        Step.EMPTIED: GroupState.EMPTY,
        Step.REMOVED: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        Step.REBALANCE: GroupState.PREPARING_REBALANCE,
        Step.ASSIGNED: GroupState.STABLE,
        Step.REMOVED: GroupState.DEAD,
    },
    GroupState.STABLE: {
        Step.REBALANCE: GroupState.PREPARING_REBALANCE,
        Step.REMOVED: GroupState.DEAD,
    },
    GroupState.DEAD: {
        Step.REMOVED: GroupState.DEAD,
    },
}


def next_state(state: GroupState, step: Step) -> GroupState:
    """The state after `step`. Raises InternalError if the table has no entry: no peer can cause that."""
    after = TRANSITIONS[state].get(step)
    if after is None:
        raise InternalError(f"a group in state {state.value} cannot take the step {step.value!r}")
    return after
