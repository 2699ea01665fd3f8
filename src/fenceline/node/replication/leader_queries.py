"""What a partition's leader is asked about its log, in one leader epoch: ListOffsets, OffsetForLeaderEpoch.

Owns the two requests for one partition. Decides nothing, and leaves errors of the leader to the caller.

Rules: `epochs.md E13`, `E28`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.node.net.peer_connection import PeerConnection

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4


class LeaderOffset(NamedTuple):
    error_code: int
    offset: int


class LeaderEpochEnd(NamedTuple):
    """The leader's newest epoch not above the requested one, and its end offset; (-1, -1): there is none."""

    error_code: int
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LeaderQueries:
    """Answers are None if the response lacks the partition. Raises as `PeerConnection.call`."""

    connection: PeerConnection
    replica_id: int
    topic: str
    index: int
    leader_epoch: int
    timeout_s: float

    async def offset(self, timestamp: int, *, first_version: int) -> LeaderOffset | None:
        row = {"partition_index": self.index, "current_leader_epoch": self.leader_epoch, "timestamp": timestamp}
        topics = [{"name": self.topic, "partitions": [row]}]
        fields = {"replica_id": self.replica_id, "isolation_level": 0, "topics": topics}
        version = self.connection.version_for(ApiKey.LIST_OFFSETS, first_version, 10)
        answer = await self.connection.call(ApiKey.LIST_OFFSETS, version, fields, self.timeout_s)
        for topic in answer.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) == (self.topic, self.index):
                    return LeaderOffset(partition.error_code, int(partition.offset))
        return None

    async def epoch_end(self, epoch: int) -> LeaderEpochEnd | None:
        row = {"partition": self.index, "current_leader_epoch": self.leader_epoch, "leader_epoch": epoch}
        fields = {"replica_id": self.replica_id, "topics": [{"topic": self.topic, "partitions": [row]}]}
        version = self.connection.version_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, 4)
        answer = await self.connection.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields, self.timeout_s)
        for topic in answer.topics:
            for partition in topic.partitions:
                if (topic.topic, partition.partition) == (self.topic, self.index):
                    return LeaderEpochEnd(partition.error_code, int(partition.leader_epoch), int(partition.end_offset))
        return None
