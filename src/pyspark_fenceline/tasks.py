"""What runs on executors for a read: ranges in, Arrow record batches in Spark's exact form out.

Owns the per-task path and the translation of the client's errors into this package's. No Python object is made for a
record (`pyspark.md S1`, S18). Never plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fenceline.client.errors import EpochMismatchError, LogTruncationError, OffsetOutOfRangeError, TopicReplacedError
from fenceline.errors import PeerError
from fenceline.ids import encode_uuid
from pyspark_fenceline import connect, workers
from pyspark_fenceline.errors import DataLossError, Loss, LossKind
from pyspark_fenceline.planning import OffsetRange, Task
from pyspark_fenceline.ranges import settle
from pyspark_fenceline.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class RangesPartition(InputPartition):
    """One Spark task's ranges, and the ids that their topics must still have."""

    def __init__(self, task: Task, topic_ids: Mapping[str, str | None]) -> None:
        super().__init__(task)
        self.task = task
        self.topic_ids = dict(topic_ids)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What every task of a query needs: client properties, columns, and whether a loss ends the query."""

    client: Mapping[str, str]
    schema: StructType
    fail_on_data_loss: bool


def read_ranges(plan: ReadPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task. Raises `DataLossError`, or what the brokers refused."""
    if not isinstance(partition, RangesPartition):
        # Spark stands in a partition of its own when a batch query has none.
        return
    target = arrow_schema(plan.schema)
    if plan.fail_on_data_loss:
        yield from _read(plan, partition.task, partition.topic_ids, target)
    else:
        for one in partition.task:
            yield from _read_what_is_left(plan, one, partition.topic_ids, target)
    workers.settle()


def _read(
    plan: ReadPlan, task: Sequence[OffsetRange], topic_ids: Mapping[str, str | None], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    client = connect.reader(plan.client)
    try:
        for batch in connect.read_arrow(client, task, topic_ids, **client_columns(target)):
            yield to_spark(batch, target)
    except PeerError as error:
        # The next task starts with fresh connections and fresh metadata.
        connect.forget("reader", plan.client)
        loss = _loss_of(error, task)
        if loss is None:
            raise
        raise DataLossError([loss]) from error


def _read_what_is_left(
    plan: ReadPlan, one: OffsetRange, topic_ids: Mapping[str, str | None], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """One range under failOnDataLoss=false. Records that expired meanwhile are skipped; when the log was cut, the range
    ends there and the next batch's plan goes back to the divergence point. Each is said in the log."""
    wanted = replace(one)
    while wanted.record_count > 0:
        client = connect.reader(plan.client)
        try:
            for batch in connect.read_arrow(client, [wanted], topic_ids, **client_columns(target)):
                if batch.num_rows:
                    wanted = replace(wanted, start_offset=batch.column("offset")[-1].as_py() + 1, start_epoch=-1)
                yield to_spark(batch, target)
            return
        except PeerError as error:
            connect.forget("reader", plan.client)
            loss = _loss_of(error, [wanted])
            if loss is None:
                raise
            settle([loss], fail_on_data_loss=False)
            if loss.kind is not LossKind.OFFSETS_EXPIRED:
                return
            wanted = replace(wanted, start_offset=loss.log_start_offset, start_epoch=-1)


def _loss_of(error: PeerError, task: Sequence[OffsetRange]) -> Loss | None:
    """The client's findings in this package's words, or None for any other trouble."""
    match error:
        case LogTruncationError():
            divergence = error.divergent_offset if error.divergent_offset >= 0 else None
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                error.offset,
                error.leader_epoch,
                divergence_offset=divergence,
                log_epoch=error.divergent_epoch,
            )
        case EpochMismatchError():
            # Records up to the planned end were promised in older epochs: the log was cut at or before this one.
            end = max(r.end_offset_exclusive for r in task if r.topic_partition == (error.topic, error.partition))
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                end,
                error.expected_epoch,
                divergence_offset=error.offset,
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
            )
        case OffsetOutOfRangeError():
            end = max(r.end_offset_exclusive for r in task if r.topic_partition == (error.topic, error.partition))
            return Loss(
                LossKind.LOG_TRUNCATED,
                error.topic,
                error.partition,
                end,
                divergence_offset=error.log_end_offset if error.log_end_offset >= 0 else None,
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


def to_spark(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The client's columns in the order and under the names of Spark's schema."""
    import pyarrow as pa

    columns = [batch.column(_CLIENT_NAMES.get(name, name)) for name in target.names]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def client_columns(target: pa.Schema) -> dict[str, Any]:
    """What the client is asked to decode, so that nothing has to be cast afterwards."""
    return {
        "include_headers": "headers" in target.names,
        "include_leader_epoch": "leader_epoch" in target.names,
        "empty_headers_as_null": True,
        "timestamp_unit": "us",
    }


_CLIENT_NAMES: Final = {"timestampType": "timestamp_type"}
