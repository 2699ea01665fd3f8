"""Which stale rows a batch may remove.

Owns one decision: whether the source would read the lost records again if an unclean election brought them back. Only
then a row may be removed, because otherwise it would be lost (decision 016). A source at offset `p` reads all records
from `p` on. And if the log holds the record before `p`, all that the source has read is in the log (log matching): the
source does not count a stale row as read, and goes back before it if its record returns. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_fenceline.checkpoint_places import Place
from pyspark_fenceline.delta_index import Span
from pyspark_fenceline.log_matching import AFTER_ALL, BEFORE_ALL, LogView, held_interval


def reach(view: LogView, places: Sequence[Place] | None, newest: Span | None) -> int:
    """The lowest offset from which on stale rows of a partition may be removed. `places`: the positions of the query's
    sources after the batch; if unknown, they are at or after the batch's `newest` rows.
    """
    if places:
        return max(_reach_of(view, place) for place in places)
    is_held = newest is not None and holds(view, newest.last_offset, newest.epoch)
    return BEFORE_ALL if is_held else AFTER_ALL


def _reach_of(view: LogView, place: Place) -> int:
    if None not in (place.topic_id, view.topic_id) and place.topic_id != view.topic_id:
        return AFTER_ALL
    if place.offset == 0 or holds(view, place.offset - 1, place.leader_epoch):
        return BEFORE_ALL
    return place.offset


def holds(view: LogView, offset: int, epoch: int) -> bool:
    """Whether the leader's log holds this record, so that a reader of it continues in this log."""
    first, end = held_interval(view, epoch)
    return 0 <= epoch <= view.leader_epoch and first <= offset < end
