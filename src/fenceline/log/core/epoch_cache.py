"""Which leader epoch starts at which offset, for one log (`epochs.md E13`-`E20`).

Owns the ordered entries, nothing else: no file, no lock. `changed` means that the checkpoint is out of date. Entries
without a batch may be lost in a crash; every other one can be read back from the batches, so the checkpoint is written
with the next flush and not at each assignment.

If compaction removed the first batches of an epoch, no remaining batch shows its start. The entry then came from the
log that this one was copied from, and the checkpoint must hold it (`has_unrecoverable_entries`).

Invariant (`check`): epochs and start offsets both rise strictly from entry to entry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

UNDEFINED: Final = -1
"""For an unknown epoch, and for its end (E13)."""


class EpochCache:
    __slots__ = ("_deleted_epoch", "_epochs", "_starts", "changed", "has_unrecoverable_entries")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._deleted_epoch = UNDEFINED
        """Epoch of the last record that was deleted below the log start; no checkpoint holds it."""
        self.changed = False
        self.has_unrecoverable_entries = False
        """It holds an entry that cannot be read back from the batches."""
        for epoch, start in entries:
            self.assign(epoch, start)
        self.changed = False

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def latest_epoch(self) -> int:
        """-1 if the cache is empty."""
        return self._epochs[-1] if self._epochs else -1

    @property
    def latest_start(self) -> int:
        """Where the latest epoch starts; -1 if the cache is empty."""
        return self._starts[-1] if self._starts else -1

    @property
    def earliest(self) -> tuple[int, int] | None:
        return (self._epochs[0], self._starts[0]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Epoch `epoch` starts at `start_offset` (E14). Returns whether anything changed. Raises ValueError on
        negatives."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}: both must be non-negative")
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.changed = True
        return True

    def begin(self, epoch: int, first_offset: int, known: Iterable[tuple[int, int]] = ()) -> None:
        """The first batch of `epoch` lies at `first_offset`. `known`: (epoch, start), oldest first, where better known
        starts exist, also for earlier epochs without a batch."""
        for each, start in known:
            if self.latest_epoch < each <= epoch:
                self.assign(each, min(start, first_offset))
                self.has_unrecoverable_entries = self.has_unrecoverable_entries or each < epoch or start < first_offset
        self.assign(epoch, first_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) for an OffsetForLeaderEpoch request (E13); (-1, -1) if undefined."""
        epochs = self._epochs
        if epoch == UNDEFINED or not epochs:
            return (UNDEFINED, UNDEFINED)
        if epoch == epochs[-1]:
            return (epoch, log_end_offset)
        above = bisect_right(epochs, epoch)
        if above == len(epochs):
            return (UNDEFINED, UNDEFINED)
        if above == 0:
            return (epoch, self._starts[0])
        return (epochs[above - 1], self._starts[above])

    def epoch_for_offset(self, offset: int) -> int:
        """Epoch of the last entry that starts at or before `offset` (E20); -1 if there is none."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove entries that start at or after `end_offset` (E15); does nothing if it is negative."""
        if end_offset < 0:
            return
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._starts[keep:], self._epochs[keep:]
            self.changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Entries at or before `start_offset` merge into one that starts there (E15)."""
        before = bisect_right(self._starts, start_offset)
        if before == 0 or (before == 1 and self._starts[0] == start_offset):
            return
        self._deleted_epoch = self.epoch_for_offset(start_offset - 1)
        del self._starts[: before - 1], self._epochs[: before - 1]
        self._starts[0] = start_offset
        self.changed = True

    def last_deleted_epoch_is(self, epoch: int) -> bool:
        """Whether a log whose last record before this log's start has `epoch` contains everything that was deleted
        here.

        An epoch has one leader: a log with a record of it below our first record of that epoch had our records there.
        False if that is unknown.
        """
        if self._deleted_epoch != UNDEFINED:
            return self._deleted_epoch == epoch
        return bool(self._epochs) and self._epochs[0] == epoch

    def check(self, where: object, log_end_offset: int) -> None:
        """The invariant, and that no entry starts past the log end. `where` names the log in messages."""
        rising = all(one < other for rows in (self._epochs, self._starts) for one, other in pairwise(rows))
        assert rising, f"{where}: leader epochs do not rise: {self.entries}"
        assert self.latest_start <= log_end_offset, f"{where}: {self.entries} goes past the log end {log_end_offset}"

    def clear(self) -> None:
        self._deleted_epoch = UNDEFINED
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.changed = True
