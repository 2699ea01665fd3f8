"""What the quorum wants done: every call returns duties, in the order in which the driver must do them.

The driver does all duties of a call before it makes the next call; the effect of a duty is reported by a call of its
own, once the list is done:

| Duty | Is done when the list goes on | Reported by |
|---|---|---|
| PersistElection | durable; all calls wait | - |
| AppendControlBatch, AppendFetched | appended; a flush is under way | `appended`, then `flushed` (or `append_failed`) |
| Truncate | the log ends there; all calls wait | `truncated` |
| LoadSnapshot | log and image begin anew at the snapshot; all calls wait | `snapshot_loaded` or `snapshot_not_loaded` |
| BeginDownload | handed over | `download_begun` |
| WritePiece | handed over | `piece_written` or `download_failed` |
| VerifyAndFreeze | handed over | `snapshot_frozen` or `download_failed` |
| Send | handed over | `response` or `no_response`, with its request id, at most once |
| the others | handed over | - |

Nothing of a list may be skipped, but of adjacent PersistElection only the last need be written: nobody has seen what
the others say. A crash may come between any two duties.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fenceline.quorum.control_records import ControlRecord
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import FetchResponse, FetchSnapshotResponse, Records, RequestMessage, ResponseMessage

Token: TypeAlias = Any
"""Whatever the driver gave with a request: it comes back once, with the answer. Hashable."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Where to send. `node_id` is below -1 for a bootstrap server, of which only the address is known."""

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
    """Append the leader's batches as they are, beginning at `base_offset`, which is the log's end; flush if `flush`.

    The driver takes whole, undamaged batches that follow on each other and whose epochs do not fall and do not exceed
    `leader_epoch` (K14, G11), and stops at the first that is not such. Nothing taken: `append_failed`.
    """

    records: Records
    base_offset: int
    leader_epoch: int
    flush: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log so that it ends at `end_offset`; it was not committed there."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. `request_id` is this node's own and never repeats."""

    destination: Peer
    request_id: int
    message: RequestMessage


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request."""

    token: Token
    message: ResponseMessage


@dataclass(frozen=True, slots=True)
class ServeRecords:
    """Answer a Fetch with `answer` and records from `offset` on: at most `max_bytes`, at least one batch, none at or
    past `end_offset`."""

    token: Token
    offset: int
    max_bytes: int
    end_offset: int
    answer: FetchResponse


@dataclass(frozen=True, slots=True)
class ServePiece:
    """Answer a FetchSnapshot with `answer` and the bytes of the file from `position` on, at most `max_bytes`.

    A file that has vanished is answered with SNAPSHOT_NOT_FOUND.
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
    """This node no longer leads `epoch`; comes also where `Lead` was never said. What it appended may get lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BeginDownload:
    """Open the partial file of a snapshot that comes from node `source`.

    What is there already of the same snapshot from the same source is kept: `download_begun` says where to go on (G29).
    """

    snapshot_id: SnapshotId
    source: int


@dataclass(frozen=True, slots=True)
class WritePiece:
    """Write at `position`, the partial file's end."""

    snapshot_id: SnapshotId
    position: int
    content: Records


@dataclass(frozen=True, slots=True)
class VerifyAndFreeze:
    """Check the whole partial file of `size` bytes (header first, footer last, every CRC: G24), fsync, rename."""

    snapshot_id: SnapshotId
    size: int


@dataclass(frozen=True, slots=True)
class DropDownload:
    """Delete the partial file; a `VerifyAndFreeze` under way may still end either way and need not be reported."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The frozen snapshot replaces the log: the log starts and ends at its end, older snapshots go (N35)."""

    snapshot_id: SnapshotId


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Log:
    """Something that an operator must hear: what, and what to do where something is to be done."""

    level: Level
    text: str
    advice: str = ""


Duty: TypeAlias = (
    PersistElection
    | AppendControlBatch
    | AppendFetched
    | Truncate
    | Send
    | Answer
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
    | Log
)
