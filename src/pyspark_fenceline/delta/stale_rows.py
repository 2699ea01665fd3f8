"""Stale rows of a table: by which rule a batch removes them, as a mask of rows and as an SQL condition.

Owns one decision: whether the source would read the lost records again if an unclean election brought them back. Only
then a row may be removed, because otherwise it would be lost (decision 016). A source at offset `p` reads all records
from `p` on. And if the log holds the record before `p`, all that the source has read is in the log (log matching): the
source does not count a stale row as read, and goes back before it if its record returns.

Whether a row is stale depends on its partition, epoch and offset alone, so a table with a change data feed needs no
masks: delta-rs' delete removes the same rows by a condition. Pure; no Python object is created per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, OFFSET, PARTITION, TOPIC, ColumnSpan, LogColumns
from pyspark_fenceline.common.log_matching import AFTER_ALL, BEFORE_ALL, LogEpochs, held_interval, stale_rows
from pyspark_fenceline.delta.change import Removed
from pyspark_fenceline.delta.checkpoint_positions import SourcePosition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

EMPTY_LOG: Final = LogEpochs(1 << 31, 0, -(1 << 62))
"""For a recreated topic: a log that holds no row of any epoch."""


@dataclass(frozen=True, slots=True)
class StaleRule:
    """The log that decides which rows of a partition are stale, and the offset from which on they may be removed."""

    log: LogEpochs
    from_offset: int = BEFORE_ALL


def stale_mask(columns: LogColumns, rules: Mapping[TopicPartition, StaleRule]) -> Mask:
    import numpy as np

    stale = np.zeros(len(columns), dtype=np.bool_)
    for run in columns.runs():
        rule = rules.get(run.topic_partition)
        if rule is None:
            continue
        part = slice(run.start, run.end)
        offsets = columns.offsets[part]
        found = rule.log is EMPTY_LOG or stale_rows(rule.log, offsets, columns.epochs[part])
        stale[part] = found & (offsets >= rule.from_offset)
    return stale


def delete_condition(rules: Mapping[TopicPartition, StaleRule], removed: Iterable[Removed]) -> str:
    """The stale rows by `rules`, of the partitions and epochs in `removed`, in SQL: exactly those of `stale_mask`, for
    every file of the table.
    """
    found = sorted({(one.topic, one.partition, one.epoch) for one in removed if one.reason == "stale"})
    parts = []
    for topic, partition, epoch in found:
        rule = rules[TopicPartition(topic, partition)]
        conditions = [f"{TOPIC} = '{topic.replace(chr(39), chr(39) * 2)}'", f"{PARTITION} = {partition}"]
        if rule.log is not EMPTY_LOG:
            conditions += [f"{LEADER_EPOCH} = {epoch}", *_outside(*held_interval(rule.log, epoch))]
        if rule.from_offset > BEFORE_ALL:
            conditions.append(f"{OFFSET} >= {rule.from_offset}")
        parts.append(f"({' AND '.join(conditions)})")
    return " OR ".join(dict.fromkeys(parts))


def _outside(first: int, end: int) -> list[str]:
    below = [f"{OFFSET} < {first}"] if first > BEFORE_ALL else []
    above = [f"{OFFSET} >= {end}"] if end < AFTER_ALL else []
    return [f"({' OR '.join([*below, *above])})"]


def removable_from(log: LogEpochs, positions: Sequence[SourcePosition] | None, newest: ColumnSpan | None) -> int:
    """The lowest offset from which on stale rows of a partition may be removed. `positions`: of the query's sources
    after the batch; if unknown, they are at or after the batch's `newest` rows.
    """
    if positions:
        return max(_removable_from(log, position) for position in positions)
    is_held = newest is not None and _holds(log, newest.last_offset, newest.epoch)
    return BEFORE_ALL if is_held else AFTER_ALL


def _removable_from(log: LogEpochs, position: SourcePosition) -> int:
    if None not in (position.topic_id, log.topic_id) and position.topic_id != log.topic_id:
        return AFTER_ALL
    if position.offset == 0 or _holds(log, position.offset - 1, position.leader_epoch):
        return BEFORE_ALL
    return position.offset


def _holds(log: LogEpochs, offset: int, epoch: int) -> bool:
    """Whether the leader's log holds this record, so that a reader of it continues in this log."""
    first, end = held_interval(log, epoch)
    return 0 <= epoch <= log.leader_epoch and first <= offset < end
