"""The start offset of each leader epoch in the records read, and the search for the offset where a log diverges.

Owns these starts, since the reader was last positioned, or from a checkpoint. A leader only knows where an epoch ends
in its own log; the reader must know where it ended in the log that was read (`gaps.md G6`). Consumer, range reader and
Spark's driver use the same search. Pure; the caller decides how to react.

Two logs that have a record of the same epoch at the same offset are identical up to it. So the search is a follower's
(`epochs.md E13, E25`; KIP-101, KIP-279): ask for the end of the last epoch; if the leader answers with a lower epoch,
or knows none, no record read in higher epochs is in its log, and the next query is for the epoch before those. The
search ends, because each query is for an older epoch, and never finds an offset above the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from fenceline.client.core.offsets import EpochEnd
from fenceline.ids import NO_EPOCH

_UNKNOWN: Final = -1
_MAX_STARTS: Final = 1024
"""Elections in the records read. With more of them, the offset of an older divergence may be too low, never too high.
"""


class EpochStart(NamedTuple):
    """Where an epoch starts: no record read before `offset` is of this or a later epoch."""

    epoch: int
    offset: int


class EpochQuery(NamedTuple):
    """The query for the end of `epoch` on the leader. The logs diverge at `below` at the latest."""

    epoch: int
    below: int


class Divergence(NamedTuple):
    """The leader's log differs from the records read at `offset` (exclusive end of the common part; -1: unknown).

    `epoch`: of the leader's record before `offset`, -1 if unknown. Not `is_exact`: the logs may diverge earlier, among
    records that this reader has not read.
    """

    offset: int
    epoch: int
    is_exact: bool = True


class EpochHistory:
    """The epoch starts in order, one for each epoch in the records read."""

    __slots__ = ("_from_offset", "_starts")

    def __init__(self, from_offset: int, epoch: int = NO_EPOCH) -> None:
        """`epoch`: of the record before the position, which was not read; where the epoch starts is unknown."""
        self._from_offset = from_offset
        self._starts = [EpochStart(epoch, _UNKNOWN)] if epoch >= 0 else []

    @classmethod
    def remembered(cls, offset: int, starts: Sequence[EpochStart]) -> Self:
        """The history of a position at `offset` with known starts, oldest first; the first may have offset -1."""
        made = cls(offset)
        for start in starts:
            made.note(start)
        return made

    def note(self, start: EpochStart) -> None:
        """Add the start of a newer epoch. Other starts change nothing."""
        if start.epoch >= 0 and (not self._starts or start.epoch > self._starts[-1].epoch):
            self._starts.append(start)
            if len(self._starts) > _MAX_STARTS:
                self._starts[:2] = [EpochStart(self._starts[1].epoch, _UNKNOWN)]

    def read_from(self, offset: int) -> tuple[int, ...]:
        """The epochs of the records read from `offset` on, oldest first; with that of the record before the position if
        reading started later."""
        ends = [*(start.offset for start in self._starts[1:]), 2**63]
        return tuple(start.epoch for start, end in zip(self._starts, ends, strict=False) if end > offset)

    def compare(self, asked: EpochQuery, end: EpochEnd) -> EpochQuery | Divergence:
        """Evaluate the leader's answer to `asked`: another query, or the divergence (E25).

        A divergence at or behind `asked.below` means that the logs do not diverge before it.
        """
        is_undefined = end.end_offset < 0 or end.leader_epoch < 0
        if not is_undefined and end.leader_epoch >= asked.epoch:
            # No broker answers with a higher epoch; if one did, the result would not be exact.
            return self._divergence(min(end.end_offset, asked.below), end, is_exact=end.leader_epoch == asked.epoch)
        held = asked.epoch - 1 if is_undefined else end.leader_epoch
        number = next((n for n, start in enumerate(self._starts) if start.epoch > held), None)
        if is_undefined and not number:
            return Divergence(-1, NO_EPOCH, is_exact=False)
        if number is None:
            return self._divergence(min(end.end_offset, asked.below), end, is_exact=False)
        start = self._starts[number]
        if start.offset == _UNKNOWN:
            # The leader does not have the epoch of the record before the first one read.
            below = min(asked.below, end.end_offset, self._from_offset - 1)
            return self._divergence(max(0, below), end, is_exact=False)
        below = min(asked.below, start.offset)
        if number == 0:
            return self._divergence(min(below, end.end_offset), end, is_exact=False)
        before = self._starts[number - 1].epoch
        if is_undefined:
            return EpochQuery(before, below)
        below = min(below, end.end_offset)
        return self._divergence(below, end) if before == end.leader_epoch else EpochQuery(before, below)

    def _divergence(self, offset: int, end: EpochEnd, *, is_exact: bool = True) -> Divergence:
        """The epoch before `offset` is the answered one if that ends at `offset`, or if records of it were read."""
        known = offset == end.end_offset or any(s.epoch == end.leader_epoch for s in self._starts)
        return Divergence(offset, end.leader_epoch if known else NO_EPOCH, is_exact)


def can_follow(starts: Iterable[EpochStart], epoch: int) -> bool:
    """Whether these epochs can follow `epoch`: in a log, epochs never decrease."""
    return all(start.epoch >= epoch for start in starts)
