"""Leader hints for requests sent to the wrong broker (KIP-951; `epochs.md E6`, Produce from version 10 on, Fetch from
version 16 on).

Owns the hint in a response. Reads the metadata and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.wire.produce import LeaderEndpoint, PartitionResult, ProduceResponse

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage


class LeaderHints:
    """Leaders of partitions and their addresses, from the committed metadata."""

    def __init__(self, images: Callable[[], MetadataImage]) -> None:
        self._images = images

    def leader(self, topic: str | None, topic_id: bytes | None, index: int) -> tuple[int, int] | None:
        """Leader and epoch of a partition."""
        image = self._images()
        found = image.topics_by_id.get(UUID(bytes=topic_id)) if topic_id else image.topics_by_name.get(topic or "")
        if found is None or not 0 <= index < len(found.partitions):
            return None
        partition = found.partitions[index]
        return partition.leader, partition.leader_epoch

    def endpoints(self, node_ids: Iterable[int], listener: str) -> tuple[LeaderEndpoint, ...]:
        """Addresses on that listener of the nodes that a response names as leaders."""
        brokers = self._images().brokers
        found = []
        for node_id in sorted(node_ids):
            broker = brokers.get(node_id)
            endpoint = broker.endpoint(listener) if broker is not None else None
            if broker is not None and endpoint is not None:
                found.append(LeaderEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
        return tuple(found)

    def produce_response(self, listener: str, results: Sequence[PartitionResult]) -> ProduceResponse:
        """Partitions with NOT_LEADER_OR_FOLLOWER get leader, epoch and the leader's address on that listener."""
        if all(result.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER for result in results):
            return ProduceResponse(results)
        hinted = [
            result._replace(current_leader=self.leader(result.topic, result.topic_id, result.index))
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            else result
            for result in results
        ]
        leaders = {result.current_leader[0] for result in hinted if result.current_leader is not None}
        return ProduceResponse(hinted, node_endpoints=self.endpoints(leaders, listener))
