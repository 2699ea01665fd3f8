"""The consensus of one voter, the table of roles, and the persisted state (raft.md Q2, Q6-Q12, Q31, Q32;
K7, K10, K17).
"""

from __future__ import annotations

import typing
from random import Random
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
from fenceline.quorum.duties import AdvanceHighWatermark, AppendControlBatch, Duty, Lead, PersistElection, StopLeading
from fenceline.quorum.election_state import ElectionState, decode_election, encode_election
from fenceline.quorum.log_view import VotersAt
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import TRANSITIONS, Candidate, Leader, Resigned, Role, Unattached, check_transition
from fenceline.quorum.settings import QuorumSettings
from tests.metadata.helpers import values_of
from tests.quorum.memory_log import MemoryLog

D = UUID(int=77)
ME = Voter(1, D, (VoterEndpoint("CONTROLLER", "localhost", 9093),))


class One:
    """A quorum of one, and its log."""

    def __init__(
        self, kraft_version: int = 1, in_log: bool = False, recorded: Voter = ME, log_epoch: int = 0, end: int = 0
    ) -> None:
        self.log = MemoryLog(None if kraft_version == 0 else VotersAt(0 if in_log else -1, kraft_version, (recorded,)))
        self.log.append(log_epoch, range(end))
        self.log.flushed_offset = end
        static = (recorded,) if kraft_version == 0 else ()
        self.quorum = Quorum(ME, self.log, QuorumSettings("c", static_voters=static), Random(1))

    def start(self, election: ElectionState | None) -> list[Duty]:
        return self.quorum.start(0, election)

    def grow(self, end: int) -> list[Duty]:
        """The log is flushed up to `end`."""
        self.log.append(self.quorum.epoch, range(end - self.log.end_offset))
        self.log.flushed_offset = end
        return self.quorum.flushed(0)


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
    one = One(log_epoch=log_epoch, end=10)
    duties = one.start(election)
    assert isinstance(one.quorum.role, Leader)
    assert one.quorum.epoch == epoch
    *persists, append = duties
    assert all(isinstance(duty, PersistElection) for duty in persists)
    assert persists[-1] == PersistElection(ElectionState(epoch, leader_id=1)), "persisted before it takes effect (Q2)"
    assert isinstance(append, AppendControlBatch)
    assert append.epoch == epoch


def test_the_first_batch_of_a_new_cluster_names_the_voters() -> None:
    append = One().start(None)[-1]
    assert isinstance(append, AppendControlBatch)
    assert append.records == (leader_change(1, [1], [1]), KRaftVersion(0, 1), KRaftVoters(0, (ME,)))


def test_a_later_first_batch_names_voters_only_if_endpoints_changed() -> None:
    known = One(in_log=True, log_epoch=1, end=5).start(None)[-1]
    assert isinstance(known, AppendControlBatch)
    assert len(known.records) == 1
    old = Voter(1, D, (VoterEndpoint("CONTROLLER", "old", 1),))
    append = One(in_log=True, recorded=old, log_epoch=1, end=5).start(None)[-1]
    assert isinstance(append, AppendControlBatch)
    assert append.records[-1] == KRaftVoters(0, (ME,))


def test_static_voters_write_only_the_leader_change() -> None:
    append = One(kraft_version=0).start(None)[-1]
    assert isinstance(append, AppendControlBatch)
    assert [type(record) for record in append.records] == [LeaderChange]


def test_the_high_watermark_follows_the_flushed_end() -> None:
    """G35: and never an append that is not flushed. Q32: nothing is committed before a record of this epoch is. Q33:
    only then may the controller become active.
    """
    one = One(end=10)
    one.start(None)
    assert one.quorum.high_watermark is None
    assert one.quorum.flushed(0) == []
    one.log.append(1, range(13 - 10))
    assert one.quorum.appended(0) == []
    one.log.flushed_offset = 13
    assert one.quorum.flushed(0) == [AdvanceHighWatermark(13), Lead(1, 10)]
    assert one.quorum.flushed(0) == []
    assert one.grow(20) == [AdvanceHighWatermark(20)]
    assert one.quorum.high_watermark == 20


def test_a_resigned_leader_does_not_count() -> None:
    one = One()
    one.start(None)
    assert one.quorum.resign(0) == [StopLeading(1)]
    assert isinstance(one.quorum.role, Resigned)
    assert one.quorum.leader_id == 1
    assert one.grow(5) == []
    assert one.quorum.high_watermark is None


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
    """Q5, Q7, Q50."""
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


def test_a_log_ahead_of_the_file_takes_precedence() -> None:
    assert ElectionState(3, leader_id=1).with_epoch_at_least(5) == ElectionState(5)


@given(
    epoch=st.integers(0, 2**31 - 1),
    leader=st.integers(-1, 9),
    voted=st.integers(-1, 9),
    directory=st.uuids(),
    kraft_version=st.sampled_from([0, 1]),
)
def test_the_quorum_state_file(epoch: int, leader: int, voted: int, directory: UUID, kraft_version: int) -> None:
    """Q11: either form."""
    state = ElectionState(epoch, leader, voted, directory if kraft_version else ZERO_UUID)
    assert decode_election(encode_election(state, kraft_version, (1,)), "f") == state


def test_the_file_in_the_format_of_apache_kafka() -> None:
    text = b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert decode_election(text, "f") == ElectionState(2, 1)
    assert encode_election(ElectionState(2, 1), 1) == text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"data_version":7}', '{"data_version":1,"leaderId":"x"}', "null"])
def test_a_damaged_file_prevents_the_start(text: str) -> None:
    with pytest.raises(OperatorError):
        decode_election(text.encode(), "/data/quorum-state")


def test_elections_of_another_cluster_are_rejected() -> None:
    """G41: where the format has a field for the cluster; Kafka leaves it empty."""
    state = ElectionState(4, 2)
    written = encode_election(state, 0, (1, 2), "mine")
    assert decode_election(written, "f", "mine") == state
    assert decode_election(encode_election(state, 0), "f", "mine") == state
    assert decode_election(encode_election(state, 1, (), "theirs"), "f", "mine") == state
    with pytest.raises(OperatorError, match="theirs"):
        decode_election(encode_election(state, 0, (1, 2), "theirs"), "f", "mine")


@given(st.sampled_from(typing.get_args(ControlRecord)).flatmap(values_of))
def test_control_records_survive_a_round_trip(record: ControlRecord) -> None:
    assert decode_control(*encode_control(record)) == record


def test_control_records_in_the_format_of_apache_kafka() -> None:
    assert encode_control(leader_change(1, [1], [1])) == (
        bytes.fromhex("00000002"),
        bytes.fromhex("00000000000102000000010002000000010000"),
    )
    assert decode_control(bytes.fromhex("00000063"), b"") is None, "unknown types are skipped (Q38)"


def test_a_node_without_state_starts_unattached() -> None:
    assert isinstance(One().quorum.role, Unattached)
