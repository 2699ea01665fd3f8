"""Inputs and outputs of the coordinator: times, requests, responses, duties. Data only; reads no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.coordination import Now as Now
from fenceline.coordination import Ticket as Ticket
from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Name and metadata of each protocol, in the member's order of preference."""
Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""By topic id; no topic without a partition."""

NO_MEMBER_ID: Final = ""
NO_GENERATION: Final = -1
NO_OFFSET: Final = -1
ALL_OPERATIONS_UNKNOWN: Final = -(1 << 31)


# --- requests ----------------------------------------


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member enters the group, or enters the next generation."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    must_know_member_id: bool = True
    """From JoinGroup v4 a new dynamic member first gets its id and then joins with it (KIP-394)."""
    may_skip_assignment: bool = True
    """From JoinGroup v9 the response can tell a returning static leader not to assign (KIP-814)."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member requests its assignment; the leader sends everyone's."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class ClassicHeartbeat:
    """A member's heartbeat."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Members leave, or an administrator removes them."""

    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatRequest:
    """Of a member of the consumer protocol: heartbeat, join (epoch 0) or leave (-1; -2 for a static one that will
    return). None means unchanged; for `owned`, not reported."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_names: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    must_bring_member_id: bool = True
    """From version 1 on the client generates its id (KIP-1082)."""
    shows_topic: Callable[[str], bool] | None = None
    """Whether the member's user may see a topic; None: all."""

    @property
    def is_full(self) -> bool:
        """All fields are set, as after an error: the response must be complete, too."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.subscribed_names is not None or self.subscribed_regex is not None)
            and self.owned is not None
        )


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Offsets to store for a group, or for a standalone consumer."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    """Versions 2-4 only; -1 means the broker's retention."""
    knows_group_not_found: bool = True
    """From OffsetCommit v9 an unknown group gets error 69, before that 22."""


class TransactionalProducer(NamedTuple):
    """The producer of a transaction, with what the log needs to accept its batch."""

    producer_id: int
    epoch: int
    guard: object = None
    """Opaque: proves to the log that the transaction's coordinator knows of the partition."""


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    """TxnOffsetCommit: offsets that count once the producer's transaction is committed."""

    group_id: str
    producer: TransactionalProducer
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """A marker of WriteTxnMarkers for a partition of `__consumer_offsets`."""

    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class TopicToFetch(NamedTuple):
    topic: str
    partitions: tuple[int, ...]
    topic_id: UUID = ZERO_UUID
    """The topic's current id; ZERO_UUID if unknown. Offsets of another id are not returned (K32)."""


@dataclass(frozen=True, slots=True)
class FetchOffsetsRequest:
    """Which committed offsets to return."""

    group_id: str
    topics: tuple[TopicToFetch, ...] | None
    """None: every topic of the group."""
    require_stable: bool = False
    member_id: str | None = None
    """From OffsetFetch v9 on a member of a consumer protocol group sends its id and its epoch."""
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOffsetsRequest:
    """Delete committed offsets of (topic, partition)."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


# --- answers ----------------------------------------


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The new generation; only its leader gets the members."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """This member's assignment."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Whether the member may continue."""

    error: ErrorCode = ErrorCode.NONE


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveResponse:
    """One outcome per member."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[tuple[UUID, tuple[int, ...]], ...] | None = None
    """None: unchanged."""


@dataclass(frozen=True, slots=True)
class CommitResponse:
    """One code for each offset of the request, in its order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class TransactionEndedInGroup:
    """The marker is committed, and the transaction's offsets are visible or dropped; or why not."""

    error: ErrorCode


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class FetchOffsetsResponse:
    """Per topic, the committed offset of each partition."""

    error: ErrorCode = ErrorCode.NONE
    topics: tuple[tuple[str, tuple[FetchedOffset, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsetsResponse:
    """`errors` has one code for each partition of the request, in its order; empty with a top-level error."""

    error: ErrorCode = ErrorCode.NONE
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """A code for each group of the request, in its order."""

    errors: tuple[tuple[str, ErrorCode], ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """The fields of DescribeGroups."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


Outcome: TypeAlias = (
    JoinResponse
    | SyncResponse
    | HeartbeatResponse
    | LeaveResponse
    | CommitResponse
    | TransactionEndedInGroup
    | FetchOffsetsResponse
    | DeleteOffsetsResponse
    | DeleteGroupsResponse
    | ConsumerHeartbeatResponse
)


# --- duties ----------------------------------------

KeyValue: TypeAlias = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class AppendGroupRecords:
    """Append these records as one batch, as the leader of this epoch only; then call `appended` or `append_failed` with
    the write id, and `append_is_late` before that if it takes too long."""

    partition: int
    leader_epoch: int
    write_id: int
    records: tuple[KeyValue, ...]
    producer: TransactionalProducer | None = None
    """Of a transactional batch."""


@dataclass(frozen=True, slots=True)
class AppendGroupMarker:
    """Append this end marker; otherwise as `AppendGroupRecords`."""

    leader_epoch: int
    write_id: int
    end: EndOfTransaction


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """A response, and the ticket of the request that waits for it."""

    ticket: Ticket
    outcome: Outcome


class CommittedRewind(NamedTuple):
    """A committed position that moved back."""

    from_offset: int
    from_epoch: int
    to_offset: int
    to_epoch: int
    at_ms: int
    """When the commit that moved back was made."""


@dataclass(frozen=True, slots=True)
class OffsetRewound:
    """An accepted commit moved backwards because the log was truncated: log it for the operator."""

    group_id: str
    topic: str
    partition: int
    rewind: CommittedRewind


class CommittedPosition(NamedTuple):
    """An offset that was committed by a group."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PositionsDropped:
    """Offsets that were committed for deleted topics are removed now, or replaced by those of new ones: compare them
    with what the logs had."""

    positions: tuple[CommittedPosition, ...]


Duty: TypeAlias = AppendGroupRecords | AppendGroupMarker | GroupAnswer | OffsetRewound | PositionsDropped
