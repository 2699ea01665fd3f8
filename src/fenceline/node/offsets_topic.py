"""`__consumer_offsets` on this broker: how it is created, written and read, and which of its partitions are led here.

Owns the way between the group coordinators and their topic's log. Never looks into a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import NewTopic
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.errors import StorageError
from fenceline.log.producer_state import Origin
from fenceline.node.groups_driver import GroupsDriver
from fenceline.node.groups_loading import Batches
from fenceline.node.logs import Logger
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replica import Replica
    from fenceline.node.replicas import Replicas
    from fenceline.node.storage_trouble import StorageTrouble
    from fenceline.replica.leader import LeaderState

_READ_CHUNK_BYTES: Final = 1 << 20

log: Final = Logger("groups")


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


class OffsetsTopicCreation:
    """As long as there is no such topic, whoever looks for a coordinator asks for it."""

    def __init__(self, create: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._create = create
        self._trying: asyncio.Future[None] | None = None

    async def create(self) -> None:
        """Try it, once for all who ask meanwhile. A failure is logged: they find no coordinator, and come again."""
        if self._trying is None:
            self._trying = asyncio.ensure_future(self._try())
        await asyncio.shield(self._trying)

    async def _try(self) -> None:
        try:
            await self._create([CONSUMER_OFFSETS_TOPIC])
        except PeerError as error:
            log.warning("topic not created", topic=CONSUMER_OFFSETS_TOPIC, reason=str(error))
        finally:
            self._trying = None


class OffsetsTopicLog:
    """Appends and reads of the topic's partitions that are led here."""

    def __init__(self, replicas: Replicas, clock: Clock, trouble: StorageTrouble) -> None:
        self._replicas = replicas
        self._clock = clock
        self._trouble = trouble

    def append(
        self, topic_partition: TopicPartition, leader_epoch: int, records: list[tuple[bytes | None, bytes | None]]
    ) -> int | asyncio.Future[int]:
        """Append one batch of (key, value); its base offset, once every replica that is waited for has it: what a group
        was told must outlive this broker. Raises PeerError, at once or when another broker leads; nothing is written
        in another epoch than the one that is named."""
        now_ms = self._clock.now_ms()
        replica, leader = self._led(topic_partition, leader_epoch)
        if not leader.has_enough_replicas(replica.config.min_insync_replicas):
            raise PeerError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch), leader_epoch=replica.leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR
            )
        except StorageError as error:
            self._trouble.rejected(topic_partition, replica.log.log_end_offset, error)
            raise
        replica.appended()
        end_offset = replica.log.log_end_offset
        if replica.high_watermark >= end_offset:
            return appended.base_offset
        commit = _Commit(appended.base_offset)
        replica.when_committed(end_offset, commit, 0)
        return commit.told

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches:
        """All batches from the log's start to its end, for a coordinator that loads; a read that is not in the page
        cache comes first, to be loaded in a thread. Raises PeerError."""
        replica, _ = self._led(topic_partition, leader_epoch)
        offset, read_from = replica.log.log_start_offset, -1
        # A compacted log may hold nothing from somewhere on to its end.
        while read_from < offset < replica.log.log_end_offset:
            read_from = offset
            read = replica.log.read(offset, _READ_CHUNK_BYTES, end_offset_exclusive=replica.log.log_end_offset)
            if not read.resident:
                yield read
            for header, decoded in decode_all(read.records):
                offset = header.next_offset
                yield header, decoded
            self._led(topic_partition, leader_epoch)

    def settled(self, topic_partition: TopicPartition, leader_epoch: int) -> asyncio.Future[None] | None:
        """See `groups_loading.OffsetsLog`."""
        replica, leader = self._led(topic_partition, leader_epoch)
        end_offset = replica.log.log_end_offset
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if told.done():
                pass  # the load was given up
            elif replica.leader is not leader:
                told.set_exception(PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif replica.high_watermark >= end_offset:
                told.set_result(None)
            elif not leader.has_enough_replicas(replica.config.min_insync_replicas):
                log.warning(
                    "too few replicas are in sync: groups are told what was written, committed or not",
                    partition=str(topic_partition),
                    in_sync=sorted(leader.isr),
                    high_watermark=replica.high_watermark,
                    log_end_offset=end_offset,
                )
                told.set_result(None)
            else:
                return
            replica.waiters.discard(look)

        replica.waiters.add(look)
        look()
        if told.done():
            return None
        told.add_done_callback(lambda _: replica.waiters.discard(look))
        return told

    def _led(self, topic_partition: TopicPartition, leader_epoch: int) -> tuple[Replica, LeaderState]:
        """Raises PeerError where this broker does not lead it in this epoch, or not yet."""
        replica = self._replicas.leader(topic_partition.topic, None, topic_partition.partition)
        leader = replica.leader
        assert leader is not None, "it leads"
        if leader.leader_epoch != leader_epoch:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica, leader


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
        self._groups.on_topics_created(image.offset)
        for index, partition in enumerate(topic.partitions):
            if partition.leader == self._node_id:
                self._groups.on_leader(index, partition.leader_epoch)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """A change is committed: leaders may have moved, topics with committed offsets may be gone."""
        deleted = [(topic.name, index) for topic in delta.deleted_topics for index in range(len(topic.partitions))]
        if deleted:
            self._groups.on_partitions_deleted(deleted)
        for topic in delta.deleted_topics:
            if topic.name == CONSUMER_OFFSETS_TOPIC:
                # The one that is created next begins with the same epochs, and with nothing of what these know.
                for index in range(len(topic.partitions)):
                    self._groups.on_resigned(index)
        if delta.created_topics:
            self._groups.on_topics_created(image.offset)
        if any(topic.name == CONSUMER_OFFSETS_TOPIC for topic in delta.created_topics):
            self.load_all(image)
        for changed in delta.changed_partitions:
            if changed.topic != CONSUMER_OFFSETS_TOPIC:
                continue
            if changed.after.leader == self._node_id:
                # Also while it recovers from an unclean election (V37): it is loaded as soon as that is over.
                self._groups.on_leader(changed.index, changed.after.leader_epoch)
            else:
                self._groups.on_resigned(changed.index)
