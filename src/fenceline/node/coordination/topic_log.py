"""The partitions of a coordinator's internal topic that this broker leads: appends and reads.

Owns the access of coordinators to their log. Never decodes a record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.log.core.guards import WITHOUT_VERIFICATION, VerificationGuard
from fenceline.log.core.producer_state import Origin
from fenceline.node.coordination.loading import Batches
from fenceline.node.logs import Logger
from fenceline.records.batch import NO_SEQUENCE
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.records.markers import end_marker

if TYPE_CHECKING:
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.storage.storage_trouble import StorageTrouble
    from fenceline.replica.leader import LeaderState

_READ_CHUNK_BYTES: Final = 1 << 20

log: Final = Logger("coordinators")


class BatchProducer(NamedTuple):
    """The producer of a transactional batch; `guard` as of `begin_verification`."""

    producer_id: int
    epoch: int
    guard: VerificationGuard | None = None


class MarkerBatch(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class CoordinatorTopicLog:
    """Of every internal topic: each call names the partition."""

    def __init__(self, replicas: Replicas, clock: Clock, trouble: StorageTrouble) -> None:
        self._replicas = replicas
        self._clock = clock
        self._trouble = trouble

    def begin_verification(
        self, topic_partition: TopicPartition, leader_epoch: int, producer: BatchProducer, *, adds_partition: bool
    ) -> VerificationGuard | None:
        """See `PartitionLog.begin_verification`. Raises PeerError as `append`."""
        replica, _ = self._led(topic_partition, leader_epoch)
        return replica.log.begin_verification(
            producer.producer_id,
            producer.epoch,
            NO_SEQUENCE,
            adds_partition=adds_partition,
            now_ms=self._clock.now_ms(),
        )

    def append(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        records: list[tuple[bytes | None, bytes | None]],
        producer: BatchProducer | None = None,
    ) -> int | asyncio.Future[int]:
        """Append one batch of (key, value); its base offset once it is committed: what a client was answered must
        survive the loss of this broker. Raises PeerError, at once or when the leader changes; nothing is written in an
        epoch other than `leader_epoch`. `producer`: of a transactional batch."""
        now_ms = self._clock.now_ms()
        rows = [(now_ms, key, value, ()) for key, value in records]
        if producer is None:
            return self._append(topic_partition, leader_epoch, build_batch(rows), now_ms)
        batch = build_batch(rows, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
        return self._append(topic_partition, leader_epoch, batch, now_ms, guard=producer.guard)

    def append_marker(
        self, topic_partition: TopicPartition, leader_epoch: int, marker: MarkerBatch
    ) -> int | asyncio.Future[int]:
        """Append an end marker, as `append`. Raises also what `transactions.md X40` says: 47, 52."""
        now_ms = self._clock.now_ms()
        batch = end_marker(marker.commit, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, now_ms)
        version = marker.transaction_version
        return self._append(topic_partition, leader_epoch, batch, now_ms, transaction_version=version)

    def _append(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        batch: bytearray,
        now_ms: int,
        *,
        transaction_version: int = 0,
        guard: VerificationGuard | None = WITHOUT_VERIFICATION,
    ) -> int | asyncio.Future[int]:
        replica, leader = self._led(topic_partition, leader_epoch)
        if not leader.has_enough_replicas(replica.config.min_insync_replicas):
            raise PeerError(ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch),
                leader_epoch=replica.leader_epoch,
                now_ms=now_ms,
                origin=Origin.COORDINATOR,
                transaction_version=transaction_version,
                guard=guard,
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
        """See `loading.CoordinatorTopicReads`."""
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
                    "too few in-sync replicas: loading records that may be uncommitted",
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
