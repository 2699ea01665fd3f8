"""`__consumer_offsets` on this broker: how it is created, written and read, and which of its partitions are led here.

Owns the way between the group coordinators and their topic's log. Never looks into a record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import NewTopic
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.errors import StorageError
from fenceline.log.producer_state import Origin
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.groups_driver import Batches, GroupsDriver
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage, PartitionImage
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

    def append(
        self, topic_partition: TopicPartition, records: list[tuple[bytes | None, bytes | None]]
    ) -> int | asyncio.Future[int]:
        """Append one batch of (key, value); its base offset, once every replica that is waited for has it: what a group
        was told must outlive this broker. Raises PeerError, at once or when another broker leads."""
        now_ms = self._clock.now_ms()
        replica = self._replicas.leader(topic_partition.topic, None, topic_partition.partition)
        leader = replica.leader
        assert leader is not None, "it leads"
        if not leader.has_enough_replicas(replica.config.min_insync_replicas):
            raise PeerError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch), leader_epoch=replica.leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR
            )
        except StorageError as error:
            self._trouble.refused(topic_partition, replica.log.log_end_offset, error)
            raise
        replica.appended()
        end_offset = replica.log.log_end_offset
        if replica.high_watermark >= end_offset:
            return appended.base_offset
        commit = _Commit(appended.base_offset)
        replica.when_committed(end_offset, commit, 0)
        return commit.told

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


class _Commit:
    """Waits for one batch to be committed; `told` is its base offset then."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def committed(self, _position: int, code: ErrorCode) -> None:
        if self.told.done():
            return  # the node stops
        if code in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.told.set_result(self._base_offset)
        else:
            self.told.set_exception(PeerError(code))


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
            if self._serves(partition):
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
            if self._serves(changed.after):
                self._groups.on_leader(changed.index, changed.after.leader_epoch)
            else:
                self._groups.on_resigned(changed.index)

    def _serves(self, partition: PartitionImage) -> bool:
        """Who leads and still recovers from an unclean election reads nothing yet (V37); its recovery is a change."""
        return (
            partition.leader == self._node_id and partition.leader_recovery_state is not LeaderRecoveryState.RECOVERING
        )
