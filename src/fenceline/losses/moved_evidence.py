"""Copies evidence and receipts with a replica that moves to another directory of its node.

Owns the copy of a partition's `lost+found`, and the evidence paths in its receipts. The copied receipts are due again,
as the ledger needs the new paths. Blocks on the disk: for a thread. All functions may raise OSError.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from fenceline.log.core.disk import Disk
from fenceline.log.core.lost_and_found import EVIDENCE_DIR, copy_range
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import Receipt


@dataclass(frozen=True, slots=True)
class CopiedEvidence:
    """`names`: evidence that was there. `receipts`: as written at the new place. `size_bytes`: of the evidence."""

    names: frozenset[str]
    receipts: tuple[Receipt, ...]
    size_bytes: int


def copy_evidence(source: Disk, source_directory: str, target: Disk, directory: str, named: str) -> CopiedEvidence:
    """Copy to `directory`, which will be renamed to `named`. Files of an earlier attempt there are replaced."""
    before, after = ReceiptFolder(source, source_directory), ReceiptFolder(target, directory)
    _empty(target, after.path)
    names = before.evidence()
    size_bytes = 0
    if names:
        target.mkdir(after.path)
    for name in names:
        path = f"{after.path}/{name}"
        try:
            copy_range(source, f"{before.path}/{name}", path, 0, None)
        except FileNotFoundError:  # it was deleted by retention meanwhile
            with contextlib.suppress(FileNotFoundError):
                target.unlink(path)
            continue
        found = target.stat(path)
        size_bytes += found.size_bytes if found is not None else 0
    receipts = tuple(_at(each, before.path, f"{named}/{EVIDENCE_DIR}") for each in before.contents().receipts)
    for receipt in receipts:
        after.mark_due(receipt)
    if names or receipts:
        target.fsync_dir(after.path)
        target.fsync_dir(directory)
    return CopiedEvidence(frozenset(names), receipts, size_bytes)


def is_complete(carried: CopiedEvidence, disk: Disk, directory: str) -> bool:
    """Whether no evidence was added since and no truncation is in progress. Lists one directory."""
    folder = ReceiptFolder(disk, directory)
    if not carried.names >= set(folder.evidence()):
        return False
    contents = folder.contents()
    known = {each.id for each in carried.receipts}
    return not contents.is_pending and all(each.id in known for each in contents.receipts)


def _at(receipt: Receipt, before: str, after: str) -> Receipt:
    return replace(receipt, evidence=tuple(path.replace(before, after, 1) for path in receipt.evidence))


def _empty(disk: Disk, folder: str) -> None:
    try:
        names = disk.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        disk.unlink(f"{folder}/{name}")
