"""What the quorum reports of itself: read-only, valid at the moment of the call.

Rules: raft.md Q1, Q37, Q40; snapshots.md N7; since_4_0.md K8; gaps.md G30.
"""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.quorum.control_records import Voter
from fenceline.quorum.core import Core
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.messages import DescribedNode, DescribeQuorumResponse, QuorumNodeEndpoint
from fenceline.quorum.roles import Follower, Leader, Role
from fenceline.quorum.voter_set import VoterSet


class QuorumStatus:
    """See the module."""

    _core: Core
    _leading: Leading
    _following: Following

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, -1 = unknown."""
        return self._core.leader_id

    @property
    def leader_endpoint(self) -> QuorumNodeEndpoint | None:
        return next(iter(self._core.leader_endpoints()), None)

    @property
    def is_leader(self) -> bool:
        return isinstance(self._core.role, Leader)

    @property
    def in_touch(self) -> bool:
        """Whether this node follows a leader that it is in contact with: then it rejects pre-votes (K8)."""
        return isinstance(self._core.role, Follower) and self._following.in_touch

    @property
    def is_voter(self) -> bool:
        """Whether this node is in the newest voter set; otherwise it is an observer."""
        return self._core.is_voter

    @property
    def is_only_voter(self) -> bool:
        return self._core.is_only_voter

    @property
    def high_watermark(self) -> int | None:
        """The high watermark; never decreases. None until known."""
        return self._core.high_watermark

    @property
    def voter_set(self) -> VoterSet:
        """The voter set in force, committed or not (Q40)."""
        return self._core.voters

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self._core.voters.voters

    def voters_before(self, end_offset: int) -> tuple[int, tuple[Voter, ...]]:
        """kraft.version and the voter set to store in a snapshot that ends at `end_offset` (N7); none at version 0."""
        found = self._core.log.voters_before(end_offset)
        return (0, ()) if found is None else (found.kraft_version, found.voters)

    @property
    def kraft_version(self) -> int:
        return self._core.voters.kraft_version

    @property
    def slowest_fetch_offset(self) -> int | None:
        """The next fetch offset of the slowest replica in contact with this leader (G30); 0 for one that downloads a
        snapshot. None if there is none, or this node does not lead."""
        replicas = self._leading.replicas
        if replicas is None:
            return None
        return replicas.slowest_offset(self._core.now_ms - self._core.settings.check_quorum_ms)

    @property
    def leader_log_start_offset(self) -> int | None:
        """Log start offset of the leader that this node follows, from its last response (KIP-630, G30). None if unknown
        or this node follows no leader."""
        return self._following.leader_log_start_offset if isinstance(self._core.role, Follower) else None

    def describe(self) -> DescribeQuorumResponse:
        """Q37: what the leader knows of voters and observers. Times are on the quorum's clock. A node that does not
        lead returns error 6."""
        core, leading = self._core, self._leading
        if leading.replicas is None:
            text = f"The leader is node {core.leader_id}." if core.leader_id >= 0 else "The leader is unknown."
            return DescribeQuorumResponse(
                partition_error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                error_message=text,
                leader_id=core.leader_id,
                leader_epoch=core.epoch,
            )
        known = leading.high_watermark
        return DescribeQuorumResponse(
            leader_id=core.local_id,
            leader_epoch=core.epoch,
            high_watermark=-1 if known is None else known,
            current_voters=leading.replicas.describe_voters(core.voters, core.log.end.offset, core.now_ms),
            observers=leading.replicas.describe_observers(core.voters),
            nodes=tuple(DescribedNode(voter.voter_id, voter.endpoints) for voter in core.voters.voters),
        )
