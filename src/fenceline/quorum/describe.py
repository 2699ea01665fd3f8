"""DescribeQuorum: what the leader knows of voters and observers.

Rules: raft.md Q37.
"""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.quorum.core import Core
from fenceline.quorum.leading import Leading
from fenceline.quorum.messages import DescribedNode, DescribeQuorumResponse


def describe(core: Core, leading: Leading) -> DescribeQuorumResponse:
    """Times are on the quorum's clock. A node that does not lead returns error 6."""
    if leading.replicas is None:
        return DescribeQuorumResponse(
            partition_error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message=f"The leader is node {core.leader_id}." if core.leader_id >= 0 else "The leader is unknown.",
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
