"""`__consumer_offsets` on this broker: its creation, appends and reads, and which of its partitions are led here.

Owns the access of the group coordinators to their topic's log. Never decodes a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import TopicToCreate
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.log.core.producer_state import Origin
from fenceline.node.groups.driver import GroupsDriver
from fenceline.node.groups.loading import Batches
from fenceline.node.logs import Logger
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.storage.storage_trouble import StorageTrouble
    from fenceline.replica.leader import LeaderState

_READ_CHUNK_BYTES: Final = 1 << 20

log: Final = Logger("groups")


def new_offsets_topic(config: NodeConfig) -> TopicToCreate:
    """The topic as Kafka creates it: compacted, with its own partition count and replication factor."""
    return TopicToCreate(
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
    """Creates the topic when a client looks for a coordinator and there is none."""

    def __init__(self, create: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._create = create
        self._trying: asyncio.Future[None] | None = None

    async def create(self) -> None:
        """Try once for all concurrent callers. A failure is logged; clients get no coordinator and retry."""
        if self._trying is None:
            self._trying = asyncio.ensure_future(self._try())
        await asyncio.shield(self._trying)

    async def _try(self) -> None:
        try:
            await self._create([CONSUMER_OFFSETS_TOPIC])
        except PeerError as error:
            log.warning("topic creation failed", topic=CONSUMER_OFFSETS_TOPIC, reason=str(error))
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
        """Append one batch of (key, value); its base offset once it is committed: what a group was answered must
        survive the loss of this broker. Raises PeerError, at once or when the leader changes; nothing is written in an
        epoch other than `leader_epoch`."""
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
        return commit.result

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches:
        """All batches from the log's start to its end, for a coordinator that loads; a read that misses the page cache
        is yielded first, to be loaded in a thread. Raises PeerError."""
        replica, _ = self._led(topic_partition, leader_epoch)
        offset, read_from = replica.log.log_start_offset, -1
        # A compacted log may have no records before its end.
        while read_from < offset < replica.log.log_end_offset:
            read_from = offset
            read = replica.log.read(offset, _READ_CHUNK_BYTES, end_offset_exclusive=replica.log.log_end_offset)
            if not read.resident:
                yield read
            for header, decoded in decode_all(read.records):
                offset = header.next_offset
                yield header, decoded
            self._led(topic_partition, leader_epoch)

    def when_committed(self, topic_partition: TopicPartition, leader_epoch: int) -> asyncio.Future[None] | None:
        """See `groups.loading.OffsetsLog`."""
        replica, leader = self._led(topic_partition, leader_epoch)
        end_offset = replica.log.log_end_offset
        result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def check() -> None:
            if result.done():
                pass  # the load was cancelled
            elif replica.leader is not leader:
                result.set_exception(PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif replica.high_watermark >= end_offset:
                result.set_result(None)
            elif not leader.has_enough_replicas(replica.config.min_insync_replicas):
                log.warning(
                    "too few in-sync replicas: loading group offsets that may be uncommitted",
                    partition=str(topic_partition),
                    in_sync=sorted(leader.isr),
                    high_watermark=replica.high_watermark,
                    log_end_offset=end_offset,
                )
                result.set_result(None)
            else:
                return
            replica.waiters.discard(check)

        replica.waiters.add(check)
        check()
        if result.done():
            return None
        result.add_done_callback(lambda _: replica.waiters.discard(check))
        return result

    def _led(self, topic_partition: TopicPartition, leader_epoch: int) -> tuple[Replica, LeaderState]:
        """Raises PeerError if this broker does not lead the partition in this epoch, or not yet."""
        replica = self._replicas.leader(topic_partition.topic, None, topic_partition.partition)
        leader = replica.leader
        assert leader is not None, "it leads"
        if leader.leader_epoch != leader_epoch:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica, leader


class _Commit:
    """Waits until one batch is committed."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def committed(self, _position: int, code: ErrorCode) -> None:
        if self.result.done():
            return  # the node is shutting down
        if code in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.result.set_result(self._base_offset)
        else:
            self.result.set_exception(PeerError(code))


class CoordinatorPlacement:
    """Places coordinators with the leaders of the topic's partitions."""

    def __init__(self, node_id: int, groups: GroupsDriver) -> None:
        self._node_id = node_id
        self._groups = groups

    def load_all(self, image: MetadataImage) -> None:
        """Become coordinator of every partition that is led here, at start or when the topic is created."""
        topic = image.topics_by_name.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return
        self._groups.set_partition_count(len(topic.partitions))
        self._groups.on_topics_created(image.offset)
        for index, partition in enumerate(topic.partitions):
            if partition.leader == self._node_id:
                self._groups.on_leader(index, partition.leader_epoch)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """Apply a metadata change: leaders may have moved, topics with committed offsets may be deleted."""
        deleted = [(topic.name, index) for topic in delta.deleted_topics for index in range(len(topic.partitions))]
        if deleted:
            self._groups.on_partitions_deleted(deleted)
        for topic in delta.deleted_topics:
            if topic.name == CONSUMER_OFFSETS_TOPIC:
                # A topic created next starts with the same epochs and must not see the state of this one.
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
                # Also during recovery from an unclean election (V37): it is loaded after that.
                self._groups.on_leader(changed.index, changed.after.leader_epoch)
            else:
                self._groups.on_resigned(changed.index)
