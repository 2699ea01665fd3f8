"""A log in memory, with its flushed end and its snapshots.

Records are `Entry` values; a snapshot's bytes represent the hash of all records before its end, and the voters.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumEpochEnd, QuorumLogEnd, SnapshotId, VotersAt
from fenceline.quorum.voter_set import VoterHistory

LEVELS: Final = KRaftVersionFeature(0, 1)
EMPTY_HASH: Final = "0"


class Entry(NamedTuple):
    """A record, and the hash of the log up to and including it."""

    offset: int
    epoch: int
    payload: object
    chain: str


def chain(before: str, epoch: int, payload: object) -> str:
    return hashlib.blake2b(f"{before}|{epoch}|{payload!r}".encode(), digest_size=8).hexdigest()


def voter(node_id: int, directory: int = 0) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", f"n{node_id}", node_id)
    return Voter(node_id, UUID(int=directory or 1000 + node_id), (endpoint,), LEVELS)


class MemoryLog:
    """Implements `LogView`."""

    def __init__(self, bootstrap: VotersAt | None = None) -> None:
        self.entries: list[Entry] = []
        self._epochs: list[tuple[int, int]] = []
        """Epoch and its start offset."""
        self.start_offset = 0
        self.base_chain = EMPTY_HASH
        self.flushed_offset = 0
        self.snapshots: dict[SnapshotId, bytes] = {}
        self.election: ElectionState | None = None
        self.promised = NO_PROMISED_END
        self.history = VoterHistory()
        self._bootstrap = bootstrap
        if bootstrap is not None:
            self.history.add(bootstrap)

    # -- LogView -----------------------------------------------------------------------------------------------------

    def _end_at(self, offset: int) -> QuorumLogEnd:
        if offset > self.start_offset:
            return QuorumLogEnd(self.entries[offset - 1 - self.start_offset].epoch, offset)
        latest = self.latest_snapshot
        return QuorumLogEnd(latest.epoch if latest is not None and latest.end_offset == offset else 0, offset)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def end(self) -> QuorumLogEnd:
        return self._end_at(self.end_offset)

    @property
    def flushed(self) -> QuorumLogEnd:
        return self._end_at(self.flushed_offset)

    def end_offset_for_epoch(self, epoch: int) -> QuorumEpochEnd:
        """E13."""
        epochs = self._epochs
        if epoch < 0:
            return QuorumEpochEnd(-1, -1)
        if epochs and epoch == epochs[-1][0]:
            return QuorumEpochEnd(epoch, self.end_offset)
        if not epochs or epoch > epochs[-1][0]:
            return QuorumEpochEnd(-1, -1)
        position = bisect_right(epochs, (epoch, 1 << 62))
        if position == 0:
            return QuorumEpochEnd(epoch, epochs[0][1])
        return QuorumEpochEnd(epochs[position - 1][0], epochs[position][1])

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return min(self.snapshots, key=lambda each: (each.epoch, each.end_offset), default=None)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self.snapshots, key=lambda each: (each.epoch, each.end_offset), default=None)

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        content = self.snapshots.get(snapshot_id)
        return None if content is None else len(content)

    @property
    def voters(self) -> VotersAt | None:
        return self.history.latest

    def voters_before(self, offset: int) -> VotersAt | None:
        return self.history.at(offset)

    # -- changing ----------------------------------------------------------------------------------------------------

    def chain_at(self, end_offset: int) -> str:
        """The hash of all records before `end_offset`."""
        return self.base_chain if end_offset == self.start_offset else self.at(end_offset - 1).chain

    def at(self, offset: int) -> Entry:
        return self.entries[offset - self.start_offset]

    def append(self, epoch: int, payloads: Sequence[object]) -> None:
        for payload in payloads:
            self.append_entry(
                Entry(self.end_offset, epoch, payload, chain(self.chain_at(self.end_offset), epoch, payload))
            )

    def append_entry(self, entry: Entry) -> None:
        assert entry.offset == self.end_offset, "offsets are consecutive"
        self.entries.append(entry)
        if not self._epochs or self._epochs[-1][0] < entry.epoch:
            self._epochs.append((entry.epoch, entry.offset))
        if isinstance(entry.payload, VotersAt):
            self.history.add(entry.payload)

    def truncate(self, end_offset: int) -> None:
        """Durable at once."""
        del self.entries[end_offset - self.start_offset :]
        self._epochs = [each for each in self._epochs if each[1] < end_offset]
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.history.truncate(end_offset)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def write_snapshot(self, end_offset: int) -> SnapshotId | None:
        """N15: of the committed records before `end_offset`."""
        if end_offset <= self.start_offset:
            return None
        snapshot_id = SnapshotId(end_offset, self.at(end_offset - 1).epoch)
        voters = self.history.at(end_offset)
        described = None
        if voters is not None:
            described = [voters.offset, voters.kraft_version, [each.voter_id for each in voters.voters]]
            described.append([each.voter_directory_id.int for each in voters.voters])
        text = json.dumps({"chain": self.chain_at(end_offset), "voters": described, "fill": "x" * 30})
        self.snapshots[snapshot_id] = text.encode()
        return snapshot_id

    def forget_before(self, snapshot_id: SnapshotId) -> None:
        """The log starts at this snapshot now (N18)."""
        cut = snapshot_id.end_offset
        self.base_chain = self.chain_at(cut)
        del self.entries[: cut - self.start_offset]
        self.start_offset = cut
        kept = [each for each in self._epochs if each[1] > cut]
        gone = [each for each in self._epochs if each[1] <= cut]
        self._epochs = ([(gone[-1][0], cut)] if gone and self.entries else []) + kept
        if self.entries and self._epochs and self._epochs[0][0] != self.entries[0].epoch:
            self._epochs = [each for each in self._epochs if each[0] >= self.entries[0].epoch]
        self.snapshots = {each: content for each, content in self.snapshots.items() if each.end_offset >= cut}

    def load_snapshot(self, snapshot_id: SnapshotId) -> None:
        """N35."""
        fields = json.loads(self.snapshots[snapshot_id])
        self.entries = []
        self._epochs = []
        self.start_offset = self.flushed_offset = snapshot_id.end_offset
        self.base_chain = fields["chain"]
        self.snapshots = {
            each: content for each, content in self.snapshots.items() if each.end_offset >= snapshot_id.end_offset
        }
        described = fields["voters"]
        if described is None:
            self.history.load(None)
        else:
            offset, version, ids, directories = described
            voters = tuple(voter(node_id, directory) for node_id, directory in zip(ids, directories, strict=True))
            self.history.load(VotersAt(offset, version, voters))
