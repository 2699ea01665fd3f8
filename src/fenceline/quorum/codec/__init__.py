"""The quorum's messages as Kafka's requests and responses, and back. Pure: no I/O, no decisions.

Owns the API and the version of a message; `codec.requests` and `codec.responses` own the fields. They are not imported
here, so that a start need not import them. Fields that a version lacks are omitted.

Rules: raft.md Q13, Q14, Q37; snapshots.md N28-N30; since_4_0.md K4, K8, K12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    ApiVersionsRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RemoveRaftVoterRequest,
    RequestMessage,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from fenceline.wire.apis import ApiKey

VERSIONS: Final[Mapping[ApiKey, tuple[int, int]]] = {
    ApiKey.FETCH: (4, 18),
    ApiKey.VOTE: (0, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1),
    ApiKey.END_QUORUM_EPOCH: (0, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.FETCH_SNAPSHOT: (0, 1),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0),
}
"""Versions served, both ends inclusive (K4)."""

API_OF: Final[Mapping[type[RequestMessage], ApiKey]] = {
    QuorumFetchRequest: ApiKey.FETCH,
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
