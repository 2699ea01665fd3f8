"""What the quorum's nodes say to each other, as Kafka's requests and responses.

Owns the way between `fenceline.quorum.messages` and the entities of the wire, in all versions, and the check that a
request is about the one partition of the metadata topic (`gaps.md G27`). Pure: no I/O, nothing is decided here.

Times of DescribeQuorum are monotonic in the quorum and the time of day on the wire.

Rules: raft.md Q13, Q14, Q37; snapshots.md N28-N30; since_4_0.md K4, K8, K12; what a version lacks is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID
from fenceline.node.quorum_versions import VERSIONS as VERSIONS
from fenceline.quorum.control_records import KRaftVersionFeature, VoterEndpoint
from fenceline.quorum.log_view import EpochEnd, SnapshotId
from fenceline.quorum.messages import (
    NO_KRAFT_VERSION,
    NOBODY,
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
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    NodeEndpoint,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaKey,
    ReplicaState,
    RequestMessage,
    ResponseMessage,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field
from fenceline.wire.errors import MalformedRequest

Fields = dict[str, Any]
WallTime = Callable[[int], int]
"""From the quorum's monotonic ms to ms since 1970."""

API_OF: Final[Mapping[type[RequestMessage], ApiKey]] = {
    FetchRequest: ApiKey.FETCH,
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    DescribeQuorumRequest: ApiKey.DESCRIBE_QUORUM,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
    AddRaftVoterRequest: ApiKey.ADD_RAFT_VOTER,
    RemoveRaftVoterRequest: ApiKey.REMOVE_RAFT_VOTER,
    UpdateRaftVoterRequest: ApiKey.UPDATE_RAFT_VOTER,
    ApiVersionsRequest: ApiKey.API_VERSIONS,
}

_OLDEST_ASKED: Final[Mapping[ApiKey, int]] = {ApiKey.FETCH: 12}
"""Below it a request can not say what the quorum needs (the last epoch of the follower's log)."""
_PRE_VOTE: Final = 2
_FETCH_BY_ID: Final = 13
_FETCH_REPLICA_STATE: Final = 15
_FETCH_ENDPOINTS: Final = 17
_NO_HIGH_WATERMARK: Final = (1 << 63) - 1
_NO_FETCH_EPOCH: Final = -1


class WrongShape(Exception):
    """The request is not about the metadata partition; `answer` says so."""

    def __init__(self, answer: Fields) -> None:
        super().__init__("not about the metadata partition")
        self.answer = answer


def version_for(message: RequestMessage, offered: Mapping[int, tuple[int, int]]) -> int | None:
    """The newest version that both sides speak and that can carry `message`; None where there is none."""
    key = API_OF[type(message)]
    low, high = offered.get(key, (0, -1))
    version = min(high, VERSIONS[key][1])
    oldest = _PRE_VOTE if isinstance(message, VoteRequest) and message.pre_vote else _OLDEST_ASKED.get(key, 0)
    return version if version >= max(low, oldest) else None


def closing(message: RequestMessage, leader_id: int, epoch: int) -> ResponseMessage:
    """What a node answers that stops: it leads nothing (Q14; Kafka 4.3.1 says 6 there, not 8)."""
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
            return AddRaftVoterResponse(code, "This node stops.")
        case RemoveRaftVoterRequest():
            return RemoveRaftVoterResponse(code, "This node stops.")
        case UpdateRaftVoterRequest():
            return UpdateRaftVoterResponse(code, leader_id, epoch)
        case ApiVersionsRequest():
            raise InternalError("the server answers ApiVersions itself")


def unsupported(message: RequestMessage) -> ResponseMessage:
    """What a peer would answer that does not know `message`."""
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


# -- requests that go out ----------------------------------------------------------------------------------------------


def request_fields(message: RequestMessage, version: int) -> Fields:
    """Fields of the request for `wire.entities.write_request`."""
    match message:
        case VoteRequest():
            partition: Fields = {
                "replica_epoch": message.replica_epoch,
                "replica_id": message.replica_id,
                "replica_directory_id": message.replica_directory_id,
                "voter_directory_id": message.voter_directory_id,
                "last_offset_epoch": message.last_offset_epoch,
                "last_offset": message.last_offset,
                "pre_vote": message.pre_vote,
            }
            return {"cluster_id": message.cluster_id, "voter_id": message.voter_id, "topics": _named(partition)}
        case BeginQuorumEpochRequest():
            partition = {
                "voter_directory_id": message.voter_directory_id,
                "leader_id": message.leader_id,
                "leader_epoch": message.leader_epoch,
            }
            return {
                "cluster_id": message.cluster_id,
                "voter_id": message.voter_id,
                "topics": _named(partition),
                "leader_endpoints": [_listener(each) for each in message.leader_endpoints],
            }
        case EndQuorumEpochRequest():
            partition = {
                "leader_id": message.leader_id,
                "leader_epoch": message.leader_epoch,
                "preferred_successors": [key.replica_id for key in message.preferred_candidates],
                "preferred_candidates": [
                    {"candidate_id": key.replica_id, "candidate_directory_id": key.replica_directory_id}
                    for key in message.preferred_candidates
                ],
            }
            return {
                "cluster_id": message.cluster_id,
                "topics": _named(partition),
                "leader_endpoints": [_listener(each) for each in message.leader_endpoints],
            }
        case FetchRequest():
            return _fetch_fields(message, version)
        case FetchSnapshotRequest():
            partition = {
                "partition": 0,
                "current_leader_epoch": message.current_leader_epoch,
                "snapshot_id": message.snapshot_id._asdict(),
                "position": message.position,
                "replica_directory_id": message.replica_directory_id,
            }
            return {
                "cluster_id": message.cluster_id,
                "replica_id": message.replica_id,
                "max_bytes": message.max_bytes,
                "topics": [{"name": METADATA_TOPIC, "partitions": [partition]}],
            }
        case DescribeQuorumRequest():
            return {"topics": _named({})}
        case AddRaftVoterRequest():
            return {
                "cluster_id": message.cluster_id,
                "timeout": message.timeout_ms,
                "voter_id": message.voter_id,
                "voter_directory_id": message.voter_directory_id,
                "listeners": [_listener(each) for each in message.listeners],
                "ack_when_committed": message.ack_when_committed,
            }
        case RemoveRaftVoterRequest():
            return {
                "cluster_id": message.cluster_id,
                "voter_id": message.voter_id,
                "voter_directory_id": message.voter_directory_id,
            }
        case UpdateRaftVoterRequest():
            return {
                "cluster_id": message.cluster_id,
                "current_leader_epoch": message.current_leader_epoch,
                "voter_id": message.voter_id,
                "voter_directory_id": message.voter_directory_id,
                "listeners": [_listener(each) for each in message.listeners],
                "k_raft_version_feature": _range(message.k_raft_version_feature),
            }
        case ApiVersionsRequest():
            raise InternalError("ApiVersions is the connection's")


def _fetch_fields(message: FetchRequest, version: int) -> Fields:
    partition: Fields = {
        "partition": 0,
        "current_leader_epoch": message.current_leader_epoch,
        "fetch_offset": message.fetch_offset,
        "last_fetched_epoch": message.last_fetched_epoch,
        "partition_max_bytes": message.max_bytes,
        "replica_directory_id": message.replica_directory_id,
    }
    if message.high_watermark is not None:
        partition["high_watermark"] = message.high_watermark
    topic: Fields = {"partitions": [partition]}
    if version >= _FETCH_BY_ID:
        topic["topic_id"] = METADATA_TOPIC_ID
    else:
        topic["topic"] = METADATA_TOPIC
    fields: Fields = {
        "cluster_id": message.cluster_id,
        "max_wait": message.max_wait_ms,
        "min_bytes": message.min_bytes,
        "max_bytes": message.max_bytes,
        "topics": [topic],
        "forgotten_topics_data": (),
    }
    if version >= _FETCH_REPLICA_STATE:
        fields["replica_state"] = {"replica_id": message.replica_id, "replica_epoch": -1}
    else:
        fields["replica_id"] = message.replica_id
    return fields


# -- responses that come in --------------------------------------------------------------------------------------------


def read_answer(key: ApiKey, entity: Any) -> ResponseMessage:
    """The message of a response's entity. Raises MalformedRequest where it is not about the metadata partition."""
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


def _read_begin(entity: Any) -> BeginQuorumEpochResponse:
    if entity.error_code:
        return BeginQuorumEpochResponse(error_code=_code(entity.error_code))
    one = _only(entity.topics, "topic_name")
    return BeginQuorumEpochResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        node_endpoints=_endpoints(entity),
    )


def _read_end(entity: Any) -> EndQuorumEpochResponse:
    if entity.error_code:
        return EndQuorumEpochResponse(error_code=_code(entity.error_code))
    one = _only(entity.topics, "topic_name")
    return EndQuorumEpochResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        node_endpoints=_endpoints(entity),
    )


def _read_fetch(entity: Any) -> FetchResponse:
    if entity.error_code:
        return FetchResponse(error_code=_code(entity.error_code))
    if len(entity.responses) != 1 or len(entity.responses[0].partitions) != 1:
        raise MalformedRequest("a fetch of the metadata partition was answered with others")
    one = entity.responses[0].partitions[0]
    diverging, snapshot = one.diverging_epoch, one.snapshot_id
    return FetchResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.current_leader.leader_id,
        leader_epoch=one.current_leader.leader_epoch,
        high_watermark=one.high_watermark,
        log_start_offset=one.log_start_offset,
        diverging_epoch=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        # One negative part is not "none": the quorum refuses such an answer (N33).
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
        leader_id=one.current_leader.leader_id if one.current_leader is not None else NOBODY,
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
        error_message=request_field(one, "error_message", None),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        high_watermark=one.high_watermark,
        current_voters=states(one.current_voters),
        observers=states(one.observers),
        nodes=tuple(
            DescribedNode(node.node_id, _voter_endpoints(node.listeners)) for node in request_field(entity, "nodes", ())
        ),
    )


def _read_update(entity: Any) -> UpdateRaftVoterResponse:
    leader = entity.current_leader
    known = leader is not None and leader.leader_id >= 0 and bool(leader.host)
    return UpdateRaftVoterResponse(
        error_code=_code(entity.error_code),
        leader_id=leader.leader_id if leader is not None else NOBODY,
        leader_epoch=leader.leader_epoch if leader is not None else -1,
        node_endpoints=(NodeEndpoint(leader.leader_id, leader.host, leader.port),) if known else (),
    )


def read_api_versions(entity: Any) -> ApiVersionsResponse:
    """Which kraft.version the node supports; (0, 0) where it names none."""
    levels = NO_KRAFT_VERSION
    for feature in request_field(entity, "supported_features", ()):
        if feature.name == "kraft.version":
            levels = KRaftVersionFeature(feature.min_version, feature.max_version)
    return ApiVersionsResponse(_code(entity.error_code), levels)


_ANSWERS: Final[Mapping[ApiKey, Callable[[Any], ResponseMessage]]] = {
    ApiKey.VOTE: _read_vote,
    ApiKey.BEGIN_QUORUM_EPOCH: _read_begin,
    ApiKey.END_QUORUM_EPOCH: _read_end,
    ApiKey.FETCH: _read_fetch,
    ApiKey.FETCH_SNAPSHOT: _read_fetch_snapshot,
    ApiKey.DESCRIBE_QUORUM: _read_describe,
    ApiKey.ADD_RAFT_VOTER: lambda entity: AddRaftVoterResponse(_code(entity.error_code), entity.error_message),
    ApiKey.REMOVE_RAFT_VOTER: lambda entity: RemoveRaftVoterResponse(_code(entity.error_code), entity.error_message),
    ApiKey.UPDATE_RAFT_VOTER: _read_update,
}


# -- requests that come in ---------------------------------------------------------------------------------------------


def read_request(key: ApiKey, version: int, entity: Any) -> RequestMessage:
    """The message of a request's entity. Raises WrongShape."""
    return _REQUESTS[key](version, entity)


def _take_vote(version: int, entity: Any) -> VoteRequest:
    one = _asked(entity.topics, "topic_name")
    return VoteRequest(
        entity.cluster_id,
        one.replica_epoch,
        one.replica_id,
        one.last_offset_epoch,
        one.last_offset,
        _uuid(request_field(one, "replica_directory_id", None)),
        request_field(entity, "voter_id", NOBODY),
        _uuid(request_field(one, "voter_directory_id", None)),
        request_field(one, "pre_vote", False),
    )


def _take_begin(version: int, entity: Any) -> BeginQuorumEpochRequest:
    one = _asked(entity.topics, "topic_name")
    return BeginQuorumEpochRequest(
        entity.cluster_id,
        one.leader_id,
        one.leader_epoch,
        request_field(entity, "voter_id", NOBODY),
        _uuid(request_field(one, "voter_directory_id", None)),
        _voter_endpoints(request_field(entity, "leader_endpoints", ())),
    )


def _take_end(version: int, entity: Any) -> EndQuorumEpochRequest:
    one = _asked(entity.topics, "topic_name")
    if version >= 1:
        candidates = [
            ReplicaKey(each.candidate_id, _uuid(each.candidate_directory_id)) for each in one.preferred_candidates
        ]
    else:
        candidates = [ReplicaKey(each) for each in one.preferred_successors]
    return EndQuorumEpochRequest(
        entity.cluster_id,
        one.leader_id,
        one.leader_epoch,
        tuple(candidates),
        _voter_endpoints(request_field(entity, "leader_endpoints", ())),
    )


def _take_fetch(version: int, entity: Any) -> FetchRequest:
    topics = entity.topics
    good = len(topics) == 1 and len(topics[0].partitions) == 1 and topics[0].partitions[0].partition == 0
    if good and version >= _FETCH_BY_ID:
        good = topics[0].topic_id == METADATA_TOPIC_ID
    elif good:
        good = topics[0].topic == METADATA_TOPIC
    if not good:
        raise WrongShape({"error_code": ErrorCode.INVALID_REQUEST, "responses": ()})
    one = topics[0].partitions[0]
    high_watermark = request_field(one, "high_watermark", _NO_HIGH_WATERMARK)
    state = request_field(entity, "replica_state", None)
    return FetchRequest(
        entity.cluster_id if version >= 12 else None,
        state.replica_id if state is not None else entity.replica_id,
        request_field(one, "current_leader_epoch", _NO_FETCH_EPOCH),
        one.fetch_offset,
        request_field(one, "last_fetched_epoch", _NO_FETCH_EPOCH),
        _uuid(request_field(one, "replica_directory_id", None)),
        millis(entity.max_wait),
        entity.min_bytes,
        entity.max_bytes,
        None if high_watermark == _NO_HIGH_WATERMARK else high_watermark,
    )


def _take_fetch_snapshot(version: int, entity: Any) -> FetchSnapshotRequest:
    topics = entity.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise WrongShape({"error_code": ErrorCode.INVALID_REQUEST, "topics": ()})
    one = topics[0].partitions[0]
    asked = SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch)
    if topics[0].name != METADATA_TOPIC or one.partition != 0:
        wrong = {
            "index": one.partition,
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "snapshot_id": asked._asdict(),
            "unaligned_records": b"",
        }
        raise WrongShape({"topics": [{"name": topics[0].name, "partitions": [wrong]}]})
    return FetchSnapshotRequest(
        entity.cluster_id,
        entity.replica_id,
        one.current_leader_epoch,
        asked,
        one.position,
        entity.max_bytes,
        _uuid(request_field(one, "replica_directory_id", None)),
    )


def _take_describe(version: int, entity: Any) -> DescribeQuorumRequest:
    topics = entity.topics
    if len(topics) == 1 and topics[0].topic_name == METADATA_TOPIC:
        partitions = topics[0].partitions
        if len(partitions) == 1 and partitions[0].partition_index == 0:
            return DescribeQuorumRequest()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise WrongShape(
        {
            "topics": [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": unknown,
                            "error_message": "Only the metadata partition has a quorum.",
                            "leader_id": NOBODY,
                            "leader_epoch": -1,
                            "high_watermark": -1,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in topics
            ]
        }
    )


def _take_add(version: int, entity: Any) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        entity.cluster_id,
        millis(entity.timeout),
        entity.voter_id,
        _uuid(entity.voter_directory_id),
        _voter_endpoints(entity.listeners),
        request_field(entity, "ack_when_committed", True),
    )


def _take_remove(version: int, entity: Any) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(entity.cluster_id, entity.voter_id, _uuid(entity.voter_directory_id))


def _take_update(version: int, entity: Any) -> UpdateRaftVoterRequest:
    levels = entity.k_raft_version_feature
    return UpdateRaftVoterRequest(
        entity.cluster_id,
        entity.current_leader_epoch,
        entity.voter_id,
        _uuid(entity.voter_directory_id),
        _voter_endpoints(entity.listeners),
        KRaftVersionFeature(levels.min_supported_version, levels.max_supported_version),
    )


_REQUESTS: Final[Mapping[ApiKey, Callable[[int, Any], RequestMessage]]] = {
    ApiKey.VOTE: _take_vote,
    ApiKey.BEGIN_QUORUM_EPOCH: _take_begin,
    ApiKey.END_QUORUM_EPOCH: _take_end,
    ApiKey.FETCH: _take_fetch,
    ApiKey.FETCH_SNAPSHOT: _take_fetch_snapshot,
    ApiKey.DESCRIBE_QUORUM: _take_describe,
    ApiKey.ADD_RAFT_VOTER: _take_add,
    ApiKey.REMOVE_RAFT_VOTER: _take_remove,
    ApiKey.UPDATE_RAFT_VOTER: _take_update,
}


# -- responses that go out ---------------------------------------------------------------------------------------------


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
            raise InternalError("ApiVersions is the server's")


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
        "topics": _named(partition),
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
    if version >= _FETCH_BY_ID:
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
        "error_message": message.error_message,
        "leader_id": message.leader_id,
        "leader_epoch": message.leader_epoch,
        "high_watermark": message.high_watermark,
        "current_voters": states(message.current_voters),
        "observers": states(message.observers),
    }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": _named(one),
        "nodes": [
            {"node_id": node.node_id, "listeners": [_listener(each) for each in node.listeners]}
            for node in message.nodes
        ],
    }


# -- pieces ------------------------------------------------------------------------------------------------------------


def _named(partition: Fields) -> list[Fields]:
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **partition}]}]


def _only(topics: Sequence[Any], name: str) -> Any:
    if len(topics) != 1 or getattr(topics[0], name) != METADATA_TOPIC or len(topics[0].partitions) != 1:
        raise MalformedRequest("an answer about the metadata partition names others")
    return topics[0].partitions[0]


def _asked(topics: Sequence[Any], name: str) -> Any:
    good = len(topics) == 1 and getattr(topics[0], name) == METADATA_TOPIC and len(topics[0].partitions) == 1
    if not good or topics[0].partitions[0].partition_index != 0:
        raise WrongShape({"error_code": ErrorCode.INVALID_REQUEST, "topics": ()})
    return topics[0].partitions[0]


def _listener(endpoint: VoterEndpoint) -> Fields:
    return {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}


def _range(levels: KRaftVersionFeature) -> Fields:
    return {
        "min_supported_version": levels.min_supported_version,
        "max_supported_version": levels.max_supported_version,
    }


def _voter_endpoints(listeners: Iterable[Any]) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def _endpoints(entity: Any) -> tuple[NodeEndpoint, ...]:
    found = request_field(entity, "node_endpoints", ())
    return tuple(NodeEndpoint(each.node_id, each.host, each.port) for each in found)


def _uuid(value: UUID | None) -> UUID:
    return value or ZERO_UUID


def _code(code: int) -> ErrorCode:
    """A code that this release does not know counts as an unknown error."""
    return code if isinstance(code, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


def _time_or_none(time_ms: int) -> int | None:
    return None if time_ms < 0 else time_ms


def _wall(time_ms: int | None, wall_time: WallTime) -> int:
    return -1 if time_ms is None else wall_time(time_ms)
