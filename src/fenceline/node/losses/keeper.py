"""Losses of this node's logs: truncation with receipts, evidence kept for a while, delivery to the ledger.

Owns the receipts that are not delivered yet, the limits of the quarantine, and the metrics of both. The rules are in
`fenceline.losses`; `losses.delivery` sends receipts to the ledger topic.

Threads: truncations run in several disk threads; one lock guards the state that they share with the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.partition_dir import RemovedPartition, parse_partition_name
from fenceline.log.directories.set_aside import keep_records
from fenceline.losses import quarantine, removed_partitions
from fenceline.losses.cutting import LogCut, cut_log
from fenceline.losses.folder import ReceiptFiles, ReceiptFolder, ReceiptOutbox
from fenceline.losses.receipt import LossClass, Receipt
from fenceline.node.logs import Logger
from fenceline.node.metric_families import counter_by, counters, gauges
from fenceline.node.signal import Signal

if TYPE_CHECKING:
    from fenceline.losses.transactions import LostTransaction
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.replica import Replica

log = Logger("losses")

_ADVICE: Final = "List the losses with: fenceline losses list. Export the records with: fenceline losses export."
_NO_ADVICE: Final = "List the losses with: fenceline losses list."
_NOTHING_TO_FREE_MS: Final = 10_000
"""Pause before a full disk without evidence is searched for evidence again."""


class FoundEvidence(NamedTuple):
    """A receipt whose evidence is on this node. `folder`: where the receipt is."""

    folder: ReceiptFiles
    receipt: Receipt


class LossKeeper:
    """The losses of one broker. Each method says which thread it runs in."""

    def __init__(
        self,
        node_id: int,
        log_dirs: Iterable[LogDir],
        in_service: OpenReplicas,
        clock: Clock,
        executor: Executor,
        *,
        max_age_ms: int,
        max_bytes: int,
    ) -> None:
        """`max_age_ms`, `max_bytes`: limits of the evidence."""
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._in_service = in_service
        self._clock = clock
        self._executor = executor
        self._max_age_ms = max_age_ms
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._due: dict[str, tuple[ReceiptFiles, Receipt]] = {}
        self.due: Signal[[]] = Signal()
        """There is a receipt to deliver. Any thread."""
        self._incomplete: dict[str, tuple[ReceiptFiles, Receipt]] = {}
        """Receipts whose transactions the coordinators have not been asked about, or have not ended."""
        self.incomplete: Signal[[]] = Signal()
        """There is such a receipt. Any thread."""
        self.losses: dict[LossClass, int] = dict.fromkeys(LossClass, 0)
        """Since this node started."""
        self.evidence_bytes = 0
        """As of the last sweep."""
        self.fetched_evidence_bytes = 0
        """Records that clients have read from it, since this node started. Event loop."""
        self.compared_first: set[str] = set()
        """Directories of replicas that were moved away, which `RemovedReplicas` handles first."""
        self._relieving: asyncio.Future[bool] | None = None
        self._relief_pauses_until_ms = 0

    @property
    def undelivered(self) -> int:
        return len(self._due)

    # -- truncation, in a thread -----------------------------------------------------------------------------------

    def cut(self, replica: Replica, cut: LogCut) -> None:
        """Truncate the log; receipts of lost records are durable before this returns. Raises StorageError."""
        disk = self._log_dir_of(replica.log.directory).disk
        receipts = cut_log(disk, replica.log, cut, lambda: self.make_room(replica.log.directory))
        folder = ReceiptFolder(disk, replica.log.directory)
        for receipt in receipts:
            self.record_loss(folder, receipt)

    def on_rejected(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """On the event loop: a write was rejected. If the disk is full, delete the oldest evidence on it."""
        now_ms = self._clock.monotonic_ms()
        if not error.disk_full or self._relieving is not None or now_ms < self._relief_pauses_until_ms:
            return
        replica = self._in_service.by_name.get(topic_partition)
        directory = replica.log.directory if replica is not None else f"{next(iter(self._log_dirs)).path}/"

        def relieved(relieving: asyncio.Future[bool]) -> None:
            self._relieving = None
            error = relieving.exception() if not relieving.cancelled() else None
            if error is not None:
                log.error("deleting evidence from a full disk failed", reason=str(error))
            if relieving.cancelled() or error is not None or not relieving.result():
                self._relief_pauses_until_ms = self._clock.monotonic_ms() + _NOTHING_TO_FREE_MS

        self._relieving = asyncio.ensure_future(
            asyncio.get_running_loop().run_in_executor(self._executor, self.make_room, directory)
        )
        self._relieving.add_done_callback(relieved)

    def make_room(self, directory: str) -> bool:
        """In a thread. False if there is no evidence on that disk."""
        log_dir = self._log_dir_of(directory)
        with self._lock:
            room = quarantine.make_room(log_dir.disk, _folders(log_dir))
        for folder, receipt in room.changed:
            log.warning("evidence deleted to free disk space", receipt=receipt.id, loss=str(receipt))
            self.queue_receipt(folder, receipt)
        return room.freed

    # -- start, in a thread ----------------------------------------------------------------------------------------

    def collect_strays(self, log_dir: LogDir) -> None:
        """Move receipts of directories that are no longer in the metadata, and their evidence, to the outbox."""
        for stray in log_dir.strays():
            if stray.path in self.compared_first:
                continue
            try:
                self._move_receipts(log_dir, stray, with_evidence=True)
            except OSError as error:
                log.error(
                    "moving receipts of a stray partition failed",
                    path=stray.path,
                    reason=str(error),
                    advice="Free disk space or check the disk, and leave the directory in place: it is retried.",
                )

    def _move_receipts(self, log_dir: LogDir, removed: RemovedPartition, *, with_evidence: bool) -> None:
        """Before a directory is deleted: move its receipts to the outbox, which delivers them. Raises OSError."""
        outbox = ReceiptOutbox(log_dir.disk, log_dir.path)
        for receipt in removed_partitions.resolve_pending(removed, replica=self._node_id, now_ms=self._clock.now_ms()):
            self.record_loss(ReceiptFolder(removed.disk, removed.path), receipt)
        with self._lock:
            rescued = removed_partitions.move_receipts_to_outbox(
                removed, log_dir.path, with_evidence=with_evidence, is_kept=self._is_kept
            )
        for receipt in rescued:
            self.queue_receipt(outbox, receipt)

    # -- deletion, in a thread -------------------------------------------------------------------------------------

    def delete_partition(self, removed: RemovedPartition) -> None:
        """Delete its files; its receipts are kept, and note that the evidence is deleted. Raises OSError."""
        log_dir, has_records = self._log_dir_of(removed.path), True
        while True:
            try:
                self._move_receipts(log_dir, removed, with_evidence=False)
                break
            except OSError as error:
                if error.errno not in quarantine.FULL or not has_records:
                    raise
                if not self.make_room(removed.path):
                    removed_partitions.delete_records(removed)
                    has_records = False
        removed.delete()

    def delete_contained(self, removed: RemovedPartition, *, keeps_evidence: bool) -> None:
        """Delete a moved-away replica of which the leader has all records. `keeps_evidence`: receipts of older losses
        refer to evidence in this directory. Raises OSError."""
        if keeps_evidence and removed.disk.stat(f"{removed.path}/{EVIDENCE_DIR}") is not None:
            removed_partitions.delete_log(removed)
        else:
            self.delete_partition(removed)

    def keep_rest(self, log_dir: LogDir, removed: RemovedPartition, lost_from: int, reason: str) -> None:
        """Keep the records of a moved-away replica that its leader does not have, from `lost_from` on, as evidence with
        a receipt; delete the others. Raises OSError, CorruptLog."""
        keep_records(
            removed.disk,
            removed.path,
            lost_from,
            reason,
            high_watermark=removed.high_watermark,
            now_ms=self._clock.now_ms(),
        )
        self._move_receipts(log_dir, removed, with_evidence=True)
        removed_partitions.delete_log(removed)

    def _is_kept(self, receipt: Receipt) -> bool:
        """Whether a replica on this node has the receipt: then the deleted directory is its old place, or a copy."""
        return any(
            ReceiptFolder(each.disk, _directory_of(each, receipt)).is_known(receipt.id) for each in self._log_dirs
        )

    def moved(self, log_dir: LogDir, receipts: Iterable[Receipt]) -> None:
        """The replica has moved to this directory, with its evidence."""
        for receipt in receipts:
            self.queue_receipt(ReceiptFolder(log_dir.disk, _directory_of(log_dir, receipt)), receipt)

    def expired(self, receipts: Iterable[Receipt]) -> None:
        """Records that expired before groups read them; there is no evidence. Raises OSError."""
        log_dir = next(iter(self._log_dirs))
        outbox = ReceiptOutbox(log_dir.disk, log_dir.path)
        for receipt in receipts:
            outbox.mark_due(receipt)
            self.record_loss(outbox, receipt)

    def find(self, receipt_id: str, known: ReceiptFiles | None = None) -> FoundEvidence | None:
        """In a thread: the receipt with this id, if its evidence is on this node. `known`: where it was before.

        Raises OSError if it is in no directory that can be read.
        """
        failed: OSError | None = None
        for log_dir in self._log_dirs:
            try:
                folders = _with_receipts(log_dir)
                if known is not None and known.disk is log_dir.disk:
                    folders = chain((known,), folders)
                for folder in folders:
                    found = _found_in(folder, log_dir, receipt_id)
                    if found is not None:
                        return found
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return None

    async def sweep(self) -> None:
        """On the event loop: enforce the limits of the quarantine. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._sweep)

    def _sweep(self) -> None:
        kept_bytes = 0
        for log_dir in self._log_dirs:
            self.collect_strays(log_dir)
            with self._lock:
                self._drop_delivered(log_dir)
                swept = quarantine.sweep(
                    log_dir.disk,
                    _folders(log_dir),
                    now_ms=self._clock.now_ms(),
                    max_age_ms=self._max_age_ms,
                    max_bytes=self._max_bytes,
                )
            kept_bytes += swept.kept_bytes
            for folder, receipt in swept.changed:
                log.info("evidence deleted", receipt=receipt.id, loss=str(receipt), reason=receipt.evidence_note)
                self.queue_receipt(folder, receipt)
        self.evidence_bytes = kept_bytes

    # -- delivery --------------------------------------------------------------------------------------------------

    def next_due(self, most: int) -> list[Receipt]:
        """Some undelivered receipts, oldest first. Any thread."""
        with self._lock:
            receipts = [receipt for _, receipt in self._due.values()]
        return sorted(receipts, key=lambda receipt: receipt.time_ms)[:most]

    def delivered(self, receipts: Iterable[Receipt]) -> None:
        """In a thread: the ledger has acknowledged them."""
        for receipt in receipts:
            with self._lock:
                folder, due = self._due.get(receipt.id, (None, None))
                if folder is None or due != receipt:
                    continue  # the receipt has changed since
                del self._due[receipt.id]
                if receipt.id in self._incomplete:
                    continue  # it stays due on disk, and is delivered again with more
                try:
                    folder.mark_reported(receipt, is_needed=self._is_needed(folder, receipt))
                except OSError as error:
                    # It is delivered again after the next start; duplicates count once.
                    log.warning("marking a receipt as delivered failed", receipt=receipt.id, reason=str(error))

    # -- transactions ----------------------------------------------------------------------------------------------

    def next_incomplete(self, most: int) -> list[Receipt]:
        """Some receipts with transactions that are not complete, in turn. Any thread."""
        with self._lock:
            chosen = list(self._incomplete.items())[:most]
            for receipt_id, known in chosen:
                del self._incomplete[receipt_id]
                self._incomplete[receipt_id] = known
        return [receipt for _, (_, receipt) in chosen]

    def complete(self, receipt_id: str, transactions: tuple[LostTransaction, ...], *, is_final: bool) -> None:
        """In a thread: what the coordinators have answered. `is_final`: they will not know more."""
        with self._lock:
            folder, before = self._incomplete.get(receipt_id, (None, None))
            if folder is None or before is None:
                return
            receipt = before.with_transactions(transactions)
            if is_final or not receipt.has_incomplete_transactions:
                del self._incomplete[receipt_id]
            elif receipt == before:
                return
            else:
                self._incomplete[receipt_id] = folder, receipt
            try:
                if folder.is_known(receipt_id):  # otherwise the folder is being moved away
                    folder.mark_due(receipt)
            except OSError as error:
                # The ledger gets it; after a crash before that, it gets the receipt without the outcomes.
                log.warning("writing a receipt's transactions failed", receipt=receipt_id, reason=str(error))
            self._due[receipt_id] = folder, receipt
            is_torn = receipt.loss_class is LossClass.TORN and before.loss_class is not LossClass.TORN
            if is_torn:
                self.losses[LossClass.TORN] += 1
        if is_torn:
            log.error(
                "transaction torn",
                partition=f"{receipt.topic}-{receipt.partition}",
                from_offset=receipt.start_offset,
                to_offset=receipt.end_offset_exclusive,
                known_by=receipt.known_by,
                receipt=receipt.id,
                advice=f"See its partitions with: fenceline losses show {receipt.id[:12]}",
            )
        self.due()

    def _is_needed(self, folder: ReceiptFiles, receipt: Receipt) -> bool:
        """Whether the next start after a crash needs the receipt: if the checkpoint on disk has a recovery point above
        the log end, the receipts explain the missing records."""
        if not isinstance(folder, ReceiptFolder):
            return False
        replica = self._in_service.by_name.get((receipt.topic, receipt.partition))
        return replica is None or replica.log.durable_recovery_point > replica.log.log_end_offset

    def _drop_delivered(self, log_dir: LogDir) -> None:
        """Delete receipts that were kept for the next start and are no longer needed. Raises OSError."""
        for _, path in with_evidence(log_dir):
            folder = ReceiptFolder(log_dir.disk, path)
            due = {receipt.id for receipt in folder.due()}
            for receipt in folder.contents().receipts:
                if not receipt.evidence and receipt.id not in due and not self._is_needed(folder, receipt):
                    folder.drop(receipt.id)

    def record_loss(self, folder: ReceiptFiles, receipt: Receipt) -> None:
        with self._lock:
            self.losses[receipt.loss_class] += 1
        log.warning(
            "records lost",
            partition=f"{receipt.topic}-{receipt.partition}",
            from_offset=receipt.start_offset,
            to_offset=receipt.end_offset_exclusive,
            records=receipt.records,
            size_bytes=receipt.size_bytes,
            loss_class=receipt.loss_class.value,
            known_by=receipt.known_by,
            reason=receipt.reason,
            leader=receipt.leader,
            leader_epoch=receipt.leader_epoch,
            group=receipt.group or None,
            evidence=receipt.evidence,
            receipt=receipt.id,
            advice=_ADVICE if receipt.evidence else _NO_ADVICE,
        )
        self.queue_receipt(folder, receipt)

    def queue_receipt(self, folder: ReceiptFiles, receipt: Receipt) -> None:
        with self._lock:
            self._due[receipt.id] = (folder, receipt)
            is_incomplete = receipt.has_incomplete_transactions
            if is_incomplete:
                self._incomplete[receipt.id] = (folder, receipt)
        self.due()
        if is_incomplete:
            self.incomplete()

    def _log_dir_of(self, path: str) -> LogDir:
        for log_dir in self._log_dirs:
            if path.startswith(log_dir.path + "/"):
                return log_dir
        raise StorageError(f"{path} is not in any of this node's log directories")


class LossCollector:
    """Yields the metrics of losses to prometheus-client."""

    def __init__(self, keeper: LossKeeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Any]:
        losses = {loss_class.value: count for loss_class, count in self._keeper.losses.items()}
        yield from counters(
            (
                "fenceline_losses_evidence_fetched_bytes",
                "Bytes of records kept as evidence that clients have read",
                self._keeper.fetched_evidence_bytes,
            ),
        )
        yield counter_by("class", "fenceline_losses", "Losses that this node recorded receipts of", losses)
        yield from gauges(
            ("fenceline_losses_undelivered", "Receipts missing from the ledger topic", self._keeper.undelivered),
            ("fenceline_losses_evidence_bytes", "Bytes of records kept as evidence", self._keeper.evidence_bytes),
        )


def with_evidence(log_dir: LogDir) -> Iterator[tuple[TopicPartition, str]]:
    """Partitions with evidence, and their directories. One stat each: there may be ten thousand partitions."""
    for name in log_dir.disk.listdir(log_dir.path):
        topic_partition = parse_partition_name(name)
        path = f"{log_dir.path}/{name}"
        if topic_partition is not None and log_dir.disk.stat(f"{path}/{EVIDENCE_DIR}") is not None:
            yield topic_partition, path


def _directory_of(log_dir: LogDir, receipt: Receipt) -> str:
    return f"{log_dir.path}/{receipt.topic}-{receipt.partition}"


def _folders(log_dir: LogDir) -> Iterator[ReceiptFiles]:
    """All receipt folders of a log directory."""
    yield from _with_receipts(log_dir)
    for stray in log_dir.strays():
        folder = ReceiptFolder(log_dir.disk, stray.path)
        if not folder.contents().receipts:  # otherwise they have not been moved to the outbox yet
            yield folder


def _with_receipts(log_dir: LogDir) -> Iterator[ReceiptFiles]:
    """The receipts there name evidence at its present place."""
    yield ReceiptOutbox(log_dir.disk, log_dir.path)
    for _, path in with_evidence(log_dir):
        yield ReceiptFolder(log_dir.disk, path)


def _found_in(folder: ReceiptFiles, log_dir: LogDir, receipt_id: str) -> FoundEvidence | None:
    receipt = folder.find(receipt_id)
    if receipt is None or not receipt.evidence:
        return None
    # A receipt is a file: only this node's own directories are read, whatever it says.
    is_inside = all(path.startswith(f"{log_dir.path}/") and "/../" not in path for path in receipt.evidence)
    return FoundEvidence(folder, receipt) if is_inside else None
