"""Membership: joining, syncing, leaving, and a coordinator that moves."""

from __future__ import annotations

from fenceline.coordination import DUE_AT_ONCE
from fenceline.errors import ErrorCode
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import LeaveResponse, LeftMember, SyncResponse
from fenceline.groups.settings import GroupSettings
from tests.groups.helpers import GROUP, World

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

# --- joining ----------------------------------------


def test_dynamic_member_gets_its_id_first() -> None:
    world = World()
    reported = world.join(must_know_member_id=True, client_id="me").outcome
    assert reported.error is ErrorCode.MEMBER_ID_REQUIRED
    assert reported.member_id.startswith("me-")
    assert len(reported.member_id) == len("me-") + 36
    joined = world.join(reported.member_id, must_know_member_id=True)
    world.advance(0)
    assert joined.outcome.error is NONE
    assert joined.outcome.member_id == reported.member_id == joined.outcome.leader


def test_pending_member_delays_the_join_phase_until_its_session_timeout() -> None:
    world = World()
    leader = world.stable("a")["a"]
    world.join(must_know_member_id=True)
    rejoin = world.join(leader)
    assert rejoin.outcome is None
    world.advance(10_000)
    assert rejoin.outcome.generation == 2


def test_pending_id_is_rejected_for_static_members() -> None:
    world = World()
    reported = world.join(must_know_member_id=True).outcome
    assert world.join(reported.member_id, instance="i").outcome.error is UNKNOWN


def test_initial_rebalance_delay_is_extended_while_members_join() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = world.join(client_id="a")
    world.advance(2_000)
    second = world.join(client_id="b")
    world.advance(1_000)
    assert first.outcome is None, "a member came during the delay: the delay is extended"
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


def test_first_member_leads_and_only_the_leader_sees_the_members() -> None:
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


def test_full_group_rejects_new_members_and_keeps_existing_ones() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    members = world.stable("a", "b")
    assert world.join().outcome.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join(members["b"]).outcome.error is NONE


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    world = World()
    members = world.stable("a", "b", rebalance_timeout_ms=5_000)
    rejoin = world.join(members["b"], protocols=(("range", b"new"),), rebalance_timeout_ms=5_000)
    world.advance(4_999)
    assert rejoin.outcome is None
    world.advance(1)
    assert rejoin.outcome.leader == members["b"], "the leader did not rejoin"
    assert [member.member_id for member in rejoin.outcome.members] == [members["b"]]


def test_members_waiting_for_others_do_not_need_heartbeats() -> None:
    world = World()
    members = world.stable("a", "b", rebalance_timeout_ms=60_000)
    rejoin = world.join(members["a"])
    for _ in range(5):
        world.advance(9_000)
        assert world.heartbeat(members["b"], 1) is REBALANCE
    assert rejoin.outcome is None
    world.join(members["b"])
    assert rejoin.outcome.generation == 2


def test_new_member_that_never_returns_times_out() -> None:
    world = World()
    members = world.stable("a", rebalance_timeout_ms=1_000_000)
    lost = world.join(rebalance_timeout_ms=1_000_000)
    for _ in range(60):
        world.advance(5_000)
        world.heartbeat(members["a"], 1)
    assert lost.outcome.error is UNKNOWN


def test_second_join_of_the_same_member_replaces_the_first() -> None:
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


def test_assignment_is_sent_to_all_members_only_when_committed() -> None:
    world = World()
    leader, early, late = _completing(world, "a", "b", "c")
    world.hold_appends = True
    waiting = world.sync(early, 1)
    own = world.sync(leader, 1, {leader: b"1", early: b"2", late: b"3", "stranger": b"4"})
    assert waiting.outcome is own.outcome is None
    world.release()
    assert waiting.outcome == SyncResponse(NONE, "consumer", "range", b"2")
    assert own.outcome.assignment == b"1"
    assert world.sync(late, 1).outcome.assignment == b"3"


def test_members_without_an_assignment_get_an_empty_one() -> None:
    world = World()
    leader, other = _completing(world, "a", "b")
    world.sync(leader, 1, {leader: b"1"})
    assert world.sync(other, 1).outcome == SyncResponse(NONE, "consumer", "range", b"")


def test_assignment_that_cannot_be_stored_starts_a_rebalance() -> None:
    world = World()
    leader, other = _completing(world, "a", "b")
    world.hold_appends = True
    waiting, own = world.sync(other, 1), world.sync(leader, 1, {leader: b"1"})
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert waiting.outcome.error is own.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group().state is PREPARING


def test_assignment_of_a_former_generation_is_ignored() -> None:
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


def test_members_that_never_sync_are_removed() -> None:
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


# --- leaving and expiring ---------------------------------------


def test_the_last_member_leaves_an_empty_generation_in_the_log() -> None:
    world = World()
    members = world.stable("a")
    world.hold_appends = True
    left = world.leave((members["a"], None))
    assert left.outcome is None, "the response waits for the write"
    world.release()
    assert left.outcome == LeaveResponse(members=(LeftMember(members["a"], None, NONE),))
    assert (world.group().state, world.group().generation) == (EMPTY, 2)
    world.reload()
    assert (world.group().state, world.group().generation) == (EMPTY, 2)


def test_each_member_of_a_leave_request_gets_its_own_error_code() -> None:
    world = World()
    members = world.stable("a", "b")
    pending = world.join(must_know_member_id=True).outcome.member_id
    left = world.leave((members["a"], None), ("x", None), ("", "i"), ("", None), (pending, None)).outcome
    assert [each.error for each in left.members] == [NONE, UNKNOWN, UNKNOWN, UNKNOWN, NONE]
    assert world.leave(("m", "i"), group="other").outcome.members == (LeftMember("m", "i", UNKNOWN),)


def test_silent_member_is_removed_and_the_next_one_leads() -> None:
    world = World()
    members = world.stable("a", "b")
    world.advance(9_999)
    world.heartbeat(members["b"], 1)
    world.advance(1)
    assert world.group().state is PREPARING
    assert world.group().leader_id == members["b"]


def test_commit_extends_the_session() -> None:
    world = World()
    members = world.stable("a")
    for _ in range(5):
        world.advance(9_999)
        assert world.commit(member_id=members["a"], generation=1).outcome.errors == (NONE,)
    assert world.group().state is STABLE


# --- losing the partition ----------------------------------------


def test_waiting_requests_are_sent_to_the_new_coordinator() -> None:
    world = World()
    members = world.stable("a", "b")
    joining = world.join(members["a"])
    world.hold_appends = True
    simple = world.commit(member_id=members["a"], generation=1)
    stable_fetch = world.fetch(require_stable=True)
    world.do(world.coordinator.resign(world.coordinator.partition_of(GROUP), world.now))
    reported = ErrorCode.NOT_COORDINATOR
    assert joining.outcome.error is reported
    assert simple.outcome.errors == (reported,)
    assert stable_fetch.outcome.error is reported
    world.release()
    world.advance(100_000)


def test_loaded_members_get_a_full_session_timeout() -> None:
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
    reported = [world.join(member_id) for member_id in members.values()]
    assert reported[-1].outcome.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_that_are_all_silent_are_removed_a_few_in_a_call() -> None:
    """None has come back since this coordinator loaded its groups: other requests have their turn in between."""
    world = World()
    groups = [f"g{number}" for number in range(2 * DUE_AT_ONCE + 1)]
    for group in groups:
        world.stable("a", group=group)
    world.reload()
    world._move_to(10_000)
    left = []
    while (at_ms := world.coordinator.next_deadline_ms()) is not None and at_ms <= world.now.monotonic_ms:
        world.do(world.coordinator.on_time(world.now))
        left.append(sum(len(world.group(group).members) for group in groups))
    assert left == [DUE_AT_ONCE + 1, 1, 0]
