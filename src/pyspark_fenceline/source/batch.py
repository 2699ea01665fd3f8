"""Batch reads: `spark.read.format("fenceline")`.

Owns the resolution of both bounds when Spark plans the query, and the opt-in narrowing by pushed filters. Never reads
records on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.connect import reached
from pyspark_fenceline.common.planning import PlannedRange, plan_tasks
from pyspark_fenceline.common.retries import with_retries
from pyspark_fenceline.common.task_login import token_login
from pyspark_fenceline.common.worker_socket import acknowledge_command
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.source.filters import Narrowing, narrowing_of
from pyspark_fenceline.source.history import EpochHistories
from pyspark_fenceline.source.options import ReadOptions
from pyspark_fenceline.source.policy import apply_loss_policy
from pyspark_fenceline.source.ranges import (
    Snapshot,
    range_between,
    require_all,
    resolve,
    subscribed,
    take_snapshot,
)
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa


Bounds = dict[TopicPartition, int]


class FencelineReader(DataSourceReader):
    """Plans on the driver (`partitions`), reads on executors (`read`)."""

    def __init__(self, options: ReadOptions, plan: ReadPlan, cluster: SourceCluster | None = None) -> None:
        self._options = options
        self._plan = plan
        self._cluster = cluster

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_options": replace(self._options, client=self._plan.client)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge_command()
        self.__dict__.update(state)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = self._cluster or reached(options.client)
        ranges, snapshot = with_retries(lambda: self._ranges(cluster), options.retries)
        tasks = plan_tasks(
            ranges,
            min_partitions=options.min_partitions,
            max_partitions=options.max_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        login = token_login(options.client)
        return [RangesPartition(task, snapshot.topic_ids, snapshot.cluster_id, login=login) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._plan, partition)

    def _ranges(self, cluster: SourceCluster) -> tuple[list[PlannedRange], Snapshot]:
        options = self._options
        found = subscribed(cluster, options.subscription)
        require_all(options.subscription, found)
        snapshot = take_snapshot(cluster, found)
        starts = resolve(options.starting, snapshot, cluster, side="starting")
        ends = resolve(options.ending, snapshot, cluster, side="ending")
        self._check(starts, ends, snapshot)
        starts = {tp: min(max(offset, snapshot.starts[tp]), snapshot.ends[tp].offset) for tp, offset in starts.items()}
        ends = {tp: min(offset, snapshot.ends[tp].offset) for tp, offset in ends.items()}
        starts, ends = self._narrow(starts, ends, cluster)
        ends = {tp: end for tp, end in ends.items() if end > starts[tp]}
        tagged = EpochHistories(cluster).tag(ends, snapshot.starts, snapshot.ends)
        ranges = [range_between(tp, end.at(starts[tp]), end) for tp, end in sorted(tagged.items())]
        return ranges, snapshot

    def _narrow(self, starts: Bounds, ends: Bounds, cluster: SourceCluster) -> tuple[Bounds, Bounds]:
        """The ranges after pushed filters; without pushdown, unchanged."""
        return starts, ends

    def _check(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], snapshot: Snapshot
    ) -> None:
        """Raise for ranges outside the log, unless the options allow to clip them to the log."""
        losses = []
        beyond = []
        for tp, start in starts.items():
            log_start, log_end = snapshot.starts[tp], snapshot.ends[tp].offset
            if start < log_start:
                losses.append(
                    Loss(
                        LossKind.OFFSETS_EXPIRED,
                        tp.topic,
                        tp.partition,
                        start,
                        log_start_offset=log_start,
                        log_end_offset=log_end,
                        resume_offset=log_start,
                        cluster_id=snapshot.cluster_id,
                    )
                )
            beyond += [f"{tp} {offset} (the log ends at {log_end})" for offset in {start, ends[tp]} if offset > log_end]
        if beyond and self._options.fail_on_data_loss:
            raise OperatorError(
                f"The requested offsets are beyond the end of the log: {', '.join(beyond)}",
                'Choose existing offsets, or set the option failOnDataLoss to "false" to read up to the end.',
            )
        apply_loss_policy(losses, self._options.policy)


class FilteringReader(FencelineReader):
    """With the option filterPushdown: filters on topic, partition, offset and timestamp narrow the ranges.

    Spark rejects a reader with `pushFilters` while `spark.sql.python.filterPushdown.enabled` is false (`pyspark.md
    S2`), so this is a separate class. Spark applies every filter again: only ranges without matching rows are removed.
    """

    def __init__(self, options: ReadOptions, plan: ReadPlan, cluster: SourceCluster | None = None) -> None:
        super().__init__(options, plan, cluster)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowing_of(filters)
        return filters

    def _narrow(self, starts: Bounds, ends: Bounds, cluster: SourceCluster) -> tuple[Bounds, Bounds]:
        return self._narrowing.apply(starts, ends, cluster)
