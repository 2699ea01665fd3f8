"""Masks of the rows that are stale, and of those that are already in a table.

Owns the masks that `delta.plan` uses: one boolean for each row. Pure; no Python object is created per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import LogColumns
from pyspark_fenceline.common.log_matching import BEFORE_ALL, LogEpochs, stale_rows

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


def known_mask(columns: LogColumns, present: Mapping[TopicPartition, Sequence[tuple[Any, Any]]]) -> Mask:
    """Rows whose offset and epoch are in the table."""
    import numpy as np

    known = np.zeros(len(columns), dtype=np.bool_)
    for tp, pairs in present.items():
        if tp not in columns.partitions:
            continue
        of_partition = columns.codes == columns.partitions.index(tp)
        offsets = np.concatenate([pair[0] for pair in pairs])
        epochs = np.concatenate([pair[1] for pair in pairs])
        for epoch in np.unique(columns.epochs[of_partition]).tolist():
            rows = np.flatnonzero(of_partition & (columns.epochs == epoch))
            known[rows] = np.isin(columns.offsets[rows], offsets[epochs == epoch])
    return known
