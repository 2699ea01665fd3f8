"""Downloading a snapshot from the leader in pieces (FetchSnapshot).

Owns the one download that may be in progress. The log, older snapshots and the high watermark stay unchanged until the
complete file is verified and frozen. A response that does not match discards the partial file and restarts with a
Fetch; it is never fatal (G25). If the source is lost, the partial file is kept: the download resumes where it stopped
if the same node offers the same snapshot again (G29). Only one node's file of a snapshot id is certain to have the same
bytes.

Until the file is complete, votes depend on the old log alone (N37). Each response shows that the leader is alive;
without responses this node looks for another leader (N38).

Rules: snapshots.md N33-N39; raft.md Q18, Q28; gaps.md G24-G26, G29.
"""

from __future__ import annotations

from dataclasses import dataclass

from fenceline.errors import ErrorCode
from fenceline.quorum.core import Core
from fenceline.quorum.duties import BeginDownload, DropDownload, Level, LoadSnapshot, VerifyAndFreeze, WritePiece
from fenceline.quorum.log_view import BOOTSTRAP_SNAPSHOT, SnapshotId
from fenceline.quorum.messages import FetchSnapshotRequest, FetchSnapshotResponse
from fenceline.quorum.roles import Leader


@dataclass(slots=True)
class _State:
    snapshot_id: SnapshotId
    source: int
    position: int | None = None
    """Bytes on disk; None while the driver opens or writes the file."""
    is_open: bool = False
    """Until then, reports belong to an earlier download that was dropped."""
    size: int | None = None
    is_verifying: bool = False


class Download:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state: _State | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the next request to the leader is about the snapshot."""
        return self._state is not None and self._state.source == self._core.leader_id

    def offered(self, snapshot_id: SnapshotId, source: int) -> bool:
        """N33: the leader answers a Fetch with a snapshot. False: back off."""
        core = self._core
        if snapshot_id.end_offset < 0 or snapshot_id.epoch < 0 or snapshot_id == BOOTSTRAP_SNAPSHOT:
            core.log_line(Level.ERROR, f"The leader {source} offered a snapshot with the invalid id {snapshot_id}.")
            return False
        if core.log.snapshot_size(snapshot_id) is not None:
            return self._load(snapshot_id)
        state = self._state
        if state is not None and state.snapshot_id == snapshot_id and state.source == source:
            return True
        self.drop()
        self._state = _State(snapshot_id, source)
        core.duties.append(BeginDownload(snapshot_id, source))
        return True

    def next_request(self) -> FetchSnapshotRequest | None:
        """None while an open, a write or a verification is in progress."""
        core, state = self._core, self._state
        if state is None or state.position is None or state.is_verifying:
            return None
        return FetchSnapshotRequest(
            core.settings.cluster_id,
            core.local_id,
            core.epoch,
            state.snapshot_id,
            state.position,
            core.settings.fetch_snapshot_max_bytes,
            core.local.voter_directory_id,
        )

    def begun(self, snapshot_id: SnapshotId, position: int) -> None:
        """The partial file is open and has `position` bytes."""
        state = self._state
        if state is not None and state.snapshot_id == snapshot_id and not state.is_open:
            state.is_open = True
            state.position = position

    def answered(self, asked: FetchSnapshotRequest, response: FetchSnapshotResponse) -> bool:
        """Handle a piece, or an error about the snapshot. False: back off."""
        state = self._state
        if state is None or asked.snapshot_id != state.snapshot_id or asked.position != state.position:
            return True
        problem = _problem(state, response)
        if problem:
            self._core.log_line(
                Level.WARNING,
                f"Discarding the snapshot {state.snapshot_id.file_name} from node {state.source}: {problem}",
                "It will be fetched again. If this repeats, check the metadata log directory of that node.",
            )
            self.drop()
            return False
        state.size = response.size
        state.position = None
        self._core.duties.append(WritePiece(state.snapshot_id, response.position, response.unaligned_records))
        return True

    def written(self, snapshot_id: SnapshotId, end_position: int) -> None:
        """The partial file has `end_position` bytes now."""
        state = self._state
        if state is None or state.snapshot_id != snapshot_id or not state.is_open or state.position is not None:
            return
        state.position = end_position
        if state.size is not None and end_position == state.size:
            state.is_verifying = True
            self._core.duties.append(VerifyAndFreeze(snapshot_id, end_position))

    def failed(self, snapshot_id: SnapshotId, reason: str) -> None:
        """A write failed, or the file is not a complete snapshot (G24)."""
        if self._state is not None and self._state.snapshot_id == snapshot_id:
            self._core.log_line(
                Level.WARNING,
                f"Discarding the snapshot {snapshot_id.file_name} from node {self._state.source}: {reason}",
                "It will be fetched again. If this repeats, check the disk and the network.",
            )
            self.drop()

    def frozen(self, snapshot_id: SnapshotId) -> None:
        """N35: the file is verified, durable and renamed."""
        if self._state is not None and self._state.snapshot_id == snapshot_id:
            self._state = None
            self._load(snapshot_id)

    def _load(self, snapshot_id: SnapshotId) -> bool:
        """Load the snapshot, never on a leader (Q55) and never backwards. A snapshot's content is committed."""
        core = self._core
        if isinstance(core.role, Leader) or not snapshot_id.is_beyond(core.log.end):
            return False
        core.log_is_changing = True
        core.duties.append(LoadSnapshot(snapshot_id))
        return True

    def loaded(self) -> None:
        """N36: the log starts and ends at the newest snapshot."""
        latest = self._core.log.latest_snapshot
        if latest is not None:
            self._core.advance_high_watermark(latest.end_offset)

    def drop(self) -> None:
        if self._state is not None:
            self._core.duties.append(DropDownload(self._state.snapshot_id))
            self._state = None


def _problem(state: _State, response: FetchSnapshotResponse) -> str:
    """Why the piece does not match; empty if it does (N34)."""
    if response.partition_error_code is not ErrorCode.NONE:
        return f"the response has the error {response.partition_error_code.name}"
    if response.snapshot_id != state.snapshot_id:
        return f"the response is for {response.snapshot_id.file_name}"
    if response.position != state.position:
        return f"the response is for position {response.position}, the request was for {state.position}"
    if state.size not in (None, response.size):
        return f"its size changed from {state.size} to {response.size} bytes"
    end = response.position + len(response.unaligned_records)
    if end == response.position or end > response.size:
        return f"invalid piece from {response.position} to {end} of {response.size} bytes"
    return ""
