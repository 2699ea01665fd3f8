"""Stand-ins for the role listener of `Replicas`."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.metadata.changes import ChangedPartition
from fenceline.metadata.image import TopicImage
from fenceline.node.replication.replica import Replica
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.leader import InSyncRules

ALONE: Final = InSyncRules(lambda broker_id: NO_EPOCH, 30_000)
"""No other broker may be in sync."""


class NoRoles:
    """Ignores all roles."""

    def leads(self, replica: Replica) -> None:
        pass

    def still_leads(self, replica: Replica) -> None:
        pass

    def follows(self, replica: Replica, leader_id: int) -> None:
        pass

    def stops_following(self, replica: Replica) -> None:
        pass

    def follows_unused(self, topic: TopicImage, index: int) -> None:
        pass

    def is_followed_unused(self, changed: ChangedPartition) -> bool:
        return False

    def stops_following_unused(self, topic_id: UUID, index: int) -> None:
        pass

    def followed_unused(self) -> list[TopicPartition]:
        return []

    def stops_resting(self, topic_id: UUID, index: int) -> None:
        pass

    def directory_failed(self) -> None:
        pass

    def opened(self, replica: Replica) -> None:
        pass
