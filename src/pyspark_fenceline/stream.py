"""Micro-batches: what Spark asks of a streaming source, on the driver.

Owns the order of the questions: which topics, where their logs end, whether the checkpoint still matches them, how
much one batch takes. Positions carry the epoch of the record before them and are checked both when a batch is planned
and when it is replayed (`pyspark.md S8`). Never reads records: `read` runs on executors, through `tasks`.

Facts of Spark that shape this: offsets are compared as text (S4), batch 0 asks for its start again on replay (S9), an
idle query asks some 60 times a second (S11), there is no composite read limit (S3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from fenceline.errors import InternalError, OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.admission import TriggerGate, limit_offsets
from pyspark_fenceline.cluster import Cluster, TopicFacts
from pyspark_fenceline.connect import connect
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.history import History
from pyspark_fenceline.offsets import Position, SourceOffset, Unresolved, by_topic, decode
from pyspark_fenceline.options import ReadOptions
from pyspark_fenceline.planning import OffsetRange, Task, plan_tasks
from pyspark_fenceline.ranges import (
    Comparison,
    Snapshot,
    compare,
    require_all,
    resolve,
    settle,
    subscribed,
    take_snapshot,
    with_retries,
)
from pyspark_fenceline.tasks import RangesPartition, ReadPlan, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

IDLE_WAIT_MS: Final = 250
"""How long one look for new records may last when there are none."""
_FIRST_IDLE_WAIT_MS: Final = 20


class FencelineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. The driver's copy lives as long as the query (S6); executors get copies for `read`."""

    def __init__(self, options: ReadOptions, plan: ReadPlan, cluster: Cluster | None = None) -> None:
        self._options = options
        self._plan = plan
        self._connected = cluster
        self._kept_history: History | None = None
        self._gate = TriggerGate(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._initial: SourceOffset | None = None
        self._is_available_now = False
        self._idle_looks = 0
        self._target: Snapshot | None = None
        self._newest: Snapshot | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay on the driver; an executor's copy only reads.
        return {"_options": self._options, "_plan": self._plan}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["_options"], state["_plan"])  # type: ignore[misc]

    # Spark's questions ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return Unresolved().encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never `ReadAllAvailable` when an option limits: then that limit in `latestOffset` can only mean
        Trigger.Once.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next batch; `start` itself when there is nothing to do after a short wait."""
        held = decode(start)
        # The first idle look is short, because `processAllAvailable` waits for one; then they grow.
        wait_ms = min(_FIRST_IDLE_WAIT_MS << min(self._idle_looks, 10), IDLE_WAIT_MS)
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            end = self._retrying(lambda: self._next(held, limit))
            if end is not None:
                self._idle_looks = 0
                return end.encode()
            if self._is_available_now or time.monotonic() >= deadline:
                self._idle_looks += 1
                return start
            time.sleep(wait_ms / 3000)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._newest is None or not self._newest.ends:
            return None
        positions = {tp: Position(end.offset, end.leader_epoch) for tp, end in self._newest.ends.items()}
        return SourceOffset(positions, self._newest.topic_ids).encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = decode(end)
        first = decode(start)
        if isinstance(last, Unresolved):
            return []
        if isinstance(first, Unresolved):
            if last.started_at is None:
                raise InternalError("the first batch of the checkpoint does not say where it starts")
            first = last.started_at
        ranges = self._retrying(lambda: self._ranges(first, last))
        return [RangesPartition(task, last.topic_ids) for task in self._tasks(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._plan, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint is the only record of what was read."""

    def stop(self) -> None:
        """Spark 4.2 never calls this (S10); connections end with the process."""

    # Planning ---------------------------------------------------------------------------------------------------

    def _next(self, held: SourceOffset | Unresolved, limit: ReadLimit) -> SourceOffset | None:
        """End of the next batch, or None when none should run now."""
        initial = None
        if isinstance(held, Unresolved):
            snapshot = self._look(held)
            initial = held = self._initial_offset(snapshot)
            comparison = Comparison(held.positions, ())
        else:
            snapshot, comparison = self._compare(held)
            settle(comparison.losses, fail_on_data_loss=self._options.fail_on_data_loss)
        starts = {tp: position.offset for tp, position in comparison.positions.items()}
        ends = {tp: max(start, self._readable_end(tp, snapshot)) for tp, start in starts.items()}
        available = sum(ends.values()) - sum(starts.values())
        must_run = initial is not None or bool(comparison.losses)
        if available == 0 and not must_run:
            return None
        is_limited = not isinstance(limit, ReadAllAvailable)
        is_worth_it = not is_limited or self._gate.admit(available, _now_ms())
        if not (is_worth_it or must_run or self._is_available_now):
            return None
        if is_limited and isinstance(limit, ReadMaxRows):
            ends = limit_offsets(limit.max_rows, starts, ends)
        moved = {tp: end for tp, end in ends.items() if end > starts[tp]}
        tagged = self._history.tag(moved, snapshot.starts, snapshot.ends)
        # A partition that the query does not know yet and that holds nothing stays out: it would cost an empty batch.
        known = (
            starts if must_run else {tp: start for tp, start in starts.items() if tp in held.positions or tp in moved}
        )
        positions = {tp: tagged.get(tp, comparison.positions[tp]) for tp in known}
        ids = snapshot.topic_ids
        return SourceOffset(positions, {topic: ids[topic] for topic in by_topic(positions)}, started_at=initial)

    def _look(self, held: SourceOffset | Unresolved) -> Snapshot:
        """The subscription's logs now. Raises `OperatorError` for a named topic that neither exists nor was ever
        read.
        """
        found = subscribed(self._cluster, self._options.subscription)
        known: dict[str, TopicFacts] = {}
        if isinstance(held, SourceOffset):
            known = {topic: TopicFacts(None, tuple(parts)) for topic, parts in by_topic(held.positions).items()}
        if isinstance(held, Unresolved) or self._options.fail_on_data_loss:
            require_all(self._options.subscription, {**known, **found})
        snapshot = take_snapshot(self._cluster, found)
        if self._is_available_now and self._target is None:
            self._target = snapshot
        self._newest = snapshot
        return snapshot

    def _compare(self, held: SourceOffset) -> tuple[Snapshot, Comparison]:
        """Snapshot and comparison. An end below an untagged position is looked at again first: it may be a stale
        answer.
        """
        for attempt in range(1, self._options.fetch_retries + 1):
            snapshot = self._look(held)
            comparison = compare(held, snapshot, self._history)
            if attempt == self._options.fetch_retries or not any(map(_may_be_stale, comparison.losses)):
                break
            time.sleep(self._options.fetch_retry_interval_ms / 1000)
        return snapshot, comparison

    def _initial_offset(self, snapshot: Snapshot) -> SourceOffset:
        """Where the query starts; looked up once, so that "latest" does not drift while the first batch is planned."""
        if self._initial is None:
            offsets = resolve(self._options.starting, snapshot, self._cluster, side="starting")
            out_of_range = [
                Loss(LossKind.OFFSETS_EXPIRED, tp.topic, tp.partition, offset, log_start_offset=snapshot.starts[tp])
                for tp, offset in offsets.items()
                if offset < snapshot.starts[tp]
            ]
            settle(out_of_range, fail_on_data_loss=self._options.fail_on_data_loss)
            _refuse_beyond_end(offsets, snapshot, fail_on_data_loss=self._options.fail_on_data_loss)
            offsets = {
                tp: min(max(offset, snapshot.starts[tp]), snapshot.ends[tp].offset) for tp, offset in offsets.items()
            }
            tagged = self._history.tag(offsets, snapshot.starts, snapshot.ends)
            self._initial = SourceOffset(tagged, snapshot.topic_ids)
        return self._initial

    def _readable_end(self, tp: TopicPartition, snapshot: Snapshot) -> int:
        end = snapshot.ends[tp].offset
        if self._target is None:
            return end
        target = self._target.ends.get(tp)
        return 0 if target is None else min(end, target.offset)

    def _ranges(self, first: SourceOffset, last: SourceOffset) -> list[OffsetRange]:
        """What a batch reads, checked against the logs at both ends, because a replay comes here first (S8)."""
        topics = by_topic(last.positions)
        found = self._cluster.topics(topics)
        existing = {
            topic: TopicFacts(facts.id, tuple(index for index in topics[topic] if index in facts.partitions))
            for topic, facts in found.items()
        }
        snapshot = take_snapshot(self._cluster, existing)
        begin = compare(_only(first, last), snapshot, self._history)
        finish = compare(last, snapshot, self._history)
        end_losses = [loss for loss in finish.losses if loss.kind is not LossKind.OFFSETS_EXPIRED]
        lost_at_start = {(loss.topic, loss.partition) for loss in begin.losses}
        losses = [*begin.losses, *(loss for loss in end_losses if (loss.topic, loss.partition) not in lost_at_start)]
        settle(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        ranges = []
        for tp in snapshot.ends:
            position = begin.positions[tp]
            end = last.positions[tp]
            if any(loss.topic == tp.topic and loss.partition == tp.partition for loss in end_losses):
                end = Position(min(end.offset, snapshot.ends[tp].offset))
            if end.offset > position.offset:
                ranges.append(OffsetRange(tp, position.offset, end.offset, position.leader_epoch, end.leader_epoch))
        return ranges

    def _tasks(self, ranges: list[OffsetRange]) -> list[Task]:
        return plan_tasks(
            ranges,
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )

    # Connection -------------------------------------------------------------------------------------------------

    def _retrying(self, work: Callable[[], T]) -> T:
        return with_retries(
            work, attempts=self._options.fetch_retries, interval_ms=self._options.fetch_retry_interval_ms
        )

    @property
    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = connect(self._options.client)
        return self._connected

    @property
    def _history(self) -> History:
        if self._kept_history is None:
            self._kept_history = History(self._cluster)
        return self._kept_history


class RefusedStreamReader(DataSourceStreamReader):
    """Says why there is no reader as soon as Spark asks it anything: an error while a reader is made reaches the user
    under another one of Spark's own.
    """

    def __init__(self, reason: OperatorError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        raise self._reason

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._reason

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._reason

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._reason


def _may_be_stale(loss: Loss) -> bool:
    return loss.kind is LossKind.LOG_TRUNCATED and loss.leader_epoch < 0


def _only(first: SourceOffset, last: SourceOffset) -> SourceOffset:
    """`first` without what the batch does not read on: the end of the batch says which partitions go on."""
    kept = {tp: position for tp, position in first.positions.items() if tp in last.positions}
    return SourceOffset(kept, first.topic_ids)


def _refuse_beyond_end(offsets: Mapping[TopicPartition, int], snapshot: Snapshot, *, fail_on_data_loss: bool) -> None:
    beyond = {tp: offset for tp, offset in offsets.items() if offset > snapshot.ends[tp].offset}
    if beyond and fail_on_data_loss:
        what = ", ".join(
            f"{tp} is to start at {offset} but ends at {snapshot.ends[tp].offset}" for tp, offset in beyond.items()
        )
        raise OperatorError(
            f"startingOffsets lies beyond the end of the log: {what}",
            'Choose offsets that exist, or set the option failOnDataLoss to "false" to start at the end.',
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
