"""Compares the rows of a table with the logs of the topic, in spans, for the page.

Owns reading the bounds and epochs of each partition from its leader, and the comparison. The verdict on the table is
the audit's. By log matching, a row is in the log if the log has the row's epoch at its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fenceline.demo.report import ReportedSpan, ReportedTable, RowState
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.ranges import outside
from pyspark_fenceline.common.connect import connect
from pyspark_fenceline.common.log_epochs import LogEpochsCache, existing_partitions
from pyspark_fenceline.common.log_matching import LogEpochs

if TYPE_CHECKING:
    import pyarrow as pa


class LogRun(NamedTuple):
    """Rows of consecutive offsets [start, end) of one epoch."""

    partition: int
    start_offset: int
    end_offset: int
    epoch: int


def read_logs(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, LogEpochs]:
    """The current bounds and epochs of each partition. Raises FencelineError, also if leaders keep changing."""
    cluster = connect({"bootstrap.servers": bootstrap})
    wanted = existing_partitions(cluster, [TopicPartition(topic, partition) for partition in partitions])
    return {tp.partition: view for tp, view in LogEpochsCache(cluster).fetch(wanted).items()}


def epochs_in(view: LogEpochs) -> list[tuple[int, int, int]]:
    """Epoch, first offset and end offset of each range that one epoch wrote, in order."""
    ends = [*(start.offset for start in view.epochs[1:]), view.end_offset]
    return [(start.epoch, start.offset, end) for start, end in zip(view.epochs, ends, strict=False)]


def rows_at(table: Path, version: int | None = None) -> pa.Table:
    """Partition, offset and epoch of each row of a Delta table at a version (None: the newest)."""
    from deltalake import DeltaTable

    opened = DeltaTable(str(table), version=version)
    return opened.to_pyarrow_table(columns=["partition", "offset", "leader_epoch"])


def runs_of(rows: pa.Table) -> list[LogRun]:
    """The rows as runs, in order."""
    import numpy as np

    if not rows.num_rows:
        return []
    ordered = rows.sort_by([("partition", "ascending"), ("leader_epoch", "ascending"), ("offset", "ascending")])
    partitions, epochs, offsets = (
        ordered[name].to_numpy().astype(np.int64) for name in ("partition", "leader_epoch", "offset")
    )
    breaks = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(epochs) != 0) | (np.diff(offsets) > 1)) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(offsets)])) - 1
    return sorted(
        LogRun(int(partitions[first]), int(offsets[first]), int(offsets[last]) + 1, int(epochs[first]))
        for first, last in zip(firsts, lasts, strict=True)
    )


def compare_with_logs(
    name: str, runs: Sequence[LogRun], logs: Mapping[int, LogEpochs], ends: Mapping[int, int] | None = None
) -> ReportedTable:
    """Compare the rows of a table with the logs. `ends`: compare up to these offsets instead of the logs' ends."""
    spans: list[ReportedSpan] = []
    for partition, view in sorted(logs.items()):
        limit = view.end_offset if ends is None else min(ends.get(partition, 0), view.end_offset)
        own = [run for run in runs if run.partition == partition]
        for epoch, first, end in epochs_in(view):
            matching = [
                (max(run.start_offset, first), min(run.end_offset, end))
                for run in own
                if run.epoch == epoch and run.start_offset < end and first < run.end_offset
            ]
            spans += [ReportedSpan(partition, start, stop, epoch, RowState.MATCHING) for start, stop in matching]
            spans += [
                ReportedSpan(partition, start, stop, epoch, RowState.MISSING)
                for start, stop in outside(matching, first, min(end, limit))
            ]
        known = {epoch: (first, end) for epoch, first, end in epochs_in(view)}
        for run in own:
            first, end = known.get(run.epoch, (run.end_offset, run.end_offset))
            beyond = ((run.start_offset, min(run.end_offset, first)), (max(run.start_offset, end), run.end_offset))
            spans += [
                ReportedSpan(partition, start, stop, run.epoch, RowState.STALE)
                for start, stop in beyond
                if start < stop
            ]
    return ReportedTable(name, sorted(spans, key=lambda span: (span.partition, span.start_offset, span.state)))
