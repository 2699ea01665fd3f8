"""Quorum messages as Kafka's requests and responses, in every version."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC
from fenceline.quorum.codec import API_OF, VERSIONS, requests, responses, version_for
from fenceline.quorum.control_records import KRaftVersionFeature, VoterEndpoint
from fenceline.quorum.log_view import QuorumEpochEnd, SnapshotId
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
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
from fenceline.wire.entities import read_request, read_response, unknown_fields, write_request, write_response

A, B = UUID(int=0xA), UUID(int=0xB)
HERE = (VoterEndpoint("CONTROLLER", "localhost", 9093),)
LEADER = (QuorumNodeEndpoint(2, "two", 9093),)

REQUESTS: list[RequestMessage] = [
    VoteRequest("cluster", 5, 1, 4, 77, A, 2, B, pre_vote=True),
    BeginQuorumEpochRequest("cluster", 2, 5, 1, A, HERE),
    EndQuorumEpochRequest("cluster", 2, 5, (ReplicaKey(3, A), ReplicaKey(1, B)), HERE),
    QuorumFetchRequest("cluster", 3, 5, 77, 4, A, 500, 1, 1 << 20, 70),
    QuorumFetchRequest("cluster", 3, 5, 77, 4, A, 500, 1, 1 << 20, -1),
    QuorumFetchRequest("cluster", 3, 5, 77, 4, A, 500, 1, 1 << 20, None),
    FetchSnapshotRequest("cluster", 3, 5, SnapshotId(70, 4), 1 << 33, 1 << 20, A),
    DescribeQuorumRequest(),
    AddRaftVoterRequest("cluster", 1000, 4, A, HERE, ack_when_committed=False),
    RemoveRaftVoterRequest("cluster", 4, A),
    UpdateRaftVoterRequest("cluster", 5, 4, A, HERE, KRaftVersionFeature(0, 1)),
]
RESPONSES: list[tuple[ApiKey, ResponseMessage]] = [
    (ApiKey.VOTE, VoteResponse(leader_id=2, leader_epoch=5, vote_granted=True, node_endpoints=LEADER)),
    (ApiKey.VOTE, VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)),
    (
        ApiKey.BEGIN_QUORUM_EPOCH,
        BeginQuorumEpochResponse(ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH, 2, 5, LEADER),
    ),
    (ApiKey.END_QUORUM_EPOCH, EndQuorumEpochResponse(leader_id=-1, leader_epoch=5)),
    (ApiKey.FETCH, QuorumFetchResponse(ErrorCode.NONE, ErrorCode.NONE, 2, 5, 70, 3, None, None, b"records", LEADER)),
    (ApiKey.FETCH, QuorumFetchResponse(leader_id=2, leader_epoch=5, diverging_epoch=QuorumEpochEnd(4, 60))),
    (ApiKey.FETCH, QuorumFetchResponse(leader_id=2, leader_epoch=5, snapshot_id=SnapshotId(60, 4))),
    (ApiKey.FETCH, QuorumFetchResponse(partition_error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=5)),
    (
        ApiKey.FETCH_SNAPSHOT,
        FetchSnapshotResponse(
            ErrorCode.NONE, ErrorCode.NONE, 2, 5, SnapshotId(60, 4), 1 << 33, 1 << 32, b"bytes", LEADER
        ),
    ),
    (
        ApiKey.DESCRIBE_QUORUM,
        DescribeQuorumResponse(
            leader_id=2,
            leader_epoch=5,
            high_watermark=70,
            current_voters=(ReplicaState(2, A, 77, None, 1000), ReplicaState(1, B, -1, 900, 800)),
            observers=(ReplicaState(9, B, 70, 950, None),),
            nodes=(DescribedNode(2, HERE),),
        ),
    ),
    (ApiKey.ADD_RAFT_VOTER, AddRaftVoterResponse(ErrorCode.DUPLICATE_VOTER, "Node 4 is already a voter.")),
    (ApiKey.REMOVE_RAFT_VOTER, RemoveRaftVoterResponse()),
    (ApiKey.UPDATE_RAFT_VOTER, UpdateRaftVoterResponse(ErrorCode.NONE, 2, 5, LEADER)),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_requests_survive_a_round_trip(message: RequestMessage) -> None:
    key = API_OF[type(message)]
    version = VERSIONS[key][1]
    fields = requests.request_fields(message, version)
    assert unknown_fields(key, fields, is_request=True) == []
    entity = read_request(key, version, write_request(key, version, fields))
    assert requests.read_request(key, version, entity) == message


@pytest.mark.parametrize(("key", "message"), RESPONSES)
def test_responses_survive_a_round_trip(key: ApiKey, message: ResponseMessage) -> None:
    version = VERSIONS[key][1]
    fields = responses.answer_fields(message, version, lambda time_ms: time_ms)
    assert unknown_fields(key, fields) == []
    entity = read_response(key, version, write_response(key, version, fields))
    assert responses.read_answer(key, entity) == message


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_older_versions_omit_fields_they_lack(message: RequestMessage) -> None:
    key = API_OF[type(message)]
    low, high = VERSIONS[key]
    for version in range(max(low, 12) if key is ApiKey.FETCH else low, high + 1):
        body = write_request(key, version, requests.request_fields(message, version))
        read = requests.read_request(key, version, read_request(key, version, body))
        assert type(read) is type(message)
        if isinstance(message, QuorumFetchRequest):
            assert isinstance(read, QuorumFetchRequest)
            assert (read.replica_id, read.fetch_offset, read.last_fetched_epoch) == (3, 77, 4)
            assert read.high_watermark == (message.high_watermark if version >= 18 else None)
        if isinstance(message, VoteRequest):
            assert read == replace(
                message,
                replica_directory_id=A if version >= 1 else UUID(int=0),
                voter_directory_id=B if version >= 1 else UUID(int=0),
                voter_id=2 if version >= 1 else -1,
                pre_vote=version >= 2,
            )


@pytest.mark.parametrize(("key", "message"), RESPONSES)
def test_responses_in_older_versions_can_be_read(key: ApiKey, message: ResponseMessage) -> None:
    low, high = VERSIONS[key]
    for version in range(max(low, 12) if key is ApiKey.FETCH else low, high + 1):
        body = write_response(key, version, responses.answer_fields(message, version, lambda time_ms: time_ms))
        assert responses.read_answer(key, read_response(key, version, body)).error_code == message.error_code


def test_a_pre_vote_needs_version_2() -> None:
    """K8: a peer without it is sent nothing; the quorum then becomes a candidate at once."""
    pre_vote, vote = REQUESTS[0], replace(REQUESTS[0], pre_vote=False)  # type: ignore[type-var]
    assert version_for(pre_vote, {ApiKey.VOTE: (0, 1)}) is None
    assert version_for(vote, {ApiKey.VOTE: (0, 1)}) == 1
    assert version_for(pre_vote, {ApiKey.VOTE: (0, 5)}) == 2
    assert version_for(pre_vote, {}) is None
    assert responses.unsupported(pre_vote) == VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(
    ("key", "topics", "error"),
    [
        (ApiKey.VOTE, [], ErrorCode.INVALID_REQUEST),
        (ApiKey.VOTE, [("other", [0])], ErrorCode.INVALID_REQUEST),
        (ApiKey.VOTE, [(METADATA_TOPIC, [1])], ErrorCode.INVALID_REQUEST),
        (ApiKey.VOTE, [(METADATA_TOPIC, [0]), ("other", [0])], ErrorCode.INVALID_REQUEST),
        (ApiKey.BEGIN_QUORUM_EPOCH, [(METADATA_TOPIC, [0, 1])], ErrorCode.INVALID_REQUEST),
        (ApiKey.END_QUORUM_EPOCH, [(METADATA_TOPIC, [])], ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_topics_and_partitions_are_rejected(
    key: ApiKey, topics: list[tuple[str, list[int]]], error: ErrorCode
) -> None:
    """G27: exactly one topic with one partition."""
    fields = {
        "topics": [
            {"topic_name": name, "partitions": [{"partition_index": index} for index in partitions]}
            for name, partitions in topics
        ]
    }
    entity = read_request(key, 1, write_request(key, 1, fields))
    with pytest.raises(requests.UnexpectedPartition) as refused:
        requests.read_request(key, 1, entity)
    assert refused.value.answer["error_code"] is error
    write_response(key, 1, refused.value.answer)


def test_unknown_partitions_of_describe_and_fetch_snapshot_get_a_partition_error() -> None:
    """Q13, N28: partition-level 3."""
    fields = {"topics": [{"topic_name": "other", "partitions": [{"partition_index": 7}]}]}
    entity = read_request(ApiKey.DESCRIBE_QUORUM, 2, write_request(ApiKey.DESCRIBE_QUORUM, 2, fields))
    with pytest.raises(requests.UnexpectedPartition) as refused:
        requests.read_request(ApiKey.DESCRIBE_QUORUM, 2, entity)
    body = write_response(ApiKey.DESCRIBE_QUORUM, 2, refused.value.answer)
    one = read_response(ApiKey.DESCRIBE_QUORUM, 2, body).topics[0].partitions[0]
    assert (one.partition_index, one.error_code) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    fields = {"topics": [{"name": "other", "partitions": [{"partition": 7}]}]}
    entity = read_request(ApiKey.FETCH_SNAPSHOT, 1, write_request(ApiKey.FETCH_SNAPSHOT, 1, fields))
    with pytest.raises(requests.UnexpectedPartition) as refused:
        requests.read_request(ApiKey.FETCH_SNAPSHOT, 1, entity)
    body = write_response(ApiKey.FETCH_SNAPSHOT, 1, refused.value.answer)
    one = read_response(ApiKey.FETCH_SNAPSHOT, 1, body).topics[0].partitions[0]
    assert (one.index, one.error_code) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_stopping_node_answers_that_it_does_not_lead(message: RequestMessage) -> None:
    key = API_OF[type(message)]
    version = VERSIONS[key][1]
    answer = responses.closing(message, -1, 5)
    read = responses.read_answer(
        key,
        read_response(
            key, version, write_response(key, version, responses.answer_fields(answer, version, lambda t: t))
        ),
    )
    codes = {read.error_code, getattr(read, "partition_error_code", ErrorCode.NONE)}
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in codes
