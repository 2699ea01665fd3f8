"""Partitions with unrecorded losses: out of service until their receipts are durable.

Owns the pending partitions, and the retries: a log that recovery could not open, because there was no space for the
note that precedes a truncation, is opened again; records lost in a crash get their receipts; a directory to be set
aside gets its note. A partition is served when all of that is durable. The `LossKeeper` publishes the losses.

Threads: `recover` is for the start, in a thread, before any log is served; `retry` is for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple

from fenceline.ids import TopicPartition
from fenceline.log.core.errors import CorruptLog, is_transient
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.cutting import resolve_pending
from fenceline.losses.folder import ReceiptFolder, ReceiptOutbox
from fenceline.losses.quarantine import FULL
from fenceline.node.logs import Logger
from fenceline.node.losses.keeper import LossKeeper, with_evidence
from fenceline.node.replication.replica_directories import PendingNote
from fenceline.node.replication.replicas import Replicas, log_recovery_report

if TYPE_CHECKING:
    from fenceline.node.storage.checkpoints import Checkpoints

log = Logger("losses")


class _Waiting(NamedTuple):
    log_dir: LogDir
    folder: ReceiptFolder
    high_watermark: int
    """From the checkpoint found at the start; the next checkpoint has the value of the truncated log."""


class PendingPartitions:
    """The pending partitions of one broker."""

    def __init__(
        self,
        node_id: int,
        keeper: LossKeeper,
        log_dirs: Iterable[LogDir],
        partitions: Replicas,
        checkpoints: Checkpoints,
        executor: Executor,
        suspect: Callable[[LogDir, OSError], None],
    ) -> None:
        """`suspect` is called for errors that a directory may have caused."""
        self._node_id = node_id
        self._keeper = keeper
        self._log_dirs = log_dirs
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._executor = executor
        self._suspect = suspect
        self._waiting: dict[TopicPartition, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._not_noted())

    def _not_noted(self) -> dict[TopicPartition, PendingNote]:
        """Partitions for which there may be space later."""
        return {where: each for where, each in self._partitions.directories.pending_notes.items() if each.passes}

    def recover(self) -> None:
        """Before any log is served: complete what a crash interrupted, and find undelivered receipts."""
        for log_dir in self._log_dirs:
            # Logs that recovery could not open for lack of space.
            for topic_partition, error in log_dir.offline.items():
                if error.transient_error is not None:
                    self._wait(log_dir, topic_partition)
            try:
                self._recover_directory(log_dir)
            except OSError as error:
                log.error(
                    "reading loss receipts of a log directory failed",
                    path=log_dir.path,
                    reason=str(error),
                    advice="Check the disk, then restart the node to deliver the remaining receipts.",
                )

    def _recover_directory(self, log_dir: LogDir) -> None:
        keeper = self._keeper
        for topic_partition, path in with_evidence(log_dir):
            folder = ReceiptFolder(log_dir.disk, path)
            if folder.is_pending:
                self._record_losses(log_dir, topic_partition)
            for receipt in folder.due():
                keeper.queue_receipt(folder, receipt)
        keeper.collect_strays(log_dir)
        outbox = ReceiptOutbox(log_dir.disk, log_dir.path)
        for receipt in outbox.due():
            keeper.queue_receipt(outbox, receipt)

    def _record_losses(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        """Write receipts for records lost in a crash. If that fails the partition goes offline."""
        partition_log = self._partitions.log_of(topic_partition)
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
            self._partitions.set_offline(
                topic_partition, f"could not write the receipt for records lost in a crash: {error.strerror}", advice
            )

    def _wait(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        self._waiting[topic_partition] = _waiting(log_dir, topic_partition)

    async def retry(self) -> None:
        """Serve partitions that lacked disk space at the start, once there is space."""
        partitions = self._partitions
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
                is_noted = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._note_again, topic_partition, noted.log_dir
                )
            except OSError as error:
                self._suspect(noted.log_dir, error)
            finally:
                partitions.release(topic_partition, is_back=is_noted)

    def _give_up(self, topic_partition: TopicPartition, reason: str, advice: str) -> None:
        del self._waiting[topic_partition]
        log.error("partition stays offline", partition=str(topic_partition), reason=reason, advice=advice)

    async def _try(self, topic_partition: TopicPartition, waiting: _Waiting) -> bool:
        """Raises OSError, and CorruptLog for permanent damage."""
        loop, log_dir = asyncio.get_running_loop(), waiting.log_dir
        partition_log = log_dir.open_logs.get(topic_partition)
        if partition_log is None:
            opened = self._partitions.opener(topic_partition, log_dir)
            if opened is None:
                return False  # the topic was deleted, and this partition with it
            partition_log = await loop.run_in_executor(self._executor, self._open, waiting, opened)
            log_dir.add_open_log(partition_log)
            log_recovery_report(partition_log)
        await loop.run_in_executor(self._executor, self._record_losses_late, waiting, partition_log)
        await self._checkpoints.write_truncated()
        return True

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _note_again(self, topic_partition: TopicPartition, log_dir: LogDir) -> bool:
        is_noted = self._partitions.directories.retry_note(topic_partition)
        if is_noted:
            self._keeper.collect_strays(log_dir)
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
            if refusal.errno not in FULL or not self._keeper.make_room(waiting.folder.path):
                raise refusal

    def _record_losses_late(self, waiting: _Waiting, partition_log: PartitionLog) -> None:
        self._write_receipts(waiting, partition_log)
        # Also receipts that an earlier attempt wrote.
        for receipt in waiting.folder.due():
            self._keeper.queue_receipt(waiting.folder, receipt)

    def _write_receipts(self, waiting: _Waiting, partition_log: PartitionLog) -> None:
        """Write receipts for records lost in a crash. Raises OSError."""
        log_dir, folder, high_watermark = waiting
        while True:
            try:
                receipts = resolve_pending(
                    log_dir.disk, partition_log, replica=self._node_id, high_watermark=high_watermark
                )
                break
            except OSError as error:
                if error.errno not in FULL or not self._keeper.make_room(folder.path):
                    raise
        for receipt in receipts:
            self._keeper.record_loss(folder, receipt)


def _waiting(log_dir: LogDir, topic_partition: TopicPartition) -> _Waiting:
    folder = ReceiptFolder(log_dir.disk, log_dir.partition_path(topic_partition))
    return _Waiting(log_dir, folder, log_dir.checkpointed_high_watermark(topic_partition))
