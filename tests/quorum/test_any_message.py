"""Any messages from peers: none stops a node except a proof that committed records are lost (gaps.md G36)."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, InternalError
from fenceline.quorum.control_records import KRaftVersionFeature, VoterEndpoint
from fenceline.quorum.duties import (
    BeginDownload,
    LoadSnapshot,
    QuorumAnswer,
    Send,
    ServePiece,
    ServeRecords,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import QuorumEpochEnd, SnapshotId
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumNodeEndpoint,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaKey,
    RequestMessage,
    ResponseMessage,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from tests.quorum.machine import Machine
from tests.quorum.memory_log import voter

_CODES = [ErrorCode.NONE] * 6 + [
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.SNAPSHOT_NOT_FOUND,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.INVALID_VOTER_KEY,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


class RandomMessages:
    """Generates random messages around the state of a machine."""

    def __init__(self, machine: Machine, rng: Random) -> None:
        self.machine = machine
        self.rng = rng

    def near(self, value: int) -> int:
        return self.rng.choice((value, value, value + 1, value - 1, value + 5, -1, 0, 1 << 31))

    def epoch(self) -> int:
        return self.rng.choice(
            (self.machine.quorum.epoch, self.machine.quorum.epoch, self.near(self.machine.quorum.epoch))
        )

    def node(self) -> int:
        return self.rng.choice((1, 2, 3, 4, -1))

    def key(self) -> UUID:
        return self.rng.choice((UUID(int=0), voter(self.rng.randrange(1, 5)).voter_directory_id))

    def code(self) -> ErrorCode:
        return self.rng.choice(_CODES)

    def endpoints(self) -> tuple[VoterEndpoint, ...]:
        return self.rng.choice(((), (VoterEndpoint("X", "h", 1),)))

    def request(self) -> RequestMessage:
        m, end = self, self.machine.log.end
        made: list[RequestMessage] = [
            VoteRequest(
                "c",
                m.epoch(),
                m.node(),
                m.near(end.epoch),
                m.near(end.offset),
                m.key(),
                m.node(),
                m.key(),
                m.node() > 2,
            ),
            BeginQuorumEpochRequest("c", m.node(), m.epoch(), m.node(), m.key(), m.endpoints()),
            EndQuorumEpochRequest(
                "c", m.node(), m.epoch(), (ReplicaKey(m.node()),) * m.rng.randrange(3), m.endpoints()
            ),
            QuorumFetchRequest(
                "c",
                m.node(),
                m.epoch(),
                m.near(end.offset),
                m.near(end.epoch),
                m.key(),
                m.near(500),
                0,
                m.near(9),
                m.near(3),
            ),
            FetchSnapshotRequest("c", m.node(), m.epoch(), m.snapshot(), m.near(0), m.near(5), m.key()),
            DescribeQuorumRequest(),
            AddRaftVoterRequest("c", m.near(100), m.node(), m.key(), m.endpoints(), m.node() > 2),
            RemoveRaftVoterRequest("c", m.node(), m.key()),
            UpdateRaftVoterRequest("c", m.epoch(), m.node(), m.key(), m.endpoints(), KRaftVersionFeature(0, 1)),
        ]
        return self.rng.choice(made)

    def snapshot(self) -> SnapshotId:
        return SnapshotId(self.near(self.machine.log.end_offset), self.near(self.machine.log.end.epoch))

    def response(self, sent: Send) -> ResponseMessage:
        named: dict[str, Any] = {
            "error_code": self.code() if self.rng.random() < 0.1 else ErrorCode.NONE,
            "partition_error_code": self.code(),
            "leader_id": self.rng.choice((self.machine.quorum.leader_id, self.node())),
            "leader_epoch": self.epoch(),
            "node_endpoints": self.rng.choice(((), (QuorumNodeEndpoint(self.node(), "h", 7),))),
        }
        match sent.message:
            case VoteRequest():
                return VoteResponse(**named, vote_granted=self.rng.random() < 0.6)
            case BeginQuorumEpochRequest():
                return BeginQuorumEpochResponse(**named)
            case EndQuorumEpochRequest():
                return EndQuorumEpochResponse(**named)
            case QuorumFetchRequest():
                what = self.rng.randrange(4)
                log = self.machine.log
                return QuorumFetchResponse(
                    **named,
                    high_watermark=self.near(log.end_offset),
                    diverging_epoch=QuorumEpochEnd(self.near(log.end.epoch), self.near(log.end_offset))
                    if what == 1
                    else None,
                    snapshot_id=self.snapshot() if what == 2 else None,
                    records=self.machine.entries(self.machine.quorum.epoch, 2) if what == 3 else b"",
                )
            case FetchSnapshotRequest(snapshot_id=snapshot_id, position=position):
                return FetchSnapshotResponse(
                    **named,
                    snapshot_id=self.rng.choice((snapshot_id, snapshot_id, self.snapshot())),
                    size=self.near(10),
                    position=self.near(position),
                    unaligned_records=bytes(self.rng.randrange(10)),
                )
            case UpdateRaftVoterRequest():
                named.pop("partition_error_code")
                return UpdateRaftVoterResponse(**named)
            case ApiVersionsRequest():
                return ApiVersionsResponse(self.code(), KRaftVersionFeature(0, 1))
            case AddRaftVoterRequest():
                return AddRaftVoterResponse(self.code())
            case RemoveRaftVoterRequest():
                return RemoveRaftVoterResponse(self.code())
            case _:
                raise AssertionError(sent)


def exchange_random_messages(seed: int, steps: int) -> int:
    """Returns the number of messages received; every request got at most one response, and no epoch decreased."""
    rng = Random(seed)
    options = {"dynamic": rng.random() < 0.7, "me": rng.choice((1, 1, 4)), "auto_join": rng.random() < 0.5}
    machine = Machine(election=ElectionState(3, leader_id=rng.choice((1, 2))), history=(1, 3), **options)
    made_up = RandomMessages(machine, rng)
    waiting: list[Send] = machine.found(Send)
    answered: set[object] = set()
    for step in range(steps):
        epoch = machine.quorum.epoch
        machine.now_ms += rng.choice((0, 1, 30, 700))
        what = rng.randrange(4)
        quorum = machine.quorum
        if what == 0 and waiting:
            sent = waiting.pop(rng.randrange(len(waiting)))
            machine.reply(sent.request_id, made_up.response(sent))
        elif what == 1 and waiting:
            sent = waiting.pop(rng.randrange(len(waiting)))
            machine.do(quorum.no_response(machine.now_ms, sent.request_id, rng.random() < 0.5))
        elif what == 2:
            machine.do(quorum.request(machine.now_ms, ("q", step), made_up.request()))
        else:
            machine.pass_time(rng.choice((0, 10, 1500)))
        assert machine.quorum.epoch >= epoch
        for duty in list(machine.duties):
            match duty:
                case Send():
                    waiting.append(duty)
                case QuorumAnswer(token, _) | ServePiece(token, _, _, _, _):
                    assert token not in answered
                    answered.add(token)
                case ServeRecords(tokens, _, _, _, _):
                    assert answered.isdisjoint(tokens)
                    answered.update(tokens)
                case BeginDownload(snapshot_id, _):
                    machine.do(quorum.download_begun(machine.now_ms, snapshot_id, rng.choice((0, 0, 3))))
                    waiting += machine.found(Send)
                case WritePiece(snapshot_id, position, content):
                    machine.do(quorum.piece_written(machine.now_ms, snapshot_id, position + len(content)))
                    waiting += machine.found(Send)
                case VerifyAndFreeze(snapshot_id, _):
                    machine.do(quorum.download_failed(machine.now_ms, snapshot_id, "made up"))
                    waiting += machine.found(Send)
                case LoadSnapshot():
                    raise AssertionError("no snapshot here is whole")
                case _:
                    pass
        del waiting[:-20]
    return len(answered)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_message_of_a_peer_stops_a_node(first: int) -> None:
    heard = 0
    for seed in range(first, first + 50):
        try:
            heard += exchange_random_messages(seed, 60)
        except InternalError as error:
            if "below the high watermark" not in str(error):
                raise
    assert heard > 200
