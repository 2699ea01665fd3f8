"""Where each leader epoch began in what a reader was given, for finding out where another log parts from it.

Owns those starts, since the last time that the reader was positioned. A leader knows where an epoch ends in its own log
only; where it ended in the log that was read, the reader has to know (`gaps.md G6`). Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.client.offsets import EpochEnd
from fenceline.ids import NO_EPOCH

_UNKNOWN: Final = -1


class EpochStart(NamedTuple):
    """The first offset that was read of an epoch."""

    epoch: int
    offset: int


class EpochHistory:
    """Epochs in their order. An entry is kept for each election of a leader that was read across."""

    __slots__ = ("_starts",)

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        """`epoch`: of the record before the position, which was not read; where it began is not known."""
        self._starts = [EpochStart(epoch, _UNKNOWN)] if epoch >= 0 else []

    def note(self, start: EpochStart) -> None:
        """It was read. One that is known already, or none, changes nothing."""
        if start.epoch >= 0 and (not self._starts or start.epoch > self._starts[-1].epoch):
            self._starts.append(start)

    def parting(self, end: EpochEnd) -> EpochEnd:
        """Up to where at most the leader's log is what was read, and the epoch there, when the leader says that the
        largest of its epochs not above the last one read ends at `end`.

        With an epoch below the one that `end` names the two logs may part earlier: who goes on there with that epoch is
        told so.
        """
        if end.end_offset < 0 or end.leader_epoch < 0:
            return end
        epoch = end.leader_epoch
        for number, start in enumerate(self._starts):
            if start.epoch > end.leader_epoch:
                if start.offset == _UNKNOWN:
                    return end
                if number:
                    epoch = self._starts[number - 1].epoch
                return EpochEnd(epoch, min(end.end_offset, start.offset))
        return end
