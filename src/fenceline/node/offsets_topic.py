"""`__consumer_offsets` on this broker: how it is created, written and read, and which of its partitions are led here.

Owns the way between the group coordinators and their topic's log. Never looks into a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import NewTopic
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.errors import StorageError
from fenceline.log.producer_state import Origin
from fenceline.node.groups_driver import Batches, GroupsDriver
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replicas import Replicas
    from fenceline.node.storage_trouble import StorageTrouble

_READ_CHUNK_BYTES: Final = 1 << 20


def new_offsets_topic(config: NodeConfig) -> NewTopic:
    """The topic as Kafka creates it: compacted, with partitions and replicas of its own settings."""
    return NewTopic(
        CONSUMER_OFFSETS_TOPIC,
        config.get_int("offsets.topic.num.partitions"),
        config.get_int("offsets.topic.replication.factor"),
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.get_int("offsets.topic.segment.bytes"))),
        ),
    )


class OffsetsTopicLog:
    """Appends and reads of the topic's partitions that are led here."""

    def __init__(self, replicas: Replicas, clock: Clock, trouble: StorageTrouble) -> None:
        self._replicas = replicas
        self._clock = clock
        self._trouble = trouble

    def append(self, topic_partition: TopicPartition, records: list[tuple[bytes | None, bytes | None]]) -> int:
        """Append one batch of (key, value); its base offset. Raises PeerError."""
        now_ms = self._clock.now_ms()
        replica = self._replicas.leader(topic_partition.topic, None, topic_partition.partition)
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch), leader_epoch=replica.leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR
            )
        except StorageError as error:
            self._trouble.refused(topic_partition, replica.log.log_end_offset, error)
            raise
        replica.appended()
        return appended.base_offset

    def read(self, topic_partition: TopicPartition) -> Batches:
        """All batches from the log's start to its end, for a coordinator that loads. Raises PeerError."""
        replica = self._replicas.leader(topic_partition.topic, None, topic_partition.partition)
        offset = replica.log.log_start_offset
        end = replica.log.log_end_offset
        while offset < end:
            read = replica.log.read(offset, _READ_CHUNK_BYTES, end_offset_exclusive=end)
            records = read.records if read.resident else read.load()
            for header, decoded in decode_all(records):
                offset = header.next_offset
                yield header, decoded


class CoordinatorPlacement:
    """Coordinators follow the leaders of the topic's partitions."""

    def __init__(self, node_id: int, groups: GroupsDriver) -> None:
        self._node_id = node_id
        self._groups = groups

    def load_all(self, image: MetadataImage) -> None:
        """Coordinate every partition that is led here, as at start or when the topic is new."""
        topic = image.topics_by_name.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return
        self._groups.set_partition_count(len(topic.partitions))
        for index, partition in enumerate(topic.partitions):
            if partition.leader == self._node_id:
                self._groups.on_leader(index, partition.leader_epoch)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """A change is committed: leaders may have moved, topics with committed offsets may be gone."""
        deleted = [(topic.name, index) for topic in delta.deleted_topics for index in range(len(topic.partitions))]
        if deleted:
            self._groups.on_partitions_deleted(deleted)
        if any(topic.name == CONSUMER_OFFSETS_TOPIC for topic in delta.created_topics):
            self.load_all(image)
        for changed in delta.changed_partitions:
            if changed.topic != CONSUMER_OFFSETS_TOPIC:
                continue
            if changed.after.leader == self._node_id:
                self._groups.on_leader(changed.index, changed.after.leader_epoch)
            else:
                self._groups.on_resigned(changed.index)
