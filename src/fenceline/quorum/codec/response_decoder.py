"""Decodes responses of the quorum's other nodes. Pure. `codec.response_encoder` encodes this node's.

Rules: raft.md Q14, Q37; snapshots.md N29, N30, N33; since_4_0.md K4, K8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC, ZERO_UUID
from fenceline.quorum.codec.common import voter_endpoints
from fenceline.quorum.codec.versions import VERSIONS as VERSIONS
from fenceline.quorum.control_records import KRaftVersionFeature
from fenceline.quorum.log_view import EpochEnd, SnapshotId
from fenceline.quorum.messages import (
    NO_KRAFT_VERSION,
    NO_NODE,
    AddRaftVoterResponse,
    ApiVersionsResponse,
    BeginQuorumEpochResponse,
    DescribedNode,
    DescribeQuorumResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    FetchSnapshotResponse,
    NodeEndpoint,
    RemoveRaftVoterResponse,
    ReplicaState,
    ResponseMessage,
    UpdateRaftVoterResponse,
    VoteResponse,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field
from fenceline.wire.errors import MalformedRequest

_EpochResponse = TypeVar("_EpochResponse", BeginQuorumEpochResponse, EndQuorumEpochResponse)


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


def _read_fetch(entity: Any) -> FetchResponse:
    if entity.error_code:
        return FetchResponse(error_code=_code(entity.error_code))
    if len(entity.responses) != 1 or len(entity.responses[0].partitions) != 1:
        raise MalformedRequest("the response to a fetch of the metadata partition has other partitions")
    one = entity.responses[0].partitions[0]
    diverging, snapshot = one.diverging_epoch, one.snapshot_id
    return FetchResponse(
        partition_error_code=_code(one.error_code),
        leader_id=one.current_leader.leader_id,
        leader_epoch=one.current_leader.leader_epoch,
        high_watermark=one.high_watermark,
        log_start_offset=one.log_start_offset,
        diverging_epoch=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
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
        node_endpoints=(NodeEndpoint(leader.leader_id, leader.host, leader.port),) if known else (),
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


def _endpoints(entity: Any) -> tuple[NodeEndpoint, ...]:
    found = request_field(entity, "node_endpoints", ())
    return tuple(NodeEndpoint(each.node_id, each.host, each.port) for each in found)


def _code(code: int) -> ErrorCode:
    """An unknown code counts as an unknown error."""
    return code if isinstance(code, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


def _time_or_none(time_ms: int) -> int | None:
    return None if time_ms < 0 else time_ms
