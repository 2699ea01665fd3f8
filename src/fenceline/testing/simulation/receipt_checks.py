"""Receipts of losses against the logs: what a cut took is what its receipts say, before the log is used again.

Owns the look at the `lost+found` of a simulated disk. What a receipt must hold is `fenceline.losses.check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.log.lost_and_found import EVIDENCE_DIR
from fenceline.losses.check import Stored, complaints
from fenceline.losses.folder import DUE, TOLD
from fenceline.losses.folder import PREFIX as RECEIPT_PREFIX
from fenceline.losses.receipt import decode
from fenceline.records.batch import read_header
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import Process, StoredBatch

if TYPE_CHECKING:
    from fenceline.node.replica import Replica


def papers(process: Process, replica: Replica) -> list[str]:
    """Paths of the receipts that a replica's directory has."""
    directory = f"{replica.log.directory}/{EVIDENCE_DIR}"
    if process.disk.stat(directory) is None:
        return []
    names = [each for each in process.disk.listdir(directory) if each.startswith(RECEIPT_PREFIX)]
    return [f"{directory}/{each}" for each in names if each.endswith((DUE, TOLD))]


def receipts_are_exact(
    process: Process, replica: Replica, known: set[str], lost: list[StoredBatch], where: str
) -> None:
    """`known`: those of cuts before, without suffix; the new ones join them. Raises InvariantBroken."""
    receipts = []
    for path in papers(process, replica):
        name = path.rpartition(".")[0]
        if name not in known:
            known.add(name)
            receipts.append(decode(process.disk.peek(path) or b""))
    found = complaints(receipts, [_stored(batch) for batch in lost])
    if found:
        raise InvariantBroken(f"{where}: {'; '.join(found)} (receipts)")


def _stored(batch: StoredBatch) -> Stored:
    header = read_header(batch.content)
    return Stored(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.record_count,
        header.size_bytes,
        header.crc,
    )
