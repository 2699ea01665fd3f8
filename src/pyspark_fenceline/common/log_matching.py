"""Whether a row is still in the log.

Owns the rule that sink, audit and repair share. By log matching (KIP-101, `epochs.md` E8-E10) offset and leader epoch
identify a record: a log that has epoch `e` at offset `o` holds exactly that record. So a row `(o, e)` is in the log if
and only if the log's epoch at `o` is `e`. Looking for a *newer* epoch that starts at or before `o` is not enough: the
log `e3@0..12, e6@12..` never held what a lost leader wrote at offset 9 in epoch 5, and no newer epoch starts at or
before 9 (decision 016). Pure; knows neither brokers nor tables.

Undecidable rows are never guessed: rows without an epoch, rows below the oldest known epoch of the log, and rows of an
epoch newer than the leader's, which may be a deposed leader.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from fenceline.client.core.epoch_history import EpochStart

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]
    Epochs = npt.NDArray[np.int64]

UNKNOWN_EPOCH: Final = -1
BEFORE_ALL: Final = -(1 << 62)
AFTER_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class LogEpochs:
    """The bounds and epochs of one partition's log, from its leader under one leader epoch.

    `leader_epoch`: -1 from brokers that keep no epochs. `end_offset`: the leader's log end offset. `epochs`: ascending,
    each up to the next one's offset; below the first they are unknown, and the last one is the leader's own. A leader
    only appends, so the epochs stay valid while it leads.
    """

    leader_epoch: int
    start_offset: int
    end_offset: int
    epochs: tuple[EpochStart, ...] = ()
    topic_id: str | None = None

    def epoch_at(self, offset: int) -> int:
        """Epoch of the record at `offset`, -1 if unknown."""
        at = bisect_right(self.epochs, offset, key=lambda start: start.offset) - 1
        return self.epochs[at].epoch if at >= 0 and offset < self.end_offset else UNKNOWN_EPOCH


def held_interval(log: LogEpochs, epoch: int) -> tuple[int, int]:
    """Offsets `[first, end)` at which a row of `epoch` is not stale: the log's range of that epoch, and undecidable
    offsets. Empty (0, 0) for an epoch that the log never had.
    """
    if epoch < 0 or log.leader_epoch < 0 or epoch > log.leader_epoch:
        return BEFORE_ALL, AFTER_ALL
    if not log.epochs:
        # Only this is known: records above the leader's end will have its own epoch.
        return BEFORE_ALL, AFTER_ALL if epoch == log.leader_epoch else log.end_offset
    first = log.epochs[0]
    if epoch < first.epoch:
        return BEFORE_ALL, first.offset
    at = bisect_right(log.epochs, epoch, key=lambda start: start.epoch) - 1
    known = log.epochs[at]
    if known.epoch != epoch:
        return 0, 0
    # Retention moves an epoch's start up with the log's: the oldest epoch may have begun earlier.
    begin = BEFORE_ALL if at == 0 and known.offset >= log.start_offset else known.offset
    if at + 1 < len(log.epochs):
        return begin, log.epochs[at + 1].offset
    return begin, AFTER_ALL


def proven_without_epoch(log: LogEpochs) -> tuple[int, int]:
    """Offsets `[first, end)` at which a row of this topic without an epoch is proven to be a record of the log.

    Only a log with one epoch, the first that a partition can have, proves this: there was one leader, it only appends,
    and every reader has read from it. After a second election the first leader may have written records that were lost,
    and epoch starts are not exact in a compacted log (decision 024). Otherwise empty (0, 0).
    """
    is_first = log.leader_epoch == 0 and len(log.epochs) == 1 and log.epochs[0].epoch == 0
    return (log.start_offset, log.end_offset) if is_first else (0, 0)


def stale_rows(log: LogEpochs, offsets: Offsets, epochs: Epochs) -> npt.NDArray[np.bool_]:
    """The mask of stale rows. `epochs`: -1 for a row without one."""
    import numpy as np

    stale = np.zeros(len(offsets), dtype=np.bool_)
    for epoch in np.unique(epochs).tolist():
        first, end = held_interval(log, epoch)
        of_epoch = epochs == epoch
        stale |= of_epoch & ((offsets < first) | (offsets >= end))
    return stale


class SpanVerdict(IntEnum):
    """The verdict on many rows from their bounds alone."""

    NONE_STALE = 0
    SOME_STALE = 1
    """Or none: the rows must be read to decide."""
    ALL_STALE = 2


def judge_span(log: LogEpochs, first_offset: int, last_offset: int, first_epoch: int, last_epoch: int) -> SpanVerdict:
    """The verdict on rows between these inclusive bounds. Within one epoch the offsets that are not stale are one
    interval, so the bounds decide for all rows between them.
    """
    if first_epoch == last_epoch:
        begin, end = held_interval(log, first_epoch)
        if begin <= first_offset and last_offset < end:
            return SpanVerdict.NONE_STALE
        if last_offset < begin or first_offset >= end:
            return SpanVerdict.ALL_STALE
    elif first_epoch > log.leader_epoch:
        return SpanVerdict.NONE_STALE
    return SpanVerdict.SOME_STALE
