"""Receipts of a partition whose directory is removed: deleted with its topic, moved away, or set aside as stray.

Owns what happens to the receipts in its `lost+found` before the directory is removed, and the order: after a crash
between any two steps a loss may be reported twice, but never not at all. Evidence stays where it is. Blocks on the
disk: for a thread. All functions may raise OSError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from fenceline.log.core.checkpoints import BadCheckpoint, read_partition_metadata
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import CorruptLog, is_transient
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.cutting import Ends, LogContext, resolve_pending_files
from fenceline.losses.folder import ReceiptFolder, ReceiptOutbox
from fenceline.losses.quarantine import without_evidence
from fenceline.losses.receipt import Receipt

WITH_PARTITION: Final = "The partition was removed from this node, and the evidence with it."


def resolve_pending(removed: RemovedPartition, *, replica: int, now_ms: int) -> list[Receipt]:
    """Receipts of truncations that a crash or a full disk interrupted there; they are in its folder afterwards."""
    folder = ReceiptFolder(removed.disk, removed.path)
    if not folder.is_pending:
        return []
    context = LogContext(removed.topic_partition, _topic_id(removed), _ends(removed, now_ms))
    return resolve_pending_files(folder, context, replica=replica, high_watermark=removed.high_watermark)


def move_receipts_to_outbox(
    removed: RemovedPartition,
    log_dir: str,
    *,
    with_evidence: bool,
    is_kept: Callable[[Receipt], bool] = lambda _: False,
) -> list[Receipt]:
    """Move due receipts to the log directory's outbox. Returns those in it that the ledger does not have.

    `with_evidence`: the directory stays, and the receipts name the current evidence paths. Else they record that it is
    deleted. `is_kept`: the replica has moved and keeps the evidence elsewhere; nothing needs to be reported.
    """
    folder, outbox = ReceiptFolder(removed.disk, removed.path), ReceiptOutbox(removed.disk, log_dir)
    due = {receipt.id for receipt in folder.due()}
    moved = []
    receipts = folder.contents().receipts
    for receipt in receipts:
        if (not receipt.evidence and receipt.id not in due) or is_kept(receipt):
            continue
        if not receipt.evidence:
            moved.append(receipt)
        elif with_evidence:
            moved.append(replace(receipt, evidence=tuple(f"{folder.path}/{_name(path)}" for path in receipt.evidence)))
        else:
            moved.append(without_evidence(receipt, WITH_PARTITION))
        outbox.mark_due(moved[-1])
    for receipt in receipts if with_evidence else moved:
        folder.drop(receipt.id)
    return moved


def delete_records(removed: RemovedPartition) -> None:
    """Delete everything but receipts, intents and notes: on a full disk, this makes room for the receipts.

    For a truncation whose receipt is not written yet, the log's content is then unknown: all of it counts as executed,
    as it has been by now.
    """
    folder = ReceiptFolder(removed.disk, removed.path)
    for path in folder.contents().evidence:
        removed.disk.unlink(path)
    delete_log(removed)


def delete_log(removed: RemovedPartition) -> None:
    """Delete the log; receipts and evidence stay."""
    for name in removed.disk.listdir(removed.path):
        found = removed.disk.stat(f"{removed.path}/{name}")
        if found is not None and not found.is_directory and name != METADATA_FILE:
            removed.disk.unlink(f"{removed.path}/{name}")


def _ends(removed: RemovedPartition, now_ms: int) -> Ends | None:
    """Opens the log as after a crash, which may add a note. Raises OSError for an error that may pass."""
    if not any(ReceiptFolder(removed.disk, removed.path).intents()):
        return None  # the notes themselves report the loss
    try:
        log = PartitionLog.open(
            removed.disk,
            removed.path,
            topic_partition=removed.topic_partition,
            topic_id=None,
            config=LogConfig(),
            now_ms=now_ms,
        )
    except CorruptLog as error:
        if error.transient_error is not None:
            raise error.transient_error from error
        return None
    except OSError as error:
        if is_transient(error.errno):
            raise
        return None
    log.close(clean=False)
    return Ends(log.log_start_offset, log.log_end_offset)


def _topic_id(removed: RemovedPartition) -> UUID | None:
    try:
        return read_partition_metadata(removed.disk, f"{removed.path}/{METADATA_FILE}")
    except BadCheckpoint:
        return None


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
