"""The metadata log as the quorum sees it in a simulated cluster: what is durable, and who votes, also after cuts.

Owns what `QuorumLog` does not know of: a log that is cut back, or replaced by a snapshot.
"""

from __future__ import annotations

from fenceline.log.disk import Disk, read_file
from fenceline.node.quorum_log import QuorumLog
from fenceline.quorum.control_records import KRaftVersion, KRaftVoters, decode_control
from fenceline.quorum.log_view import SnapshotId, VotersAt
from fenceline.records.batch import iter_headers
from fenceline.records.decode import decode_batch


class ClusterLog(QuorumLog):
    """See the module."""

    _keys_of: VotersAt | None = None
    _keys: tuple[tuple[int, str], ...] = ()

    @property
    def voter_keys(self) -> tuple[tuple[int, str], ...]:
        """(id, directory) of who votes now, sorted."""
        newest = self.voters
        if newest is not self._keys_of:
            self._keys_of = newest
            voters = newest.voters if newest is not None else ()
            self._keys = tuple(sorted((voter.voter_id, str(voter.voter_directory_id)) for voter in voters))
        return self._keys

    def truncated(self, end_offset: int) -> None:
        """The log ends there now (Q40)."""
        self._flushed_offset = min(self._flushed_offset, end_offset)
        self._history.truncate(end_offset)
        newest = self._history.latest
        self._kraft_version = newest.kraft_version if newest is not None else 0

    def loaded(self, disk: Disk, path: str, snapshot_id: SnapshotId) -> None:
        """A snapshot has replaced the log (N36)."""
        content = read_file(disk, path) or b""
        header = next(iter(iter_headers(content)))
        version = 0
        found: VotersAt | None = None
        for record in decode_batch(content, header):
            match decode_control(record.key, record.value):
                case KRaftVersion() as level:
                    version = level.k_raft_version
                case KRaftVoters() as voters:
                    found = VotersAt(snapshot_id.end_offset - 1, version, voters.voters)
                case _:
                    pass
        self._kraft_version = version
        self._history.load(found)
        self._flushed_offset = snapshot_id.end_offset

    def forget_voters_before(self, end_offset: int) -> None:
        """N17."""
        self._history.forget_before(end_offset)
