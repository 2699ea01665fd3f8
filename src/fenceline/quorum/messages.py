"""Requests and responses between nodes of the quorum: values only.

Fields have the names of the wire protocol. Every message concerns the single partition of the single topic, so both are
left out: the node rejects other requests before they get here (exactly one topic with one partition, `gaps.md G27`). In
a response, `error_code` is the top-level error and `partition_error_code` that of the partition. Absent ids and epochs
are -1. A field that a version lacks has its default after decoding, and is omitted when encoding.

Times in ms are on the quorum's monotonic clock; the node converts them to wall-clock time where the protocol needs it.

Rules: raft.md Q13-Q30, Q37, Q41-Q43; snapshots.md N27-N31; since_4_0.md K8, K12, K16.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import KRaftVersionFeature, VoterEndpoint
from fenceline.quorum.election_state import NO_NODE as NO_NODE
from fenceline.quorum.log_view import BOOTSTRAP_SNAPSHOT, QuorumEpochEnd, SnapshotId

Records: TypeAlias = Sized
"""Unchanged record batches. The quorum checks only whether there are any."""

NO_KRAFT_VERSION: Final = KRaftVersionFeature()


class ReplicaKey(NamedTuple):
    """A replica by id and directory (Q45). The zero UUID: unknown, or static voters."""

    replica_id: int
    replica_directory_id: UUID = ZERO_UUID


class QuorumNodeEndpoint(NamedTuple):
    """A node's address, as responses name the leader's."""

    node_id: int
    host: str
    port: int


# -- elections --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Vote (52). `voter_*` is the receiver as known to the sender; `replica_*` is the sender.

    A pre-vote (version 2) has the current epoch as `replica_epoch`, a vote the new one. If the peer does not support
    version 2, the driver itself completes a pre-vote with `VoteResponse(error_code=UNSUPPORTED_VERSION)` (K8).
    """

    cluster_id: str | None
    replica_epoch: int
    replica_id: int
    last_offset_epoch: int
    last_offset: int
    replica_directory_id: UUID = ZERO_UUID
    voter_id: int = NO_NODE
    voter_directory_id: UUID = ZERO_UUID
    pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    vote_granted: bool = False
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """BeginQuorumEpoch (53): the sender leads."""

    cluster_id: str | None
    leader_id: int
    leader_epoch: int
    voter_id: int = NO_NODE
    voter_directory_id: UUID = ZERO_UUID
    leader_endpoints: tuple[VoterEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochResponse:
    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """EndQuorumEpoch (54): the sender no longer leads. `preferred_candidates` in descending order of their log ends;
    from version 0 (`preferred_successors`) without directories."""

    cluster_id: str | None
    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[ReplicaKey, ...] = ()
    leader_endpoints: tuple[VoterEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class EndQuorumEpochResponse:
    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()


# -- replication ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuorumFetchRequest:
    """Fetch (1). `high_watermark`: the follower's own (-1 unknown), or None if the request has none (K12: tag absent,
    or a version below 18)."""

    cluster_id: str | None
    replica_id: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    replica_directory_id: UUID = ZERO_UUID
    max_wait_ms: int = 500
    min_bytes: int = 0
    max_bytes: int = 1 << 20
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class QuorumFetchResponse:
    """`records`, `diverging_epoch` and `snapshot_id` exclude each other. `leader_*` is the wire's CurrentLeader."""

    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging_epoch: QuorumEpochEnd | None = None
    snapshot_id: SnapshotId | None = None
    records: Records = b""
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()
    is_prompt: bool = False
    """Not on the wire: the sender is a node that answers each fetch in time (`wire.extensions`)."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    """FetchSnapshot (59)."""

    cluster_id: str | None
    replica_id: int
    current_leader_epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int
    replica_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """`size` of the file and `position` of the piece in bytes."""

    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    snapshot_id: SnapshotId = BOOTSTRAP_SNAPSHOT
    size: int = 0
    position: int = 0
    unaligned_records: Records = b""
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()


# -- description and voters -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeQuorumRequest:
    """DescribeQuorum (55)."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The leader's knowledge of a replica: offset -1 = unknown; times on the quorum's clock, None = never."""

    replica_id: int
    replica_directory_id: UUID
    log_end_offset: int
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None


@dataclass(frozen=True, slots=True)
class DescribedNode:
    node_id: int
    listeners: tuple[VoterEndpoint, ...]


@dataclass(frozen=True, slots=True)
class DescribeQuorumResponse:
    error_code: ErrorCode = ErrorCode.NONE
    partition_error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    high_watermark: int = -1
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()
    nodes: tuple[DescribedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class AddRaftVoterRequest:
    """AddRaftVoter (80). Below version 1 `ack_when_committed` is True."""

    cluster_id: str | None
    timeout_ms: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[VoterEndpoint, ...]
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class RemoveRaftVoterRequest:
    """RemoveRaftVoter (81)."""

    cluster_id: str | None
    voter_id: int
    voter_directory_id: UUID


@dataclass(frozen=True, slots=True)
class AddRaftVoterResponse:
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveRaftVoterResponse:
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateRaftVoterRequest:
    """UpdateRaftVoter (82)."""

    cluster_id: str | None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[VoterEndpoint, ...]
    k_raft_version_feature: KRaftVersionFeature


@dataclass(frozen=True, slots=True)
class UpdateRaftVoterResponse:
    error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_NODE
    leader_epoch: int = -1
    node_endpoints: tuple[QuorumNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """ApiVersions (18): asks a prospective voter for its supported kraft.version range (Q41)."""


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """`k_raft_version_feature` is (0, 0) if the node does not report kraft.version."""

    error_code: ErrorCode = ErrorCode.NONE
    k_raft_version_feature: KRaftVersionFeature = NO_KRAFT_VERSION


RequestMessage: TypeAlias = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | QuorumFetchRequest
    | FetchSnapshotRequest
    | DescribeQuorumRequest
    | AddRaftVoterRequest
    | RemoveRaftVoterRequest
    | UpdateRaftVoterRequest
    | ApiVersionsRequest
)
ResponseMessage: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | QuorumFetchResponse
    | FetchSnapshotResponse
    | DescribeQuorumResponse
    | AddRaftVoterResponse
    | RemoveRaftVoterResponse
    | UpdateRaftVoterResponse
    | ApiVersionsResponse
)
