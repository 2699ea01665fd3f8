"""The data plane of one broker: everything between its requests and its data directories, built in one place.

Owns the order of construction. A part is given the parts that are built before it; what an earlier part has to tell a
later one goes through a signal (`OpenReplicas`, `StorageTrouble`, `suspected`). Contains no logic of its own, and knows
neither listeners nor the quorum: the metadata image and the controller's answers are arguments.

| part                                      | needs, of the parts above it                                     |
|-------------------------------------------|------------------------------------------------------------------|
| `in_service`, `peers`, `checkpoints`      |                                                                  |
| `flushes`                                 | `in_service`                                                     |
| `losses`, `removed_replicas`              | `in_service`, `peers`                                            |
| `replication`                             | `in_service`, `peers`, `checkpoints`, `flushes`, `losses`        |
| `partitions`                              | `in_service`, `losses`, `removed_replicas`, `replication`        |
| `pending`, `moves`, `cleaner`             | `partitions` and most of the others                              |
| `directory_failures`, `cordons`           | `partitions`, `moves`                                            |
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.losses.pending_partitions import PendingPartitions
from fenceline.node.losses.removed_replicas import RemovedReplicas
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.replication.peers import Peers
from fenceline.node.replication.replicas import Replicas
from fenceline.node.replication.replication import (
    DecidedTransactions,
    FenceTransactions,
    Replication,
    TransactionOutcomes,
)
from fenceline.node.signal import Signal
from fenceline.node.storage.checkpoints import Checkpoints
from fenceline.node.storage.directory_assignments import DirectoryAssignments
from fenceline.node.storage.directory_cordons import DirectoryCordons
from fenceline.node.storage.directory_failures import DirectoryFailures
from fenceline.node.storage.directory_move import MovePorts
from fenceline.node.storage.directory_moves import DirectoryMoves
from fenceline.node.storage.flushes import LogFlushes
from fenceline.node.storage.log_cleaner import LogCleaner
from fenceline.node.storage.log_recovery import recover_logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from concurrent.futures import Executor
    from random import Random
    from uuid import UUID

    from fenceline.config.node import NodeConfig
    from fenceline.controller.requests import Request
    from fenceline.log.core.errors import StorageError
    from fenceline.log.directories.log_dir import ExistingPartition, LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.log.directories.partition_dir import RemovedPartition
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.net.peer_connection import Dial
    from fenceline.node.replication.replica import Replica
    from fenceline.node.storage.storage_trouble import StorageTrouble


class DataPlane:
    """See the module. Built on the event loop; nothing runs before `recover`."""

    def __init__(
        self,
        node_id: int,
        config: NodeConfig,
        log_dirs: LogDirs,
        *,
        dial: Dial,
        image: Callable[[], MetadataImage],
        submit: Callable[[Request], Awaitable[Any]],
        next_change: Callable[[], asyncio.Future[None]],
        broker_epoch: Callable[[], int],
        report_failed: Callable[[UUID], Awaitable[None]],
        report_cordoned: Callable[[tuple[UUID, ...]], None],
        report_silent: Callable[[Collection[int]], None],
        log_config: Callable[[str], Mapping[str, str | None]],
        fence_transactions: FenceTransactions,
        transaction_outcomes: TransactionOutcomes,
        decided_transactions: DecidedTransactions,
        trouble: StorageTrouble,
        clock: Clock,
        rng: Random,
        executor: Executor,
        delete_later: Callable[[Callable[[], None], int], None],
    ) -> None:
        """`dial` connects to other brokers. `submit`, `next_change`: see `Replication`. `report_failed`,
        `report_cordoned` report directories to the controller, `report_silent` leaders that do not answer.
        `log_config`: the effective configs of a topic. `executor` runs the work on the data directories; `delete_later`
        deletes files there, after a delay in milliseconds."""
        self._config = config
        self._log_dirs = log_dirs
        self._image = image
        self._executor = executor
        self._delete_later = delete_later
        self._suspected: Signal[LogDir, OSError | StorageError] = Signal()
        suspect = self._suspected
        self.in_service = OpenReplicas()
        self.peers = Peers(image, config.inter_broker_listener, dial)
        self.checkpoints = Checkpoints(log_dirs, executor, suspect)
        self.flushes = LogFlushes(self.in_service, clock, executor)
        self.losses = LossKeeper(
            node_id,
            log_dirs,
            self.in_service,
            clock,
            executor,
            max_age_ms=config.get_int("fenceline.lost.retention.ms"),
            max_bytes=config.get_int("fenceline.lost.retention.bytes"),
        )
        self.removed_replicas = RemovedReplicas(self.losses, log_dirs, image, self.peers, executor)
        self.replication = Replication(
            node_id,
            config,
            self.in_service,
            self.peers,
            image=image,
            submit=submit,
            next_change=next_change,
            broker_epoch=broker_epoch,
            report_silent=report_silent,
            clock=clock,
            executor=executor,
            flush_up_to=self.flushes.up_to,
            cut_log=self.losses.cut,
            open_unused=lambda topic, index: self.partitions.get(topic, index),
            is_unused=lambda topic, index: self.partitions.is_unused(topic, index),
            checkpoint=self.checkpoints.write,
            rejected=partial(rejected_by_follower, trouble),
            fence_transactions=fence_transactions,
            transaction_outcomes=transaction_outcomes,
            decided_transactions=decided_transactions,
        )
        self.assignments = DirectoryAssignments(node_id, broker_epoch, submit)
        self.partitions = Replicas(
            node_id,
            log_dirs,
            image,
            log_config,
            clock,
            delete_later,
            roles=self.replication,
            rules=self.replication.rules,
            broker_epoch=broker_epoch,
            in_service=self.in_service,
            delete_partition=self.losses.delete_partition,
            compare_removed=self.removed_replicas.add,
            report_directory=self.assignments.report,
            suspect=suspect,
        )
        trouble.write_rejected.listen(self.partitions.suspect_directory_of)
        trouble.write_rejected.listen(self.losses.on_rejected)
        self.pending = PendingPartitions(
            node_id, self.losses, log_dirs, self.partitions, self.checkpoints, executor, suspect
        )
        self.moves = DirectoryMoves(
            MovePorts(
                node_id,
                image,
                log_dirs,
                self.partitions,
                self.flushes,
                clock,
                executor,
                self.checkpoints.write,
                delete_later,
            ),
            config,
            suspect=suspect,
            evidence_moved=self.losses.moved,
        )
        self.cleaner = LogCleaner(
            config,
            self.in_service,
            log_dirs,
            image,
            clock=clock,
            rng=rng,
            executor=executor,
            moving=self.moves.in_progress,
            checkpoint=self.checkpoints.write,
            delete_later=delete_later,
            suspect_directory_of=self.partitions.suspect_directory_of,
        )
        self.directory_failures = DirectoryFailures(
            config, log_dirs, image, executor, suspect, stop_replicas=self._stop_replicas, report=report_failed
        )
        self.cordons = DirectoryCordons(config, log_dirs, image, report_cordoned)

    async def recover(self) -> list[tuple[LogDir, ExistingPartition]]:
        """At start: check the logs after a crash, record what was lost. Returns what `DirectoryMoves.resume` needs."""
        copies = await recover_logs(
            self._config,
            self._log_dirs,
            self.partitions,
            self._image,
            self._executor,
            suspect=self._suspected,
            delete_later=self._delete_partition_later,
        )
        await asyncio.get_running_loop().run_in_executor(self._executor, self.pending.recover)
        await self.checkpoints.write_truncated()
        return copies

    async def close(self) -> None:
        """Once no more requests arrive. Copies of replicas and recoveries of leaders continue after the next start."""
        await self.moves.close()
        await self.replication.close()
        await self.assignments.close()
        await self.directory_failures.close()
        self.flushes.close()

    def _stop_replicas(self, log_dir: LogDir, reason: str) -> int:
        """A directory has failed. Returns the number of replicas in it that were in use."""
        self.moves.directory_failed(log_dir)
        return self.partitions.directory_failed(log_dir, reason)

    def _delete_partition_later(self, removed: RemovedPartition) -> None:
        self._delete_later(partial(self.losses.delete_partition, removed), 0)


def rejected_by_follower(trouble: StorageTrouble, replica: Replica, error: StorageError) -> None:
    """Records of a follower were not appended, because the disk is full."""
    trouble.rejected(replica.topic_partition, replica.log.log_end_offset, error, by_follower=True)
