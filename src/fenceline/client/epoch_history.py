"""Where each leader epoch began in what a reader was given, and the search for the offset where another log parts.

Owns those starts, since the last time that the reader was positioned, or as a checkpoint remembers them. A leader knows
where an epoch ends in its own log only; where it ended in the log that was read, the reader has to know
(`gaps.md G6`). Consumer, range reader and Spark's driver search by the same steps. Pure; decides nothing about a loss.

Two logs that hold a record of the same epoch at the same offset are the same up to there. So the search goes as a
follower's does (`epochs.md E13, E25`; KIP-101, KIP-279): ask for the last epoch; where the leader answers a lower one,
or knows none, all that was read of the epochs above it is not in its log, and the next question is for the epoch before
those. It ends, since each question is for an older epoch than the one before, and never with an offset above the true
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from fenceline.client.offsets import EpochEnd
from fenceline.ids import NO_EPOCH

_UNKNOWN: Final = -1
_MAX_STARTS: Final = 1024
"""Elections that were read across. With more of them, the place of a cut further back is told too low, never too high.
"""


class EpochStart(NamedTuple):
    """No record read before `offset` is of the epoch, nor of a later one."""

    epoch: int
    offset: int


class Question(NamedTuple):
    """To be asked of the leader: where does `epoch` end? The logs part at `below` at the latest."""

    epoch: int
    below: int


class Parting(NamedTuple):
    """The leader's log is what was read up to `offset`, and no further. -1: the leader can not tell.

    `epoch`: of the leader's record before `offset`, -1 where that is not known. Not `is_exact`: the logs may part
    earlier, among records that this reader was not given.
    """

    offset: int
    epoch: int
    is_exact: bool = True


class EpochHistory:
    """Epochs in their order. An entry is kept for each election of a leader that was read across."""

    __slots__ = ("_from_offset", "_starts")

    def __init__(self, from_offset: int, epoch: int = NO_EPOCH) -> None:
        """`epoch`: of the record before the position, which was not read here; where it began is not known."""
        self._from_offset = from_offset
        self._starts = [EpochStart(epoch, _UNKNOWN)] if epoch >= 0 else []

    @classmethod
    def remembered(cls, offset: int, starts: Sequence[EpochStart]) -> Self:
        """Of a position at `offset` for which these are known, oldest first; where the first one began may be unknown
        (-1)."""
        made = cls(offset)
        for start in starts:
            made.note(start)
        return made

    def note(self, start: EpochStart) -> None:
        """It was read. One that is known already, or none, changes nothing."""
        if start.epoch >= 0 and (not self._starts or start.epoch > self._starts[-1].epoch):
            self._starts.append(start)
            if len(self._starts) > _MAX_STARTS:
                self._starts[:2] = [EpochStart(self._starts[1].epoch, _UNKNOWN)]

    def read_from(self, offset: int) -> tuple[int, ...]:
        """The epochs of what was read from `offset` on, oldest first; with that of the record before it where what was
        read began later."""
        ends = [*(start.offset for start in self._starts[1:]), 2**63]
        return tuple(start.epoch for start, end in zip(self._starts, ends, strict=False) if end > offset)

    def compare(self, asked: Question, end: EpochEnd) -> Question | Parting:
        """What the leader's answer to `asked` means: another question, or where the logs part (E25).

        A parting at or behind `asked.below` means that they do not part before it.
        """
        is_undefined = end.end_offset < 0 or end.leader_epoch < 0
        if not is_undefined and end.leader_epoch >= asked.epoch:
            # No broker answers a higher one; if one did, nothing would be certain.
            return self._parting(min(end.end_offset, asked.below), end, is_exact=end.leader_epoch == asked.epoch)
        held = asked.epoch - 1 if is_undefined else end.leader_epoch
        number = next((n for n, start in enumerate(self._starts) if start.epoch > held), None)
        if is_undefined and not number:
            return Parting(-1, NO_EPOCH, is_exact=False)
        if number is None:
            return self._parting(min(end.end_offset, asked.below), end, is_exact=False)
        start = self._starts[number]
        if start.offset == _UNKNOWN:
            # The record before the first one that was read here is of an epoch that the leader does not have.
            below = min(asked.below, end.end_offset, self._from_offset - 1)
            return self._parting(max(0, below), end, is_exact=False)
        below = min(asked.below, start.offset)
        if number == 0:
            return self._parting(min(below, end.end_offset), end, is_exact=False)
        before = self._starts[number - 1].epoch
        if is_undefined:
            return Question(before, below)
        below = min(below, end.end_offset)
        return self._parting(below, end) if before == end.leader_epoch else Question(before, below)

    def _parting(self, offset: int, end: EpochEnd, *, is_exact: bool = True) -> Parting:
        """The leader's record before `offset` is of the answered epoch where that ends there, or was read in it."""
        known = offset == end.end_offset or any(s.epoch == end.leader_epoch for s in self._starts)
        return Parting(offset, end.leader_epoch if known else NO_EPOCH, is_exact)


def fits(starts: Iterable[EpochStart], epoch: int) -> bool:
    """Whether records may follow one of `epoch`: in a log epochs never go down."""
    return all(start.epoch >= epoch for start in starts)
