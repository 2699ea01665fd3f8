"""Reads ranges on executors and returns Arrow record batches in Spark's exact form.

Owns a task's reading, the translation of the client's errors into this package's, and what a task may skip if the query
tolerates a loss: expired records, and records after the point where the log diverges from the plan. The next plan finds
that point too, and goes back to it: so a task ends a range early only at a point that the leader confirms, and never
above it. No Python object is created per record (`pyspark.md S1`, S18). Never plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fenceline.client.core.errors import (
    RETRIABLE,
    BrokersUnreachable,
    EpochMismatchError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicReplacedError,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition, encode_uuid
from pyspark_fenceline.common import connect, workers
from pyspark_fenceline.common.offsets import PartitionPosition
from pyspark_fenceline.common.planning import PlannedRange, Task
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, Attempts, RetryPolicy, with_retries
from pyspark_fenceline.common.schema import arrow_schema, client_columns, to_spark
from pyspark_fenceline.common.spans import WORKER, SpanRecorder
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.source.history import Diverged, EpochHistories, Holds, Verdict
from pyspark_fenceline.source.policy import LossPolicy, apply_loss_policy

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LOSSES_PER_TASK: Final = 20
"""Losses that one task tolerates; each removes records, so more of them mean that the log keeps changing."""
_MAX_CHECKS: Final = 3
_WHILE_A_LEADER_CHANGES: Final = RetryPolicy(attempts=5, interval_ms=500)
_NOT_TEMPORARY: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Errors that the client has already retried as long as that is useful."""


class RangesPartition(InputPartition):
    """One Spark task's ranges, the ids that their topics must still have, and the cluster on which they were planned.

    `no_rewind`: why the query must not rewind, regardless of its options; None if they decide. `login`: client
    properties by which the task logs in, if it is not to have those of the query.
    """

    def __init__(
        self,
        task: Task,
        topic_ids: Mapping[str, str | None],
        cluster_id: str | None = None,
        no_rewind: str | None = None,
        login: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(task)
        self.task = task
        self.topic_ids = dict(topic_ids)
        self.cluster_id = cluster_id
        self.no_rewind = no_rewind
        self.login = dict(login)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What every task of a query needs: client properties, columns, loss policy and retries."""

    client: Mapping[str, str] = field(repr=False)
    schema: StructType
    policy: LossPolicy
    retries: RetryPolicy = DEFAULT_RETRIES
    timeline_directory: str | None = None


def read_ranges(plan: ReadPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task. Raises `DataLossError`, the brokers' errors, or `BrokersUnreachable`."""
    if not isinstance(partition, RangesPartition):
        # Spark passes a partition of its own if a batch query has none.
        return
    policy = plan.policy.without_rewind(partition.no_rewind)
    plan = replace(plan, client={**plan.client, **partition.login}, policy=policy)
    spans = SpanRecorder(plan.timeline_directory, WORKER)
    target = arrow_schema(plan.schema)
    columns = client_columns(target)
    waiting, loss_count, attempts = list(partition.task), 0, Attempts(plan.retries)
    while waiting:
        now, later = _split_by_partition(waiting)
        begins = {one.topic_partition: one.start_offset for one in now}
        read_to = dict(begins)
        with spans.span("connect"):
            client = connect.reader(plan.client)
        try:
            batches = connect.read_arrow(client, now, partition.topic_ids, read_to, **columns)
            while True:
                with spans.span("fetch and decode"):
                    batch = next(batches, None)
                if batch is None:
                    break
                with spans.span("hand over to Spark"):
                    yield to_spark(batch, target)
        except (BrokersUnreachable, PeerError) as error:
            # The next attempt uses new connections and new metadata.
            connect.forget("reader", plan.client)
            left = [one.starting_at(read_to[one.topic_partition]) for one in now] + later
            if read_to != begins:
                attempts.reset()
            if isinstance(error, BrokersUnreachable) or _is_temporary(error, left):
                attempts.wait_or_raise(error)
                waiting = [one for one in left if one.record_count > 0]
            else:
                loss_count += 1
                waiting = _remaining(error, left, plan, loss_count, partition.cluster_id)
        else:
            waiting = later
    workers.freeze_gc()


def _is_temporary(error: PeerError, left: Sequence[PlannedRange]) -> bool:
    """Whether the error is temporary and no loss: brokers do not answer, or a partition has no leader."""
    return _loss_of(error, left) is None and error.code in RETRIABLE and error.code not in _NOT_TEMPORARY


def _split_by_partition(waiting: Sequence[PlannedRange]) -> tuple[list[PlannedRange], list[PlannedRange]]:
    """The ranges to read now and later: ranges of one partition are read one after another."""
    now: dict[TopicPartition, PlannedRange] = {}
    later = [one for one in waiting if now.setdefault(one.topic_partition, one) is not one]
    return list(now.values()), later


def _remaining(
    error: PeerError, left: list[PlannedRange], plan: ReadPlan, loss_count: int, cluster_id: str | None
) -> list[PlannedRange]:
    """The rest of `left` to read after the task's `loss_count`-th error. Raises `DataLossError`, or the error."""
    loss = _loss_of(error, left)
    if loss is None or loss_count > _MAX_LOSSES_PER_TASK:
        raise error
    loss = replace(loss, cluster_id=cluster_id)
    if loss.kind is LossKind.TOPIC_RECREATED:
        apply_loss_policy([loss], plan.policy)
        return [one for one in left if one.topic_partition.topic != loss.topic]
    tp = TopicPartition(loss.topic, loss.partition)
    concerned = [one for one in left if one.topic_partition == tp]
    others = [one for one in left if one.topic_partition != tp]
    if loss.kind is LossKind.LOG_TRUNCATED:
        end = max(concerned, key=lambda one: one.end_offset_exclusive)
        found = _find_divergence(end, plan)
        if isinstance(found, Holds) and end.end_epoch >= 0:
            # The leader has all planned records. Either another broker reported the loss, or the leader's batches have
            # other epochs than its epoch cache. A lagging high watermark is not handled here.
            if isinstance(error, OffsetOutOfRangeError) and not isinstance(error, LogTruncationError):
                raise error
            return (
                concerned + others
                if loss_count < _MAX_CHECKS
                else [one._replace(epochs=()) for one in concerned] + others
            )
        if isinstance(found, Diverged):
            loss = replace(
                loss,
                offset=end.end_offset_exclusive,
                leader_epoch=end.end_epoch,
                divergent_offset=found.offset,
                log_epoch=found.log_epoch,
                resume_offset=found.resume_offset,
            )
            concerned = [one.ending_at(min(one.end_offset_exclusive, found.resume_offset)) for one in concerned]
        else:
            # A plan without epochs: the next one detects at least that the log is shorter.
            concerned = []
    else:
        at = loss.log_start_offset
        concerned = [one.starting_at(min(max(one.start_offset, at), one.end_offset_exclusive)) for one in concerned]
    apply_loss_policy([loss], plan.policy)
    return [one for one in concerned if one.record_count > 0] + others


def _find_divergence(one: PlannedRange, plan: ReadPlan) -> Verdict:
    """Whether the leader's log holds the records up to the range's end, and the point of divergence if not."""
    tp = one.topic_partition
    cluster = connect.connect(plan.client)
    end = PartitionPosition(one.end_offset_exclusive, one.end_epoch, one.epochs)

    def check() -> Verdict:
        return EpochHistories(cluster).check({tp: end}, cluster.log_ends([tp]))[tp]

    return with_retries(check, _WHILE_A_LEADER_CHANGES)


def _loss_of(error: PeerError, task: Sequence[PlannedRange]) -> Loss | None:
    """The client's error as a loss, or None for any other error."""
    match error:
        case LogTruncationError():
            divergence = error.divergent_offset if error.divergent_offset >= 0 else None
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                error.offset,
                error.leader_epoch,
                divergent_offset=divergence,
                log_epoch=error.divergent_epoch,
            )
        case EpochMismatchError():
            # Records up to the planned end were planned in older epochs: the log was truncated at or before this one.
            end = max(r.end_offset_exclusive for r in task if r.topic_partition == (error.topic, error.partition))
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                end,
                error.expected_epoch,
                divergent_offset=error.offset,
                log_epoch=error.leader_epoch,
            )
        case OffsetOutOfRangeError() if 0 <= error.offset < error.log_start_offset:
            return Loss(
                LossKind.OFFSETS_EXPIRED,
                error.topic,
                error.partition,
                error.offset,
                error.leader_epoch,
                log_start_offset=error.log_start_offset,
                log_end_offset=error.log_end_offset,
                resume_offset=error.log_start_offset,
            )
        case OffsetOutOfRangeError():
            end = max(r.end_offset_exclusive for r in task if r.topic_partition == (error.topic, error.partition))
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                end,
                divergent_offset=error.log_end_offset if error.log_end_offset >= 0 else None,
                log_start_offset=error.log_start_offset,
                log_end_offset=error.log_end_offset,
            )
        case TopicReplacedError():
            first = next(r for r in task if r.topic_partition.topic == error.topic)
            return Loss(
                LossKind.TOPIC_RECREATED,
                error.topic,
                first.topic_partition.partition,
                first.start_offset,
                first.start_epoch,
                topic_id=encode_uuid(error.facts["expected_id"]),
                found_topic_id=encode_uuid(error.facts["found_id"]),
            )
    return None
