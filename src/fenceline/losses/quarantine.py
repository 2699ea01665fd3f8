"""How long evidence is kept, and how it goes: by age, by bytes, when the disk is full, with its partition.

Owns the order in which evidence goes, oldest loss first. A receipt never points at evidence that is gone without saying
so: it is told again, with the reason. Blocks on the disk: for a thread. Everything may raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from fenceline.log.disk import Disk
from fenceline.losses.folder import Outbox, ReceiptFolder
from fenceline.losses.receipt import Receipt

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE: Final = (0, -1)
BY_AGE: Final = "The evidence was older than fenceline.lost.retention.ms and is deleted."
BY_BYTES: Final = "There was more evidence than fenceline.lost.retention.bytes; this one is deleted."
BY_FULL_DISK: Final = "The disk was full: the evidence is deleted, so that partitions could be served."
GONE: Final = "The evidence is not there any more: the disk was full, or somebody else deleted it."
WITH_PARTITION: Final = "The partition was removed from this node, and the evidence with it."


@dataclass(frozen=True, slots=True)
class Swept:
    """`kept_bytes`: of all evidence that is left. `changed`: receipts that are to be told again."""

    kept_bytes: int
    changed: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What a full disk took. `changed`: receipts that are to be told again."""

    freed: bool
    changed: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Evidence of one loss; `receipt` None: of none that is known."""

    folder: ReceiptFolder
    receipt: Receipt | None
    paths: tuple[str, ...]
    time_ms: int
    size_bytes: int
    is_gone: bool = False
    """None of it is there any more."""


def sweep(disk: Disk, directories: Iterable[str], *, now_ms: int, max_age_ms: int, max_bytes: int) -> Swept:
    """Delete what is too old, then the oldest until what is left is not too much; limits below 0 are none.

    `directories`: of partitions. A folder whose log is being cut right now keeps what no receipt names yet.
    """
    kept = _collect(disk, directories)
    total = sum(each.size_bytes for each in kept)
    changed: list[Receipt] = []
    for each in kept:
        if each.receipt is not None and each.is_gone:
            changed.append(_without_evidence(each.receipt, GONE))
            each.folder.owe(changed[-1])
            continue
        too_old = 0 <= max_age_ms < now_ms - each.time_ms
        if not too_old and not 0 <= max_bytes < total:
            continue
        if each.receipt is not None:
            # The word before the deed: no receipt ever names what is not there.
            changed.append(_without_evidence(each.receipt, BY_AGE if too_old else BY_BYTES))
            each.folder.owe(changed[-1])
        _unlink(disk, each.paths)
        total -= each.size_bytes
    return Swept(total, tuple(changed))


def make_room(disk: Disk, directories: Iterable[str]) -> Room:
    """Delete the oldest evidence of a disk that is full, and as much more as it takes to say so."""
    changed: list[Receipt] = []
    unsaid: list[_Kept] = []
    freed = False
    for each in _collect(disk, directories):
        if not each.size_bytes:
            continue
        # There may be no room for the word before the deed; what stays unsaid is said by the next sweep.
        _unlink(disk, each.paths)
        freed = True
        unsaid.append(each)
        try:
            while unsaid:
                if unsaid[0].receipt is not None:
                    receipt = _without_evidence(unsaid[0].receipt, BY_FULL_DISK)
                    unsaid[0].folder.owe(receipt)
                    changed.append(receipt)
                del unsaid[0]
        except OSError as error:
            if error.errno not in FULL:
                raise
            continue
        break
    return Room(freed, tuple(changed))


def rescue(
    disk: Disk, directory: str, log_dir: str, is_kept: Callable[[Receipt], bool] = lambda _: False
) -> list[Receipt]:
    """Before a partition's directory is deleted: its receipts go to the log directory's outbox, to be told there, but
    for those that are kept elsewhere, as the replica has moved."""
    folder, outbox = ReceiptFolder(disk, directory), Outbox(disk, log_dir)
    due = {receipt.id for receipt in folder.due()}
    rescued = []
    for receipt in folder.contents().receipts:
        if (receipt.evidence or receipt.id in due) and not is_kept(receipt):
            rescued.append(_without_evidence(receipt, WITH_PARTITION) if receipt.evidence else receipt)
            outbox.owe(rescued[-1])
    return rescued


def _without_evidence(receipt: Receipt, note: str) -> Receipt:
    return replace(receipt, evidence=(), evidence_note=note)


def _unlink(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)


def _collect(disk: Disk, directories: Iterable[str]) -> list[_Kept]:
    """All evidence, the oldest loss first."""
    found: list[_Kept] = []
    for directory in directories:
        folder = ReceiptFolder(disk, directory)
        contents = folder.contents()
        named: set[str] = set()
        for receipt in contents.receipts:
            if receipt.evidence:
                named.update(receipt.evidence)
                stats = [_stat(disk, path) for path in receipt.evidence]
                size = sum(stat[0] for stat in stats)
                is_gone = all(stat == _NOT_THERE for stat in stats)
                found.append(_Kept(folder, receipt, receipt.evidence, receipt.time_ms, size, is_gone))
        if not contents.is_being_cut:
            for path in contents.evidence:
                if path not in named:
                    size, modified_ms = _stat(disk, path)
                    found.append(_Kept(folder, None, (path,), modified_ms, size))
    found.sort(key=lambda each: each.time_ms)
    return found


def _stat(disk: Disk, path: str) -> tuple[int, int]:
    found = disk.stat(path)
    return (found.size_bytes, found.modified_ms) if found is not None else _NOT_THERE
