"""Conversion of the quorum's messages to Kafka's requests and responses and back.

Owns the API and version of a message; `codec.requests`, `codec.response_encoder` and
`codec.response_decoder` own the fields. Pure: no I/O, no decisions. Fields that a version lacks are omitted.

Rules: raft.md Q13, Q14, Q37; snapshots.md N28-N30; since_4_0.md K4, K8, K12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.quorum.codec.requests import UnexpectedPartition as UnexpectedPartition
from fenceline.quorum.codec.requests import read_request as read_request
from fenceline.quorum.codec.requests import request_fields as request_fields
from fenceline.quorum.codec.response_decoder import read_answer as read_answer
from fenceline.quorum.codec.response_decoder import read_api_versions as read_api_versions
from fenceline.quorum.codec.response_encoder import WallTime as WallTime
from fenceline.quorum.codec.response_encoder import answer_fields as answer_fields
from fenceline.quorum.codec.response_encoder import closing as closing
from fenceline.quorum.codec.response_encoder import unsupported as unsupported
from fenceline.quorum.codec.versions import VERSIONS as VERSIONS
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    ApiVersionsRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    RequestMessage,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from fenceline.wire.apis import ApiKey

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
"""Lower versions lack fields that the quorum needs (the last epoch of the follower's log)."""
_PRE_VOTE: Final = 2


def version_for(message: RequestMessage, offered: Mapping[int, tuple[int, int]]) -> int | None:
    """The newest version that both sides support and that can carry `message`; None if there is none."""
    key = API_OF[type(message)]
    low, high = offered.get(key, (0, -1))
    version = min(high, VERSIONS[key][1])
    oldest = _PRE_VOTE if isinstance(message, VoteRequest) and message.pre_vote else _OLDEST_ASKED.get(key, 0)
    return version if version >= max(low, oldest) else None
