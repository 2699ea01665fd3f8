"""Up to where two logs of one partition say the same, by their leader epochs (log matching, `epochs.md E13`, `E25`).

Owns the question for two logs that lie on this machine. Changes neither.
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
