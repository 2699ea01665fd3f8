"""Encodes responses of this node's quorum. Pure. `codec.response_decoder` decodes those of other nodes.

Times of DescribeQuorum are monotonic in the quorum and wall-clock times in the protocol.

Rules: raft.md Q14, Q37; snapshots.md N29, N30, N33; since_4_0.md K4, K8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID
from fenceline.quorum.codec.common import FETCH_BY_ID, Fields, listener, named
from fenceline.quorum.codec.versions import VERSIONS as VERSIONS
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    NodeEndpoint,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaState,
    RequestMessage,
    ResponseMessage,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)

WallTime = Callable[[int], int]
"""Converts the quorum's monotonic ms to ms since 1970."""

_FETCH_ENDPOINTS: Final = 17


# -- outgoing responses ------------------------------------------------------------------------------------------------


def answer_fields(message: ResponseMessage, version: int, wall_time: WallTime) -> Fields:
    """Fields of the response for `wire.entities.write_response`."""
    match message:
        case VoteResponse():
            one = {**_leader(message), "vote_granted": message.vote_granted}
            return _answer_named(message.error_code, one, message.node_endpoints)
        case BeginQuorumEpochResponse() | EndQuorumEpochResponse():
            return _answer_named(message.error_code, _leader(message), message.node_endpoints)
        case FetchResponse():
            return _answer_fetch(message, version)
        case FetchSnapshotResponse():
            return _answer_fetch_snapshot(message)
        case DescribeQuorumResponse():
            return _answer_describe(message, wall_time)
        case AddRaftVoterResponse() | RemoveRaftVoterResponse():
            return {"error_code": message.error_code, "error_message": message.error_message}
        case UpdateRaftVoterResponse():
            leader: Fields = {"leader_id": message.leader_id, "leader_epoch": message.leader_epoch}
            for endpoint in message.node_endpoints:
                if endpoint.node_id == message.leader_id:
                    leader |= {"host": endpoint.host, "port": endpoint.port}
            return {"error_code": message.error_code, "current_leader": leader}
        case ApiVersionsResponse():
            raise InternalError("the server handles ApiVersions")


def _leader(message: VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse) -> Fields:
    return {
        "error_code": message.partition_error_code,
        "leader_id": message.leader_id,
        "leader_epoch": message.leader_epoch,
    }


def _answer_named(error: ErrorCode, partition: Fields, endpoints: Sequence[NodeEndpoint]) -> Fields:
    if error:
        return {"error_code": error, "topics": ()}
    return {
        "error_code": ErrorCode.NONE,
        "topics": named(partition),
        "node_endpoints": [each._asdict() for each in endpoints],
    }


def _answer_fetch(message: FetchResponse, version: int) -> Fields:
    if message.error_code:
        return {"error_code": message.error_code, "responses": ()}
    one: Fields = {
        "partition_index": 0,
        "error_code": message.partition_error_code,
        "high_watermark": message.high_watermark,
        "log_start_offset": message.log_start_offset,
        "current_leader": {"leader_id": message.leader_id, "leader_epoch": message.leader_epoch},
        "aborted_transactions": None if version >= 4 else (),
        "records": message.records,
    }
    if message.diverging_epoch is not None:
        one["diverging_epoch"] = message.diverging_epoch._asdict()
    if message.snapshot_id is not None:
        one["snapshot_id"] = message.snapshot_id._asdict()
    topic: Fields = {"partitions": [one]}
    if version >= FETCH_BY_ID:
        topic["topic_id"] = METADATA_TOPIC_ID
    else:
        topic["topic"] = METADATA_TOPIC
    fields: Fields = {"error_code": ErrorCode.NONE, "responses": [topic]}
    if version >= _FETCH_ENDPOINTS:
        fields["node_endpoints"] = [each._asdict() for each in message.node_endpoints]
    return fields


def _answer_fetch_snapshot(message: FetchSnapshotResponse) -> Fields:
    if message.error_code:
        return {"error_code": message.error_code, "topics": ()}
    one = {
        "index": 0,
        "error_code": message.partition_error_code,
        "snapshot_id": message.snapshot_id._asdict(),
        "current_leader": {"leader_id": message.leader_id, "leader_epoch": message.leader_epoch},
        "size": message.size,
        "position": message.position,
        "unaligned_records": message.unaligned_records,
    }
    return {
        "error_code": ErrorCode.NONE,
        "topics": [{"name": METADATA_TOPIC, "partitions": [one]}],
        "node_endpoints": [each._asdict() for each in message.node_endpoints],
    }


def _answer_describe(message: DescribeQuorumResponse, wall_time: WallTime) -> Fields:
    if message.error_code:
        return {"error_code": message.error_code, "error_message": message.error_message, "topics": ()}
    text = message.error_message if message.error_message is not None else ""  # Kafka sends no null here

    def states(replicas: Iterable[ReplicaState]) -> list[Fields]:
        return [
            {
                "replica_id": each.replica_id,
                "replica_directory_id": each.replica_directory_id,
                "log_end_offset": each.log_end_offset,
                "last_fetch_timestamp": _wall(each.last_fetch_timestamp, wall_time),
                "last_caught_up_timestamp": _wall(each.last_caught_up_timestamp, wall_time),
            }
            for each in replicas
        ]

    one = {
        "error_code": message.partition_error_code,
        "error_message": text,
        "leader_id": message.leader_id,
        "leader_epoch": message.leader_epoch,
        "high_watermark": message.high_watermark,
        "current_voters": states(message.current_voters),
        "observers": states(message.observers),
    }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "topics": named(one),
        "nodes": [
            {"node_id": node.node_id, "listeners": [listener(each) for each in node.listeners]}
            for node in message.nodes
        ],
    }


# -- responses without a quorum ----------------------------------------------------------------------------------------


def closing(message: RequestMessage, leader_id: int, epoch: int) -> ResponseMessage:
    """The response of a node that is stopping: it is not the leader (Q14; Kafka 4.3.1 returns 6 here, not 8)."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    match message:
        case VoteRequest():
            return VoteResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case BeginQuorumEpochRequest():
            return BeginQuorumEpochResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case EndQuorumEpochRequest():
            return EndQuorumEpochResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case FetchRequest():
            return FetchResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case DescribeQuorumRequest():
            return DescribeQuorumResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
        case AddRaftVoterRequest():
            return AddRaftVoterResponse(code, "This node is stopping.")
        case RemoveRaftVoterRequest():
            return RemoveRaftVoterResponse(code, "This node is stopping.")
        case UpdateRaftVoterRequest():
            return UpdateRaftVoterResponse(code, leader_id, epoch)
        case ApiVersionsRequest():
            raise InternalError("the server handles ApiVersions")


def unsupported(message: RequestMessage) -> ResponseMessage:
    """The response of a peer that does not support `message`."""
    code = ErrorCode.UNSUPPORTED_VERSION
    match message:
        case VoteRequest():
            return VoteResponse(error_code=code)
        case BeginQuorumEpochRequest():
            return BeginQuorumEpochResponse(error_code=code)
        case EndQuorumEpochRequest():
            return EndQuorumEpochResponse(error_code=code)
        case FetchRequest():
            return FetchResponse(error_code=code)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(error_code=code)
        case AddRaftVoterRequest():
            return AddRaftVoterResponse(error_code=code)
        case RemoveRaftVoterRequest():
            return RemoveRaftVoterResponse(error_code=code)
        case UpdateRaftVoterRequest():
            return UpdateRaftVoterResponse(error_code=code)
        case ApiVersionsRequest():
            return ApiVersionsResponse(error_code=code)
        case DescribeQuorumRequest():
            return DescribeQuorumResponse(error_code=code)


def _wall(time_ms: int | None, wall_time: WallTime) -> int:
    return -1 if time_ms is None else wall_time(time_ms)
