"""Losses of a log in a crash, and their receipts: checked when the next process has opened the log.

Owns the content of each log when its process ended. A killed process loses nothing, so that everything missing was cut
off and has a receipt. A power failure removes unsynced data, which no receipt can describe; but bytes that are still
there and no longer part of the log were cut off, and receipts must describe only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fenceline.log.core.file_names import DELETED_SUFFIX
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.directories.partition_dir import STRAY_SUFFIX
from fenceline.losses.check import complaints
from fenceline.losses.folder import INTENDED
from fenceline.losses.receipt import LossCause, Receipt
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.receipt_checks import stored
from fenceline.testing.simulation.world import StoredBatch

Key = tuple[bytes, int]
"""Topic id and partition."""

_BY_OFFSETS: Final = "records are counted by their offsets"
"""The text of a receipt that knows its offset range, but not the batches in it."""


@dataclass(slots=True)
class _Before:
    """A log at the last check of a process that has ended."""

    directory: str
    log: list[StoredBatch]
    receipts: Mapping[str, Receipt]
    """By id: the receipts that existed."""
    power_losses: int
    """Power failures of the machine until then."""
    start: int
    """The log start."""
    folder: object = None
    """The directory, as the newest process found it."""
    is_being_emptied: bool = False
    """Whether the log was being emptied because its leader had all of it."""
    files: list[bytes] = field(default_factory=list)
    """What that process found in the log, and in evidence that no receipt names."""

    def has_file_with(self, batch: StoredBatch) -> bool:
        return any(batch.content in content for content in self.files)


class Crashes:
    """The logs of one machine."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._before: dict[Key, _Before] = {}
        self.untraced: set[tuple[Key, StoredBatch]] = set()
        """Batches that may be missing without a receipt: lost in a power failure, with a directory that no longer
        exists, or deleted by retention or a request."""

    def log_closed(
        self, key: Key, directory: str, log: list[StoredBatch], receipts: Mapping[str, Receipt], *, start: int = 0
    ) -> None:
        """A process ended with this log, which began at `start`. Call it before the machine loses unsynced data."""
        self._before[key] = _Before(directory, log, receipts, self._disk.power_losses, start)

    def life_started(self) -> None:
        """The next process starts, and may use or truncate what is on the disk now."""
        for key, before in list(self._before.items()):
            before.folder = self._disk.folder(before.directory)
            if before.folder is None:
                self.untraced.update((key, batch) for batch in before.log)
                del self._before[key]
            else:
                before.files = list(self._found(before))
                before.is_being_emptied = self._is_to_be_emptied(before.directory)

    def _is_to_be_emptied(self, directory: str) -> bool:
        directory = f"{directory}/{EVIDENCE_DIR}"
        intents = (name for name in self._disk.folder(directory) or () if name.endswith(INTENDED))
        return any(b'"is_whole": true' in (self._disk.peek(f"{directory}/{name}") or b"") for name in intents)

    def _found(self, before: _Before) -> Iterable[bytes]:
        disk = self._disk
        evidence = f"{before.directory}/{EVIDENCE_DIR}"
        # The receipt may be older than a move of the replica to this directory.
        named = {
            f"{evidence}/{path.rpartition('/')[2]}" if disk.peek(path) is None else path
            for receipt in before.receipts.values()
            for path in receipt.evidence
        }
        for directory in (before.directory, evidence):
            for name in disk.folder(directory) or ():
                path = f"{directory}/{name}"
                # Segments that retention and compaction removed stay for a while, under another name.
                if ".log" in name and not name.endswith(DELETED_SUFFIX) and path not in named:
                    yield disk.peek(path) or b""

    def log_opened(
        self,
        key: Key,
        directory: str,
        log: list[StoredBatch],
        receipts: Mapping[str, Receipt],
        start: int,
        *,
        is_compacted: bool,
        leader_has: Callable[[StoredBatch], bool],
        where: str,
    ) -> None:
        """The log is in use again and begins at `start`, with these receipts. Batches below `start` were deleted,
        unless the complete log was: then it restarts there and has a receipt, or its leader has all of it. Raises
        InvariantBroken."""
        before = self._before.pop(key, None)
        if before is None:
            return
        if directory != before.directory or self._disk.folder(directory) is not before.folder:
            # Another replica: the old one was removed, or was recreated elsewhere after its disk failed.
            self.untraced.update((key, batch) for batch in before.log)
            return
        there = set(log)
        missing = lost = [batch for batch in before.log if batch not in there]
        if is_compacted:
            # Below that compaction may have removed it; in an emptied log also what no file had any more.
            end = log[-1].next_offset if log else start
            lost = [batch for batch in missing if batch.base_offset >= end and before.has_file_with(batch)]
        if before.is_being_emptied or (is_compacted and not log):
            # Emptied to be fetched again, perhaps completely before the machine stopped.
            lost = [batch for batch in lost if not leader_has(batch)]
        # If a request deleted up to the middle of a batch, that batch is still there.
        starts_over = bool(lost) and lost[-1].next_offset < start and len(missing) == len(before.log)
        new = [
            receipt
            for name, receipt in receipts.items()
            if name not in before.receipts and not _is_of_unused_directory(receipt)
        ]
        found = []
        lost_power = self._disk.power_losses > before.power_losses
        for receipt in new:
            if is_compacted:
                found += _complaints_of_compacted(receipt, missing, log, before.start)
            else:
                found += _complaints(receipt, missing, log, before.start, lost_power=lost_power)
        for batch in lost:
            if batch.base_offset < start and not starts_over:
                self.untraced.add((key, batch))
                continue
            has_receipt = any(
                each.start_offset < batch.next_offset and batch.base_offset < each.end_offset_exclusive for each in new
            )
            if not has_receipt:
                self.untraced.add((key, batch))
            if not has_receipt and not (lost_power and not before.has_file_with(batch)):
                found.append(f"the batch at {batch.base_offset} of epoch {batch.epoch} is missing without a receipt")
        if found:
            raise InvariantBroken(f"{where}: {'; '.join(found)} (receipts after a crash)")


def _is_of_unused_directory(receipt: Receipt) -> bool:
    """Whether the receipt is for an earlier directory of the replica, which was set aside: a full disk may have delayed
    it."""
    return bool(receipt.evidence) and all(f"{STRAY_SUFFIX}/" in path for path in receipt.evidence)


def _overlapping(batches: list[StoredBatch], receipt: Receipt) -> list[StoredBatch]:
    start, end = receipt.start_offset, receipt.end_offset_exclusive
    return [each for each in batches if start < each.next_offset and each.base_offset < end]


def _complaints_of_compacted(
    receipt: Receipt, missing: list[StoredBatch], log: list[StoredBatch], log_start: int
) -> list[str]:
    """Like `_complaints`. Compaction may have removed some of the records before the truncation, so that the receipt
    names fewer."""
    if _overlapping(log, receipt):
        return [f"receipt of {receipt} covers batches that are not lost"]
    if receipt.cause is LossCause.RECOVERY:
        return []
    mine = _overlapping(missing, receipt)
    is_within = (
        bool(mine)
        and max(mine[0].base_offset, log_start) <= receipt.start_offset
        and receipt.end_offset_exclusive <= mine[-1].next_offset
        and receipt.records <= receipt.end_offset_exclusive - receipt.start_offset
        and (_BY_OFFSETS in receipt.known_by or set(receipt.leader_epochs) <= {each.epoch for each in mine})
    )
    return [] if is_within else [f"receipt of {receipt} covers more than {[each.base_offset for each in mine]}"]


def _complaints(
    receipt: Receipt, lost: list[StoredBatch], log: list[StoredBatch], log_start: int, *, lost_power: bool
) -> list[str]:
    """The errors of one receipt."""
    start, end = receipt.start_offset, receipt.end_offset_exclusive
    if receipt.cause is LossCause.RECOVERY:
        # A torn tail is described as far as it can be read.
        wrong = _overlapping(log, receipt)
        return [f"receipt of {receipt} covers batches that are not lost"] if wrong else []
    mine = _overlapping(lost, receipt)
    if _BY_OFFSETS not in receipt.known_by:
        size_bytes = sum(len(each.content) for each in mine)
        if lost_power and receipt.evidence and receipt.size_bytes < size_bytes:
            # It counts the bytes in its evidence, which may lack the unsynced ends of batches.
            receipt = replace(receipt, size_bytes=size_bytes)
        return complaints([receipt], [stored(each) for each in mine], log_start=log_start)
    if (
        not mine
        or (max(mine[0].base_offset, log_start), mine[-1].next_offset) != (start, end)
        or receipt.records != end - start
    ):
        return [
            f"receipt of {receipt} with {receipt.records} records, missing are {[each.base_offset for each in mine]}"
        ]
    return []
