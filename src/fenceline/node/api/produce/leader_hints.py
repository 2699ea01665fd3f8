"""Leader hints for Produce requests sent to the wrong broker (KIP-951; `epochs.md E6`, Produce from version 10 on).

Owns the hint in a response. Reads the metadata and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fenceline.errors import ErrorCode
from fenceline.wire.produce import PartitionResult, ProduceResponse

if TYPE_CHECKING:
    from fenceline.node.broker import Broker


def with_leader_hints(broker: Broker, listener: str, results: Sequence[PartitionResult]) -> ProduceResponse:
    """The response; partitions with NOT_LEADER_OR_FOLLOWER get leader, epoch and the leader's address on that
    listener."""
    if all(result.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER for result in results):
        return ProduceResponse(results)
    hinted = [
        result._replace(current_leader=broker.leader_hint(result.topic, result.topic_id, result.index))
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else result
        for result in results
    ]
    leaders = {result.current_leader[0] for result in hinted if result.current_leader is not None}
    return ProduceResponse(hinted, node_endpoints=broker.node_endpoints(leaders, listener))
