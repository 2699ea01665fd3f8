"""Voters, and changes of the voter set (raft.md Q39-Q45; since_4_0.md K15, K16; gaps.md G37)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.quorum.control_records import KRaftVersion, KRaftVersionFeature, KRaftVoters, Voter, VoterEndpoint
from fenceline.quorum.duties import AppendControlBatch, QuorumAnswer, Send
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import VotersAt
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    QuorumFetchRequest,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from fenceline.quorum.roles import Leader, Prospective, Resigned
from fenceline.quorum.voter_set import VoterHistory, VoterSet
from tests.quorum.machine import Machine
from tests.quorum.memory_log import LEVELS, voter

NEW = voter(4)


def _leader(committed: bool = True, **options: Any) -> Machine:
    machine = Machine(**options)
    machine.to_leader()
    if committed:
        machine.ask(machine.fetch(2))
    return machine


def _add(node_id: int = 4, timeout_ms: int = 1000, **changed: Any) -> AddRaftVoterRequest:
    new = voter(node_id)
    fields: dict[str, Any] = {
        "cluster_id": "c",
        "timeout_ms": timeout_ms,
        "voter_id": node_id,
        "voter_directory_id": new.voter_directory_id,
        "listeners": new.endpoints,
    }
    return AddRaftVoterRequest(**(fields | changed))


def _ids(machine: Machine) -> list[int]:
    return machine.quorum.voter_set.ids


def _probed(machine: Machine, feature: KRaftVersionFeature = LEVELS) -> None:
    machine.reply(machine.request_id(4, ApiVersionsRequest), ApiVersionsResponse(ErrorCode.NONE, feature))


def _answers(machine: Machine) -> list[ErrorCode]:
    return [duty.message.error_code for duty in machine.found(QuorumAnswer)]


def test_a_voter_is_added_when_caught_up_and_committed_by_the_new_majority() -> None:
    """Q41, G37: it is waited for."""
    machine = _leader()
    assert machine.ask(_add()) is None
    assert [send.destination.port for send in machine.found(Send)] == [4]
    _probed(machine)
    assert machine.found(AppendControlBatch) == [], "it has not fetched yet"
    machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(4)))
    (batch,) = machine.found(AppendControlBatch)
    (record,) = batch.records
    assert isinstance(record, KRaftVoters)
    assert [each.voter_id for each in record.voters] == [1, 2, 3, 4]
    assert _ids(machine) == [1, 2, 3, 4], "in force although it is not committed (Q40)"
    machine.do(machine.quorum.request(machine.now_ms, "g", machine.fetch(2)))
    assert [duty for duty in machine.found(QuorumAnswer) if duty.token == "t"] == [], "two of four are no majority"
    machine.do(machine.quorum.request(machine.now_ms, "h", machine.fetch(3)))
    (done,) = [duty for duty in machine.found(QuorumAnswer) if duty.token == "t"]
    assert done.message.error_code is ErrorCode.NONE


def test_a_response_before_the_commit() -> None:
    """K16: sent when appended; the change continues, and the next one waits for it."""
    machine = _leader()
    machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(4)))
    machine.ask(_add(ack_when_committed=False))
    _probed(machine)
    assert next(duty.token for duty in machine.found(QuorumAnswer)) == "t"
    assert machine.ask(_add(5)).error_code is ErrorCode.REQUEST_TIMED_OUT


def test_a_joining_observer_gets_its_response_at_once() -> None:
    """Kafka's observers do not fetch while they wait for this response, so they would never catch up."""
    machine = _leader()
    machine.ask(_add(ack_when_committed=False))
    _probed(machine)
    assert _answers(machine) == [ErrorCode.REQUEST_TIMED_OUT]
    assert _ids(machine) == [1, 2, 3]
    machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(4)))
    machine.ask(_add(ack_when_committed=False))
    _probed(machine)
    assert _answers(machine)[-1] is ErrorCode.NONE
    assert _ids(machine) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (_add(cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (_add(2), ErrorCode.DUPLICATE_VOTER),
        (_add(voter_directory_id=UUID(int=0)), ErrorCode.INVALID_REQUEST),
        (_add(listeners=()), ErrorCode.INVALID_REQUEST),
        (RemoveRaftVoterRequest("c", 9, UUID(int=9)), ErrorCode.VOTER_NOT_FOUND),
        (RemoveRaftVoterRequest("c", 2, UUID(int=9)), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_rejected_changes(request_: AddRaftVoterRequest | RemoveRaftVoterRequest, error: ErrorCode) -> None:
    """Q41, Q42."""
    machine = _leader()
    assert machine.ask(request_).error_code is error
    assert machine.found(AppendControlBatch) == []


def test_preconditions_of_a_change() -> None:
    """Q41: a record of this epoch is committed; voters are not static; the node leads."""
    assert _leader(committed=False).ask(_add()).error_code is ErrorCode.REQUEST_TIMED_OUT
    assert _leader(dynamic=False).ask(_add()).error_code is ErrorCode.UNSUPPORTED_VERSION
    follower = Machine(election=ElectionState(3, leader_id=2))
    assert follower.ask(_add()).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION), ErrorCode.REQUEST_TIMED_OUT),
        (ApiVersionsResponse(ErrorCode.NONE, KRaftVersionFeature(0, 0)), ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_an_invalid_new_voter_is_rejected(response: ApiVersionsResponse | None, error: ErrorCode) -> None:
    """Q41."""
    machine = _leader()
    machine.ask(_add())
    ask = machine.request_id(4, ApiVersionsRequest)
    if response is None:
        machine.do(machine.quorum.no_response(machine.now_ms, ask, True))
    else:
        machine.reply(ask, response)
    assert _answers(machine) == [error]


def test_a_change_times_out_or_loses_its_leader() -> None:
    machine = _leader()
    machine.ask(_add())
    _probed(machine)
    machine.pass_time(1000)
    assert ErrorCode.REQUEST_TIMED_OUT in _answers(machine)
    machine = _leader()
    machine.ask(_add())
    machine.do(machine.quorum.resign(machine.now_ms))
    assert _answers(machine) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_leader_removes_itself() -> None:
    """Q42: it continues to lead, without counting, until that is committed."""
    machine = _leader()
    machine.ask(RemoveRaftVoterRequest("c", 1, voter(1).voter_directory_id))
    assert _ids(machine) == [2, 3]
    machine.do(machine.quorum.request(machine.now_ms, "f", machine.fetch(2)))
    assert isinstance(machine.quorum.role, Leader), "one of two is no majority"
    machine.do(machine.quorum.request(machine.now_ms, "g", machine.fetch(3)))
    assert isinstance(machine.quorum.role, Resigned)
    assert next(duty for duty in machine.found(QuorumAnswer) if duty.token == "t").message == RemoveRaftVoterResponse()


def test_the_last_voter_cannot_be_removed() -> None:
    machine = Machine(voters=(1,))
    assert machine.quorum.high_watermark
    answer = machine.ask(RemoveRaftVoterRequest("c", 1, voter(1).voter_directory_id))
    assert answer.error_code is ErrorCode.VOTER_NOT_FOUND


def test_a_voter_with_an_uncommitted_removal_may_become_candidate() -> None:
    """Its log may be the only one with the record, and the others cannot elect a node that lacks it."""
    machine = Machine(voters=(1, 2), election=ElectionState(1))
    machine.log.append(1, [VotersAt(0, 1, (voter(2),))])
    machine.flush()
    assert not machine.quorum.is_voter
    machine.do(machine.quorum.appended(0))
    machine.pass_time(2500)
    assert isinstance(machine.quorum.role, Prospective)
    committed = Machine(voters=(1, 2), election=ElectionState(1))
    committed.log.append(1, [VotersAt(0, 1, (voter(2),))])
    committed.flush()
    committed.quorum._core.high_watermark = 1
    committed.pass_time(2500)
    assert not isinstance(committed.quorum.role, Prospective)


def test_truncation_restores_the_previous_voter_set() -> None:
    """Q40."""
    machine = Machine(election=ElectionState(3, leader_id=2), history=(3,))
    machine.log.append(3, [VotersAt(1, 1, (voter(2), voter(3)))])
    machine.flush()
    assert not machine.quorum.is_voter
    machine.log.truncate(1)
    assert machine.quorum.is_voter


def _update(machine: Machine, node_id: int = 2, **changed: Any) -> UpdateRaftVoterRequest:
    fields: dict[str, Any] = {
        "cluster_id": "c",
        "current_leader_epoch": machine.quorum.epoch,
        "voter_id": node_id,
        "voter_directory_id": voter(node_id).voter_directory_id,
        "listeners": (VoterEndpoint("CONTROLLER", "moved", 7),),
        "k_raft_version_feature": LEVELS,
    }
    return UpdateRaftVoterRequest(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"voter_id": 9}, ErrorCode.VOTER_NOT_FOUND),
        ({"listeners": ()}, ErrorCode.INVALID_REQUEST),
        ({"k_raft_version_feature": KRaftVersionFeature(0, 0)}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_voter_changes_its_endpoint(changed: dict[str, Any], error: ErrorCode) -> None:
    """Q43: answered when appended."""
    machine = _leader()
    assert machine.ask(_update(machine, **changed)).error_code is error
    moved = machine.quorum.voter_set.of(2)
    assert moved is not None
    assert (moved.endpoints[0].host == "moved") is (error is ErrorCode.NONE)
    if error is ErrorCode.NONE:
        again = machine.ask(_update(machine))
        assert again.error_code is ErrorCode.NONE
        assert machine.found(AppendControlBatch) == [], "known already"


@pytest.mark.parametrize(("name", "error"), [("OTHER", ErrorCode.INVALID_REQUEST), ("controller", ErrorCode.NONE)])
def test_every_voter_has_the_listener_of_the_quorum(name: str, error: ErrorCode) -> None:
    """Q41, Q43: a voter of Kafka stops when the set names a voter that has no endpoint for that listener."""
    machine = _leader(listener="CONTROLLER")
    listeners = (VoterEndpoint(name, "moved", 7),)
    assert machine.ask(_update(machine, listeners=listeners)).error_code is error
    assert bool(machine.found(AppendControlBatch)) is (error is ErrorCode.NONE)
    machine = _leader(listener="CONTROLLER")
    machine.ask(_add(listeners=listeners))
    asks_it = bool([duty for duty in machine.found(Send) if isinstance(duty.message, ApiVersionsRequest)])
    assert asks_it is (error is ErrorCode.NONE)
    assert _answers(machine) == ([] if asks_it else [error])


def test_upgrade_to_dynamic_voters() -> None:
    """K15: only when every voter has reported its supported versions; never back."""
    machine = _leader(dynamic=False)
    with pytest.raises(PeerError):
        machine.quorum.finalize_kraft_version(machine.now_ms, 1)
    for node_id in (2, 3):
        assert machine.ask(_update(machine, node_id)).error_code is ErrorCode.NONE
    (batch,) = machine.do(machine.quorum.finalize_kraft_version(machine.now_ms, 1))
    assert isinstance(batch, AppendControlBatch)
    assert batch.records[0] == KRaftVersion(0, 1)
    assert machine.quorum.kraft_version == 1
    assert machine.quorum.voter_set.of(3) == Voter(
        3, voter(3).voter_directory_id, (VoterEndpoint("CONTROLLER", "moved", 7),), LEVELS
    )
    with pytest.raises(PeerError):
        machine.quorum.finalize_kraft_version(machine.now_ms, 0)


def test_a_static_voter_updates_each_new_leader_once() -> None:
    """K15."""
    machine = Machine(dynamic=False, election=ElectionState(3, leader_id=2))
    ask = machine.request_id(2, UpdateRaftVoterRequest)
    machine.reply(ask, UpdateRaftVoterResponse(ErrorCode.UNSUPPORTED_VERSION, 2, 3))
    for _ in range(3):
        machine.pass_time(1000)
        assert machine.sent(UpdateRaftVoterRequest) == {}


def test_a_controller_adds_itself_to_the_voters() -> None:
    """K16: first its old voter entry is removed, then the new one is added."""
    machine = Machine(me=4, election=ElectionState(3, leader_id=2), auto_join=True)
    (ask,) = machine.sent(AddRaftVoterRequest).values()
    assert (ask.voter_id, ask.ack_when_committed) == (4, False)
    wiped = Machine(me=2, voters=(1, 2, 3), election=ElectionState(3, leader_id=1), auto_join=True)
    assert wiped.sent(RemoveRaftVoterRequest) == {}, "it is a voter"
    other = Machine(me=4, election=ElectionState(3, leader_id=2))
    assert other.sent(AddRaftVoterRequest) == {}


def test_voter_sets_and_their_history() -> None:
    """Q40, Q45, N17."""
    assert VoterSet((voter(1), voter(2), voter(3), voter(4))).majority == 3
    with pytest.raises(InternalError):
        VoterSet((voter(1), voter(1, 5)))
    history = VoterHistory()
    for offset, count in ((-1, 1), (4, 2), (9, 3)):
        history.add(VotersAt(offset, 1, tuple(map(voter, range(1, count + 1)))))
    assert [at and at.offset for at in map(history.at, (0, 4, 5, 10))] == [-1, -1, 4, 9]
    history.truncate(9)
    assert history.latest is not None
    assert history.latest.offset == 4
    history.forget_before(6)
    assert history.at(4) is None
    with pytest.raises(InternalError):
        history.add(VotersAt(3, 1, ()))


def test_a_single_voter_sends_no_requests() -> None:
    machine = Machine(voters=(1,))
    machine.pass_time(5000)
    assert machine.sent(QuorumFetchRequest) == {}
    assert machine.quorum.next_deadline_ms is None, "an idle quorum of one needs no timer"
