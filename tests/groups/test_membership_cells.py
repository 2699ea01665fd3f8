"""Membership: every (state, event) cell, and the table of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import LeaveResponse
from tests.groups.helpers import GROUP, Ticket, World, subscription

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
PARKED = None
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

# --- a group in each state, with two members where the state has members ----------------------------------------------


def _in_state(state: GroupState) -> tuple[World, str, str]:
    """A world whose group is in this state; the ids of its leader and of its follower ("" in an empty group)."""
    world = World()
    if state is EMPTY:
        world.join(must_know_member_id=True)
        return world, "gone", "gone"
    members = world.stable("a", "b")
    leader, follower = members["a"], members["b"]
    match state:
        case GroupState.PREPARING_REBALANCE:
            world.join(leader)
        case GroupState.COMPLETING_REBALANCE:
            world.join(leader)
            world.join(follower)
        case GroupState.DEAD:
            world.group().state = DEAD
    assert world.group().state is state
    return world, leader, follower


def _error(ticket: Ticket) -> ErrorCode | None:
    return None if ticket.outcome is None else ticket.outcome.error


def _join_new(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.join(client_id="n"))


def _rejoin_leader(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.join(leader))


def _rejoin_follower(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.join(follower))


def _rejoin_changed(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.join(follower, protocols=(("range", subscription("other")),)))


def _sync_leader(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.sync(leader, world.group().generation, {leader: b"1", follower: b"2"}))


def _sync_follower(world: World, leader: str, follower: str) -> ErrorCode | None:
    return _error(world.sync(follower, world.group().generation))


def _heartbeat(world: World, leader: str, follower: str) -> ErrorCode | None:
    code: ErrorCode = world.heartbeat(follower, world.group().generation)
    return code


def _leave(world: World, leader: str, follower: str) -> ErrorCode | None:
    answer: LeaveResponse = world.leave((follower, None)).outcome
    return answer.error or answer.members[0].error


def _commit(world: World, leader: str, follower: str) -> ErrorCode | None:
    code: ErrorCode = world.commit(member_id=follower, generation=world.group().generation).outcome.errors[0]
    return code


def _commit_simple(world: World, leader: str, follower: str) -> ErrorCode | None:
    code: ErrorCode = world.commit().outcome.errors[0]
    return code


def _delete(world: World, leader: str, follower: str) -> ErrorCode | None:
    return world.delete_groups(GROUP)[GROUP]


def _delete_offsets(world: World, leader: str, follower: str) -> ErrorCode | None:
    answer = world.delete_offsets(("x", 0)).outcome
    code: ErrorCode = answer.error
    return code


def _session_timeout(world: World, leader: str, follower: str) -> ErrorCode | None:
    world.advance(10_000)
    return NONE


_Event = Callable[[World, str, str], "ErrorCode | None"]
_CELLS: dict[_Event, dict[GroupState, tuple[ErrorCode | None, GroupState | None]]] = {
    # event: {state: (the response, the next state)}; a state of None: the group is deleted.
    _join_new: {
        EMPTY: (PARKED, PREPARING),
        PREPARING: (PARKED, PREPARING),
        COMPLETING: (PARKED, PREPARING),
        STABLE: (PARKED, PREPARING),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _rejoin_leader: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (PARKED, PREPARING),
        COMPLETING: (NONE, COMPLETING),
        STABLE: (PARKED, PREPARING),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _rejoin_follower: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (NONE, COMPLETING),
        COMPLETING: (NONE, COMPLETING),
        STABLE: (NONE, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _rejoin_changed: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (NONE, COMPLETING),
        COMPLETING: (PARKED, PREPARING),
        STABLE: (PARKED, PREPARING),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _sync_leader: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (REBALANCE, PREPARING),
        COMPLETING: (NONE, STABLE),
        STABLE: (NONE, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _sync_follower: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (REBALANCE, PREPARING),
        COMPLETING: (PARKED, COMPLETING),
        STABLE: (NONE, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _heartbeat: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (REBALANCE, PREPARING),
        COMPLETING: (NONE, COMPLETING),
        STABLE: (NONE, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _leave: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (NONE, COMPLETING),
        COMPLETING: (NONE, PREPARING),
        STABLE: (NONE, PREPARING),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _commit: {
        EMPTY: (UNKNOWN, EMPTY),
        PREPARING: (NONE, PREPARING),
        COMPLETING: (REBALANCE, COMPLETING),
        STABLE: (NONE, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _commit_simple: {
        EMPTY: (NONE, EMPTY),
        PREPARING: (UNKNOWN, PREPARING),
        COMPLETING: (UNKNOWN, COMPLETING),
        STABLE: (UNKNOWN, STABLE),
        DEAD: (NOT_AVAILABLE, DEAD),
    },
    _delete: {
        EMPTY: (NONE, None),
        PREPARING: (ErrorCode.NON_EMPTY_GROUP, PREPARING),
        COMPLETING: (ErrorCode.NON_EMPTY_GROUP, COMPLETING),
        STABLE: (ErrorCode.NON_EMPTY_GROUP, STABLE),
        DEAD: (ErrorCode.GROUP_ID_NOT_FOUND, DEAD),
    },
    _delete_offsets: {
        EMPTY: (NONE, EMPTY),
        PREPARING: (NONE, PREPARING),
        COMPLETING: (NONE, COMPLETING),
        STABLE: (NONE, STABLE),
        DEAD: (ErrorCode.GROUP_ID_NOT_FOUND, DEAD),
    },
    _session_timeout: {
        EMPTY: (NONE, EMPTY),
        # The follower never returned: the leader continues alone.
        PREPARING: (NONE, COMPLETING),
        # No member syncs or sends a heartbeat: first all members expire, then the empty join phase ends.
        COMPLETING: (NONE, EMPTY),
        STABLE: (NONE, EMPTY),
        DEAD: (NONE, DEAD),
    },
}


@pytest.mark.parametrize(
    ("event", "state"),
    [(event, state) for event in _CELLS for state in GroupState],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_every_cell(event: _Event, state: GroupState) -> None:
    world, leader, follower = _in_state(state)
    error, after = _CELLS[event][state]
    if state is EMPTY and event is _commit:
        world.group().generation = 0
        assert world.commit(member_id=follower, generation=0).outcome.errors[0] is error
    else:
        assert event(world, leader, follower) is error
    if after is None:
        assert GROUP not in world.shard().state.classic
    else:
        assert world.group().state is after


# --- the table of errors ----------------------------------------


def test_join_to_an_unknown_group_with_a_member_id() -> None:
    world = World()
    assert world.join("m").outcome.error is UNKNOWN
    assert GROUP not in world.shard().state.classic


@pytest.mark.parametrize(
    ("changes", "error", "member_id"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID, ""),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT, ""),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT, ""),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""),
    ],
)
def test_join_errors_in_a_new_group(changes: dict[str, Any], error: ErrorCode, member_id: str) -> None:
    answer = World().join(**changes).outcome
    assert (answer.error, answer.member_id, answer.generation) == (error, member_id, -1)


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocols": (("other", b""),)}, {"protocols": ()}])
def test_join_with_an_inconsistent_protocol_is_rejected(changes: dict[str, Any]) -> None:
    world = World()
    world.stable("a")
    assert world.join(**changes).outcome.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "x"}, UNKNOWN),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, NONE),
        ({"group_instance_id": "i"}, UNKNOWN),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "other"}, UNKNOWN),
    ],
)
def test_sync_errors(changes: dict[str, Any], error: ErrorCode) -> None:
    world = World()
    members = world.stable("a", "b")
    fields = {"member_id": members["b"], "generation": 1, **changes}
    assert world.sync(**fields).outcome.error is error


@pytest.mark.parametrize(
    ("member_id", "generation", "instance", "error"),
    [
        (None, 1, None, NONE),
        (None, 2, None, ErrorCode.ILLEGAL_GENERATION),
        ("x", 1, None, UNKNOWN),
        (None, 1, "i", UNKNOWN),
        # The member is checked before its generation.
        ("x", 2, None, UNKNOWN),
    ],
)
def test_heartbeat_errors(member_id: str | None, generation: int, instance: str | None, error: ErrorCode) -> None:
    world = World()
    members = world.stable("a")
    assert world.heartbeat(member_id or members["a"], generation, instance=instance) is error


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, NONE),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "x"}, UNKNOWN),
        ({"member_id": "", "generation": -1}, UNKNOWN),
        ({"instance": "i"}, UNKNOWN),
        ({"group": "new", "generation": 3}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group": "new", "generation": 3, "knows_group_not_found": False}, ErrorCode.ILLEGAL_GENERATION),
        ({"group": "new", "generation": -1, "member_id": ""}, NONE),
    ],
)
def test_commit_errors(fields: dict[str, Any], error: ErrorCode) -> None:
    world = World()
    members = world.stable("a")
    wanted = {"member_id": members["a"], "generation": 1, **fields}
    assert world.commit(**wanted).outcome.errors == (error,)


def test_requests_to_foreign_partitions_and_during_a_load() -> None:
    world = World(partitions=[])
    for reported in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        assert world.join().outcome.error is reported
        assert world.sync("m", 1).outcome.error is reported
        assert world.leave(("m", None)).outcome.error is reported
        assert world.commit().outcome.errors == (reported,)
        assert world.fetch().outcome.error is reported
        assert world.delete_offsets(("t", 0)).outcome.error is reported
        assert world.delete_groups(GROUP) == {GROUP: reported}
        is_loading = reported is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert world.heartbeat("m", 1) is (NONE if is_loading else reported)
        world.coordinator.begin_load(world.coordinator.partition_of(GROUP), 0, world.now)
