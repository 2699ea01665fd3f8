"""The role of this node for a partition: leader, follower, or neither, by the metadata image.

Owns the change from one role to the next. `Roles` is notified; the log is not waited for.

Rules: `epochs.md E17`, `E23`, `E33`; `recovery.md V37`, `V41`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from fenceline.ids import NO_LEADER, TopicPartition
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.clock import Clock
from fenceline.node.replication.replica import Replica
from fenceline.replica.leader import InSyncRules, LeaderState, in_sync_set

if TYPE_CHECKING:
    from fenceline.metadata.changes import ChangedPartition
    from fenceline.metadata.image import PartitionImage, TopicImage


class Roles(Protocol):
    """Notified of this node's roles."""

    def leads(self, replica: Replica) -> None:
        """This node leads, in a new leader epoch."""

    def still_leads(self, replica: Replica) -> None:
        """This node still leads in the same epoch; something else about the partition changed."""

    def leads_unused(self, topic: TopicImage, index: int, open_it: Callable[[str, int], object]) -> None:
        """This node leads a partition without records after an unclean election; it has no replica object. `open_it`
        creates it."""

    def follows(self, replica: Replica, leader_id: int) -> None:
        """This node follows `leader_id`, in a new leader epoch."""

    def stops_following(self, replica: Replica) -> None:
        """This node does not follow any leader of the partition any more."""

    def follows_unused(self, topic: TopicImage, index: int) -> None:
        """This node follows the leader of a partition without having files or a replica object of it."""

    def is_followed_unused(self, changed: ChangedPartition) -> bool:
        """Whether this node follows the leader of the partition, in its leader epoch, without a replica object."""

    def stops_following_unused(self, topic_id: UUID, index: int) -> None:
        """This node has no replica object of the partition and does not follow it, whether it did or not."""

    def followed_unused(self) -> list[TopicPartition]:
        """The partitions that are followed without a replica object."""

    def stops_resting(self, topic_id: UUID, index: int) -> None:
        """Something about the partition, which has no replica object, has changed."""

    def directory_failed(self) -> None:
        """The same for all partitions without one: a directory has failed, which they may be in."""

    def opened(self, replica: Replica) -> None:
        """The partition has this replica object now, with its role."""


class ReplicaRoles:
    """The roles of one node."""

    def __init__(
        self, node_id: int, roles: Roles, rules: InSyncRules, broker_epoch: Callable[[], int], clock: Clock
    ) -> None:
        self._node_id = node_id
        self._roles = roles
        self._rules = rules
        self._broker_epoch = broker_epoch
        self._clock = clock

    def apply(self, replica: Replica, partition: PartitionImage) -> None:
        """Apply the image's state of a partition; idempotent."""
        is_recovering = partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        replica.on_partition_change(
            partition.leader_epoch,
            partition.partition_epoch,
            is_recovering=is_recovering,
            may_lead=self._node_id in partition.isr or self._node_id in partition.elr,
        )
        if replica.is_being_cut:
            return  # see `Replicas.cut_ended`
        if partition.leader == self._node_id:
            self._lead(replica, partition)
            return
        if replica.leader is not None:
            replica.end_leadership()
        is_new = partition.leader_epoch != replica.leader_epoch
        replica.leader_epoch = partition.leader_epoch
        replica.follows_recovering = is_recovering
        if partition.leader == NO_LEADER:
            self._roles.stops_following(replica)
        elif is_new:
            self._roles.follows(replica, partition.leader)
        replica.wake()

    def _lead(self, replica: Replica, partition: PartitionImage) -> None:
        before, now_ms = replica.leader, self._clock.monotonic_ms()
        is_recovering = partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        if before is not None and before.leader_epoch == partition.leader_epoch:
            if before.on_partition(
                partition_epoch=partition.partition_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                is_recovering=is_recovering,
                min_insync_replicas=replica.config.min_insync_replicas,
                now_ms=now_ms,
            ):
                replica.commit()
            replica.wake()
            self._roles.still_leads(replica)
            return
        self._roles.stops_following(replica)
        replica.log.assign_epoch(partition.leader_epoch)
        leader = LeaderState(
            node_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=in_sync_set(partition.isr),
            epoch_start_offset=replica.log.log_end_offset,
            rules=self._rules,
            high_watermark=replica.log.high_watermark,
            is_recovering=is_recovering,
        )
        leader.inherit_progress(before, now_ms)
        replica.leader, replica.leader_epoch = leader, partition.leader_epoch
        if leader.advance(replica.config.min_insync_replicas, now_ms):
            replica.commit()
        replica.wake()
        self._roles.leads(replica)
