"""Encodes responses of this node's quorum and decodes those of other nodes. Pure.

Times of DescribeQuorum are monotonic in the quorum and wall-clock times in the protocol.

Rules: raft.md Q14, Q37; snapshots.md N29, N30, N33; since_4_0.md K4, K8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID
from fenceline.quorum.codec.requests import FETCH_BY_ID, Fields, listener, named, voter_endpoints
from fenceline.quorum.control_records import KRaftVersionFeature
from fenceline.quorum.log_view import QuorumEpochEnd, SnapshotId
from fenceline.quorum.messages import (
    NO_KRAFT_VERSION,
    NO_NODE,
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribedNode,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumNodeEndpoint,
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
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field
from fenceline.wire.errors import MalformedRequest

WallTime = Callable[[int], int]
"""Converts the quorum's monotonic ms to ms since 1970."""

_FETCH_ENDPOINTS: Final = 17

_EpochResponse = TypeVar("_EpochResponse", BeginQuorumEpochResponse, EndQuorumEpochResponse)


# -- outgoing responses ------------------------------------------------------------------------------------------------


def answer_fields(message: ResponseMessage, version: int, wall_time: WallTime) -> Fields:
    """Fields of the response for `wire.entities.write_response`."""
    match message:
        case VoteResponse():
            one = {**_leader(message), "vote_granted": message.vote_granted}
            return _answer_named(message.error_code, one, message.node_endpoints)
        case BeginQuorumEpochResponse() | EndQuorumEpochResponse():
            return _answer_named(message.error_code, _leader(message), message.node_endpoints)
        case QuorumFetchResponse():
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


def _answer_named(error: ErrorCode, partition: Fields, endpoints: Sequence[QuorumNodeEndpoint]) -> Fields:
    if error:
        return {"error_code": error, "topics": ()}
    return {
        "error_code": ErrorCode.NONE,
        "topics": named(partition),
        "node_endpoints": [each._asdict() for each in endpoints],
    }


def _answer_fetch(message: QuorumFetchResponse, version: int) -> Fields:
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
        case QuorumFetchRequest():
            return QuorumFetchResponse(partition_error_code=code, leader_id=leader_id, leader_epoch=epoch)
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
        case QuorumFetchRequest():
            return QuorumFetchResponse(error_code=code)
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


# -- incoming responses ------------------------------------------------------------------------------------------------


def read_answer(key: ApiKey, entity: Any) -> ResponseMessage:
    """The message of a response entity. Raises MalformedRequest if it is not about the metadata partition."""
    return _ANSWERS[key](entity)


def _read_vote(entity: Any) -> VoteResponse:
    if entity.error_code:
        return VoteResponse(error_code=_code(entity.error_code))
    one = _only(entity.topics, "topic_name")
    return VoteResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        vote_granted=one.vote_granted,
        node_endpoints=_endpoints(entity),
    )


def _read_epoch_response(kind: type[_EpochResponse], entity: Any) -> _EpochResponse:
    """A BeginQuorumEpoch or EndQuorumEpoch response."""
    if entity.error_code:
        return kind(error_code=_code(entity.error_code))
    one = _only(entity.topics, "topic_name")
    return kind(
        partition_error_code=_code(one.error_code),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        node_endpoints=_endpoints(entity),
    )


def _read_fetch(entity: Any) -> QuorumFetchResponse:
    if entity.error_code:
        return QuorumFetchResponse(error_code=_code(entity.error_code))
    if len(entity.responses) != 1 or len(entity.responses[0].partitions) != 1:
        raise MalformedRequest("the response to a fetch of the metadata partition has other partitions")
    one = entity.responses[0].partitions[0]
    diverging, snapshot = one.diverging_epoch, one.snapshot_id
    return QuorumFetchResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.current_leader.leader_id,
        leader_epoch=one.current_leader.leader_epoch,
        high_watermark=one.high_watermark,
        log_start_offset=one.log_start_offset,
        diverging_epoch=QuorumEpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        # One negative part is not "none": the quorum rejects such a response (N33).
        snapshot_id=SnapshotId(snapshot.end_offset, snapshot.epoch)
        if snapshot.end_offset >= 0 or snapshot.epoch >= 0
        else None,
        records=one.records or b"",
        node_endpoints=_endpoints(entity),
    )


def _read_fetch_snapshot(entity: Any) -> FetchSnapshotResponse:
    if entity.error_code:
        return FetchSnapshotResponse(error_code=_code(entity.error_code))
    one = _only(entity.topics, "name")
    return FetchSnapshotResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.current_leader.leader_id if one.current_leader is not None else NO_NODE,
        leader_epoch=one.current_leader.leader_epoch if one.current_leader is not None else -1,
        snapshot_id=SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch),
        size=one.size,
        position=one.position,
        unaligned_records=one.unaligned_records or b"",
        node_endpoints=_endpoints(entity),
    )


def _read_describe(entity: Any) -> DescribeQuorumResponse:
    if entity.error_code:
        return DescribeQuorumResponse(error_code=_code(entity.error_code))
    one = _only(entity.topics, "topic_name")

    def states(replicas: Iterable[Any]) -> tuple[ReplicaState, ...]:
        return tuple(
            ReplicaState(
                each.replica_id,
                request_field(each, "replica_directory_id", None) or ZERO_UUID,
                each.log_end_offset,
                _time_or_none(request_field(each, "last_fetch_timestamp", -1)),
                _time_or_none(request_field(each, "last_caught_up_timestamp", -1)),
            )
            for each in replicas
        )

    return DescribeQuorumResponse(
        partition_error_code=_code(one.error_code),
        error_message=request_field(one, "error_message", None) or None,
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        high_watermark=one.high_watermark,
        current_voters=states(one.current_voters),
        observers=states(one.observers),
        nodes=tuple(
            DescribedNode(node.node_id, voter_endpoints(node.listeners)) for node in request_field(entity, "nodes", ())
        ),
    )


def _read_update(entity: Any) -> UpdateRaftVoterResponse:
    leader = entity.current_leader
    known = leader is not None and leader.leader_id >= 0 and bool(leader.host)
    return UpdateRaftVoterResponse(
        error_code=_code(entity.error_code),
        leader_id=leader.leader_id if leader is not None else NO_NODE,
        leader_epoch=leader.leader_epoch if leader is not None else -1,
        node_endpoints=(QuorumNodeEndpoint(leader.leader_id, leader.host, leader.port),) if known else (),
    )


def read_api_versions(entity: Any) -> ApiVersionsResponse:
    """The supported kraft.version range of the node; (0, 0) if it reports none."""
    levels = NO_KRAFT_VERSION
    for feature in request_field(entity, "supported_features", ()):
        if feature.name == "kraft.version":
            levels = KRaftVersionFeature(feature.min_version, feature.max_version)
    return ApiVersionsResponse(_code(entity.error_code), levels)


_ANSWERS: Final[Mapping[ApiKey, Callable[[Any], ResponseMessage]]] = {
    ApiKey.VOTE: _read_vote,
    ApiKey.BEGIN_QUORUM_EPOCH: partial(_read_epoch_response, BeginQuorumEpochResponse),
    ApiKey.END_QUORUM_EPOCH: partial(_read_epoch_response, EndQuorumEpochResponse),
    ApiKey.FETCH: _read_fetch,
    ApiKey.FETCH_SNAPSHOT: _read_fetch_snapshot,
    ApiKey.DESCRIBE_QUORUM: _read_describe,
    ApiKey.ADD_RAFT_VOTER: lambda entity: AddRaftVoterResponse(_code(entity.error_code), entity.error_message),
    ApiKey.REMOVE_RAFT_VOTER: lambda entity: RemoveRaftVoterResponse(_code(entity.error_code), entity.error_message),
    ApiKey.UPDATE_RAFT_VOTER: _read_update,
}


# -- pieces ------------------------------------------------------------------------------------------------------------


def _only(topics: Sequence[Any], name: str) -> Any:
    if len(topics) != 1 or getattr(topics[0], name) != METADATA_TOPIC or len(topics[0].partitions) != 1:
        raise MalformedRequest("the response about the metadata partition has other partitions")
    return topics[0].partitions[0]


def _endpoints(entity: Any) -> tuple[QuorumNodeEndpoint, ...]:
    found = request_field(entity, "node_endpoints", ())
    return tuple(QuorumNodeEndpoint(each.node_id, each.host, each.port) for each in found)


def _code(code: int) -> ErrorCode:
    """An unknown code counts as an unknown error."""
    return code if isinstance(code, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


def _time_or_none(time_ms: int) -> int | None:
    return None if time_ms < 0 else time_ms
