"""What the quorum asks of the log. Read-only: the log changes only through duties.

Every answer is of the moment of the call; the driver does a call's duties before it makes the next call, so the quorum
never sees a log that lags behind what it has ordered.

Rules: raft.md Q18, Q29, Q40; snapshots.md N1, N26, N27, N47; epochs.md E13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from fenceline.quorum.control_records import Voter


class LogEnd(NamedTuple):
    """Where the log ends: epoch of the last record (0 when empty) and the next offset."""

    epoch: int
    offset: int


NOTHING: Final = LogEnd(0, 0)


class EpochEnd(NamedTuple):
    """An epoch and where it ends, exclusive. (-1, -1) = undefined."""

    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    """N1: exclusive end offset and the epoch of the last record before it."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    def is_beyond(self, end: LogEnd) -> bool:
        """Whether a log that ends at `end` lacks something of this snapshot (N1: by epoch, then offset)."""
        return (self.epoch, self.end_offset) > end


BOOTSTRAP_SNAPSHOT: Final = SnapshotId(0, 0)
"""Written by the format command; never sent to others (N4)."""


@dataclass(frozen=True, slots=True)
class VotersAt:
    """The voter set that is in force from `offset` on (Q40).

    `offset` is that of the KRAFT_VOTERS record, -1 where the set comes from the format command and is in no log yet.
    A snapshot's set has the offset of the snapshot's last record.
    """

    offset: int
    kraft_version: int
    voters: tuple[Voter, ...]


class LogView(Protocol):
    """See the module."""

    @property
    def end(self) -> LogEnd:
        """N47: an empty log that starts at a snapshot ends in the snapshot's epoch."""
        ...

    @property
    def flushed(self) -> LogEnd:
        """The part of `end` that no crash can take. At boot everything is flushed."""
        ...

    @property
    def promised(self) -> LogEnd:
        """What this node has told others that it has, and lacks since its log had to begin anew, or was cut at a hole
        (G24); `NOTHING` where it lacks nothing."""
        ...

    @property
    def start_offset(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """E13, with all its cases; undefined is (-1, -1)."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        """Bytes of a frozen snapshot, None for one that is not here."""
        ...

    @property
    def voters(self) -> VotersAt | None:
        """The newest set in the log, committed or not, else in the newest snapshot; None where there is neither."""
        ...

    def voters_before(self, offset: int) -> VotersAt | None:
        """The set that was in force before the record at `offset`, as far as it is still known."""
        ...
