"""Receipts of losses against the logs: receipts match what a truncation removed, before the log is used again.

Owns reading the `lost+found` of a simulated disk. `fenceline.losses.check` defines the required content of a receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.losses.check import Stored, complaints
from fenceline.losses.folder import DUE, REPORTED
from fenceline.losses.folder import PREFIX as RECEIPT_PREFIX
from fenceline.losses.receipt import LossCause, LossClass, Receipt, decode
from fenceline.records.batch import read_header
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import Process, StoredBatch

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica
    from fenceline.testing.simulation.data_history import PartitionHistory


_BY_RETENTION = "older than retention.ms"


def receipts_in_directory(process: Process, replica: Replica) -> dict[str, Receipt]:
    """By id: the receipts in the directory of a replica."""
    directory = f"{replica.log.directory}/{EVIDENCE_DIR}"
    found = {}
    for name in process.disk.folder(directory) or ():
        if name.startswith(RECEIPT_PREFIX) and name.endswith((DUE, REPORTED)):
            receipt = decode(process.disk.peek(f"{directory}/{name}") or b"")
            found[receipt.id] = receipt
    return found


def receipts_to_deliver(disk: SimDisk) -> Iterator[Receipt]:
    """The receipts on a disk that the ledger topic may lack."""
    for folder in disk.folders():
        for name in disk.folder(folder) or ():
            if name.endswith(DUE):
                yield decode(disk.peek(f"{folder}/{name}") or b"")


def is_of(receipt: Receipt, key: tuple[bytes, int]) -> bool:
    """Whether the receipt is about records of this partition. `key`: topic id, partition."""
    return receipt.topic_id is not None and (receipt.topic_id.bytes, receipt.partition) == key and not receipt.group


def of_logs_in_use(receipts: Mapping[str, Receipt], key: tuple[bytes, int]) -> dict[str, Receipt]:
    """The receipts of a partition for truncations of its log, not for directories that were set aside."""
    return {name: each for name, each in receipts.items() if is_of(each, key) and each.cause is not LossCause.SET_ASIDE}


def receipts_are_exact(
    process: Process,
    there: Mapping[str, Receipt],
    known: dict[str, Receipt],
    lost: list[StoredBatch],
    history: PartitionHistory,
    log_start: int,
    high_watermark: int,
    where: str,
) -> None:
    """`there`: the replica's receipts by id. `known`: those of earlier truncations; the new ones are added.
    `log_start`, `high_watermark`: the replica's values before the truncation. Raises InvariantBroken."""
    receipts = [receipt for name, receipt in there.items() if name not in known and not receipt.group]
    known |= there
    found = complaints(receipts, [stored(batch) for batch in lost], log_start=log_start)
    for receipt in receipts:
        mine = [
            batch
            for batch in lost
            if receipt.start_offset <= max(batch.base_offset, log_start)
            and batch.next_offset <= receipt.end_offset_exclusive
        ]
        found += _class_complaints(receipt, mine, history, high_watermark)
        if not receipt.evidence_note:
            kept = b"".join(process.disk.peek(path) or b"" for path in receipt.evidence)
            found += [
                f"receipt of {receipt} names evidence that lacks the batch at {batch.base_offset}"
                for batch in mine
                if batch.content not in kept
            ]
    if found:
        raise InvariantBroken(f"{where}: {'; '.join(found)} (receipts)")


def _class_complaints(
    receipt: Receipt, lost: list[StoredBatch], history: PartitionHistory, high_watermark: int
) -> list[str]:
    """Records below the high watermark were committed; acknowledged records are not `never_acknowledged`."""
    is_committed = receipt.start_offset < high_watermark
    if receipt.loss_class is LossClass.EXPIRED and receipt.cause is LossCause.LEADER_STARTS_LATER:
        # The leader's log starts after them: they were deleted there, or are older than the retention time.
        is_lost = _BY_RETENTION not in receipt.known_by and any(batch in history.lost_batches for batch in lost)
        is_deleted = receipt.end_offset_exclusive <= history.log_start and not is_lost
        return [] if is_deleted else [f"receipt of {receipt} is expired, but the records were not deleted"]
    if is_committed != (receipt.loss_class is LossClass.COMMITTED):
        return [f"receipt of {receipt} is {receipt.loss_class.value}, but the high watermark was {high_watermark}"]
    if receipt.loss_class is LossClass.NEVER_ACKNOWLEDGED and any(
        history.was_acknowledged(batch) and history.is_only_copy(batch) for batch in lost
    ):
        return [f"receipt of {receipt} is {receipt.loss_class.value}, but a producer has an acknowledgement"]
    return []


def stored(batch: StoredBatch) -> Stored:
    """The batch in the form that receipts are compared with."""
    return Stored.of(read_header(batch.content))
