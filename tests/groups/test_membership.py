"""Membership: every (state, event) cell, the table of errors, and the stories between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.messages import LeaveAnswer, LeftMember, SyncAnswer
from fenceline.groups.settings import GroupSettings
from fenceline.groups.states import GroupState
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
    answer: LeaveAnswer = world.leave((follower, None)).outcome
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
    # event: {state: (what the peer is told now, the state after)}; a state of None: the group is gone.
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
        # The follower never came back: the leader goes on alone.
        PREPARING: (NONE, COMPLETING),
        # Nobody syncs and nobody is heard of: first all members go, then the empty join phase ends.
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
        assert GROUP not in world.shard().groups
    else:
        assert world.group().state is after


# --- the table of errors ----------------------------------------


def test_join_to_an_unknown_group_with_a_member_id() -> None:
    world = World()
    assert world.join("m").outcome.error is UNKNOWN
    assert GROUP not in world.shard().groups


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
def test_join_must_fit_the_others(changes: dict[str, Any]) -> None:
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


def test_requests_to_partitions_of_others_and_while_loading() -> None:
    world = World(partitions=[])
    for told in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        assert world.join().outcome.error is told
        assert world.sync("m", 1).outcome.error is told
        assert world.leave(("m", None)).outcome.error is told
        assert world.commit().outcome.errors == (told,)
        assert world.fetch().outcome.error is told
        assert world.delete_offsets(("t", 0)).outcome.error is told
        assert world.delete_groups(GROUP) == {GROUP: told}
        is_loading = told is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert world.heartbeat("m", 1) is (NONE if is_loading else told)
        world.coordinator.begin_load(world.coordinator.partition_of(GROUP), 0, world.now)


# --- joining ----------------------------------------


def test_a_dynamic_member_learns_its_id_first() -> None:
    world = World()
    told = world.join(must_know_member_id=True, client_id="me").outcome
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("me-")
    assert len(told.member_id) == len("me-") + 36
    joined = world.join(told.member_id, must_know_member_id=True)
    world.advance(0)
    assert joined.outcome.error is NONE
    assert joined.outcome.member_id == told.member_id == joined.outcome.leader


def test_a_pending_member_holds_up_the_join_phase_until_its_session_ends() -> None:
    world = World()
    leader = world.stable("a")["a"]
    world.join(must_know_member_id=True)
    rejoin = world.join(leader)
    assert rejoin.outcome is None
    world.advance(10_000)
    assert rejoin.outcome.generation == 2


def test_a_pending_id_is_not_for_static_members() -> None:
    world = World()
    told = world.join(must_know_member_id=True).outcome
    assert world.join(told.member_id, instance="i").outcome.error is UNKNOWN


def test_the_initial_delay_gathers_members_and_is_extended_while_they_come() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = world.join(client_id="a")
    world.advance(2_000)
    second = world.join(client_id="b")
    world.advance(1_000)
    assert first.outcome is None, "a member came during the delay: wait once more"
    world.advance(3_000)
    assert first.outcome.generation == second.outcome.generation == 1
    assert len(first.outcome.members) == 2


def test_the_initial_delay_ends_at_the_rebalance_timeout() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = world.join(rebalance_timeout_ms=7_000)
    for _ in range(6):
        world.advance(1_000)
        assert first.outcome is None
        world.join(rebalance_timeout_ms=7_000)
    world.advance(1_000)
    assert first.outcome.generation == 1


def test_the_first_member_leads_and_alone_sees_the_others() -> None:
    world = World()
    first, second = world.join(client_id="a"), world.join(client_id="b")
    world.advance(0)
    assert first.outcome.leader == second.outcome.leader == first.outcome.member_id
    assert [member.member_id for member in first.outcome.members] == [first.outcome.member_id, second.outcome.member_id]
    assert second.outcome.members == ()
    assert first.outcome.protocol_name == "range"
    assert first.outcome.protocol_type == "consumer"


def test_the_protocol_with_most_votes_wins() -> None:
    world = World()
    first = world.join(protocols=(("range", b"1"), ("sticky", b"2")))
    world.join(protocols=(("sticky", b"3"), ("range", b"4"), ("own", b"5")))
    world.join(protocols=(("sticky", b"6"), ("range", b"7")))
    world.advance(0)
    assert first.outcome.protocol_name == "sticky"
    assert [member.metadata for member in first.outcome.members] == [b"2", b"3", b"6"]


def test_a_full_group_refuses_new_members_and_keeps_old_ones() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    members = world.stable("a", "b")
    assert world.join().outcome.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join(members["b"]).outcome.error is NONE


def test_whoever_does_not_rejoin_in_time_is_out() -> None:
    world = World()
    members = world.stable("a", "b", rebalance_timeout_ms=5_000)
    rejoin = world.join(members["b"], protocols=(("range", b"new"),), rebalance_timeout_ms=5_000)
    world.advance(4_999)
    assert rejoin.outcome is None
    world.advance(1)
    assert rejoin.outcome.leader == members["b"], "the leader did not come back"
    assert [member.member_id for member in rejoin.outcome.members] == [members["b"]]


def test_members_that_wait_for_others_do_not_need_heartbeats() -> None:
    world = World()
    members = world.stable("a", "b", rebalance_timeout_ms=60_000)
    rejoin = world.join(members["a"])
    for _ in range(5):
        world.advance(9_000)
        assert world.heartbeat(members["b"], 1) is REBALANCE
    assert rejoin.outcome is None
    world.join(members["b"])
    assert rejoin.outcome.generation == 2


def test_a_new_member_that_never_comes_back_is_not_waited_for_for_ever() -> None:
    world = World()
    members = world.stable("a", rebalance_timeout_ms=1_000_000)
    lost = world.join(rebalance_timeout_ms=1_000_000)
    for _ in range(60):
        world.advance(5_000)
        world.heartbeat(members["a"], 1)
    assert lost.outcome.error is UNKNOWN


def test_a_second_join_of_the_same_member_takes_the_place_of_the_first() -> None:
    world = World()
    members = world.stable("a", "b")
    first = world.join(members["a"])
    second = world.join(members["a"])
    assert first.outcome.error is REBALANCE
    world.join(members["b"])
    assert second.outcome.generation == 2


# --- syncing ----------------------------------------


def _completing(world: World, *clients: str) -> list[str]:
    joins = [world.join(client_id=name) for name in clients]
    world.advance(0)
    return [ticket.outcome.member_id for ticket in joins]


def test_the_assignment_reaches_everybody_and_only_when_it_is_committed() -> None:
    world = World()
    leader, early, late = _completing(world, "a", "b", "c")
    world.hold_appends = True
    waiting = world.sync(early, 1)
    own = world.sync(leader, 1, {leader: b"1", early: b"2", late: b"3", "stranger": b"4"})
    assert waiting.outcome is own.outcome is None
    world.release()
    assert waiting.outcome == SyncAnswer(NONE, "consumer", "range", b"2")
    assert own.outcome.assignment == b"1"
    assert world.sync(late, 1).outcome.assignment == b"3"


def test_members_without_an_assignment_get_an_empty_one() -> None:
    world = World()
    leader, other = _completing(world, "a", "b")
    world.sync(leader, 1, {leader: b"1"})
    assert world.sync(other, 1).outcome == SyncAnswer(NONE, "consumer", "range", b"")


def test_an_assignment_that_can_not_be_stored_starts_a_rebalance() -> None:
    world = World()
    leader, other = _completing(world, "a", "b")
    world.hold_appends = True
    waiting, own = world.sync(other, 1), world.sync(leader, 1, {leader: b"1"})
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert waiting.outcome.error is own.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group().state is PREPARING


def test_an_assignment_of_a_generation_that_is_over_is_not_used() -> None:
    world = World()
    leader, other = _completing(world, "a", "b")
    world.hold_appends = True
    own = world.sync(leader, 1, {leader: b"1", other: b"2"})
    joining = world.join(client_id="c")
    assert own.outcome.error is REBALANCE
    world.release()
    assert world.group().state is PREPARING
    world.join(leader)
    world.join(other)
    assert joining.outcome.generation == 2


def test_members_that_never_sync_are_out() -> None:
    world = World()
    leader, silent = _completing(world, "a", "b")
    world.sync(leader, 1, {leader: b"1", silent: b"2"})
    for _ in range(6):
        world.advance(9_999)
        world.heartbeat(leader, 1)
        world.heartbeat(silent, 1)
    assert world.group().state is STABLE
    world.advance(6)
    assert world.group().state is PREPARING
    assert list(world.group().members) == [leader]


# --- leaving and dying ----------------------------------------


def test_the_last_member_leaves_an_empty_generation_in_the_log() -> None:
    world = World()
    members = world.stable("a")
    world.hold_appends = True
    left = world.leave((members["a"], None))
    assert left.outcome is None, "the answer waits for the write"
    world.release()
    assert left.outcome == LeaveAnswer(members=(LeftMember(members["a"], None, NONE),))
    assert (world.group().state, world.group().generation) == (EMPTY, 2)
    world.reload()
    assert (world.group().state, world.group().generation) == (EMPTY, 2)


def test_several_leave_at_once_each_with_its_own_code() -> None:
    world = World()
    members = world.stable("a", "b")
    pending = world.join(must_know_member_id=True).outcome.member_id
    left = world.leave((members["a"], None), ("x", None), ("", "i"), ("", None), (pending, None)).outcome
    assert [each.error for each in left.members] == [NONE, UNKNOWN, UNKNOWN, UNKNOWN, NONE]
    assert world.leave(("m", "i"), group="other").outcome.members == (LeftMember("m", "i", UNKNOWN),)


def test_a_silent_member_is_out_and_the_next_one_leads() -> None:
    world = World()
    members = world.stable("a", "b")
    world.advance(9_999)
    world.heartbeat(members["b"], 1)
    world.advance(1)
    assert world.group().state is PREPARING
    assert world.group().leader_id == members["b"]


def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    members = world.stable("a")
    for _ in range(5):
        world.advance(9_999)
        assert world.commit(member_id=members["a"], generation=1).outcome.errors == (NONE,)
    assert world.group().state is STABLE


# --- static members (KIP-345) ----------------------------------------


def _static(world: World, *instances: str) -> dict[str, str]:
    joins = {name: world.join(instance=name) for name in instances}
    world.advance(0)
    members = {name: ticket.outcome.member_id for name, ticket in joins.items()}
    leader = next(iter(members.values()))
    for member_id in members.values():
        if member_id != leader:
            world.sync(member_id, 1)
    world.sync(leader, 1, {member_id: member_id.encode() for member_id in members.values()})
    return members


def test_a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance() -> None:
    world = World()
    members = _static(world, "i", "j")
    world.hold_appends = True
    back = world.join(instance="j")
    assert back.outcome is None, "the new id must be stored first"
    world.release()
    new_id = back.outcome.member_id
    assert new_id.startswith("j-")
    assert new_id != members["j"]
    assert (back.outcome.error, back.outcome.generation, back.outcome.leader) == (NONE, 1, members["i"])
    assert world.sync(new_id, 1).outcome.assignment == members["j"].encode()
    assert world.heartbeat(members["j"], 1, instance="j") is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(members["j"], 1) is UNKNOWN
    world.reload()
    assert world.group().static_members["j"] == new_id


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_static_leader_that_comes_back_does_not_assign_again(may_skip: bool) -> None:
    world = World()
    members = _static(world, "i", "j")
    back = world.join(instance="i", may_skip_assignment=may_skip).outcome
    assert back.error is NONE
    if may_skip:
        assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)
    else:
        assert (back.leader, back.skip_assignment, back.members) == (members["i"], False, ())


def test_a_static_member_whose_new_id_can_not_be_stored_keeps_the_old_one() -> None:
    world = World()
    members = _static(world, "i")
    world.hold_appends = True
    back = world.join(instance="i", protocols=(("range", b"other"),))
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (back.outcome.error, back.outcome.member_id) == (ErrorCode.NOT_COORDINATOR, "")
    assert world.heartbeat(members["i"], 1, instance="i") is NONE
    assert world.group().members[members["i"]].protocols == (("range", subscription("t")),)


def test_a_static_member_with_another_protocol_starts_a_rebalance() -> None:
    world = World()
    joins = [world.join(instance=name, protocols=(("a", b""), ("b", b""))) for name in ("i", "j")]
    world.advance(0)
    leader = joins[0].outcome.member_id
    world.sync(leader, 1, {})
    assert world.join(instance="j", protocols=(("b", b""),)).outcome is None
    assert world.group().state is PREPARING


def test_a_static_member_that_comes_back_during_the_assignment_starts_a_rebalance() -> None:
    world = World()
    joins = [world.join(instance=name) for name in ("i", "j")]
    world.advance(0)
    leader, other = (ticket.outcome.member_id for ticket in joins)
    waiting = world.sync(other, 1)
    back = world.join(instance="j")
    assert waiting.outcome.error is ErrorCode.FENCED_INSTANCE_ID
    assert back.outcome is None
    assert world.group().state is PREPARING
    assert world.sync(leader, 1).outcome.error is REBALANCE


def test_a_static_member_that_comes_back_while_members_gather_fences_its_old_self() -> None:
    world = World()
    members = _static(world, "i", "j")
    old = world.join(members["i"], instance="i")
    assert old.outcome is None
    new = world.join(instance="i")
    assert (old.outcome.error, old.outcome.member_id) == (ErrorCode.FENCED_INSTANCE_ID, members["i"])
    world.join(members["j"], instance="j")
    assert new.outcome.generation == 2


def test_a_static_leader_that_does_not_rejoin_keeps_its_place_but_does_not_lead() -> None:
    world = World()
    members = _static(world, "i", "j")
    for member in world.group().members.values():
        member.rebalance_timeout_ms = 5_000
    changed = (("range", b"new"),)
    back = world.join(members["j"], instance="j", protocols=changed, rebalance_timeout_ms=5_000)
    world.advance(5_000)
    assert (back.outcome.leader, len(back.outcome.members)) == (members["j"], 2)
    # It neither asks for its assignment nor is it heard of: now it has to go.
    world.sync(members["j"], 2, {members["j"]: b"1"})
    world.advance(5_000)
    assert list(world.group().members) == [members["j"]]


def test_a_group_of_static_members_that_are_all_away_waits_for_their_sessions_to_end() -> None:
    world = World()
    members = _static(world, "i", "j")
    for member in world.group().members.values():
        member.rebalance_timeout_ms = 2_000
    world.leave(("", "j"))
    world.advance(9_999)
    assert list(world.group().members) == [members["i"]]
    assert world.group().state is PREPARING
    world.advance(1)
    assert world.group().state is EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    world = World()
    _static(world, "i", "j")
    assert world.leave(("", "i")).outcome.members == (LeftMember("", "i", NONE),)
    assert "i" not in world.group().static_members
    assert world.leave(("wrong", "j")).outcome.members == (LeftMember("wrong", "j", ErrorCode.FENCED_INSTANCE_ID),)


# --- losing the partition ----------------------------------------


def test_everybody_who_waits_is_sent_to_the_new_coordinator() -> None:
    world = World()
    members = world.stable("a", "b")
    joining = world.join(members["a"])
    world.hold_appends = True
    simple = world.commit(member_id=members["a"], generation=1)
    stable_fetch = world.fetch(require_stable=True)
    world.do(world.coordinator.resign(world.coordinator.partition_of(GROUP), world.now))
    told = ErrorCode.NOT_COORDINATOR
    assert joining.outcome.error is told
    assert simple.outcome.errors == (told,)
    assert stable_fetch.outcome.error is told
    world.release()
    world.advance(100_000)


def test_loaded_members_have_a_session_to_be_heard_of() -> None:
    world = World()
    members = world.stable("a", "b")
    world.reload()
    assert world.group().state is STABLE
    assert world.heartbeat(members["a"], 1) is NONE
    world.advance(9_999)
    world.heartbeat(members["a"], 1)
    world.advance(1)
    assert list(world.group().members) == [members["a"]]


def test_a_loaded_group_that_is_too_large_shrinks() -> None:
    world = World()
    members = world.stable("a", "b", "c")
    world.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    world.reload()
    assert world.group().state is PREPARING
    told = [world.join(member_id) for member_id in members.values()]
    assert told[-1].outcome.error is ErrorCode.GROUP_MAX_SIZE_REACHED
