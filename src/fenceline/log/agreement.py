"""Up to where two logs of one partition say the same, by their leader epochs (log matching, `epochs.md E13`, `E25`).

Owns the question for two logs that lie on this machine, and for one whose leader answers one question at a time.
Changes neither log, and sends nothing.
"""

from __future__ import annotations

from typing import Protocol

from fenceline.log.epoch_cache import UNDEFINED


class EpochsOfLog(Protocol):
    """What is asked of a log. Offsets are exclusive ends; epochs are -1 where there is none."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...


def agreed_end(one: EpochsOfLog, other: EpochsOfLog) -> int:
    """The end of what both have in common; at or below the start of one of them where that is nothing.

    By epochs alone, so what compaction took out of one of them is no difference.
    """
    end, epoch = one.log_end_offset, one.latest_epoch
    while epoch >= 0:
        found, other_end = other.end_offset_for_epoch(epoch)
        if other_end == UNDEFINED:
            # It has no epoch at all, or none as high: its own latest is the next to be looked at.
            found, other_end = other.latest_epoch, other.log_end_offset
            if found < 0:
                return min(end, other.log_start_offset)
        if found == epoch:
            return min(end, other_end)
        epoch, own_end = one.end_offset_for_epoch(found)
        end = min(end, own_end)
        if epoch == found:
            return min(end, other_end)
    return min(end, other.log_end_offset)


class AgreementSearch:
    """The end of what a log has in common with its leader's, as `agreed_end`. Each question is for an older epoch than
    the one before, and is to be asked with the leader epoch: answers of two leaders do not belong together."""

    def __init__(self, log: EpochsOfLog) -> None:
        self._log = log
        self.end = log.log_end_offset
        """Once it is done. The log's start: they have nothing in common that can be told by epochs."""
        self.asks = log.latest_epoch
        """Of which epoch the leader is to tell the end (OffsetForLeaderEpoch)."""
        self.is_done = False
        self._ask(self.asks)

    def on_answer(self, epoch: int, end_offset: int) -> None:
        """The leader's newest epoch not above the one that was asked for, and where it ends; (-1, -1): it has none."""
        log = self._log
        if end_offset == UNDEFINED or epoch < 0:
            older, own_end = log.end_offset_for_epoch(self.asks - 1)
            has_older = own_end != UNDEFINED and (older < self.asks - 1 or own_end > log.log_start_offset)
            self._ask(older if has_older else UNDEFINED, own_end)
        elif epoch >= self.asks:
            self._found(end_offset)
        else:
            older, own_end = log.end_offset_for_epoch(epoch)
            if older >= epoch:
                self._found(min(own_end, end_offset))
            else:
                self._ask(older, self.end if own_end == UNDEFINED else own_end)

    def _found(self, end: int) -> None:
        self.end = min(self.end, end)
        self.is_done = True

    def _ask(self, epoch: int, end: int | None = None) -> None:
        """What lies from `end` on is not the leader's. Without an epoch that is left, nothing is."""
        if epoch < 0:
            self._found(self._log.log_start_offset)
            return
        self.asks = epoch
        self.end = self.end if end is None else min(self.end, end)
