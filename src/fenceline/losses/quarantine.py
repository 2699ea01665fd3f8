"""How long evidence is kept, and how it goes: by age, by bytes, when the disk is full, with its partition.

Owns the order in which evidence goes, oldest loss first. A receipt never points at evidence that is gone without saying
so: it is told again, with the reason. Blocks on the disk: for a thread. Everything may raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from fenceline.log.disk import Disk
from fenceline.losses.folder import Receipts
from fenceline.losses.receipt import Receipt

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE: Final = (0, -1)
BY_AGE: Final = "The evidence was older than fenceline.lost.retention.ms and is deleted."
BY_BYTES: Final = "There was more evidence than fenceline.lost.retention.bytes; this one is deleted."
BY_FULL_DISK: Final = "The disk was full: the evidence is deleted, so that partitions could be served."
GONE: Final = "The evidence is not there any more: the disk was full, or somebody else deleted it."


@dataclass(frozen=True, slots=True)
class Swept:
    """`kept_bytes`: of all evidence that is left. `changed`: receipts that are to be told again, and where they lie."""

    kept_bytes: int
    changed: tuple[tuple[Receipts, Receipt], ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What a full disk took. `changed`: receipts that are to be told again, and where they lie."""

    freed: bool
    changed: tuple[tuple[Receipts, Receipt], ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Evidence of one loss; `receipt` None: of none that is known."""

    folder: Receipts
    receipt: Receipt | None
    paths: tuple[str, ...]
    time_ms: int
    size_bytes: int
    is_gone: bool = False
    """None of it is there any more."""


def sweep(disk: Disk, folders: Iterable[Receipts], *, now_ms: int, max_age_ms: int, max_bytes: int) -> Swept:
    """Delete what is too old, then the oldest until what is left is not too much; limits below 0 are none.

    `folders`: all of one log directory. One whose log is being cut, or was by recovery, keeps what no receipt names
    yet.
    """
    kept = _collect(disk, folders)
    total = sum(each.size_bytes for each in kept)
    changed: list[tuple[Receipts, Receipt]] = []
    for each in kept:
        if each.receipt is not None and each.is_gone:
            changed.append((each.folder, without_evidence(each.receipt, GONE)))
            each.folder.owe(changed[-1][1])
            continue
        too_old = 0 <= max_age_ms < now_ms - each.time_ms
        if not too_old and not 0 <= max_bytes < total:
            continue
        if each.receipt is not None:
            # The word before the deed: no receipt ever names what is not there.
            changed.append((each.folder, without_evidence(each.receipt, BY_AGE if too_old else BY_BYTES)))
            each.folder.owe(changed[-1][1])
        _unlink(disk, each.paths)
        total -= each.size_bytes
    return Swept(total, tuple(changed))


def make_room(disk: Disk, folders: Iterable[Receipts]) -> Room:
    """Delete the oldest evidence of a disk that is full, and as much more as it takes to say so.

    What no receipt names stays: of a loss that nobody has been told of it is all there is.
    """
    changed: list[tuple[Receipts, Receipt]] = []
    unsaid: list[tuple[Receipts, Receipt]] = []
    freed = False
    for each in _collect(disk, folders):
        if each.receipt is None or not each.size_bytes:
            continue
        # There may be no room for the word before the deed; what stays unsaid is said by the next sweep.
        _unlink(disk, each.paths)
        freed = True
        unsaid.append((each.folder, without_evidence(each.receipt, BY_FULL_DISK)))
        try:
            while unsaid:
                folder, receipt = unsaid[0]
                folder.owe(receipt)
                changed.append((folder, receipt))
                del unsaid[0]
        except OSError as error:
            if error.errno not in FULL:
                raise
            continue
        break
    return Room(freed, tuple(changed))


def without_evidence(receipt: Receipt, note: str) -> Receipt:
    """What is said of a loss from now on."""
    return replace(receipt, evidence=(), evidence_note=note)


def _unlink(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)


def _collect(disk: Disk, folders: Iterable[Receipts]) -> list[_Kept]:
    """All evidence, the oldest loss first."""
    found: list[_Kept] = []
    named: set[str] = set()
    looked_at = [(folder, folder.contents()) for folder in folders]
    for folder, contents in looked_at:
        for receipt in contents.receipts:
            if receipt.evidence:
                named.update(receipt.evidence)
                stats = [_stat(disk, path) for path in receipt.evidence]
                size = sum(stat[0] for stat in stats)
                is_gone = all(stat == _NOT_THERE for stat in stats)
                found.append(_Kept(folder, receipt, receipt.evidence, receipt.time_ms, size, is_gone))
    for folder, contents in looked_at:
        if not contents.is_unsettled:
            for path in contents.evidence:
                if path not in named:
                    size, modified_ms = _stat(disk, path)
                    found.append(_Kept(folder, None, (path,), modified_ms, size))
    found.sort(key=lambda each: each.time_ms)
    return found


def _stat(disk: Disk, path: str) -> tuple[int, int]:
    found = disk.stat(path)
    return (found.size_bytes, found.modified_ms) if found is not None else _NOT_THERE
