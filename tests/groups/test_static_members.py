"""Static members (KIP-345): an instance that returns keeps its assignment."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import LeftMember
from tests.groups.helpers import World, subscription

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState


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


def test_returning_static_member_keeps_its_assignment_without_a_rebalance() -> None:
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
def test_returning_static_leader_does_not_assign_again(may_skip: bool) -> None:
    world = World()
    members = _static(world, "i", "j")
    back = world.join(instance="i", may_skip_assignment=may_skip).outcome
    assert back.error is NONE
    if may_skip:
        assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)
    else:
        assert (back.leader, back.skip_assignment, back.members) == (members["i"], False, ())


def test_static_member_keeps_its_old_id_if_the_new_one_cannot_be_stored() -> None:
    world = World()
    members = _static(world, "i")
    world.hold_appends = True
    back = world.join(instance="i", protocols=(("range", b"other"),))
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (back.outcome.error, back.outcome.member_id) == (ErrorCode.NOT_COORDINATOR, "")
    assert world.heartbeat(members["i"], 1, instance="i") is NONE
    assert world.group().members[members["i"]].protocols == (("range", subscription("t")),)


@pytest.mark.parametrize(
    ("first", "known"),
    [(ErrorCode.NONE, "first"), (ErrorCode.KAFKA_STORAGE_ERROR, "old")],
)
def test_instance_that_returns_twice_falls_back_to_the_stored_id(first: ErrorCode, known: str) -> None:
    """Both new ids are pending at once, and the second one cannot be stored."""
    world = World()
    old = _static(world, "i")["i"]
    world.hold_appends = True
    world.join(instance="i")
    (middle,) = world.group().members
    world.join(instance="i")
    world.release(first)
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    expected = {"old": old, "first": middle}[known]
    assert list(world.group().members) == [expected]
    assert world.heartbeat(expected, 1, instance="i") is NONE
    world.hold_appends = False
    world.reload()
    assert list(world.group().members) == [expected]


def test_a_static_member_with_another_protocol_starts_a_rebalance() -> None:
    world = World()
    joins = [world.join(instance=name, protocols=(("a", b""), ("b", b""))) for name in ("i", "j")]
    world.advance(0)
    leader = joins[0].outcome.member_id
    world.sync(leader, 1, {})
    assert world.join(instance="j", protocols=(("b", b""),)).outcome is None
    assert world.group().state is PREPARING


def test_static_member_returning_during_the_assignment_starts_a_rebalance() -> None:
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


def test_static_member_returning_during_the_join_phase_fences_its_old_id() -> None:
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
    # It sends neither a SyncGroup nor a heartbeat: now it expires.
    world.sync(members["j"], 2, {members["j"]: b"1"})
    world.advance(5_000)
    assert list(world.group().members) == [members["j"]]


def test_group_with_only_absent_static_members_waits_for_their_session_timeouts() -> None:
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
