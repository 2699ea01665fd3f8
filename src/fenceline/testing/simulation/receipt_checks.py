"""Receipts of losses against the logs: what a cut took is what its receipts say, before the log is used again.

Owns the look at the `lost+found` of a simulated disk. What a receipt must hold is `fenceline.losses.check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.log.lost_and_found import EVIDENCE_DIR
from fenceline.losses.check import Stored, complaints
from fenceline.losses.folder import DUE, TOLD
from fenceline.losses.folder import PREFIX as RECEIPT_PREFIX
from fenceline.losses.receipt import Receipt, decode
from fenceline.records.batch import read_header
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import Process, StoredBatch

if TYPE_CHECKING:
    from fenceline.node.replica import Replica


def papers(process: Process, replica: Replica) -> dict[str, Receipt]:
    """By id: the receipts that a replica's directory has."""
    directory = f"{replica.log.directory}/{EVIDENCE_DIR}"
    found = {}
    for name in process.disk.folder(directory) or ():
        if name.startswith(RECEIPT_PREFIX) and name.endswith((DUE, TOLD)):
            receipt = decode(process.disk.peek(f"{directory}/{name}") or b"")
            found[receipt.id] = receipt
    return found


def is_of(receipt: Receipt, key: tuple[bytes, int]) -> bool:
    """Whether it tells what a log of this partition has lost. `key`: topic id, partition."""
    return receipt.topic_id is not None and (receipt.topic_id.bytes, receipt.partition) == key and not receipt.group


def receipts_are_exact(
    process: Process, replica: Replica, known: dict[str, Receipt], lost: list[StoredBatch], where: str
) -> None:
    """`known`: those of cuts before; the new ones join them. Raises InvariantBroken."""
    there = papers(process, replica)
    receipts = [receipt for name, receipt in there.items() if name not in known]
    known |= there
    found = complaints(receipts, [stored(batch) for batch in lost])
    if found:
        raise InvariantBroken(f"{where}: {'; '.join(found)} (receipts)")


def stored(batch: StoredBatch) -> Stored:
    """As receipts are compared with."""
    return Stored.of(read_header(batch.content))
