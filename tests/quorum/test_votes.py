"""Votes of nodes with lost logs, of unknown nodes and of observers; how long elections take.

Rules: raft.md Q3, Q4, Q10, Q18, Q19; snapshots.md N37; gaps.md G24, G39.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from fenceline.errors import InternalError
from fenceline.quorum.duties import Send
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumLogEnd, SnapshotId, VotersAt
from fenceline.quorum.messages import EndQuorumEpochRequest, QuorumFetchRequest, ReplicaKey, VoteRequest
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import Follower, Unattached
from fenceline.quorum.settings import Address, QuorumSettings
from tests.quorum.machine import Machine
from tests.quorum.memory_log import MemoryLog, voter
from tests.quorum.test_elections import _follower, _vote


def test_a_node_without_its_log_votes_only_for_logs_with_its_promised_end() -> None:
    """G24: the records it acknowledged may have been counted, so no node without them may lead; it never becomes a
    candidate.
    """
    machine = Machine(election=ElectionState(3), history=())
    machine.log.promised = QuorumLogEnd(2, 8)
    assert not machine.ask(_vote(4, last_offset_epoch=2, last_offset=7)).vote_granted
    assert not machine.ask(_vote(4, last_offset_epoch=1, last_offset=90, pre_vote=True)).vote_granted
    assert machine.ask(_vote(4, last_offset_epoch=2, last_offset=8, pre_vote=True)).vote_granted
    assert machine.ask(_vote(4, last_offset_epoch=2, last_offset=8)).vote_granted
    for _ in range(20):
        machine.pass_time(1000)
        assert isinstance(machine.quorum.role, Unattached | Follower)
        assert machine.sent(VoteRequest) == {}


def test_a_node_with_its_promised_end_again_may_become_candidate() -> None:
    """G24."""
    machine = Machine(election=ElectionState(3, leader_id=2), history=(2, 2))
    machine.log.promised = QuorumLogEnd(2, 2)
    machine.pass_time(2500)
    assert machine.sent(VoteRequest) == {}
    machine.log.promised = NO_PROMISED_END
    machine.pass_time(2500)
    assert machine.sent(VoteRequest)


def test_a_node_with_a_truncated_log_votes_only_for_logs_with_its_promised_end() -> None:
    """G24: the rest of the log does not count if it ends before the promised end."""
    machine = Machine(election=ElectionState(5, leader_id=3), history=(1, 2, 2))
    machine.log.promised = QuorumLogEnd(2, 8)
    machine.ask(EndQuorumEpochRequest("c", 3, 5, (ReplicaKey(1, voter(1).voter_directory_id),)))
    machine.pass_time(1)
    assert machine.sent(VoteRequest) == {}, "also if the resigning leader names it as its successor"
    for epoch, offset, granted in ((2, 3, False), (2, 7, False), (1, 90, False), (2, 8, True)):
        vote = _vote(6, last_offset_epoch=epoch, last_offset=offset, pre_vote=True)
        assert machine.ask(vote).vote_granted is granted, (epoch, offset)
    assert machine.ask(_vote(6, last_offset_epoch=3, last_offset=1, pre_vote=True)).vote_granted
    assert not machine.ask(_vote(6, last_offset_epoch=2, last_offset=7)).vote_granted
    assert machine.ask(_vote(6, last_offset_epoch=3, last_offset=1)).vote_granted


def test_the_only_voter_of_a_truncated_log_looks_for_a_leader() -> None:
    """G24: the lost records may have added other voters."""
    log = MemoryLog(VotersAt(-1, 1, (voter(1),)))
    log.append(1, ["old"])
    log.flushed_offset = log.end_offset
    log.promised = QuorumLogEnd(1, 8)
    quorum = Quorum(voter(1), log, QuorumSettings("c", bootstrap_servers=(Address("other", 9093),)), Random(1))
    duties = quorum.start(0, ElectionState(1, leader_id=1))
    duties += quorum.tick(30_000)
    assert not quorum.is_leader
    assert {type(duty.message) for duty in duties if isinstance(duty, Send)} == {QuorumFetchRequest}


def test_its_own_earlier_candidacy_is_not_continued_without_the_log() -> None:
    """Q10, G24."""
    log = MemoryLog(VotersAt(-1, 1, tuple(voter(each) for each in (1, 2, 3))))
    log.promised = QuorumLogEnd(2, 8)
    me = voter(1)
    quorum = Quorum(me, log, QuorumSettings("c"), Random(1))
    quorum.start(0, ElectionState(5, voted_id=1, voted_directory_id=me.voter_directory_id))
    assert isinstance(quorum.role, Unattached)


@pytest.mark.parametrize("member", [False, True])
def test_unknown_nodes_may_get_votes_and_give_them(member: bool) -> None:
    """Q19, G39: voter sets may differ in time, so neither needs to be in this node's set."""
    machine = Machine(me=1, voters=(1, 2, 3) if member else (2, 3), election=ElectionState(3))
    stranger = _vote(4, replica_id=9, replica_directory_id=voter(9).voter_directory_id)
    assert machine.ask(stranger).vote_granted


def test_election_timeouts_are_between_one_and_two_times_the_setting() -> None:
    """Q4: T + rand[0, T); a follower uses the fetch timeout, and an observer none of them."""
    drawn: set[int] = set()
    for seed in range(200):
        machine = Machine(election=ElectionState(3))
        machine.quorum._core.rng = Random(seed)
        machine.ask(_vote(4))
        at_ms = machine.quorum._core.timeout_at_ms
        assert at_ms is not None
        drawn.add(at_ms)
    assert 1000 <= min(drawn) < 1100
    assert 1900 < max(drawn) < 2000
    assert _follower().quorum._core.timeout_at_ms == 2000
    observer = Machine(me=9, election=ElectionState(3))
    assert observer.quorum._core.timeout_at_ms is None


def test_a_higher_epoch_keeps_the_remaining_election_timeout() -> None:
    """Q3: from Candidate, Prospective and Unattached; a follower or leader draws a new one."""
    machine = Machine()
    machine.to_prospective()
    left = machine.quorum._core.timeout_at_ms
    machine.ask(_vote(7, last_offset_epoch=0, last_offset=0, pre_vote=True))
    assert (machine.quorum.epoch, machine.quorum._core.timeout_at_ms) == (7, left)
    machine = _follower()
    machine.now_ms = 1500
    machine.ask(_vote(7, pre_vote=True))
    assert machine.quorum._core.timeout_at_ms is not None
    assert machine.quorum._core.timeout_at_ms >= 2500


def test_a_loaded_snapshot_counts_in_a_vote_and_a_download_in_progress_does_not() -> None:
    """Q18, N37: the end of an empty log is that of its snapshot."""
    machine = Machine(election=ElectionState(3), history=(1, 1))
    ask = _vote(4, last_offset_epoch=2, last_offset=3, pre_vote=True)
    machine.log.snapshots[SnapshotId(40, 2)] = b'{"chain": "x", "voters": null}'
    assert machine.ask(ask).vote_granted, "it is not the log's yet"
    machine.log.load_snapshot(SnapshotId(40, 2))
    assert machine.log.end == (2, 40)
    assert not machine.ask(ask).vote_granted


@pytest.mark.parametrize(
    ("after", "rule"),
    [
        (ElectionState(4), "Q50"),
        (ElectionState(5, voted_id=3, voted_directory_id=UUID(int=3)), "Q17"),
        (ElectionState(5, leader_id=2), None),
        (ElectionState(6, voted_id=3, voted_directory_id=UUID(int=3)), None),
        (ElectionState(5), None),
    ],
)
def test_a_node_that_would_persist_a_second_vote_or_an_older_epoch_stops(
    after: ElectionState, rule: str | None
) -> None:
    before = ElectionState(5, voted_id=2, voted_directory_id=UUID(int=2))
    if rule is None:
        after.check_follows(before)
        return
    with pytest.raises(InternalError, match=rule):
        after.check_follows(before)


def test_an_epoch_has_one_leader() -> None:
    with pytest.raises(InternalError, match="Q51"):
        ElectionState(5, leader_id=3).check_follows(ElectionState(5, leader_id=2))
