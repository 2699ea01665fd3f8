"""Whether a row that was read once is still in the log.

Owns the one rule that sink, audit and repair share. By log matching (KIP-101, `epochs.md` E8-E10) a record is known by
its offset and the leader epoch that wrote it: a log that has epoch `e` at offset `o` holds that very record. So a row
`(o, e)` is in the log exactly when the log's epoch at `o` is `e`. Looking for a *newer* epoch that starts at or before
`o` is not enough: a log that is `e3@0..12, e6@12..` never held what a lost leader wrote at offset 9 in epoch 5, and no
newer epoch starts at or before 9 (decision 016). Pure; knows neither brokers nor tables.

What can not be told is said, never guessed: rows without an epoch, rows below what the log still knows, and rows of an
epoch that the asked leader has not heard of, which may be one that was deposed and does not know it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from fenceline.client.epoch_history import EpochStart

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]
    Epochs = npt.NDArray[np.int64]

UNKNOWN_EPOCH: Final = -1
BEFORE_ALL: Final = -(1 << 62)
AFTER_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class LogView:
    """One partition's log as its leader told it under one leader epoch.

    `leader_epoch`: -1 from brokers that keep no epochs. `end_offset`: the leader's log end. `epochs`: in rising order,
    each holding up to the next one's offset; what lies below the first is not known, and the last one is the leader's
    own. A leader only appends, so the epochs stay right for as long as it leads.
    """

    leader_epoch: int
    start_offset: int
    end_offset: int
    epochs: tuple[EpochStart, ...] = ()
    topic_id: str | None = None

    def epoch_at(self, offset: int) -> int:
        """Epoch of the record at `offset`, -1 where that is not known."""
        at = bisect_right(self.epochs, offset, key=lambda start: start.offset) - 1
        return self.epochs[at].epoch if at >= 0 and offset < self.end_offset else UNKNOWN_EPOCH


def held_interval(view: LogView, epoch: int) -> tuple[int, int]:
    """Offsets `[first, end)` at which a row of `epoch` is not stale: the log's range of that epoch, and where nothing
    can be told. Empty (0, 0) for an epoch that the log never had.
    """
    if epoch < 0 or view.leader_epoch < 0 or epoch > view.leader_epoch:
        return BEFORE_ALL, AFTER_ALL
    if not view.epochs:
        # Only what is above the leader's end is known: what comes there will be of its own epoch.
        return BEFORE_ALL, AFTER_ALL if epoch == view.leader_epoch else view.end_offset
    first = view.epochs[0]
    if epoch < first.epoch:
        return BEFORE_ALL, first.offset
    at = bisect_right(view.epochs, epoch, key=lambda start: start.epoch) - 1
    known = view.epochs[at]
    if known.epoch != epoch:
        return 0, 0
    # Retention moves an epoch's start up with the log's: below the oldest one may have been more of the same.
    begin = BEFORE_ALL if at == 0 and known.offset >= view.start_offset else known.offset
    if at + 1 < len(view.epochs):
        return begin, view.epochs[at + 1].offset
    return begin, AFTER_ALL


def proven_without_epoch(view: LogView) -> tuple[int, int]:
    """Offsets `[first, end)` at which a row of this topic that has no epoch is a record of the log all the same.

    Only a log with one epoch, the first that a partition can have, proves that: there was one leader, it only appends,
    and every reader has read from it. As soon as there was a second leader the first one may have written more than it
    left behind, and where epochs begin is not exact in a log that was compacted (decision 024). Empty (0, 0) elsewhere.
    """
    is_first = view.leader_epoch == 0 and len(view.epochs) == 1 and view.epochs[0].epoch == 0
    return (view.start_offset, view.end_offset) if is_first else (0, 0)


def stale_rows(view: LogView, offsets: Offsets, epochs: Epochs) -> npt.NDArray[np.bool_]:
    """Which rows were truncated away. `epochs`: -1 where a row has none."""
    import numpy as np

    stale = np.zeros(len(offsets), dtype=np.bool_)
    for epoch in np.unique(epochs).tolist():
        first, end = held_interval(view, epoch)
        of_epoch = epochs == epoch
        stale |= of_epoch & ((offsets < first) | (offsets >= end))
    return stale


class SpanVerdict(IntEnum):
    """What is known of many rows from their bounds alone."""

    NONE_STALE = 0
    SOME_STALE = 1
    """Or none: the rows themselves must be looked at."""
    ALL_STALE = 2


def judge_span(view: LogView, first_offset: int, last_offset: int, first_epoch: int, last_epoch: int) -> SpanVerdict:
    """Rows between these bounds, all included. Within one epoch offsets that are held are one interval, so the bounds
    tell for all rows between them.
    """
    if first_epoch == last_epoch:
        begin, end = held_interval(view, first_epoch)
        if begin <= first_offset and last_offset < end:
            return SpanVerdict.NONE_STALE
        if last_offset < begin or first_offset >= end:
            return SpanVerdict.ALL_STALE
    elif first_epoch > view.leader_epoch:
        return SpanVerdict.NONE_STALE
    return SpanVerdict.SOME_STALE
