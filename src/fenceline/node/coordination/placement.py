"""Places coordinators with the leaders of their topic's partitions.

Owns which changes of the metadata make a broker coordinate a partition or resign from it. Decides nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage


class PlacedCoordinator(Protocol):
    """A coordinator's driver."""

    def set_partition_count(self, count: int) -> None:
        """The number of partitions of the topic as it was created."""

    def on_leader(self, partition: int, epoch: int) -> None:
        """This broker leads the partition from this epoch on. A repeated call in the same epoch means that something
        else about the partition has changed."""

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition now, or it has no leader."""


class CoordinatorPlacement:
    """Of one internal topic."""

    def __init__(self, topic: str, node_id: int, coordinator: PlacedCoordinator) -> None:
        self._topic = topic
        self._node_id = node_id
        self._coordinator = coordinator

    def load_all(self, image: MetadataImage) -> None:
        """Become coordinator of every partition that is led here, at start or when the topic is created."""
        topic = image.topics_by_name.get(self._topic)
        if topic is None:
            return
        self._coordinator.set_partition_count(len(topic.partitions))
        for index, partition in enumerate(topic.partitions):
            if partition.leader == self._node_id:
                self._coordinator.on_leader(index, partition.leader_epoch)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """Apply a metadata change: leaders may have moved, the topic may be new or deleted."""
        for topic in delta.deleted_topics:
            if topic.name == self._topic:
                # A topic created next starts with the same epochs and must not see the state of this one.
                for index in range(len(topic.partitions)):
                    self._coordinator.on_resigned(index)
        if any(topic.name == self._topic for topic in delta.created_topics):
            self.load_all(image)
        for changed in delta.changed_partitions:
            if changed.topic != self._topic:
                continue
            if changed.after.leader == self._node_id:
                # Also during recovery from an unclean election (V37): it is loaded after that.
                self._coordinator.on_leader(changed.index, changed.after.leader_epoch)
            else:
                self._coordinator.on_resigned(changed.index)
