"""Retention of evidence, and how it is deleted: by age, by bytes, on a full disk, with its partition.

Owns the order of deletion, oldest loss first. A receipt never names deleted evidence without saying so: it is reported
again, with the reason. Blocks on the disk: for a thread. All functions may raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from fenceline.log.core.disk import Disk
from fenceline.losses.folder import ReceiptFiles
from fenceline.losses.receipt import Receipt

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE: Final = (0, -1)
BY_AGE: Final = "The evidence was older than fenceline.lost.retention.ms and was deleted."
BY_BYTES: Final = "The evidence exceeded fenceline.lost.retention.bytes; this part was deleted."
BY_FULL_DISK: Final = "The disk was full; the evidence was deleted to keep partitions in service."
GONE: Final = "The evidence does not exist any more: the disk was full, or it was deleted by hand."


@dataclass(frozen=True, slots=True)
class SweepResult:
    """`kept_bytes`: of all remaining evidence. `changed`: receipts to report again, and their folders."""

    kept_bytes: int
    changed: tuple[tuple[ReceiptFiles, Receipt], ...]


@dataclass(frozen=True, slots=True)
class FreedSpace:
    """The result of freeing space on a full disk. `changed`: receipts to report again, and their folders."""

    freed: bool
    changed: tuple[tuple[ReceiptFiles, Receipt], ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Evidence of one loss; `receipt` is None if none is known."""

    folder: ReceiptFiles
    receipt: Receipt | None
    paths: tuple[str, ...]
    time_ms: int
    size_bytes: int
    is_missing: bool = False
    """None of it exists any more."""


def sweep(disk: Disk, folders: Iterable[ReceiptFiles], *, now_ms: int, max_age_ms: int, max_bytes: int) -> SweepResult:
    """Delete evidence that is too old, then the oldest until the rest is within the limit; negative limits are off.

    `folders`: all of one log directory. A folder with a pending truncation or recovery keeps evidence that no receipt
    names yet.
    """
    kept = _collect(disk, folders)
    total = sum(each.size_bytes for each in kept)
    changed: list[tuple[ReceiptFiles, Receipt]] = []
    for each in kept:
        if each.receipt is not None and each.is_missing:
            changed.append((each.folder, without_evidence(each.receipt, GONE)))
            each.folder.mark_due(changed[-1][1])
            continue
        too_old = 0 <= max_age_ms < now_ms - each.time_ms
        if not too_old and not 0 <= max_bytes < total:
            continue
        if each.receipt is not None:
            # Receipt before deletion: no receipt ever names missing evidence.
            changed.append((each.folder, without_evidence(each.receipt, BY_AGE if too_old else BY_BYTES)))
            each.folder.mark_due(changed[-1][1])
        _unlink(disk, each.paths)
        total -= each.size_bytes
    return SweepResult(total, tuple(changed))


def make_room(disk: Disk, folders: Iterable[ReceiptFiles]) -> FreedSpace:
    """Delete the oldest evidence on a full disk, enough to also record the deletion.

    Evidence that no receipt names stays: it is the only record of its loss.
    """
    changed: list[tuple[ReceiptFiles, Receipt]] = []
    unwritten: list[tuple[ReceiptFiles, Receipt]] = []
    freed = False
    for each in _collect(disk, folders):
        if each.receipt is None or not each.size_bytes:
            continue
        # There may be no room to write the receipt first; the next sweep then writes it.
        _unlink(disk, each.paths)
        freed = True
        unwritten.append((each.folder, without_evidence(each.receipt, BY_FULL_DISK)))
        try:
            while unwritten:
                folder, receipt = unwritten[0]
                folder.mark_due(receipt)
                changed.append((folder, receipt))
                del unwritten[0]
        except OSError as error:
            if error.errno not in FULL:
                raise
            continue
        break
    return FreedSpace(freed, tuple(changed))


def without_evidence(receipt: Receipt, note: str) -> Receipt:
    """The receipt after its evidence was deleted."""
    return replace(receipt, evidence=(), evidence_note=note)


def _unlink(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)


def _collect(disk: Disk, folders: Iterable[ReceiptFiles]) -> list[_Kept]:
    """All evidence, the oldest loss first."""
    found: list[_Kept] = []
    named: set[str] = set()
    folder_contents = [(folder, folder.contents()) for folder in folders]
    for folder, contents in folder_contents:
        for receipt in contents.receipts:
            if receipt.evidence:
                named.update(receipt.evidence)
                stats = [_stat(disk, path) for path in receipt.evidence]
                size = sum(stat[0] for stat in stats)
                is_missing = all(stat == _NOT_THERE for stat in stats)
                found.append(_Kept(folder, receipt, receipt.evidence, receipt.time_ms, size, is_missing))
    for folder, contents in folder_contents:
        if not contents.is_pending:
            for path in contents.evidence:
                if path not in named:
                    size, modified_ms = _stat(disk, path)
                    found.append(_Kept(folder, None, (path,), modified_ms, size))
    found.sort(key=lambda each: each.time_ms)
    return found


def _stat(disk: Disk, path: str) -> tuple[int, int]:
    found = disk.stat(path)
    return (found.size_bytes, found.modified_ms) if found is not None else _NOT_THERE
