"""Encodes and decodes requests between the quorum's nodes. Pure.

Owns the check that a request is about the one partition of the metadata topic (`gaps.md G27`), and the pieces that
responses have in common with requests.

Rules: raft.md Q13; snapshots.md N28; since_4_0.md K4, K8, K12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID
from fenceline.quorum.control_records import KRaftVersionFeature, VoterEndpoint
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import (
    NO_NODE,
    AddRaftVoterRequest,
    ApiVersionsRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RemoveRaftVoterRequest,
    ReplicaKey,
    RequestMessage,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

Fields = dict[str, Any]
FETCH_BY_ID: Final = 13
"""The first Fetch version with topic ids."""
_FETCH_REPLICA_STATE: Final = 15
_NO_HIGH_WATERMARK: Final = (1 << 63) - 1
_NO_FETCH_EPOCH: Final = -1


class UnexpectedPartition(Exception):
    """The request is not about the metadata partition; `answer` is the error response."""

    def __init__(self, answer: Fields) -> None:
        super().__init__("not about the metadata partition")
        self.answer = answer


# -- outgoing requests -------------------------------------------------------------------------------------------------


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
            return {"cluster_id": message.cluster_id, "voter_id": message.voter_id, "topics": named(partition)}
        case BeginQuorumEpochRequest():
            partition = {
                "voter_directory_id": message.voter_directory_id,
                "leader_id": message.leader_id,
                "leader_epoch": message.leader_epoch,
            }
            return {
                "cluster_id": message.cluster_id,
                "voter_id": message.voter_id,
                "topics": named(partition),
                "leader_endpoints": [listener(each) for each in message.leader_endpoints],
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
                "topics": named(partition),
                "leader_endpoints": [listener(each) for each in message.leader_endpoints],
            }
        case QuorumFetchRequest():
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
            return {"topics": named({})}
        case AddRaftVoterRequest():
            return {
                "cluster_id": message.cluster_id,
                "timeout": message.timeout_ms,
                "voter_id": message.voter_id,
                "voter_directory_id": message.voter_directory_id,
                "listeners": [listener(each) for each in message.listeners],
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
                "listeners": [listener(each) for each in message.listeners],
                "k_raft_version_feature": _range(message.k_raft_version_feature),
            }
        case ApiVersionsRequest():
            raise InternalError("the connection sends ApiVersions")


def _fetch_fields(message: QuorumFetchRequest, version: int) -> Fields:
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
    if version >= FETCH_BY_ID:
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


# -- incoming requests -------------------------------------------------------------------------------------------------


def read_request(key: ApiKey, version: int, entity: Any) -> RequestMessage:
    """The message of a request entity. Raises UnexpectedPartition."""
    return _REQUESTS[key](version, entity)


def _read_vote(version: int, entity: Any) -> VoteRequest:
    one = _only_partition(entity.topics, "topic_name")
    return VoteRequest(
        entity.cluster_id,
        one.replica_epoch,
        one.replica_id,
        one.last_offset_epoch,
        one.last_offset,
        _uuid(request_field(one, "replica_directory_id", None)),
        request_field(entity, "voter_id", NO_NODE),
        _uuid(request_field(one, "voter_directory_id", None)),
        request_field(one, "pre_vote", False),
    )


def _read_begin(version: int, entity: Any) -> BeginQuorumEpochRequest:
    one = _only_partition(entity.topics, "topic_name")
    return BeginQuorumEpochRequest(
        entity.cluster_id,
        one.leader_id,
        one.leader_epoch,
        request_field(entity, "voter_id", NO_NODE),
        _uuid(request_field(one, "voter_directory_id", None)),
        voter_endpoints(request_field(entity, "leader_endpoints", ())),
    )


def _read_end(version: int, entity: Any) -> EndQuorumEpochRequest:
    one = _only_partition(entity.topics, "topic_name")
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
        voter_endpoints(request_field(entity, "leader_endpoints", ())),
    )


def _read_fetch(version: int, entity: Any) -> QuorumFetchRequest:
    topics = entity.topics
    good = len(topics) == 1 and len(topics[0].partitions) == 1 and topics[0].partitions[0].partition == 0
    if good and version >= FETCH_BY_ID:
        good = topics[0].topic_id == METADATA_TOPIC_ID
    elif good:
        good = topics[0].topic == METADATA_TOPIC
    if not good:
        raise UnexpectedPartition({"error_code": ErrorCode.INVALID_REQUEST, "responses": ()})
    one = topics[0].partitions[0]
    high_watermark = request_field(one, "high_watermark", _NO_HIGH_WATERMARK)
    state = request_field(entity, "replica_state", None)
    return QuorumFetchRequest(
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


def _read_fetch_snapshot(version: int, entity: Any) -> FetchSnapshotRequest:
    topics = entity.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise UnexpectedPartition({"error_code": ErrorCode.INVALID_REQUEST, "topics": ()})
    one = topics[0].partitions[0]
    asked = SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch)
    if topics[0].name != METADATA_TOPIC or one.partition != 0:
        wrong = {
            "index": one.partition,
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "snapshot_id": asked._asdict(),
            "unaligned_records": b"",
        }
        raise UnexpectedPartition({"topics": [{"name": topics[0].name, "partitions": [wrong]}]})
    return FetchSnapshotRequest(
        entity.cluster_id,
        entity.replica_id,
        one.current_leader_epoch,
        asked,
        one.position,
        entity.max_bytes,
        _uuid(request_field(one, "replica_directory_id", None)),
    )


def _read_describe(version: int, entity: Any) -> DescribeQuorumRequest:
    topics = entity.topics
    if len(topics) == 1 and topics[0].topic_name == METADATA_TOPIC:
        partitions = topics[0].partitions
        if len(partitions) == 1 and partitions[0].partition_index == 0:
            return DescribeQuorumRequest()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise UnexpectedPartition(
        {
            "topics": [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": unknown,
                            "error_message": "DescribeQuorum supports only the metadata partition.",
                            "leader_id": NO_NODE,
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


def _read_add(version: int, entity: Any) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        entity.cluster_id,
        millis(entity.timeout),
        entity.voter_id,
        _uuid(entity.voter_directory_id),
        voter_endpoints(entity.listeners),
        request_field(entity, "ack_when_committed", True),
    )


def _read_remove(version: int, entity: Any) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(entity.cluster_id, entity.voter_id, _uuid(entity.voter_directory_id))


def _read_update(version: int, entity: Any) -> UpdateRaftVoterRequest:
    levels = entity.k_raft_version_feature
    return UpdateRaftVoterRequest(
        entity.cluster_id,
        entity.current_leader_epoch,
        entity.voter_id,
        _uuid(entity.voter_directory_id),
        voter_endpoints(entity.listeners),
        KRaftVersionFeature(levels.min_supported_version, levels.max_supported_version),
    )


_REQUESTS: Final[Mapping[ApiKey, Callable[[int, Any], RequestMessage]]] = {
    ApiKey.VOTE: _read_vote,
    ApiKey.BEGIN_QUORUM_EPOCH: _read_begin,
    ApiKey.END_QUORUM_EPOCH: _read_end,
    ApiKey.FETCH: _read_fetch,
    ApiKey.FETCH_SNAPSHOT: _read_fetch_snapshot,
    ApiKey.DESCRIBE_QUORUM: _read_describe,
    ApiKey.ADD_RAFT_VOTER: _read_add,
    ApiKey.REMOVE_RAFT_VOTER: _read_remove,
    ApiKey.UPDATE_RAFT_VOTER: _read_update,
}


# -- pieces ------------------------------------------------------------------------------------------------------------


def named(partition: Fields) -> list[Fields]:
    """The single topic with its single partition."""
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **partition}]}]


def listener(endpoint: VoterEndpoint) -> Fields:
    """An endpoint."""
    return {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}


def voter_endpoints(listeners: Iterable[Any]) -> tuple[VoterEndpoint, ...]:
    """The endpoints of an entity's listeners."""
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def _only_partition(topics: Sequence[Any], name: str) -> Any:
    good = len(topics) == 1 and getattr(topics[0], name) == METADATA_TOPIC and len(topics[0].partitions) == 1
    if not good or topics[0].partitions[0].partition_index != 0:
        raise UnexpectedPartition({"error_code": ErrorCode.INVALID_REQUEST, "topics": ()})
    return topics[0].partitions[0]


def _range(levels: KRaftVersionFeature) -> Fields:
    return {
        "min_supported_version": levels.min_supported_version,
        "max_supported_version": levels.max_supported_version,
    }


def _uuid(value: UUID | None) -> UUID:
    return value or ZERO_UUID
