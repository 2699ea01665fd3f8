"""What this node's logs lose: cut with receipts, kept for a while, and known until the ledger has it.

Owns the receipts that are not delivered yet, the quarantine's limits, and the figures of both. The rules are those of
`fenceline.losses`; who carries receipts to the ledger topic is `loss_delivery`.

Threads: cuts come from disk threads, several at a time; one lock guards what is shared between them and the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from fenceline.ids import TopicPartition
from fenceline.log.errors import StorageError
from fenceline.log.log_dir import LogDir
from fenceline.log.lost_and_found import EVIDENCE_DIR
from fenceline.log.partition_dir import RemovedPartition, parse_partition_name
from fenceline.log.set_aside import keep_records
from fenceline.losses import put_away, quarantine
from fenceline.losses.cutting import Cut, cut_log
from fenceline.losses.folder import Outbox, ReceiptFolder, Receipts
from fenceline.losses.receipt import Cause, LossClass, Receipt
from fenceline.node.logs import Logger
from fenceline.node.metric_families import counter_by, gauges
from fenceline.node.pending_partitions import PendingPartitions
from fenceline.replica.follower import BeginAnew, CutTo

if TYPE_CHECKING:
    from fenceline.node.broker import Broker
    from fenceline.node.replica import Replica

log = Logger("losses")

_ADVICE: Final = "See it with: fenceline losses list. The records are in the evidence: fenceline losses export."
_NO_ADVICE: Final = "See it with: fenceline losses list."
_NOTHING_TO_FREE_MS: Final = 10_000
"""A full disk without evidence is not looked through with every record that it refuses."""


class LossKeeper:
    """One broker's. Methods say where they belong."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._max_age_ms = broker.config.get_int("fenceline.lost.retention.ms")
        self._max_bytes = broker.config.get_int("fenceline.lost.retention.bytes")
        self._lock = Lock()
        self._due: dict[str, tuple[Receipts, Receipt]] = {}
        self.told_of: Callable[[], None] = lambda: None
        """Called, in any thread, when there is something to deliver."""
        self.losses: dict[LossClass, int] = dict.fromkeys(LossClass, 0)
        """Since this node started."""
        self.evidence_bytes = 0
        """As of the last look."""
        self._pending = PendingPartitions(broker, self._make_room, self._lost, self._owes, self._take_up_strays)
        self.compared_first: set[str] = set()
        """Directories of replicas that were moved away; `RemovedReplicas` is at them."""
        self._relieving: asyncio.Future[bool] | None = None
        self._relief_pauses_until_ms = 0

    @property
    def undelivered(self) -> int:
        return len(self._due)

    # -- cutting, in a thread --------------------------------------------------------------------------------------

    def cut(self, replica: Replica, duty: CutTo | BeginAnew, leader_id: int) -> None:
        """Cut the log; what was lost is durable and said before this returns. Raises StorageError."""
        epoch = duty.state.leader_epoch
        refused_epoch, refused_ends = replica.refused
        disk = self._log_dir_of(replica.log.directory).disk
        receipts = cut_log(
            disk,
            replica.log,
            Cut(
                duty.offset,
                isinstance(duty, BeginAnew),
                Cause(duty.cause.name.lower()),
                duty.cause.value,
                self._broker.node_id,
                leader_id,
                epoch,
                self._broker.clock.now_ms(),
                # Another leader in between may have had the records, and have said so to a producer that tried again.
                refused_ends if refused_epoch == epoch - 1 else frozenset(),
                replica.clean_since,
                isinstance(duty, BeginAnew) and duty.is_whole,
            ),
            lambda: self._make_room(replica.log.directory),
        )
        folder = ReceiptFolder(disk, replica.log.directory)
        for receipt in receipts:
            self._lost(folder, receipt)

    def relieve(self, topic_partition: TopicPartition) -> None:
        """On the loop: a disk has no room for records. What was cut off logs there gives way, the oldest first."""
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        if self._relieving is not None or now_ms < self._relief_pauses_until_ms:
            return
        replica = broker.partitions.open_by_name.get(topic_partition)
        directory = replica.log.directory if replica is not None else f"{next(iter(broker.log_dirs)).path}/"

        def relieved(relieving: asyncio.Future[bool]) -> None:
            self._relieving = None
            error = relieving.exception() if not relieving.cancelled() else None
            if error is not None:
                log.error("no evidence deleted from a full disk", reason=str(error))
            if relieving.cancelled() or error is not None or not relieving.result():
                self._relief_pauses_until_ms = broker.clock.monotonic_ms() + _NOTHING_TO_FREE_MS

        self._relieving = asyncio.ensure_future(
            broker.loop.run_in_executor(broker.disk_threads, self._make_room, directory)
        )
        self._relieving.add_done_callback(relieved)

    def _make_room(self, directory: str) -> bool:
        """In a thread. False where there is no evidence on that disk."""
        log_dir = self._log_dir_of(directory)
        with self._lock:
            room = quarantine.make_room(log_dir.disk, _folders(log_dir))
        for folder, receipt in room.changed:
            log.warning("evidence deleted, the disk is full", receipt=receipt.id, loss=str(receipt))
            self._owes(folder, receipt)
        return room.freed

    # -- start, in a thread ----------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Before any log is served: settle what a crash interrupted, and find what the ledger does not have yet."""
        for log_dir in self._broker.log_dirs:
            self._pending.register_unopened(log_dir)
            try:
                self._take_up(log_dir)
            except OSError as error:
                log.error(
                    "loss receipts of a log directory not read",
                    path=log_dir.path,
                    reason=str(error),
                    advice="Check the disk, then restart the node: receipts that were not delivered are taken up then.",
                )

    def _take_up(self, log_dir: LogDir) -> None:
        for topic_partition, path in _with_evidence(log_dir):
            folder = ReceiptFolder(log_dir.disk, path)
            if folder.is_unsettled:
                self._pending.record_losses(log_dir, topic_partition)
            for receipt in folder.due():
                self._owes(folder, receipt)
        self._take_up_strays(log_dir)
        outbox = Outbox(log_dir.disk, log_dir.path)
        for receipt in outbox.due():
            self._owes(outbox, receipt)

    def _take_up_strays(self, log_dir: LogDir) -> None:
        """What the cluster does not know any more was lost all the same, and its evidence is in another place now."""
        for stray in log_dir.strays():
            if stray.path in self.compared_first:
                continue
            try:
                self._take_along(log_dir, stray, with_evidence=True)
            except OSError as error:
                log.error(
                    "receipts of a stray partition not taken up",
                    path=stray.path,
                    reason=str(error),
                    advice="Make room on the disk or check it, and leave the directory there: it is tried again.",
                )

    def _take_along(self, log_dir: LogDir, removed: RemovedPartition, *, with_evidence: bool) -> None:
        """Before a directory goes: its receipts go to the outbox, to be told from there. Raises OSError."""
        outbox = Outbox(log_dir.disk, log_dir.path)
        for receipt in put_away.settle(removed, replica=self._broker.node_id, now_ms=self._broker.clock.now_ms()):
            self._lost(ReceiptFolder(removed.disk, removed.path), receipt)
        with self._lock:
            rescued = put_away.rescue(removed, log_dir.path, with_evidence=with_evidence, is_kept=self._is_kept)
        for receipt in rescued:
            self._owes(outbox, receipt)

    @property
    def has_unsettled(self) -> bool:
        """Whether `settle_again` has something to do; once it has nothing, it will not have until the next start."""
        return bool(self._pending)

    async def settle_again(self) -> None:
        """On the loop: what had no room for its papers at the start is served as soon as it has."""
        await self._pending.retry()

    # -- what is deleted, in a thread ------------------------------------------------------------------------------

    def delete_partition(self, removed: RemovedPartition) -> None:
        """Delete its files; its receipts stay, and say that the evidence is gone. Raises OSError."""
        log_dir, has_records = self._log_dir_of(removed.path), True
        while True:
            try:
                self._take_along(log_dir, removed, with_evidence=False)
                break
            except OSError as error:
                if error.errno not in quarantine.FULL or not has_records:
                    raise
                if not self._make_room(removed.path):
                    put_away.drop_records(removed)
                    has_records = False
        removed.delete()

    def delete_contained(self, removed: RemovedPartition, *, keeps_evidence: bool) -> None:
        """The leader has all records of a replica that was moved away. `keeps_evidence`: the receipts of its older
        losses name what lies in this directory. Raises OSError."""
        if keeps_evidence and removed.disk.stat(f"{removed.path}/{EVIDENCE_DIR}") is not None:
            put_away.drop_log(removed)
        else:
            self.delete_partition(removed)

    def keep_rest(self, log_dir: LogDir, removed: RemovedPartition, lost_from: int, reason: str) -> None:
        """The leader does not have the records from `lost_from` on of a replica that was moved away: they become
        evidence, with a receipt; the others go. Raises OSError, CorruptLog."""
        keep_records(
            removed.disk,
            removed.path,
            lost_from,
            reason,
            high_watermark=removed.high_watermark,
            now_ms=self._broker.clock.now_ms(),
        )
        self._take_along(log_dir, removed, with_evidence=True)
        put_away.drop_log(removed)

    def _is_kept(self, receipt: Receipt) -> bool:
        """By a replica that is here: what is deleted is where it has moved from, or a copy."""
        return any(
            ReceiptFolder(each.disk, _directory_of(each, receipt)).is_known(receipt.id)
            for each in self._broker.log_dirs
        )

    def moved(self, log_dir: LogDir, receipts: Iterable[Receipt]) -> None:
        """The replica has moved there, and its evidence with it."""
        for receipt in receipts:
            self._owes(ReceiptFolder(log_dir.disk, _directory_of(log_dir, receipt)), receipt)

    def expired(self, receipts: Iterable[Receipt]) -> None:
        """Losses of groups, which have no evidence. Raises OSError."""
        log_dir = next(iter(self._broker.log_dirs))
        outbox = Outbox(log_dir.disk, log_dir.path)
        for receipt in receipts:
            outbox.owe(receipt)
            self._lost(outbox, receipt)

    async def sweep(self) -> None:
        """On the loop: enforce the limits of the quarantine. Raises OSError."""
        broker = self._broker
        await broker.loop.run_in_executor(broker.disk_threads, self._sweep)

    def _sweep(self) -> None:
        kept_bytes = 0
        for log_dir in self._broker.log_dirs:
            self._take_up_strays(log_dir)
            with self._lock:
                self._drop_told(log_dir)
                swept = quarantine.sweep(
                    log_dir.disk,
                    _folders(log_dir),
                    now_ms=self._broker.clock.now_ms(),
                    max_age_ms=self._max_age_ms,
                    max_bytes=self._max_bytes,
                )
            kept_bytes += swept.kept_bytes
            for folder, receipt in swept.changed:
                log.info("evidence deleted", receipt=receipt.id, loss=str(receipt), reason=receipt.evidence_note)
                self._owes(folder, receipt)
        self.evidence_bytes = kept_bytes

    # -- what is to be delivered -----------------------------------------------------------------------------------

    def next_due(self, most: int) -> list[Receipt]:
        """Some receipts that the ledger does not have, oldest first. Any thread."""
        with self._lock:
            receipts = [receipt for _, receipt in self._due.values()]
        return sorted(receipts, key=lambda receipt: receipt.time_ms)[:most]

    def delivered(self, receipts: Iterable[Receipt]) -> None:
        """In a thread: the ledger has them."""
        for receipt in receipts:
            with self._lock:
                folder, due = self._due.get(receipt.id, (None, None))
                if folder is None or due != receipt:
                    continue  # more is to be said of it by now
                del self._due[receipt.id]
                try:
                    folder.told(receipt, is_needed=self._is_needed(folder, receipt))
                except OSError as error:
                    # It is delivered again after the next start, and counts once.
                    log.warning("receipt not marked as delivered", receipt=receipt.id, reason=str(error))

    def _is_needed(self, folder: Receipts, receipt: Receipt) -> bool:
        """Whether a crash now would tell of it again: the checkpoint on the disk has a recovery point behind the log's
        end, and the next start asks these receipts what has gone in between."""
        if not isinstance(folder, ReceiptFolder):
            return False
        replica = self._broker.partitions.open_by_name.get((receipt.topic, receipt.partition))
        return replica is None or replica.log.durable_recovery_point > replica.log.log_end_offset

    def _drop_told(self, log_dir: LogDir) -> None:
        """What was kept for the next start, and is not needed any more. Raises OSError."""
        for _, path in _with_evidence(log_dir):
            folder = ReceiptFolder(log_dir.disk, path)
            due = {receipt.id for receipt in folder.due()}
            for receipt in folder.contents().receipts:
                if not receipt.evidence and receipt.id not in due and not self._is_needed(folder, receipt):
                    folder.drop(receipt.id)

    def _lost(self, folder: Receipts, receipt: Receipt) -> None:
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
        self._owes(folder, receipt)

    def _owes(self, folder: Receipts, receipt: Receipt) -> None:
        with self._lock:
            self._due[receipt.id] = (folder, receipt)
        self.told_of()

    def _log_dir_of(self, path: str) -> LogDir:
        for log_dir in self._broker.log_dirs:
            if path.startswith(log_dir.path + "/"):
                return log_dir
        raise StorageError(f"{path} lies in none of this node's log directories")


class LossCollector:
    """Gives the figures to prometheus-client at scrape time."""

    def __init__(self, keeper: LossKeeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Any]:
        losses = {loss_class.value: count for loss_class, count in self._keeper.losses.items()}
        yield counter_by("class", "fenceline_losses", "Losses that this node wrote receipts of", losses)
        yield from gauges(
            ("fenceline_losses_undelivered", "Receipts that the ledger topic lacks", self._keeper.undelivered),
            ("fenceline_losses_evidence_bytes", "Bytes of cut records that are kept", self._keeper.evidence_bytes),
        )


def _with_evidence(log_dir: LogDir) -> Iterator[tuple[TopicPartition, str]]:
    """Partitions and their directories. A name and a look each: there may be ten thousand without any."""
    for name in log_dir.disk.listdir(log_dir.path):
        topic_partition = parse_partition_name(name)
        path = f"{log_dir.path}/{name}"
        if topic_partition is not None and log_dir.disk.stat(f"{path}/{EVIDENCE_DIR}") is not None:
            yield topic_partition, path


def _directory_of(log_dir: LogDir, receipt: Receipt) -> str:
    return f"{log_dir.path}/{receipt.topic}-{receipt.partition}"


def _folders(log_dir: LogDir) -> Iterator[Receipts]:
    """All that is kept in a log directory."""
    yield Outbox(log_dir.disk, log_dir.path)
    for _, path in _with_evidence(log_dir):
        yield ReceiptFolder(log_dir.disk, path)
    for stray in log_dir.strays():
        folder = ReceiptFolder(log_dir.disk, stray.path)
        if not folder.contents().receipts:  # else they have not been taken up yet, and name another place
            yield folder
