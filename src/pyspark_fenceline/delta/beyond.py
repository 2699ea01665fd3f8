"""Rows of a table above the end of the log.

Owns one check: whether the table has a row of the leader's own epoch at or above the end of the leader's log. A leader
only appends and returns only what it has, so no reader can have read such a row from it: the table is from another
cluster or an earlier state of this one, or another writer added the row. It must be reported: offset and epoch identify
a record (`log_matching`), and once the log reaches that offset, its record would count as one that the table has.

The check requires an order: the table is read first, then the leader is asked. Rows of an older epoch there are stale,
and rows of a newer one are unknown to this leader; neither is judged here. Never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.log_columns import LogColumns
from pyspark_fenceline.common.log_epochs import existing_partitions, readable_ends
from pyspark_fenceline.common.log_matching import AFTER_ALL, LogEpochs
from pyspark_fenceline.common.retries import with_retries
from pyspark_fenceline.delta.evidence import fetch_log_epochs
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.state import last_topic_ids, read_state
from pyspark_fenceline.delta.table_files import TableFile, end_offsets, read_log_columns, table_files

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MAX_SHOWN: Final = 10


class RowsBeyondEnd(NamedTuple):
    """Rows of the leader's epoch above the end of its log; both offsets are inclusive."""

    topic_partition: TopicPartition
    first_offset: int
    last_offset: int
    row_count: int
    log: LogEpochs

    def __str__(self) -> str:
        rows = "1 row" if self.row_count == 1 else f"{self.row_count} rows"
        return (
            f"{self.topic_partition} offsets {self.first_offset} to {self.last_offset} ({rows} of epoch"
            f" {self.log.leader_epoch}, in which the log ends at {self.log.end_offset})"
        )


def refuse_rows_beyond(
    options: DeltaOptions,
    files: Sequence[TableFile],
    read: Callable[[TableFile], LogColumns],
    logs: Mapping[TopicPartition, LogEpochs],
) -> dict[TopicPartition, int]:
    """An offset above all rows, for each partition of `logs`; at least the end of its log. `logs`: fetched after
    `files` was read. Raises `OperatorError` if there are rows above the end of the log.
    """
    import numpy as np

    ends = {tp: log.end_offset for tp, log in logs.items()}
    rows: dict[TopicPartition, list[int]] = {}
    for file in files:
        only = file.only_partition
        concerned = [only] if only is not None else [tp for tp in logs if file.may_hold(tp)]
        concerned = [tp for tp in concerned if tp in logs and file.may_hold_offsets(logs[tp].end_offset, AFTER_ALL)]
        if not concerned:
            continue
        columns = read(file)
        for tp in concerned:
            if tp not in columns.partitions:
                continue
            above = (columns.codes == columns.partitions.index(tp)) & (columns.offsets >= logs[tp].end_offset)
            if above.any():
                ends[tp] = max(ends[tp], int(columns.offsets[above].max()) + 1)
            own = np.flatnonzero(above & (columns.epochs == logs[tp].leader_epoch))
            if logs[tp].leader_epoch >= 0 and len(own):
                rows.setdefault(tp, []).extend(columns.offsets[own].tolist())
    found = [RowsBeyondEnd(tp, min(rows[tp]), max(rows[tp]), len(rows[tp]), logs[tp]) for tp in sorted(rows)]
    if found:
        more = f"; and {len(found) - _MAX_SHOWN} more partitions" if len(found) > _MAX_SHOWN else ""
        raise OperatorError(
            f"The Delta table at {options.path} has rows above the end of the log, which cannot be from this cluster's"
            f" log: {'; '.join(map(str, found[:_MAX_SHOWN]))}{more}",
            "Check that the table belongs to this cluster. If it does, remove these rows with"
            " pyspark_fenceline.repair(..., apply=True) or `fenceline audit TABLE --repair --apply`; if not, write to"
            " another table.",
        )
    return ends


def check_before_write(options: DeltaOptions, table: DeltaTable) -> None:
    """For a table whose last commit is another writer's. Raises as `refuse_rows_beyond`, before anything is written."""
    if options.client is None or read_state(table) is not None:
        return
    files = table_files(table)
    columns: dict[str, LogColumns] = {}

    def read(file: TableFile) -> LogColumns:
        if file.path not in columns:
            columns[file.path] = read_log_columns(options, file)
        return columns[file.path]

    named = {file.only_partition for file in files}
    partitions = {tp for tp in named if tp is not None}
    if None in named:
        partitions.update(tp for file in files if file.only_partition is None for tp in read(file).partitions)
    if not partitions:
        return
    cluster, client = connect.connect(options.client), options.client
    known_ids = last_topic_ids(table)
    bounds = end_offsets(files, partitions)

    def suspected() -> dict[TopicPartition, LogEpochs]:
        # Rows of a recreated topic have a separate rule.
        same = {
            tp: id
            for tp, id in existing_partitions(cluster, partitions).items()
            if known_ids.get(tp.topic) in (None, id)
        }
        above = [tp for tp, end in readable_ends(cluster, same).items() if bounds[tp] > end.offset]
        return fetch_log_epochs(client, above) if above else {}

    if suspects := with_retries(suspected, options.retries):
        refuse_rows_beyond(options, files, read, suspects)
