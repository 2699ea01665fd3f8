"""Duties: what each call of the quorum returns for the driver to execute, in order.

The driver executes all duties of a call before it makes the next call. After that it reports the effect of a duty by a
separate call:

| Duty | State before the next duty | Reported by |
|---|---|---|
| PersistElection | durable; all calls wait | - |
| AppendControlBatch, AppendFetched | appended; a flush is under way | `appended`, then `flushed` (or `append_failed`) |
| Truncate | the log is truncated; all calls wait | `truncated` |
| LoadSnapshot | log and image restart at the snapshot; all calls wait | `snapshot_loaded` or `snapshot_not_loaded` |
| BeginDownload | handed over | `download_begun` |
| WritePiece | handed over | `piece_written` or `download_failed` |
| VerifyAndFreeze | handed over | `snapshot_frozen` or `download_failed` |
| Send | handed over | `response` or `no_response`, with its request id, at most once |
| the others | handed over | - |

No duty may be skipped, except that of adjacent PersistElection duties only the last one need be written: the others
were never visible to a peer. A crash may happen between any two duties.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fenceline.quorum.control_records import ControlRecord
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import (
    FetchSnapshotResponse,
    QuorumFetchResponse,
    Records,
    RequestMessage,
    ResponseMessage,
)

Token: TypeAlias = Any
"""The driver's own handle of a request, returned once, with the response. Hashable."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Address of a node. `node_id` is below -1 for a bootstrap server, whose id is unknown."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PersistElection:
    """Write `quorum-state` durably before anything that follows (Q2)."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class AppendControlBatch:
    """Append one control batch in `epoch` (partitionLeaderEpoch) and flush it."""

    epoch: int
    records: tuple[ControlRecord, ...]


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the leader's batches unchanged at `base_offset`, which is the log's end; flush if `flush`.

    The driver appends complete, valid and contiguous batches whose epochs do not decrease and do not exceed
    `leader_epoch` (K14, G11), and stops at the first other batch. If none was appended it calls `append_failed`.
    """

    records: Records
    base_offset: int
    leader_epoch: int
    flush: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `end_offset`; nothing from there on was committed."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. `request_id` is chosen by this node and never repeats."""

    destination: Peer
    request_id: int
    message: RequestMessage


@dataclass(frozen=True, slots=True)
class QuorumAnswer:
    """Send the response to a request."""

    token: Token
    message: ResponseMessage


@dataclass(frozen=True, slots=True)
class ServeRecords:
    """Respond to Fetches with `answer` and records from `offset`: at most `max_bytes`, at least one batch, none at or
    past `end_offset`."""

    tokens: tuple[Token, ...]
    """In the order in which to respond."""
    offset: int
    max_bytes: int
    end_offset: int
    answer: QuorumFetchResponse


@dataclass(frozen=True, slots=True)
class ServePiece:
    """Respond to a FetchSnapshot with `answer` and at most `max_bytes` of the file from `position`.

    If the file no longer exists, respond with SNAPSHOT_NOT_FOUND.
    """

    token: Token
    snapshot_id: SnapshotId
    position: int
    max_bytes: int
    answer: FetchSnapshotResponse


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class Lead:
    """This node leads `epoch`, and everything before `start_offset` is committed: the controller may become active once
    it has applied what is committed (Q33)."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class StopLeading:
    """This node no longer leads `epoch`; also sent if no `Lead` was. Records that it appended may be lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BeginDownload:
    """Open the partial file of a snapshot from node `source`.

    Bytes of the same snapshot from the same source are kept: `download_begun` reports where to resume (G29).
    """

    snapshot_id: SnapshotId
    source: int


@dataclass(frozen=True, slots=True)
class WritePiece:
    """Write `content` at `position`, the end of the partial file."""

    snapshot_id: SnapshotId
    position: int
    content: Records


@dataclass(frozen=True, slots=True)
class VerifyAndFreeze:
    """Verify the partial file of `size` bytes (header first, footer last, every CRC: G24), fsync, rename."""

    snapshot_id: SnapshotId
    size: int


@dataclass(frozen=True, slots=True)
class DropDownload:
    """Delete the partial file. A `VerifyAndFreeze` in progress may still end either way and need not be reported."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Replace the log by the frozen snapshot: the log starts and ends at its end, older snapshots are deleted (N35)."""

    snapshot_id: SnapshotId


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line for the operator: the event, and the remedy if there is one."""

    level: Level
    text: str
    advice: str = ""


Duty: TypeAlias = (
    PersistElection
    | AppendControlBatch
    | AppendFetched
    | Truncate
    | Send
    | QuorumAnswer
    | ServeRecords
    | ServePiece
    | AdvanceHighWatermark
    | Lead
    | StopLeading
    | BeginDownload
    | WritePiece
    | VerifyAndFreeze
    | DropDownload
    | LoadSnapshot
    | LogLine
)
