"""The quorum's read-only view of the log. The log changes only through duties.

Every result is valid at the moment of the call. The driver executes the duties of a call before it makes the next one,
so the quorum never sees a log that lags behind its orders.

Rules: raft.md Q18, Q29, Q40; snapshots.md N1, N26, N27, N47; epochs.md E13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from fenceline.quorum.control_records import Voter


class QuorumLogEnd(NamedTuple):
    """The log's end: epoch of the last record (0 if empty) and next offset."""

    epoch: int
    offset: int


NO_PROMISED_END: Final = QuorumLogEnd(0, 0)


class QuorumEpochEnd(NamedTuple):
    """An epoch and its exclusive end offset. (-1, -1) = undefined."""

    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    """N1: exclusive end offset and the epoch of the last record before it."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    def is_beyond(self, end: QuorumLogEnd) -> bool:
        """Whether a log that ends at `end` lacks records of this snapshot (N1: by epoch, then offset)."""
        return (self.epoch, self.end_offset) > end


BOOTSTRAP_SNAPSHOT: Final = SnapshotId(0, 0)
"""Written by the format command; never sent to other nodes (N4)."""


@dataclass(frozen=True, slots=True)
class VotersAt:
    """The voter set that is in force from `offset` on (Q40).

    `offset` is that of the KRAFT_VOTERS record, or -1 if the set comes from the format command and is in no log yet.
    A snapshot's set has the offset of the snapshot's last record.
    """

    offset: int
    kraft_version: int
    voters: tuple[Voter, ...]


class LogView(Protocol):
    """See the module."""

    @property
    def end(self) -> QuorumLogEnd:
        """N47: an empty log that starts at a snapshot ends in the snapshot's epoch."""
        ...

    @property
    def flushed(self) -> QuorumLogEnd:
        """The durable part of `end`. At boot everything is flushed."""
        ...

    @property
    def promised(self) -> QuorumLogEnd:
        """The log end that this node has acknowledged and lacks since its log was reset, or truncated at a hole (G24);
        `NO_PROMISED_END` if it lacks nothing."""
        ...

    @property
    def start_offset(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> QuorumEpochEnd:
        """E13, with all its cases; undefined is (-1, -1)."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        """Size of a frozen snapshot in bytes, None if it is not here."""
        ...

    @property
    def voters(self) -> VotersAt | None:
        """The newest voter set in the log, committed or not, or else in the newest snapshot; None if neither has
        one."""
        ...

    def voters_before(self, offset: int) -> VotersAt | None:
        """The voter set in force before the record at `offset`, if still known."""
        ...
