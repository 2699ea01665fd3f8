"""Which stale rows may go with a batch.

Owns one question: if an unclean election brings back what the log has lost now, will the source read it again? A row
may go only then; else nobody would bring it back (decision 016). A source that stands at offset `p` reads everything
from `p` on, whatever it is. And where the log holds the record before `p`, all that the source has read is in the log
(log matching): a row that is not, it does not count as read, and it has to go back before it if that history returns.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_fenceline.checkpoint_places import Place
from pyspark_fenceline.delta_index import Span
from pyspark_fenceline.log_matching import AFTER_ALL, BEFORE_ALL, LogView, held_interval


def reach(view: LogView, places: Sequence[Place] | None, newest: Span | None) -> int:
    """The lowest offset from which on stale rows of a partition may go. `places`: where the query's sources stand in it
    after the batch; where nobody knows that, it is at or behind the batch's `newest` rows.
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
    """Whether the leader itself knows of this record, so that its log goes on from where a reader of it stands."""
    first, end = held_interval(view, epoch)
    return 0 <= epoch <= view.leader_epoch and first <= offset < end
