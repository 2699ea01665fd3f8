"""The quorum's view of the metadata log (`fenceline.quorum.log_view.LogView`).

Owns two things that the log itself does not track: its durable end, and its voter sets by offset.

Rules: raft.md Q18, Q40; snapshots.md N26, N27, N47; epochs.md E13.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.quorum.control_records import ControlRecord, KRaftVersion, KRaftVoters, LeaderChange, Voter
from fenceline.quorum.log_view import QuorumEpochEnd, QuorumLogEnd, SnapshotId, VotersAt
from fenceline.quorum.voter_set import VoterHistory


class QuorumLog:
    """See the module. Everything present at the start is durable."""

    def __init__(
        self,
        log: MetadataLog,
        history: VoterHistory,
        kraft_version: int,
        leader_change: LeaderChange | None = None,
    ) -> None:
        self._log = log
        self._history = history
        self._kraft_version = kraft_version
        self._flushed_offset = log.end_offset
        self.leader_change = leader_change
        """The newest known LEADER_CHANGE: the leader and its voters."""

    # -- updates from the driver -------------------------------------------------------------------------------------

    def flushed_to(self, end_offset: int) -> None:
        """Everything before `end_offset` is durable."""
        self._flushed_offset = max(self._flushed_offset, end_offset)

    def control_appended(self, base_offset: int, records: Sequence[ControlRecord | None]) -> None:
        """A control batch was appended whose first record is at `base_offset`; None is a record of an unknown type."""
        for offset, record in enumerate(records, base_offset):
            if isinstance(record, LeaderChange):
                self.leader_change = record
            elif isinstance(record, KRaftVersion):
                self._kraft_version = record.k_raft_version
            elif isinstance(record, KRaftVoters):
                self._history.add(VotersAt(offset, self._kraft_version, record.voters))

    def truncated(self, end_offset: int) -> None:
        """The log was truncated to `end_offset` (Q40)."""
        self._flushed_offset = min(self._flushed_offset, end_offset)
        self._history.truncate(end_offset)
        newest = self._history.latest
        self._kraft_version = newest.kraft_version if newest is not None else 0

    def snapshot_loaded(self, snapshot: SnapshotId, kraft_version: int, voters: Sequence[Voter]) -> None:
        """A snapshot has replaced the log (N36); `voters` are those it stores, empty for none."""
        self._flushed_offset = snapshot.end_offset
        self._kraft_version = kraft_version
        stored = VotersAt(snapshot.end_offset - 1, kraft_version, tuple(voters)) if voters else None
        self._history.load(stored)

    def forget_voters_before(self, end_offset: int) -> None:
        """N17: the log now starts at `end_offset`."""
        self._history.forget_before(end_offset)

    # -- LogView -----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> QuorumLogEnd:
        return self._log.end

    @property
    def flushed(self) -> QuorumLogEnd:
        end = self._log.end
        if self._flushed_offset >= end.offset:
            return end
        epoch = self._log.partition_log.epochs.epoch_for_offset(self._flushed_offset - 1)
        if epoch < 0:
            latest = self.latest_snapshot
            epoch = latest.epoch if latest is not None and latest.end_offset == self._flushed_offset else 0
        return QuorumLogEnd(epoch, self._flushed_offset)

    @property
    def promised(self) -> QuorumLogEnd:
        return self._log.promised

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    def end_offset_for_epoch(self, epoch: int) -> QuorumEpochEnd:
        return QuorumEpochEnd(*self._log.partition_log.end_offset_for_epoch(epoch))

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self._log.snapshots[0] if self._log.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._log.snapshots[-1] if self._log.snapshots else None

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        if snapshot_id not in self._log.snapshots:
            return None
        return self._log.snapshot_sizes((snapshot_id,)).get(snapshot_id)

    @property
    def voters(self) -> VotersAt | None:
        return self._history.latest

    def voters_before(self, offset: int) -> VotersAt | None:
        return self._history.at(offset)
