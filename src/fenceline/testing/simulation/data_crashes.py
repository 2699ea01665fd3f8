"""What a crash took from a log, and what the receipts say of it: looked at when the next life has opened the log.

Owns what each log held when its process ended. A killed process loses nothing, so that whatever is gone was cut and has
a receipt. A loss of power takes what was not synced, and nobody can know what that was; but bytes that are still there
and are no part of the log any more were cut, and receipts tell of nothing else than of what is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fenceline.log.file_names import DELETED_SUFFIX
from fenceline.log.lost_and_found import EVIDENCE_DIR
from fenceline.log.partition_dir import STRAY_SUFFIX
from fenceline.losses.check import complaints
from fenceline.losses.folder import INTENDED
from fenceline.losses.receipt import Cause, Receipt
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.receipt_checks import stored
from fenceline.testing.simulation.world import StoredBatch

Key = tuple[bytes, int]
"""Topic id and partition."""

_BY_OFFSETS: Final = "records are counted by their offsets"
"""What a receipt says that knows its range, and not the batches in it."""


@dataclass(slots=True)
class _Before:
    """A log as it was seen last in a life that has ended."""

    directory: str
    log: list[StoredBatch]
    receipts: Mapping[str, Receipt]
    """By id: those that were there."""
    power_losses: int
    """Of the machine, until then."""
    start: int
    """Where the log began."""
    folder: object = None
    """The directory, as the newest life found it."""
    is_whole: bool = False
    """Whether it was being emptied, as its leader had all of it."""
    files: list[bytes] = field(default_factory=list)
    """What that life found in the log, and in evidence that no receipt names."""

    def has_file_with(self, batch: StoredBatch) -> bool:
        return any(batch.content in content for content in self.files)


class Crashes:
    """Of one machine."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._before: dict[Key, _Before] = {}
        self.untraced: set[tuple[Key, StoredBatch]] = set()
        """What is gone without a receipt, and may be: with the power, with a directory that is not here any more, or
        deleted by retention or a request."""

    def ended(
        self, key: Key, directory: str, log: list[StoredBatch], receipts: Mapping[str, Receipt], *, start: int = 0
    ) -> None:
        """A life has ended with this log, which began at `start`. To be called before the machine loses what was not
        synced."""
        self._before[key] = _Before(directory, log, receipts, self._disk.power_losses, start)

    def begins(self) -> None:
        """The next life begins, and may use or cut what is on the disk now."""
        for key, before in list(self._before.items()):
            before.folder = self._disk.folder(before.directory)
            if before.folder is None:
                self.untraced.update((key, batch) for batch in before.log)
                del self._before[key]
            else:
                before.files = list(self._found(before))
                before.is_whole = self._has_whole_intent(before.directory)

    def _has_whole_intent(self, directory: str) -> bool:
        directory = f"{directory}/{EVIDENCE_DIR}"
        intents = (name for name in self._disk.folder(directory) or () if name.endswith(INTENDED))
        return any(b'"is_whole": true' in (self._disk.peek(f"{directory}/{name}") or b"") for name in intents)

    def _found(self, before: _Before) -> Iterable[bytes]:
        disk = self._disk
        named = {path for receipt in before.receipts.values() for path in receipt.evidence}
        for directory in (before.directory, f"{before.directory}/{EVIDENCE_DIR}"):
            for name in disk.folder(directory) or ():
                path = f"{directory}/{name}"
                # What retention and compaction have taken is there for a while, under another name.
                if ".log" in name and not name.endswith(DELETED_SUFFIX) and path not in named:
                    yield disk.peek(path) or b""

    def opened(
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
        """The log is in use again and begins at `start`, with these receipts beside it; what is below was
        deleted, unless all of the log was: then it begins anew, and has a receipt, or its leader has all of it.
        Raises InvariantBroken."""
        before = self._before.pop(key, None)
        if before is None:
            return
        if directory != before.directory or self._disk.folder(directory) is not before.folder:
            # Another replica: the old one was moved away, or was made anew elsewhere as its disk had gone.
            self.untraced.update((key, batch) for batch in before.log)
            return
        there = set(log)
        gone = lost = [batch for batch in before.log if batch not in there]
        if is_compacted:
            # Below that compaction may have taken it, and in a log that was emptied whatever no file had any more.
            end = log[-1].next_offset if log else start
            lost = [batch for batch in gone if batch.base_offset >= end and before.has_file_with(batch)]
        if before.is_whole or (is_compacted and not log):
            # Emptied to be fetched anew, perhaps to the end of it before the machine stopped.
            lost = [batch for batch in lost if not leader_has(batch)]
        # Where a request deleted up to the middle of a batch, that batch is there still.
        begins_anew = bool(lost) and lost[-1].next_offset < start and len(gone) == len(before.log)
        new = [
            receipt
            for name, receipt in receipts.items()
            if name not in before.receipts and not _is_of_put_away_directory(receipt)
        ]
        found = []
        lost_power = self._disk.power_losses > before.power_losses
        for receipt in new:
            if is_compacted:
                found += _complaints_of_compacted(receipt, gone, log, before.start)
            else:
                found += _complaints(receipt, gone, log, before.start, lost_power=lost_power)
        for batch in lost:
            if batch.base_offset < start and not begins_anew:
                self.untraced.add((key, batch))
                continue
            is_told = any(
                each.start_offset < batch.next_offset and batch.base_offset < each.end_offset_exclusive for each in new
            )
            if not is_told:
                self.untraced.add((key, batch))
            if not is_told and not (lost_power and not before.has_file_with(batch)):
                found.append(f"the batch at {batch.base_offset} of epoch {batch.epoch} is gone, no receipt says so")
        if found:
            raise InvariantBroken(f"{where}: {'; '.join(found)} (receipts after a crash)")


def _is_of_put_away_directory(receipt: Receipt) -> bool:
    """Whether it is for an earlier directory of the replica, which was set aside: a full disk may have delayed it."""
    return bool(receipt.evidence) and all(f"{STRAY_SUFFIX}/" in path for path in receipt.evidence)


def _overlapping(batches: list[StoredBatch], receipt: Receipt) -> list[StoredBatch]:
    start, end = receipt.start_offset, receipt.end_offset_exclusive
    return [each for each in batches if start < each.next_offset and each.base_offset < end]


def _complaints_of_compacted(
    receipt: Receipt, gone: list[StoredBatch], log: list[StoredBatch], log_start: int
) -> list[str]:
    """As `_complaints`. Compaction may have removed some of the records before the cut, so that the receipt names
    fewer."""
    if _overlapping(log, receipt):
        return [f"receipt of {receipt} reports batches that are not lost"]
    if receipt.cause is Cause.RECOVERY:
        return []
    mine = _overlapping(gone, receipt)
    is_within = (
        bool(mine)
        and max(mine[0].base_offset, log_start) <= receipt.start_offset
        and receipt.end_offset_exclusive <= mine[-1].next_offset
        and receipt.records <= receipt.end_offset_exclusive - receipt.start_offset
        and (_BY_OFFSETS in receipt.known_by or set(receipt.leader_epochs) <= {each.epoch for each in mine})
    )
    return [] if is_within else [f"receipt of {receipt} tells of more than {[each.base_offset for each in mine]}"]


def _complaints(
    receipt: Receipt, lost: list[StoredBatch], log: list[StoredBatch], log_start: int, *, lost_power: bool
) -> list[str]:
    """What one receipt says that is not so."""
    start, end = receipt.start_offset, receipt.end_offset_exclusive
    if receipt.cause is Cause.RECOVERY:
        # What a crash has torn is told as far as it can be read.
        wrong = _overlapping(log, receipt)
        return [f"receipt of {receipt} reports batches that are not lost"] if wrong else []
    mine = _overlapping(lost, receipt)
    if _BY_OFFSETS not in receipt.known_by:
        size_bytes = sum(len(each.content) for each in mine)
        if lost_power and receipt.evidence and receipt.size_bytes < size_bytes:
            # It tells the bytes that evidence still has of batches whose ends were not synced.
            receipt = replace(receipt, size_bytes=size_bytes)
        return complaints([receipt], [stored(each) for each in mine], log_start=log_start)
    if (
        not mine
        or (max(mine[0].base_offset, log_start), mine[-1].next_offset) != (start, end)
        or receipt.records != end - start
    ):
        return [f"receipt of {receipt} with {receipt.records} records, gone are {[each.base_offset for each in mine]}"]
    return []
