"""Partitions with unrecorded losses: out of service until their receipts are durable.

Owns the pending partitions, and the retries: a log that recovery could not open, because there was no space for the
note that precedes a truncation, is opened again; records lost in a crash get their receipts; a directory to be set
aside gets its note. A partition is served when all of that is durable. The `LossKeeper` publishes the losses.

Threads: `record_losses` is for the start, in a thread, before any log is served; `retry` is for the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fenceline.ids import TopicPartition
from fenceline.log.core.errors import CorruptLog, is_transient
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.cutting import resolve_pending
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.quarantine import FULL
from fenceline.losses.receipt import Receipt
from fenceline.node.logs import Logger
from fenceline.node.replication.replica_directories import PendingNote
from fenceline.node.replication.replicas import log_recovery_report
from fenceline.node.storage.log_recovery import checkpoint_recovery_points

if TYPE_CHECKING:
    from fenceline.node.broker import Broker

log = Logger("losses")


class _Waiting(NamedTuple):
    log_dir: LogDir
    folder: ReceiptFolder
    high_watermark: int
    """From the checkpoint found at the start; the next checkpoint has the value of the truncated log."""


class PendingPartitions:
    """The pending partitions of one broker. `make_room`: deletes evidence on the disk of a path, False if there is
    none. `record_strays`: writes receipts for directories that were set aside; for a thread."""

    def __init__(
        self,
        broker: Broker,
        make_room: Callable[[str], bool],
        lost: Callable[[ReceiptFolder, Receipt], None],
        owes: Callable[[ReceiptFolder, Receipt], None],
        record_strays: Callable[[LogDir], None],
    ) -> None:
        self._broker = broker
        self._make_room = make_room
        self._lost = lost
        self._queue_receipt = owes
        self._collect_strays = record_strays
        self._waiting: dict[TopicPartition, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._not_noted())

    def _not_noted(self) -> dict[TopicPartition, PendingNote]:
        """Partitions for which there may be space later."""
        return {where: each for where, each in self._broker.partitions.directories.pending_notes.items() if each.passes}

    def register_unopened(self, log_dir: LogDir) -> None:
        """After recovery: register logs that it could not open for lack of space."""
        for topic_partition, error in log_dir.offline.items():
            if error.transient_error is not None:
                self._wait(log_dir, topic_partition)

    def record_losses(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        """Write receipts for records lost in a crash. If that fails the partition goes offline."""
        partition_log = self._broker.partitions.log_of(topic_partition)
        if partition_log is None:
            return  # offline or unknown: its receipts stay unchanged
        try:
            self._write_receipts(_waiting(log_dir, topic_partition), partition_log)
        except OSError as error:
            advice = "Check the disk, then restart the node. The other partitions are served."
            if is_transient(error.errno):
                self._wait(log_dir, topic_partition)
                advice = (
                    "Free disk space: the partition is then served. The other partitions are served, no restart"
                    " is needed."
                )
            self._broker.partitions.set_offline(
                topic_partition, f"could not write the receipt for records lost in a crash: {error.strerror}", advice
            )

    def _wait(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        self._waiting[topic_partition] = _waiting(log_dir, topic_partition)

    async def retry(self) -> None:
        """Serve partitions that lacked disk space at the start, once there is space."""
        partitions = self._broker.partitions
        for topic_partition, waiting in list(self._waiting.items()):
            log_dir = waiting.log_dir
            is_there = topic_partition in log_dir.open_logs or topic_partition in log_dir.offline
            if not is_there or not partitions.reserve(topic_partition):
                del self._waiting[topic_partition]  # deleted meanwhile, or its directory has failed
                continue
            is_settled = False
            try:
                is_settled = await self._try(topic_partition, waiting)
                if is_settled:
                    del self._waiting[topic_partition]
            except CorruptLog as error:
                self._give_up(topic_partition, error.message, error.advice)
            except OSError as error:
                if not is_transient(error.errno):
                    self._give_up(topic_partition, str(error), "Check the disk, then restart the node.")
            finally:
                partitions.release(topic_partition, is_back=is_settled)

        for topic_partition, noted in self._not_noted().items():
            if not partitions.reserve(topic_partition):
                continue  # not requested so far
            is_noted = False
            try:
                is_noted = await self._broker.loop.run_in_executor(
                    self._broker.disk_threads, self._note_again, topic_partition, noted.log_dir
                )
            except OSError as error:
                self._broker.directory_failures.suspect(noted.log_dir, error)
            finally:
                partitions.release(topic_partition, is_back=is_noted)

    def _give_up(self, topic_partition: TopicPartition, reason: str, advice: str) -> None:
        del self._waiting[topic_partition]
        log.error("partition stays offline", partition=str(topic_partition), reason=reason, advice=advice)

    async def _try(self, topic_partition: TopicPartition, waiting: _Waiting) -> bool:
        """Raises OSError, and CorruptLog for permanent damage."""
        broker, log_dir = self._broker, waiting.log_dir
        partition_log = log_dir.open_logs.get(topic_partition)
        if partition_log is None:
            opened = broker.partitions.opener(topic_partition, log_dir)
            if opened is None:
                return False  # the topic was deleted, and this partition with it
            partition_log = await broker.loop.run_in_executor(broker.disk_threads, self._open, waiting, opened)
            log_dir.add_open_log(partition_log)
            log_recovery_report(partition_log)
        await broker.loop.run_in_executor(broker.disk_threads, self._record_losses_late, waiting, partition_log)
        await checkpoint_recovery_points(broker)
        return True

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _note_again(self, topic_partition: TopicPartition, log_dir: LogDir) -> bool:
        is_noted = self._broker.partitions.directories.retry_note(topic_partition)
        if is_noted:
            self._collect_strays(log_dir)
        return is_noted

    def _open(self, waiting: _Waiting, opened: Callable[[], PartitionLog]) -> PartitionLog:
        while True:
            try:
                waiting.log_dir.probe()  # avoids reading the log each second while the disk is full
                return opened()
            except CorruptLog as error:
                if error.transient_error is None:
                    raise
                refusal = error.transient_error
            except OSError as error:
                refusal = error
            if refusal.errno not in FULL or not self._make_room(waiting.folder.path):
                raise refusal

    def _record_losses_late(self, waiting: _Waiting, partition_log: PartitionLog) -> None:
        self._write_receipts(waiting, partition_log)
        # Also receipts that an earlier attempt wrote.
        for receipt in waiting.folder.due():
            self._queue_receipt(waiting.folder, receipt)

    def _write_receipts(self, waiting: _Waiting, partition_log: PartitionLog) -> None:
        """Write receipts for records lost in a crash. Raises OSError."""
        log_dir, folder, high_watermark = waiting
        while True:
            try:
                receipts = resolve_pending(
                    log_dir.disk, partition_log, replica=self._broker.node_id, high_watermark=high_watermark
                )
                break
            except OSError as error:
                if error.errno not in FULL or not self._make_room(folder.path):
                    raise
        for receipt in receipts:
            self._lost(folder, receipt)


def _waiting(log_dir: LogDir, topic_partition: TopicPartition) -> _Waiting:
    folder = ReceiptFolder(log_dir.disk, log_dir.partition_path(topic_partition))
    return _Waiting(log_dir, folder, log_dir.checkpointed_high_watermark(topic_partition))
