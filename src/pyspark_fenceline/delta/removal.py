"""Which stale rows a batch may remove.

Owns one decision: whether the source would read the lost records again if an unclean election brought them back. Only
then a row may be removed, because otherwise it would be lost (decision 016). A source at offset `p` reads all records
from `p` on. And if the log holds the record before `p`, all that the source has read is in the log (log matching): the
source does not count a stale row as read, and goes back before it if its record returns. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_fenceline.common.log_columns import Span
from pyspark_fenceline.common.log_matching import AFTER_ALL, BEFORE_ALL, LogEpochs, held_interval
from pyspark_fenceline.delta.checkpoint_positions import SourcePosition


def removable_from(log: LogEpochs, positions: Sequence[SourcePosition] | None, newest: Span | None) -> int:
    """The lowest offset from which on stale rows of a partition may be removed. `positions`: of the query's sources
    after the batch; if unknown, they are at or after the batch's `newest` rows.
    """
    if positions:
        return max(_removable_from(log, position) for position in positions)
    is_held = newest is not None and holds(log, newest.last_offset, newest.epoch)
    return BEFORE_ALL if is_held else AFTER_ALL


def _removable_from(log: LogEpochs, position: SourcePosition) -> int:
    if None not in (position.topic_id, log.topic_id) and position.topic_id != log.topic_id:
        return AFTER_ALL
    if position.offset == 0 or holds(log, position.offset - 1, position.leader_epoch):
        return BEFORE_ALL
    return position.offset


def holds(log: LogEpochs, offset: int, epoch: int) -> bool:
    """Whether the leader's log holds this record, so that a reader of it continues in this log."""
    first, end = held_interval(log, epoch)
    return 0 <= epoch <= log.leader_epoch and first <= offset < end
