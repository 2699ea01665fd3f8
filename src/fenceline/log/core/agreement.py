"""The offset up to which two logs of a partition agree, by their leader epochs (log matching, `epochs.md E13`, `E25`).

Owns the search: `AgreementSearch` for a log whose leader answers one request at a time, `agreed_end` for two logs on
this machine. Changes neither log, and sends nothing.
"""

from __future__ import annotations

from typing import Protocol

from fenceline.log.core.epoch_cache import UNDEFINED


class EpochsOfLog(Protocol):
    """The part of a log that the search reads. Offsets are exclusive ends; epochs are -1 if there is none."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...


class AgreementSearch:
    """Finds the end of the range that a log shares with another, which answers one request at a time. Each request is
    for an older epoch than the one before. Send it with the current leader epoch: answers of two leaders must not be
    mixed."""

    def __init__(self, log: EpochsOfLog) -> None:
        self._log = log
        self.end = log.log_end_offset
        """Valid once the search has finished. The log's start means: the epochs show no shared range."""
        self.asks = log.latest_epoch
        """The epoch whose end offset to request from the other log (OffsetForLeaderEpoch of the leader)."""
        self.is_done = False
        self._ask(self.asks)

    def on_answer(self, epoch: int, end_offset: int) -> None:
        """The other log's newest epoch at or below the requested one, and its end offset; (-1, -1) if it has none."""
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
        """The log differs from the other from `end` on. With no epoch left, all of it differs."""
        if epoch < 0:
            self._found(self._log.log_start_offset)
            return
        self.asks = epoch
        self.end = self.end if end is None else min(self.end, end)


def agreed_end(one: EpochsOfLog, other: EpochsOfLog) -> int:
    """The end of the range that both logs share; at or below the start of one of them if they share nothing.

    Compares epochs only, so records that compaction removed from one of them do not count as a difference.
    """
    if one.latest_epoch < 0:
        return min(one.log_end_offset, other.log_end_offset)  # no record of it shows a difference
    if other.latest_epoch < 0:
        return min(one.log_end_offset, other.log_start_offset)
    search = AgreementSearch(one)
    while not search.is_done:
        search.on_answer(*other.end_offset_for_epoch(search.asks))
    return search.end
