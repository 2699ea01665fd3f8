"""Votes and pre-votes (raft.md Q2-Q10, Q16-Q22; since_4_0.md K7-K11; gaps.md G34)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, InternalError
from fenceline.quorum.duties import PersistElection, QuorumAnswer, Send, StopLeading
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import QuorumEpochEnd
from fenceline.quorum.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.roles import TIMEOUTS, TRANSITIONS, Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tests.quorum.machine import Machine
from tests.quorum.memory_log import voter


def _vote(epoch: int, **changed: Any) -> VoteRequest:
    fields: dict[str, Any] = {
        "cluster_id": "c",
        "replica_epoch": epoch,
        "replica_id": 2,
        "last_offset_epoch": 0,
        "last_offset": 0,
        "replica_directory_id": voter(2).voter_directory_id,
        "voter_id": 1,
        "voter_directory_id": voter(1).voter_directory_id,
    }
    return VoteRequest(**(fields | changed))


def _follower(**options: Any) -> Machine:
    return Machine(election=ElectionState(3, leader_id=2), **options)


def _answer(**fields: Any) -> QuorumFetchResponse:
    return QuorumFetchResponse(**({"leader_id": 2, "leader_epoch": 3} | fields))


def test_both_tables_name_every_role() -> None:
    assert TIMEOUTS.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize(
    ("election", "role"),
    [
        (None, Unattached(0)),
        (ElectionState(3, leader_id=2), Follower(3, 2)),
        (ElectionState(3, leader_id=1), Resigned(3, 1)),
        (ElectionState(3, leader_id=9), Unattached(3, 9)),
        (ElectionState(3, voted_id=2), Unattached(3, -1, 2)),
        (
            ElectionState(3, voted_id=1, voted_directory_id=voter(1).voter_directory_id),
            Candidate(3, 1, voter(1).voter_directory_id),
        ),
    ],
)
def test_boot(election: ElectionState | None, role: object) -> None:
    """Q10, K10."""
    assert Machine(election=election).quorum.role == role


def test_a_log_ahead_of_the_file_is_persisted() -> None:
    """Q10."""
    machine = Machine(election=ElectionState(3, leader_id=2), history=(5,))
    assert machine.quorum.role == Unattached(5)
    assert machine.log.election == ElectionState(5)


def test_the_steps_to_leadership() -> None:
    """K7: nothing is written for a pre-vote; the candidacy is durable before any vote is requested (Q2)."""
    machine = Machine()
    machine.to_prospective()
    assert machine.quorum.role == Prospective(0)
    assert machine.found(PersistElection) == []
    asked = machine.sent(VoteRequest)
    assert {each: message.pre_vote for each, message in asked.items()} == {2: True, 3: True}
    machine.reply(machine.request_id(2, VoteRequest), VoteResponse(leader_epoch=0, vote_granted=True))
    kinds = [type(duty) for duty in machine.duties]
    assert kinds == [PersistElection, Send, Send], "durable first"
    assert isinstance(machine.quorum.role, Candidate)
    machine.reply(machine.request_id(3, VoteRequest), VoteResponse(leader_epoch=1, vote_granted=True))
    assert machine.quorum.role == Leader(1, 1, 0)
    assert machine.log.election == ElectionState(1, leader_id=1)


def test_a_peer_without_pre_vote_ends_the_pre_vote() -> None:
    """K8."""
    machine = Machine()
    machine.to_prospective()
    machine.reply(machine.request_id(2, VoteRequest), VoteResponse(ErrorCode.UNSUPPORTED_VERSION))
    assert isinstance(machine.quorum.role, Candidate)


def test_a_lost_pre_vote_returns_to_the_leader() -> None:
    """K7."""
    machine = _follower()
    machine.to_prospective()
    assert machine.quorum.role == Prospective(3, 2)
    asked = [machine.request_id(each, VoteRequest) for each in (2, 3)]
    for ask in asked:
        machine.reply(ask, VoteResponse(leader_id=2, leader_epoch=3))
    assert machine.quorum.role == Follower(3, 2)


def test_a_split_vote_is_retried_soon() -> None:
    """Q20: not after a whole election timeout."""
    machine = Machine()
    machine.to_candidate()
    asked = [machine.request_id(each, VoteRequest) for each in (2, 3)]
    for ask in asked:
        machine.reply(ask, VoteResponse(leader_epoch=1))
    deadline = machine.quorum.next_deadline_ms
    assert deadline is not None
    assert deadline <= machine.now_ms + 150
    machine.pass_time(150)
    assert isinstance(machine.quorum.role, Prospective)


def test_a_vote_with_one_rejection_and_one_missing_response_is_retried_soon() -> None:
    """Q20: both followers of a frozen leader timed out in the same millisecond, and each voted for itself."""
    machine = Machine()
    machine.to_candidate()
    machine.reply(machine.request_id(2, VoteRequest), VoteResponse(leader_epoch=1))
    deadline = machine.quorum.next_deadline_ms
    assert deadline is not None
    assert deadline <= machine.now_ms + 150
    assert isinstance(machine.quorum.role, Candidate), "the third may still respond"
    machine.pass_time(150)
    assert isinstance(machine.quorum.role, Prospective)


def test_repeated_split_votes_back_off() -> None:
    """Q20: responses that take longer than the first short delay still decide in the end."""
    machine = Machine()
    waits = []
    machine.to_prospective()
    for _ in range(12):
        granted = VoteResponse(leader_epoch=machine.quorum.epoch, vote_granted=True)
        machine.reply(machine.request_id(2, VoteRequest), granted)
        machine.reply(machine.request_id(2, VoteRequest), VoteResponse(leader_epoch=machine.quorum.epoch))
        deadline = machine.quorum.next_deadline_ms
        assert deadline is not None
        waits.append(deadline - machine.now_ms)
        machine.pass_time(waits[-1])
        assert isinstance(machine.quorum.role, Prospective)
    assert max(waits[6:]) > 300


def test_a_voter_that_requests_votes_is_asked_again() -> None:
    """It rejected while it was in contact with the leader; its own request shows that it no longer is."""
    machine = _follower(history=(1, 1))
    machine.to_prospective()
    machine.reply(machine.request_id(3, VoteRequest), VoteResponse(leader_id=2, leader_epoch=3))
    asked = _vote(3, pre_vote=True, replica_id=3, replica_directory_id=voter(3).voter_directory_id)
    assert not machine.ask(asked).vote_granted, "its log is behind"
    machine.reply(machine.request_id(3, VoteRequest), VoteResponse(leader_epoch=3, vote_granted=True))
    assert isinstance(machine.quorum.role, Candidate)


def test_a_response_of_an_earlier_election_does_not_count() -> None:
    machine = Machine()
    machine.to_prospective()
    stale = machine.request_id(3, VoteRequest)
    machine.reply(machine.request_id(2, VoteRequest), VoteResponse(leader_epoch=0, vote_granted=True))
    machine.reply(stale, VoteResponse(leader_epoch=0, vote_granted=True))
    assert isinstance(machine.quorum.role, Candidate)


def test_a_candidate_claims_only_flushed_records() -> None:
    """A restart continues the candidacy: it must not have less than it was elected for."""
    machine = Machine(history=(1, 1))
    machine.log.append(1, ["not flushed"])
    machine.to_prospective()
    message = machine.sent(VoteRequest)[2]
    assert (message.last_offset_epoch, message.last_offset) == (1, 2)


@pytest.mark.parametrize(
    ("request_", "error", "granted"),
    [
        (_vote(4), ErrorCode.NONE, True),
        (_vote(4, cluster_id=None), ErrorCode.NONE, True),
        (_vote(4, last_offset_epoch=1, last_offset=1), ErrorCode.NONE, False),
        (_vote(4, last_offset_epoch=3, last_offset=1), ErrorCode.NONE, True),
        (_vote(2), ErrorCode.FENCED_LEADER_EPOCH, False),
        (_vote(4, last_offset=-1), ErrorCode.INVALID_REQUEST, False),
        (_vote(4, last_offset_epoch=4), ErrorCode.INVALID_REQUEST, False),
        (_vote(4, replica_id=-1), ErrorCode.INVALID_REQUEST, False),
        (_vote(4, voter_directory_id=UUID(int=5)), ErrorCode.INVALID_VOTER_KEY, False),
        (_vote(4, voter_id=7), ErrorCode.INVALID_VOTER_KEY, False),
    ],
)
def test_votes(request_: VoteRequest, error: ErrorCode, granted: bool) -> None:
    """Q16, Q17. The log is (1, 2) unless the candidate claims nothing."""
    claims = request_.last_offset > 0
    machine = Machine(election=ElectionState(3), history=(1, 1) if claims else ())
    answer = machine.ask(request_)
    assert (answer.partition_error_code, answer.vote_granted) == (error, granted)
    if granted:
        kinds = [type(duty) for duty in machine.duties]
        last_write = len(kinds) - 1 - kinds[::-1].index(PersistElection)
        assert last_write < kinds.index(QuorumAnswer), "durable before the response"
        assert machine.log.election is not None
        assert machine.log.election.voted_id == 2
        assert machine.ask(request_).vote_granted, "the same request again"
        other = _vote(4, replica_id=3, replica_directory_id=voter(3).voter_directory_id)
        assert not machine.ask(other).vote_granted
    elif error is ErrorCode.INVALID_VOTER_KEY:
        assert machine.quorum.epoch == 3, "a wrong address does not raise the epoch (G34)"


def test_another_cluster_is_ignored() -> None:
    """Q13."""
    machine = Machine()
    assert machine.ask(_vote(4, cluster_id="other")).error_code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert machine.quorum.epoch == 0


def test_pre_votes_and_contact_with_the_leader() -> None:
    """K8, Q60; nothing changes at the node that responds."""
    machine = _follower()
    first = machine.request_id(2, QuorumFetchRequest)
    ask = _vote(3, pre_vote=True)
    assert machine.ask(ask).vote_granted, "nothing was fetched in this epoch yet"
    machine.reply(first, _answer(high_watermark=0))
    assert not machine.ask(ask).vote_granted, "in contact"
    assert machine.quorum.role == Follower(3, 2)
    ends = EndQuorumEpochRequest("c", 2, 3, (ReplicaKey(3),))
    machine.ask(ends)
    assert machine.ask(ask).vote_granted, "the leader has announced its resignation"


def test_a_dead_leader_is_replaced_without_waiting() -> None:
    """Its address refuses a connection: no fetch timeout is waited for; a lost connection alone is retried."""
    machine = _follower()
    machine.do(machine.quorum.no_response(0, machine.request_id(2, QuorumFetchRequest), False))
    assert machine.quorum.role == Follower(3, 2)
    machine.pass_time(20)
    machine.do(machine.quorum.no_response(20, machine.request_id(2, QuorumFetchRequest), True))
    assert machine.quorum.role == Prospective(3, 2)
    assert machine.sent(VoteRequest).keys() == {2, 3}


def test_an_observer_never_requests_votes() -> None:
    """Q1, K11: it looks for a leader."""
    machine = Machine(me=4, election=ElectionState(3, leader_id=2))
    for _ in range(5):
        machine.pass_time(2500)
        assert isinstance(machine.quorum.role, Follower)
        assert machine.sent(VoteRequest) == {}


def test_a_leader_without_a_majority_resigns() -> None:
    """Q34, Q9, Q22; K7: later the next epoch, never the same again."""
    machine = Machine()
    machine.to_leader()
    machine.ask(machine.fetch(3))
    machine.pass_time(2999)
    assert machine.quorum.is_leader
    machine.pass_time(1)
    assert machine.quorum.role == Resigned(1, 1)
    assert machine.found(StopLeading) == [StopLeading(1)]
    goodbyes = machine.sent(EndQuorumEpochRequest)
    assert goodbyes.keys() == {2, 3}
    assert [each.replica_id for each in goodbyes[2].preferred_candidates] == [3, 2], "the longest log first"
    machine.pass_time(2000)
    assert machine.quorum.epoch == 2


@pytest.mark.parametrize(("position", "wait"), [(0, 0), (1, 500), (2, 1000)])
def test_preferred_successors_start_in_turn(position: int, wait: int) -> None:
    """Q22."""
    machine = _follower()
    others = [ReplicaKey(3)]
    candidates = [ReplicaKey(1), *others] if position == 0 else [*others, ReplicaKey(1)] if position == 1 else others
    machine.ask(EndQuorumEpochRequest("c", 2, 3, tuple(candidates)))
    if wait:
        machine.pass_time(wait - 1)
        assert isinstance(machine.quorum.role, Follower)
        machine.pass_time(1)
    else:
        machine.pass_time(0)
    assert isinstance(machine.quorum.role, Prospective)


def test_a_new_leader_is_followed() -> None:
    """Q21, and a second one in the same epoch is reported, not followed, and stops no node (Q8, G36)."""
    machine = Machine()
    assert machine.ask(BeginQuorumEpochRequest("c", 2, 5, 1)).partition_error_code is ErrorCode.NONE
    assert machine.quorum.role == Follower(5, 2)
    assert machine.ask(BeginQuorumEpochRequest("c", 3, 5, 1)).partition_error_code is ErrorCode.INVALID_REQUEST
    assert machine.quorum.role == Follower(5, 2)
    assert machine.ask(BeginQuorumEpochRequest("c", 3, 4, 1)).partition_error_code is ErrorCode.FENCED_LEADER_EPOCH
    wrong = BeginQuorumEpochRequest("c", 3, 9, 1, UUID(int=5))
    assert machine.ask(wrong).partition_error_code is ErrorCode.INVALID_VOTER_KEY
    assert machine.quorum.epoch == 5


def test_a_clock_that_goes_back_is_harmless() -> None:
    machine = Machine()
    machine.to_leader()
    machine.do(machine.quorum.tick(0))
    assert machine.quorum.is_leader


def test_only_truncation_below_the_high_watermark_is_fatal() -> None:
    """Q29, G36."""
    machine = _follower(history=(3, 3))
    machine.fetched(high_watermark=2)
    assert machine.quorum.high_watermark == 2
    with pytest.raises(InternalError, match="committed"):
        machine.fetched(diverging_epoch=QuorumEpochEnd(2, 0))


def test_a_shutdown_hands_over_and_ends_participation() -> None:
    """Q23."""
    machine = Machine()
    machine.to_leader()
    assert not machine.quorum.has_closed
    machine.do(machine.quorum.shutdown(machine.now_ms, 5000))
    assert not machine.quorum.has_closed, "the others do not know yet"
    machine.pass_time(4000)
    assert machine.quorum.role == Resigned(1, 1), "no election of its own"
    machine.ask(BeginQuorumEpochRequest("c", 2, 2, 1))
    assert machine.quorum.has_closed
    follower = _follower()
    follower.do(follower.quorum.shutdown(0, 5000))
    assert follower.quorum.has_closed


def test_a_candidate_elected_during_its_shutdown_hands_over() -> None:
    """Q23; brokers, seed 4012: it continued to lead, and its node waited forever for the end of its leadership."""
    machine = Machine()
    machine.to_candidate()
    asked = machine.request_id(2, VoteRequest)
    machine.do(machine.quorum.shutdown(machine.now_ms, 5000))
    machine.reply(asked, VoteResponse(leader_epoch=1, vote_granted=True))
    machine.pass_time(50)
    assert machine.quorum.role == Resigned(1, 1)
    assert not machine.quorum.has_closed, "the others do not know yet"
    machine.pass_time(5000)
    assert machine.quorum.has_closed
