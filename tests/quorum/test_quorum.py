"""The consensus of one voter, and the tables that more voters will use (raft.md Q2, Q6-Q12, Q31, Q32; K7, K10, K17)."""

from __future__ import annotations

import typing
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.errors import InternalError, OperatorError
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    Voter,
    VoterEndpoint,
    decode_control,
    encode_control,
    leader_change,
)
from fenceline.quorum.election_state import ElectionState, decode_election, encode_election
from fenceline.quorum.quorum import AdvanceHighWatermark, AppendControlBatch, LogEnd, PersistElection, Quorum
from fenceline.quorum.roles import TRANSITIONS, Candidate, Leader, Resigned, Role, Unattached, check_transition
from tests.metadata.helpers import values_of

D = UUID(int=77)
ME = Voter(1, D, (VoterEndpoint("CONTROLLER", "localhost", 9093),))


def _quorum(kraft_version: int = 1, in_log: bool = False, recorded: Voter = ME) -> Quorum:
    return Quorum(ME, (recorded,), kraft_version=kraft_version, voters_in_log=in_log)


@pytest.mark.parametrize(
    ("election", "log_epoch", "epoch"),
    [
        (None, 0, 1),
        (ElectionState(4, leader_id=1), 4, 5),
        (ElectionState(4), 4, 5),
        (ElectionState(4, leader_id=1), 6, 7),
        (ElectionState(4, voted_id=1, voted_directory_id=D), 3, 4),
        (ElectionState(4, voted_id=1, voted_directory_id=D), 4, 4),
    ],
)
def test_every_start_leads_a_new_epoch_at_once(election: ElectionState | None, log_epoch: int, epoch: int) -> None:
    quorum = _quorum()
    duties = quorum.start(election, LogEnd(log_epoch, 10))
    assert isinstance(quorum.role, Leader)
    assert quorum.epoch == epoch
    *persists, append = duties
    assert all(isinstance(duty, PersistElection) for duty in persists)
    assert persists[-1] == PersistElection(ElectionState(epoch, leader_id=1)), "persisted before it takes effect (Q2)"
    assert isinstance(append, AppendControlBatch)
    assert append.epoch == epoch


def test_the_first_batch_of_a_new_cluster_names_the_voters() -> None:
    quorum = _quorum()
    append = quorum.start(None, LogEnd(0, 0))[-1]
    assert isinstance(append, AppendControlBatch)
    assert append.records == (leader_change(1, [1], [1]), KRaftVersion(0, 1), KRaftVoters(0, (ME,)))


def test_later_only_when_the_endpoints_changed() -> None:
    known = _quorum(in_log=True).start(None, LogEnd(1, 5))[-1]
    assert isinstance(known, AppendControlBatch)
    assert len(known.records) == 1
    moved = _quorum(in_log=True, recorded=Voter(1, D, (VoterEndpoint("CONTROLLER", "old", 1),)))
    append = moved.start(None, LogEnd(1, 5))[-1]
    assert isinstance(append, AppendControlBatch)
    assert append.records[-1] == KRaftVoters(0, (ME,))


def test_with_static_voters_nothing_but_the_leader_change() -> None:
    append = _quorum(kraft_version=0).start(None, LogEnd(0, 0))[-1]
    assert isinstance(append, AppendControlBatch)
    assert [type(record) for record in append.records] == [LeaderChange]


def test_the_high_watermark_follows_what_is_flushed() -> None:
    """G35: and never what was only appended. Q32: nothing is committed before a record of this epoch is."""
    quorum = _quorum()
    quorum.start(None, LogEnd(0, 10))
    assert quorum.high_watermark is None
    assert quorum.flushed(10) == []
    assert quorum.flushed(13) == [AdvanceHighWatermark(13)]
    assert quorum.flushed(13) == []
    assert quorum.flushed(20) == [AdvanceHighWatermark(20)]
    assert quorum.high_watermark == 20


def test_more_voters_wait_for_a_later_release() -> None:
    quorum = Quorum(ME, (ME, Voter(2, UUID(int=78))), kraft_version=1, voters_in_log=True)
    with pytest.raises(InternalError):
        quorum.start(None, LogEnd(0, 0))


def test_a_resigned_leader_does_not_count() -> None:
    quorum = _quorum()
    quorum.start(None, LogEnd(0, 0))
    quorum.resign()
    assert isinstance(quorum.role, Resigned)
    assert quorum.leader_id == 1
    with pytest.raises(InternalError):
        quorum.flushed(5)


_ROLES: list[type[Role]] = list(TRANSITIONS)


def _role(cls: type[Role], epoch: int) -> Role:
    if cls is Candidate:
        return Candidate(epoch, 1, D)
    if cls is Leader:
        return Leader(epoch, 1, 0)
    return cls(epoch, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("old", _ROLES)
@pytest.mark.parametrize("new", _ROLES)
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_every_cell_of_the_transition_table(old: type[Role], new: type[Role], step: int) -> None:
    allowed = new in TRANSITIONS[old] and step >= 0
    if step == 0 and (new is Candidate or (old is Leader and new is not Resigned)):
        allowed = False
    if step == 1 and new is Leader:
        allowed = False
    if allowed:
        check_transition(_role(old, 5), _role(new, 5 + step))
    else:
        with pytest.raises(InternalError):
            check_transition(_role(old, 5), _role(new, 5 + step))


def test_a_log_ahead_of_the_file_wins() -> None:
    assert ElectionState(3, leader_id=1).with_epoch_at_least(5) == ElectionState(5)


@given(
    epoch=st.integers(0, 2**31 - 1),
    leader=st.integers(-1, 9),
    voted=st.integers(-1, 9),
    directory=st.uuids(),
    kraft_version=st.sampled_from([0, 1]),
)
def test_the_quorum_state_file(epoch: int, leader: int, voted: int, directory: UUID, kraft_version: int) -> None:
    state = ElectionState(epoch, leader, voted, directory if kraft_version else ZERO_UUID)
    assert decode_election(encode_election(state, kraft_version, (1,)), "f") == state


def test_the_file_as_apache_kafka_writes_it() -> None:
    text = b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert decode_election(text, "f") == ElectionState(2, 1)
    assert encode_election(ElectionState(2, 1), 1) == text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"data_version":7}', '{"data_version":1,"leaderId":"x"}', "null"])
def test_a_broken_file_refuses_to_start(text: str) -> None:
    with pytest.raises(OperatorError):
        decode_election(text.encode(), "/data/quorum-state")


@given(st.sampled_from(typing.get_args(ControlRecord)).flatmap(values_of))
def test_control_records_survive_their_encoding(record: ControlRecord) -> None:
    assert decode_control(*encode_control(record)) == record


def test_control_records_as_apache_kafka_writes_them() -> None:
    assert encode_control(leader_change(1, [1], [1])) == (
        bytes.fromhex("00000002"),
        bytes.fromhex("00000000000102000000010002000000010000"),
    )
    assert decode_control(bytes.fromhex("00000063"), b"") is None, "unknown types are skipped (Q38)"


def test_unattached_is_where_a_node_without_memory_begins() -> None:
    assert isinstance(_quorum().role, Unattached)
