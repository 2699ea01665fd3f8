"""Requests and responses that reach a node in another role than they were meant for.

The cases of KafkaRaftClientTest and KafkaRaftClientSnapshotTest that change roles. Rules: raft.md Q9, Q13-Q17, Q26,
Q32, Q34; since_4_0.md K7-K9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.quorum.control_records import Voter, VoterEndpoint
from fenceline.quorum.duties import AppendControlBatch, AppendFetched, QuorumAnswer, WritePiece
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import QuorumEpochEnd, SnapshotId, VotersAt
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RemoveRaftVoterRequest,
    RequestMessage,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.roles import Candidate, Leader, Prospective, Unattached
from tests.quorum.machine import Machine
from tests.quorum.memory_log import LEVELS, voter

D2, D3 = voter(2).voter_directory_id, voter(3).voter_directory_id


def _vote(machine: Machine, epoch: int) -> VoteRequest:
    """Of node 2, which has all records of the machine."""
    end = machine.log.end
    return VoteRequest("c", epoch, 2, min(end.epoch, epoch - 1), end.offset, D2, 1, voter(1).voter_directory_id)


def _started(election: ElectionState | None) -> Callable[[], Machine]:
    return lambda: Machine(election=election)


def _then(election: ElectionState | None, *steps: str) -> Callable[[], Machine]:
    def make() -> Machine:
        machine = Machine(election=election)
        for step in steps:
            getattr(machine, step)()
        return machine

    return make


def _resigned_now() -> Machine:
    machine = _then(None, "to_leader")()
    machine.do(machine.quorum.resign(machine.now_ms))
    return machine


@pytest.mark.parametrize(
    ("role", "grants"),
    [
        (_started(ElectionState(3)), True),
        (_started(ElectionState(3, voted_id=2, voted_directory_id=D2)), True),
        (_started(ElectionState(3, voted_id=3, voted_directory_id=D3)), False),
        (_started(ElectionState(3, leader_id=9)), False),
        (_started(ElectionState(3, leader_id=2)), False),
        (_started(ElectionState(3, leader_id=1)), False),
        (_then(ElectionState(3), "to_prospective"), True),
        (_then(ElectionState(3, leader_id=3), "to_prospective"), False),
        (_then(ElectionState(3, voted_id=3, voted_directory_id=D3), "to_prospective"), False),
        (_then(None, "to_candidate"), False),
        (_then(None, "to_leader"), False),
        (_resigned_now, False),
    ],
    ids=[
        "unattached",
        "voted for the same",
        "voted for another",
        "knows a leader",
        "follower",
        "resigned at its start",
        "prospective",
        "prospective with a leader",
        "prospective that voted",
        "candidate",
        "leader",
        "resigned",
    ],
)
def test_one_vote_per_epoch(role: Callable[[], Machine], grants: bool) -> None:
    """testHandleValidVoteRequestAsFollower, testHandleVoteRequestAsFollowerWithElectedLeader, ...VotedCandidate,
    testLeaderIgnoreVoteRequestOnSameEpoch, testRejectVotesFromSameEpochAfterResigningLeadership,
    testGrantVotesFromHigherEpochAfterResigningLeadership, testHandleInvalidVoteRequestWithOlderEpoch; Q9, Q14, Q17, K9.
    """
    machine = role()
    before, epoch = machine.quorum.role, machine.quorum.epoch
    older = machine.ask(_vote(machine, epoch - 1))
    assert older.partition_error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_REQUEST)
    answer = machine.ask(_vote(machine, epoch))
    assert (answer.partition_error_code, answer.vote_granted) == (ErrorCode.NONE, grants)
    if not grants:
        assert machine.quorum.role == before
    higher = machine.ask(_vote(machine, epoch + 1))
    assert (higher.vote_granted, machine.quorum.epoch) == (True, epoch + 1)
    assert isinstance(machine.quorum.role, Unattached)
    assert machine.log.election == ElectionState(epoch + 1, voted_id=2, voted_directory_id=D2)


def _requests(cluster_id: str | None) -> list[RequestMessage]:
    """Every type that names a cluster, as node 2 sends it in epoch 1."""
    new = voter(4)
    return [
        VoteRequest(cluster_id, 2, 2, 0, 0, D2),
        BeginQuorumEpochRequest(cluster_id, 2, 2, 1),
        EndQuorumEpochRequest(cluster_id, 2, 2),
        QuorumFetchRequest(cluster_id, 2, 1, 0, 0, D2),
        FetchSnapshotRequest(cluster_id, 2, 1, SnapshotId(2, 1), 0, 100, D2),
        AddRaftVoterRequest(cluster_id, 1000, 4, new.voter_directory_id, new.endpoints),
        RemoveRaftVoterRequest(cluster_id, 2, D2),
        UpdateRaftVoterRequest(cluster_id, 1, 2, D2, voter(2).endpoints, LEVELS),
    ]


@pytest.mark.parametrize("kind", range(8), ids=[type(each).__name__ for each in _requests(None)])
def test_every_request_of_another_cluster_is_rejected(kind: int) -> None:
    """testFetchRequestClusterIdValidation, ...Vote, ...BeginQuorumEpoch, ...EndQuorumEpoch, ...FetchSnapshot; Q13: null
    names no cluster, and a request of another cluster changes no state.
    """
    machine = _then(None, "to_leader")()
    before, end = machine.quorum.role, machine.log.end
    answer = machine.ask(_requests("another")[kind])
    assert answer.error_code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert (machine.quorum.role, machine.log.end) == (before, end)
    reported: Any = machine.ask(_requests(None)[kind])
    assert reported is None or reported.error_code is not ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_leader_of_an_older_epoch_ends_nothing() -> None:
    """testHandleEndQuorumRequest with an old epoch; Q14."""
    machine = Machine(election=ElectionState(3, leader_id=2))
    answer = machine.ask(EndQuorumEpochRequest("c", 3, 2))
    assert answer.partition_error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert (answer.leader_id, answer.leader_epoch) == (2, 3)
    machine.pass_time(1500)
    assert machine.quorum.leader_id == 2


def test_records_that_arrive_after_leaving_the_leader_are_not_appended() -> None:
    """testFetchResponseIgnoredAfterBecomingCandidate; Q15."""
    for role, steps in ((Prospective, ("to_prospective",)), (Candidate, ("to_candidate",))):
        machine = Machine(election=ElectionState(3, leader_id=2))
        ask = machine.request_id(2, QuorumFetchRequest)
        late = QuorumFetchResponse(leader_id=2, leader_epoch=3, records=machine.entries(3, 1), high_watermark=1)
        for step in steps:
            getattr(machine, step)()
        machine.reply(ask, late)
        assert isinstance(machine.quorum.role, role)
        assert machine.found(AppendFetched) == []
        assert (machine.log.end_offset, machine.quorum.high_watermark) == (0, None)


@pytest.mark.parametrize("leader", [2, 3])
def test_a_chunk_of_an_older_epoch_is_dropped(leader: int) -> None:
    """testFetchSnapshotResponseFromOlderEpoch, ...FromNewerEpochLeader, ...ToNotFollower; N34."""
    snapshot = SnapshotId(20, 2)
    machine = Machine(election=ElectionState(3, leader_id=2))
    machine.fetched(snapshot_id=snapshot)
    machine.do(machine.quorum.download_begun(0, snapshot, 0))
    ask = machine.request_id(2, FetchSnapshotRequest)
    machine.ask(BeginQuorumEpochRequest("c", leader, 4, 1))
    late = FetchSnapshotResponse(
        leader_id=2, leader_epoch=3, snapshot_id=snapshot, size=100, unaligned_records=b"p" * 60
    )
    machine.reply(ask, late)
    assert machine.found(WritePiece) == []
    assert (machine.quorum.epoch, machine.quorum.leader_id) == (4, leader)


def test_learning_of_a_newer_leader_completes_parked_fetches() -> None:
    """testPurgatoryFetchCompletedByFollowerTransition; Q26: with the current leader.

    74 where Kafka returns 6, since the epoch is checked first (Q14); either makes a follower go there (Q15).
    """
    machine = _then(None, "to_leader")()
    machine.do(machine.quorum.request(machine.now_ms, "parked", machine.fetch(2, high_watermark=None)))
    machine.ask(BeginQuorumEpochRequest("c", 3, 9, 1))
    (answer,) = [duty.message for duty in machine.found(QuorumAnswer) if duty.token == "parked"]
    assert isinstance(answer, QuorumFetchResponse)
    assert answer.partition_error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert (answer.leader_id, answer.leader_epoch) == (3, 9)


def test_a_diverging_fetch_is_answered_at_once_and_does_not_count() -> None:
    """testLeaderImmediatelySendsDivergingEpoch; Q25, Q26."""
    machine = Machine(history=(1, 1, 1), election=ElectionState(3))
    machine.to_leader()
    answer = machine.ask(machine.fetch(2, 5, 2, max_wait_ms=500))
    assert (answer.partition_error_code, answer.diverging_epoch) == (ErrorCode.NONE, QuorumEpochEnd(1, 3))
    assert (answer.records, answer.snapshot_id) == (b"", None)
    voters = {each.replica_id: each for each in machine.ask(DescribeQuorumRequest()).current_voters}
    assert voters[2].log_end_offset == -1


def test_a_follower_that_goes_back_reverts_no_commit() -> None:
    """testDescribeQuorumNonMonotonicFollowerFetch, testNonMonotonicHighWatermarkUpdate; Q32: a disk may lose an end."""
    machine = Machine(history=(1, 1, 1), election=ElectionState(1))
    machine.to_leader()
    machine.log.append(machine.quorum.epoch, ["x", "y"])
    machine.flush()
    machine.ask(machine.fetch(2))
    end = machine.log.end_offset
    assert machine.quorum.high_watermark == end
    for offset in (end - 1, 1):
        machine.do(machine.quorum.request(machine.now_ms, "back", machine.fetch(2, offset)))
        assert machine.quorum.high_watermark == end
        voters = {each.replica_id: each for each in machine.ask(DescribeQuorumRequest()).current_voters}
        assert voters[2].log_end_offset == offset


def test_an_observer_has_every_record_and_no_vote() -> None:
    """testObserverReplication, testDescribeQuorumWithObserver; Q28."""
    machine = Machine(me=9, election=ElectionState(3, leader_id=2))
    machine.fetched(records=machine.entries(3, 2), high_watermark=1)
    assert (machine.log.end_offset, machine.quorum.high_watermark) == (2, 1)
    machine.fetched(high_watermark=2)
    assert machine.quorum.high_watermark == 2
    leader = _then(None, "to_leader")()
    leader.ask(leader.fetch(9))
    assert leader.quorum.high_watermark is None


def test_committed_records_stay_committed_through_every_role() -> None:
    """QuorumStateTest.testHighWatermarkRetained; Q28, Q29: only a leader starts without a high watermark (Q32)."""
    machine = Machine(election=ElectionState(3, leader_id=2), history=(3, 3))
    machine.fetched(high_watermark=2)
    machine.ask(BeginQuorumEpochRequest("c", 3, 4, 1))
    assert machine.quorum.high_watermark == 2
    machine.ask(_vote(machine, 6))
    assert isinstance(machine.quorum.role, Unattached)
    assert machine.quorum.high_watermark == 2
    machine.to_prospective()
    assert machine.quorum.high_watermark == 2


@pytest.mark.parametrize("heard", [2, 3])
def test_a_removed_voter_no_longer_keeps_the_leader_from_resigning(heard: int) -> None:
    """LeaderStateTest.testCheckQuorumAfterVoterSetChanges; Q34, Q42."""
    machine = _then(None, "to_leader")()
    machine.ask(machine.fetch(2))
    machine.ask(RemoveRaftVoterRequest("c", 3, D3))
    machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(2)))
    assert machine.quorum.voter_set.ids == [1, 2]
    for _ in range(4):
        machine.pass_time(1000)
        machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(heard)))
    assert isinstance(machine.quorum.role, Leader) is (heard == 2)


def test_a_lost_vote_request_is_retried() -> None:
    """testVoteRequestTimeout, testRetryElection: one voter is asked once, the other again, in the same election."""
    machine = _then(None, "to_candidate")()
    epoch = machine.quorum.epoch
    lost, slow = machine.request_id(2, VoteRequest), machine.request_id(3, VoteRequest)
    machine.do(machine.quorum.no_response(machine.now_ms, lost, False))
    machine.pass_time(200)
    assert machine.sent(VoteRequest).keys() == {2}
    again = machine.request_id(2, VoteRequest)
    machine.reply(again, VoteResponse(leader_epoch=epoch, vote_granted=True))
    assert isinstance(machine.quorum.role, Leader)
    assert machine.quorum.epoch == epoch
    machine.reply(slow, VoteResponse(leader_epoch=epoch))
    assert isinstance(machine.quorum.role, Leader)


_CHANGES = ["add", "remove", "update"]


def _change(kind: str, machine: Machine) -> RequestMessage:
    new = voter(4)
    if kind == "add":
        return AddRaftVoterRequest("c", 1000, 4, new.voter_directory_id, new.endpoints)
    if kind == "remove":
        return RemoveRaftVoterRequest("c", 3, D3)
    moved = (VoterEndpoint("CONTROLLER", "moved", 7),)
    return UpdateRaftVoterRequest("c", machine.quorum.epoch, 2, D2, moved, LEVELS)


def _with_a_change_under_way() -> Machine:
    machine = Machine()
    machine.to_leader()
    machine.ask(machine.fetch(2))
    five = voter(5)
    waits = AddRaftVoterRequest("c", 1000, 5, five.voter_directory_id, five.endpoints)
    machine.do(machine.quorum.request(machine.now_ms, "other", waits))
    return machine


def _with_an_update_that_is_not_committed() -> Machine:
    machine = Machine()
    machine.to_leader()
    machine.ask(machine.fetch(2))
    moved = (VoterEndpoint("CONTROLLER", "elsewhere", 7),)
    machine.ask(UpdateRaftVoterRequest("c", machine.quorum.epoch, 3, D3, moved, LEVELS))
    return machine


@pytest.mark.parametrize("kind", _CHANGES)
@pytest.mark.parametrize(
    ("role", "error"),
    [
        (_then(None, "to_leader"), ErrorCode.REQUEST_TIMED_OUT),
        (_with_a_change_under_way, ErrorCode.REQUEST_TIMED_OUT),
        (_with_an_update_that_is_not_committed, ErrorCode.REQUEST_TIMED_OUT),
        (_started(ElectionState(3, leader_id=2)), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (_then(ElectionState(3, leader_id=2), "to_candidate"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (_resigned_now, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["nothing committed", "a change under way", "a set not committed", "follower", "candidate", "resigned"],
)
def test_one_change_of_voters_at_a_time_by_an_established_leader(
    kind: str, role: Callable[[], Machine], error: ErrorCode
) -> None:
    """KafkaRaftClientReconfigTest.testAddVoterWithPendingAddVoter, testRemoveVoterWithPendingAddVoter,
    testUpdateVoterWithPendingAddVoter, test*VoterWithoutFencedPreviousLeaders, test*VoterToNotLeader; Q41-Q44."""
    machine = role()
    before = machine.quorum.voter_set
    answer = machine.ask(_change(kind, machine))
    assert answer is not None
    assert answer.error_code is error
    assert machine.found(AppendControlBatch) == []
    assert machine.quorum.voter_set == before


@pytest.mark.parametrize(
    ("kind", "error"),
    [("add", ErrorCode.UNSUPPORTED_VERSION), ("remove", ErrorCode.UNSUPPORTED_VERSION), ("update", ErrorCode.NONE)],
)
def test_static_voters_are_not_changed(kind: str, error: ErrorCode) -> None:
    """test*VoterWithKraftVersion0; Q41-Q43, K15: an UpdateRaftVoter of a static voter is only remembered."""
    machine = Machine(dynamic=False)
    machine.to_leader()
    machine.ask(machine.fetch(2))
    answer = machine.ask(_change(kind, machine))
    assert (answer.error_code, machine.found(AppendControlBatch)) == (error, [])
    assert machine.quorum.voter_set.ids == [1, 2, 3]


def test_a_moved_voter_updates_its_leader_and_learns_of_a_newer_one() -> None:
    """testFollowerSendsUpdateVoter*, testUpdateVoterResponseCausesEpochChange; Q43, K15."""
    machine = Machine(me=4, voters=(1, 2, 3), election=ElectionState(3, leader_id=2))
    assert machine.sent(UpdateRaftVoterRequest) == {}, "it is no voter"
    machine = Machine(election=ElectionState(3, leader_id=2))
    machine.pass_time(100)
    assert machine.sent(UpdateRaftVoterRequest) == {}, "the voter set already has its endpoint"
    old = Voter(1, voter(1).voter_directory_id, (VoterEndpoint("CONTROLLER", "before", 1),), LEVELS)
    machine.log.append(3, [VotersAt(0, 1, (old, voter(2), voter(3)))])
    machine.flush()
    assert machine.sent(UpdateRaftVoterRequest)[2].listeners == voter(1).endpoints
    ask = machine.request_id(2, UpdateRaftVoterRequest)
    machine.reply(ask, UpdateRaftVoterResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 5))
    assert (machine.quorum.leader_id, machine.quorum.epoch) == (3, 5)
