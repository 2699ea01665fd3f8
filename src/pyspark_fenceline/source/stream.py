"""Micro-batches: the streaming source's methods on the driver.

Owns the steps of planning: which topics, where their logs end, whether the checkpoint still matches them, how many
records one batch reads. Positions have the epoch of the record before them and are checked both when a batch is planned
and when it is replayed (`pyspark.md S8`). Never reads records: `read` runs on executors, through `tasks`.

Relevant behaviour of Spark: offsets are compared as text (S4), batch 0 requests its start again on replay (S9), an idle
query calls `latestOffset` about 60 times a second (S11), there is no composite read limit (S3).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar
from uuid import uuid4

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
from pyspark_fenceline.common import workers
from pyspark_fenceline.common.cluster import SourceCluster, TopicFacts
from pyspark_fenceline.common.connect import connect, partitions_with_records, reached
from pyspark_fenceline.common.lost_ranges import Retraction
from pyspark_fenceline.common.offsets import OffsetDecoder, PartitionPosition, SourceOffset, Unresolved, by_topic
from pyspark_fenceline.common.planning import PlannedRange, Task, plan_tasks
from pyspark_fenceline.common.query_state import FIRST_BATCH, NotKnown, QueryState, query_state, why_no_rewind
from pyspark_fenceline.common.retries import with_retries
from pyspark_fenceline.common.spans import PLANNER, WORKER, SpanRecorder
from pyspark_fenceline.common.task_login import token_login
from pyspark_fenceline.common.worker_socket import acknowledge_command
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.source.admission import TriggerGate, limit_offsets
from pyspark_fenceline.source.adoption import Adoption
from pyspark_fenceline.source.batches import PlannedBatch, batch_start, plan_batch
from pyspark_fenceline.source.bounds import Assign
from pyspark_fenceline.source.history import EpochHistories
from pyspark_fenceline.source.kept_rows import KeptPartition, kept_partitions, read_kept
from pyspark_fenceline.source.losses_table import known_losses
from pyspark_fenceline.source.options import ReadOptions
from pyspark_fenceline.source.policy import LossPolicy, apply_loss_policy
from pyspark_fenceline.source.ranges import (
    Comparison,
    Snapshot,
    compare_with_retries,
    require_all,
    resolve,
    subscribed,
    take_snapshot,
)
from pyspark_fenceline.source.retractions import (
    BATCH_IS_EXACT,
    delivered_since,
    lost_rows,
    plan_exact_batch,
    since_after,
)
from pyspark_fenceline.source.retractor import Retractor, receipts_from
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_log = logging.getLogger("pyspark_fenceline")

IDLE_WAIT_MS: Final = 2_000
"""Longest wait at the brokers in one poll for new records. `processAllAvailable` waits for the poll, too; stopping the
query does not."""
BLIND_WAIT_MS: Final = 500
"""The same if brokers cannot wait for anything: changes are noticed after the wait."""
_FIRST_IDLE_WAIT_MS: Final = 20
_PACED_S: Final = 0.1
"""A query that polls later than this after an answer has a trigger interval, which no poll may exceed."""
REFRESH_S: Final = 5.0
"""After this time an idle query checks for new topics and partitions, even without news from its own."""


class FencelineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. The driver's copy lives as long as the query (S6); executors get copies for `read`."""

    def __init__(self, options: ReadOptions, plan: ReadPlan, cluster: SourceCluster | None = None) -> None:
        self._options = options
        self._plan = plan
        self._connected = cluster
        self._spans = SpanRecorder(options.timeline_directory, PLANNER)
        self._received_ms: float | None = None
        """When an executor's copy arrived."""
        self._decode = OffsetDecoder()
        self._kept_history: EpochHistories | None = None
        self._gate = TriggerGate(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._initial: SourceOffset | None = None
        self._is_available_now = False
        self._idle_polls = 0
        self._idle_at: dict[str, Any] | None = None
        """The offset at which the last poll found nothing to do; `_idle_held` is its decoded form."""
        self._idle_held: SourceOffset | Unresolved = Unresolved()
        self._is_held_back = False
        """There are records, but not enough yet."""
        self._polled_at_s = 0.0
        self._answered_at_s = 0.0
        self._is_blind: bool | None = None
        self._target: Snapshot | None = None
        self._newest: Snapshot | None = None
        self._last_batch: PlannedBatch | None = None
        self._batch_policy = options.policy
        """The policy of the newest planned batch."""
        self._tasks_may_go_back = True
        self._has_warned_of_state = False
        self._kept_adoption: Adoption | None = None
        self._first_seen: dict[tuple[TopicPartition, str | None], int] = {}
        """Start offsets of logs (by topic id) that are new to the query, when it first saw them."""
        self._state: QueryState | None = None
        """Whether the query keeps state, once known; its plan does not change while it runs."""
        self._query = uuid4().hex
        """The id of a query that has none yet."""
        self._kept_retractor: Retractor | None = None
        self._checked_topics: set[str] = set()
        """Topics whose configuration allows retractions."""

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay on the driver; an executor's copy only reads.
        return {"_options": replace(self._options, client=self._plan.client), "_plan": self._plan}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        acknowledge_command()
        self.__init__(state["_options"], state["_plan"])  # type: ignore[misc]
        self._received_ms = time.time() * 1000

    # Called by Spark --------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return Unresolved().encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never `ReadAllAvailable` with a limiting option: then this limit in `latestOffset` can only mean
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
        """End of the next batch; `start` itself if there is nothing to do after a short wait."""
        with self._spans.span("latestOffset"):
            return self._latest_offset(start, limit)

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        is_idle = self._idle_at == start and not self._is_available_now
        held = self._idle_held if is_idle else self._decode(start)
        is_paced = time.monotonic() - self._answered_at_s > _PACED_S
        if self._connected is None and isinstance(held, Unresolved):
            self._connected = reached(self._options.client)
        end = None
        if not is_idle or not self._can_await(held) or time.monotonic() - self._polled_at_s > REFRESH_S:
            end = self._with_retries(lambda: self._next(start, held, limit))
        if end is None and is_idle:
            # `processAllAvailable` waits for idle polls, so the first ones are short.
            wait_ms = min(_FIRST_IDLE_WAIT_MS << min(0 if is_paced else self._idle_polls, 10), IDLE_WAIT_MS)
            end = self._wait(start, held, limit, wait_ms)
        self._answered_at_s = time.monotonic()
        if end is None:
            self._idle_polls, self._idle_at, self._idle_held = self._idle_polls + 1, start, held
            return start
        self._idle_polls, self._idle_at = 0, None
        return end.encode()

    def _wait(
        self, start: dict[str, Any], held: SourceOffset | Unresolved, limit: ReadLimit, wait_ms: int
    ) -> SourceOffset | None:
        """Wait for something to do, at the brokers if possible; returns the end of the next batch."""
        if self._can_await(held):
            if not self._await_news(held, wait_ms):
                return None
            if (end := self._with_retries(lambda: self._next(start, held, limit))) is not None:
                return end
        time.sleep(min(wait_ms, BLIND_WAIT_MS) / 1000)
        return None

    def _can_await(self, held: SourceOffset | Unresolved) -> TypeGuard[SourceOffset]:
        """Whether brokers can wait for news of this position."""
        is_known = self._newest is not None and bool(self._newest.ends)
        return is_known and not self._is_held_back and not isinstance(held, Unresolved)

    def _await_news(self, held: SourceOffset, wait_ms: int) -> bool:
        """Wait at the brokers for news; whether there are some (`pyspark.md S11`)."""
        assert self._newest is not None, "an earlier poll has set it"
        ends_s = time.monotonic() + wait_ms / 1000
        positions = {tp: held.positions.get(tp, PartitionPosition(0)) for tp in self._newest.ends}
        at = {tp: (position.offset, position.leader_epoch) for tp, position in positions.items()}
        while True:
            left_ms = max(0, round(1000 * (ends_s - time.monotonic())))
            with self._spans.span("wait for records"):
                if self._with_retries(partial(self._cluster.await_news, at, left_ms)):
                    return True
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                return False
            # Brokers may answer early.
            time.sleep(min(left_s, _FIRST_IDLE_WAIT_MS / 1000))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._newest is None or not self._newest.ends:
            return None
        positions = {tp: PartitionPosition(end.offset, end.leader_epoch) for tp, end in self._newest.ends.items()}
        return SourceOffset(positions, self._newest.topic_ids).encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._spans.span("partitions"):
            planned = self._partitions(start, end)
            workers.freeze_gc()
            return planned

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = self._decode(end)
        first = self._decode(start)
        if isinstance(last, Unresolved):
            return []
        is_first = isinstance(first, Unresolved)
        if isinstance(first, Unresolved):
            if last.started_at is None:
                raise InternalError("the first batch of the checkpoint does not say where it starts")
            first = last.started_at
        if self._options.retractions is not None:
            return self._with_retries(lambda: self._exact_partitions(first, last))
        policy = self._batch_policy = self._policy_at(end, is_first=is_first)
        no_rewind = policy.truncation_advice
        if no_rewind is None and is_first and self._options.state.is_stateful is None:
            # There is no state yet because no batch has run.
            no_rewind = FIRST_BATCH
        self._tasks_may_go_back = no_rewind is None
        ranges = self._with_retries(lambda: self._ranges(first, last, policy))
        login = token_login(self._options.client)
        return [
            RangesPartition(task, last.topic_ids, last.cluster_id, no_rewind, login) for task in self._tasks(ranges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._received_ms is not None:
            SpanRecorder(self._plan.timeline_directory, WORKER).add("wait for the task's input", self._received_ms)
        if isinstance(partition, KeptPartition):
            return read_kept(self._plan, partition)
        return read_ranges(self._plan, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: only Spark's checkpoint stores what was read."""

    def stop(self) -> None:
        """Spark 4.2 never calls this (S10); connections end with the process."""

    # Planning ---------------------------------------------------------------------------------------------------

    def _next(self, start: dict[str, Any], held: SourceOffset | Unresolved, limit: ReadLimit) -> SourceOffset | None:
        """End of the next batch, or None if none should run now. `held` is `start` decoded."""
        initial = None
        if isinstance(held, Unresolved):
            snapshot = self._take_snapshot(held)
            initial = held = self._initial_offset(snapshot)
            comparison = Comparison(held.positions, held.losses)
        else:
            if self._options.retractions is not None:
                delivered_since(held)
            snapshot, comparison = self._compare(held, lambda: self._take_snapshot(held))
            if self._last_batch is not None:
                tolerated = self._batch_policy.tolerated
                if LossKind.LOG_TRUNCATED in tolerated:
                    comparison = self._last_batch.with_unread_ranges(
                        held, comparison, snapshot, tasks_may_go_back=self._tasks_may_go_back
                    )
                comparison = self._last_batch.with_unreported_losses(held, comparison, snapshot, tolerated)
            if comparison.losses:
                apply_loss_policy(comparison.losses, self._policy_at(start))
        retractions = self._retractions(held, comparison)
        starts = {tp: position.offset for tp, position in comparison.positions.items()}
        ends = {tp: max(start, self._readable_end(tp, snapshot)) for tp, start in starts.items()}
        available = sum(ends.values()) - sum(starts.values())
        # A separate batch adds epochs to a checkpoint of Spark's source at once.
        must_run = initial is not None or bool(comparison.losses) or held.is_of_connector
        self._polled_at_s, self._is_held_back = time.monotonic(), available > 0
        if available == 0 and not must_run:
            return None
        is_limited = not isinstance(limit, ReadAllAvailable)
        is_worth_it = not is_limited or self._gate.admit(available, _now_ms())
        if not (is_worth_it or must_run or self._is_available_now):
            return None
        if is_limited and isinstance(limit, ReadMaxRows):
            ends = limit_offsets(limit.max_rows, starts, ends)
        moved = {tp: end for tp, end in ends.items() if end > starts[tp]}
        # Positions of an older release's checkpoint get their epochs, now that they are known to hold.
        bare = {tp: end for tp, end in ends.items() if tp not in moved and not comparison.positions[tp].epochs}
        tagged = self._history.tag(moved | bare, snapshot.starts, snapshot.ends)
        tagged = {tp: position for tp, position in tagged.items() if tp in moved or position.epochs}
        # A new partition without records is not added: it would cause an empty batch.
        known = (
            starts if must_run else {tp: start for tp, start in starts.items() if tp in held.positions or tp in moved}
        )
        positions = {tp: tagged.get(tp, comparison.positions[tp]) for tp in known}
        ids = snapshot.topic_ids
        return SourceOffset(
            positions,
            {topic: ids[topic] for topic in by_topic(positions)},
            started_at=initial,
            cluster_id=snapshot.cluster_id,
            losses=tuple(comparison.losses),
            query=held.query or self._query,
            retractions=retractions,
            since=self._since(held, positions, comparison, is_first=initial is not None),
            unproven=self._adoption.accepted if held.is_of_connector else {},
            added={tp: begin for tp, begin in snapshot.added.items() if begin > 0 and tp in positions},
        )

    def _take_snapshot(self, held: SourceOffset | Unresolved) -> Snapshot:
        """The subscription's current logs. Raises `OperatorError` for a named topic that neither exists nor was ever
        read.
        """
        with self._spans.span("metadata"):
            found = subscribed(self._cluster, self._options.subscription)
        known: dict[str, TopicFacts] = {}
        if isinstance(held, SourceOffset):
            known = {topic: TopicFacts(None, tuple(parts)) for topic, parts in by_topic(held.positions).items()}
        if isinstance(held, Unresolved) or self._options.fail_on_data_loss:
            require_all(self._options.subscription, {**known, **found})
        with self._spans.span("bounds of the logs"):
            snapshot = take_snapshot(self._cluster, found)
        if isinstance(held, SourceOffset):
            snapshot = self._with_added(held, snapshot)
        if self._is_available_now and self._target is None:
            self._target = snapshot
        self._newest = snapshot
        self._warn_without_epochs(snapshot)
        return snapshot

    def _with_added(self, held: SourceOffset, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the start offsets of new partitions. Those of new topics and of `assign` are read from the
        start that their logs had when the query first saw them. New partitions of a topic that is already read are read
        completely, from 0.
        """
        is_assigned = isinstance(self._options.subscription, Assign)
        topics = {tp.topic for tp in held.positions}
        added: dict[TopicPartition, int] = {}
        ids = snapshot.topic_ids
        for tp, start in snapshot.starts.items():
            if tp not in held.positions and (is_assigned or tp.topic not in topics):
                added[tp] = self._first_seen.setdefault((tp, ids[tp.topic]), start)
        return replace(snapshot, added=added)

    def _warn_without_epochs(self, snapshot: Snapshot) -> None:
        """Once: the brokers or the topics' message formats are too old for leader epochs, or the user is not authorized
        to get them."""
        filled = [end for tp, end in snapshot.ends.items() if end.offset > snapshot.starts[tp]]
        if self._is_blind is None and filled:
            self._is_blind = all(end.leader_epoch < 0 for end in filled)
            if self._is_blind:
                _log.warning(
                    "the brokers keep no leader epochs for these topics, or return them only with the ClusterAction "
                    "permission (Kafka 2.1 and 2.2): a truncation is detected only while the log is shorter than what "
                    "was read"
                )

    def _compare(
        self, held: SourceOffset, take: Callable[[], Snapshot], lost: Collection[TopicPartition] = ()
    ) -> tuple[Snapshot, Comparison]:
        """`lost`: partitions that need no proof, because their loss is known."""
        return compare_with_retries(
            held,
            take,
            self._history,
            attempts=self._options.retries.attempts,
            interval_ms=self._options.retries.interval_ms,
            judge=partial(self._adoption.verdicts, lost=lost) if held.is_of_connector else None,
        )

    def _initial_offset(self, snapshot: Snapshot) -> SourceOffset:
        """The query's start; resolved once, so that "latest" does not move while the first batch is planned."""
        if self._initial is None:
            offsets = resolve(self._options.starting, snapshot, self._cluster, side="starting")
            out_of_range = [
                Loss(
                    LossKind.OFFSETS_EXPIRED,
                    tp.topic,
                    tp.partition,
                    offset,
                    log_start_offset=snapshot.starts[tp],
                    log_end_offset=snapshot.ends[tp].offset,
                    resume_offset=snapshot.starts[tp],
                    cluster_id=snapshot.cluster_id,
                )
                for tp, offset in offsets.items()
                if offset < snapshot.starts[tp]
            ]
            apply_loss_policy(out_of_range, self._options.policy)
            _refuse_beyond_end(offsets, snapshot, fail_on_data_loss=self._options.fail_on_data_loss)
            offsets = {
                tp: min(max(offset, snapshot.starts[tp]), snapshot.ends[tp].offset) for tp, offset in offsets.items()
            }
            tagged = self._history.tag(offsets, snapshot.starts, snapshot.ends)
            self._initial = SourceOffset(
                tagged, snapshot.topic_ids, cluster_id=snapshot.cluster_id, losses=tuple(out_of_range)
            )
        return self._initial

    def _readable_end(self, tp: TopicPartition, snapshot: Snapshot) -> int:
        end = snapshot.ends[tp].offset
        if self._target is None:
            return end
        target = self._target.ends.get(tp)
        return 0 if target is None else min(end, target.offset)

    def _policy_at(self, offset: dict[str, Any], *, is_first: bool = False) -> LossPolicy:
        """The loss policy of the query whose newest planned batch ends at `offset`. `is_first`: no batch has run yet
        that could have state."""
        policy = self._options.policy
        if LossKind.LOG_TRUNCATED not in policy.tolerated or self._options.retractions is not None:
            return policy
        state = self._state or query_state(self._options.state, offset)
        if isinstance(state, NotKnown):
            if not self._has_warned_of_state:
                self._has_warned_of_state = True
                _log.warning("%s: this query will end at a truncation despite onTruncation=rewind", state.because)
        elif not is_first:
            self._state = state
        return policy.without_rewind(why_no_rewind(state))

    def _ranges(self, first: SourceOffset, last: SourceOffset, policy: LossPolicy) -> list[PlannedRange]:
        """What a batch reads, compared with the logs at both ends, because a replay starts here (S8)."""
        begin, snapshot, finish = self._compare_ends(first, last)
        self._last_batch = plan_batch(first, last, begin, finish, snapshot)
        apply_loss_policy(self._last_batch.losses, policy)
        return self._last_batch.ranges

    def _compare_ends(self, first: SourceOffset, last: SourceOffset) -> tuple[Comparison, Snapshot, Comparison]:
        """The comparisons of a batch's beginning and end with the logs; the snapshot is that of the end."""
        begins = batch_start(first, last)
        if not last.is_of_connector:
            # The end has epochs, by which the beginning of an adopted query is compared as well.
            begins = replace(begins, is_of_connector=False)
        snapshot, begin = self._compare(begins, lambda: self._snapshot_at(last))
        # A replayed batch of Spark's source needs no proof of its end if its beginning is already lost.
        lost = {TopicPartition(loss.topic, loss.partition) for loss in begin.losses}
        # Both ends are compared with the same look at the logs, unless that one may be stale.
        looks = chain((snapshot,), iter(lambda: self._snapshot_at(last), None))
        snapshot, finish = self._compare(last, lambda: next(looks), lost)
        return begin, snapshot, finish

    def _snapshot_at(self, offset: SourceOffset) -> Snapshot:
        """The logs of those of an offset's partitions that exist."""
        topics = by_topic(offset.positions)
        with self._spans.span("metadata"):
            found = self._cluster.topics(topics)
        existing = {
            topic: TopicFacts(facts.id, tuple(index for index in topics[topic] if index in facts.partitions))
            for topic, facts in found.items()
        }
        with self._spans.span("bounds of the logs"):
            return take_snapshot(self._cluster, existing)

    # Retractions ------------------------------------------------------------------------------------------------

    @property
    def _retractor(self) -> Retractor:
        assert self._options.retractions is not None, "asked before"
        if self._kept_retractor is None:
            client = self._options.client
            self._kept_retractor = Retractor(
                self._options.retractions,
                self._plan.schema,
                receipts_from(client, self._cluster),
                self._cluster.cleanup_policies,
                committed_only=client.get("isolation.level") == "read_committed",
            )
            self._kept_retractor.check()
        return self._kept_retractor

    def _retractions(self, held: SourceOffset, comparison: Comparison) -> tuple[Retraction, ...]:
        """The rows that the next batch retracts, and where it reads them."""
        if self._options.retractions is None:
            return ()
        topics = {tp.topic for tp in comparison.positions}
        self._retractor.check_topics(topics - self._checked_topics)
        self._checked_topics |= topics
        lost = lost_rows(held, comparison.losses) if held.since is not None else ()
        return self._retractor.plan(lost, comparison.losses) if lost else ()

    def _since(
        self,
        held: SourceOffset,
        positions: Mapping[TopicPartition, PartitionPosition],
        comparison: Comparison,
        *,
        is_first: bool,
    ) -> Mapping[TopicPartition, int] | None:
        if self._options.retractions is None:
            return None
        if is_first:
            return {tp: held.positions[tp].offset for tp in positions}
        return since_after(held, positions, comparison.losses)

    def _exact_partitions(self, first: SourceOffset, last: SourceOffset) -> list[InputPartition]:
        """Tasks that deliver exactly the records between two offsets, including those lost since they were planned."""
        begin, _, finish = self._compare_ends(first, last)
        batch = plan_exact_batch(first, last, begin, finish)
        apply_loss_policy(batch.losses, self._options.policy)
        tasks = self._tasks(batch.ranges)
        login = token_login(self._options.client)
        read = [RangesPartition(task, last.topic_ids, last.cluster_id, BATCH_IS_EXACT, login) for task in tasks]
        again = self._retractor.pieces_of_lost(batch.lost, batch.losses)
        back = self._retractor.pieces_of(last.retractions, last.losses)
        return [*read, *kept_partitions(again, "insert"), *kept_partitions(back, "delete")]

    def _tasks(self, ranges: list[PlannedRange]) -> list[Task]:
        return plan_tasks(
            ranges,
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )

    # Connection -------------------------------------------------------------------------------------------------

    def _with_retries(self, work: Callable[[], T]) -> T:
        return with_retries(work, self._options.retries)

    @property
    def _cluster(self) -> SourceCluster:
        if self._connected is None:
            self._connected = connect(self._options.client)
        return self._connected

    @property
    def _adoption(self) -> Adoption:
        if self._kept_adoption is None:
            options, cluster = self._options, self._cluster
            self._kept_adoption = Adoption(
                cluster,
                options.state,
                lambda: known_losses(cluster, options.client),
                lambda ranges: partitions_with_records(options.client, ranges),
                accepts_unproven=options.accepts_unproven,
            )
        return self._kept_adoption

    @property
    def _history(self) -> EpochHistories:
        if self._kept_history is None:
            self._kept_history = EpochHistories(self._cluster)
        return self._kept_history


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error on the first call by Spark: Spark hides an error in `streamReader` behind one of its own."""

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


def _refuse_beyond_end(offsets: Mapping[TopicPartition, int], snapshot: Snapshot, *, fail_on_data_loss: bool) -> None:
    beyond = {tp: offset for tp, offset in offsets.items() if offset > snapshot.ends[tp].offset}
    if beyond and fail_on_data_loss:
        what = ", ".join(
            f"{tp} at offset {offset} (the log ends at {snapshot.ends[tp].offset})" for tp, offset in beyond.items()
        )
        raise OperatorError(
            f"startingOffsets is beyond the end of the log: {what}",
            'Choose existing offsets, or set the option failOnDataLoss to "false" to start at the end.',
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
