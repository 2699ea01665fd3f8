"""Writes DataFrames to topics, batch and stream, at least once, as Spark's Kafka sink does.

Owns the columns of a write (`key`, `value`, `topic`, `partition`, `headers`; others are ignored) and the task that
passes them to the process's producer. A task ends when every record is acknowledged; a task that Spark runs again
writes its records again. Rows are passed to the producer as Arrow columns, never as Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from fenceline.errors import FencelineError, OperatorError
from pyspark_fenceline.common import connect, workers
from pyspark_fenceline.common.schema import HEADERS_TYPE
from pyspark_fenceline.common.task_login import with_token
from pyspark_fenceline.common.worker_socket import acknowledge_command
from pyspark_fenceline.delta.schema import nullable
from pyspark_fenceline.source.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS_TYPE,),
    "partition": (IntegerType(),),
}


@dataclass
class RecordsWritten(WriterCommitMessage):
    record_count: int


def refuse_overwrite() -> None:
    """Topics are append-only. Raises `OperatorError`."""
    raise OperatorError("Save mode overwrite is not allowed for topics", "Allowed are append and errorIfExists.")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises `OperatorError` if a required column is missing or has an unsupported type."""
    columns = {field.name: field.dataType for field in schema}
    if "value" not in columns:
        raise OperatorError("Required attribute 'value' not found", "Select a column named value (string or binary).")
    if topic is None and "topic" not in columns:
        raise OperatorError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name, allowed in _TYPES.items():
        if name not in columns or (name == "topic" and topic is not None):
            continue
        if nullable(columns[name]) not in [nullable(one) for one in allowed]:
            wanted = " or ".join(one.simpleString() for one in allowed)
            raise OperatorError(
                f"{name} attribute unsupported type {columns[name].simpleString()}. {name} must be a(n) {wanted}"
            )


class _TopicTask:
    """Writes one task's rows; pickled from the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = replace(options, client=with_token(options.client))
        self._columns = tuple(name for name in _TYPES if name in schema.fieldNames())
        # The processes that plan and commit a batch have nothing more to do.
        workers.freeze_gc()

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge_command()
        self.__dict__.update(state)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordsWritten:
        producer = connect.producer(self._options.client)
        count = 0
        promises = []
        try:
            for batch in iterator:
                for topic, rows in self._by_topic(batch):
                    promises.append(self._send(producer, topic, rows))
                    count += rows.num_rows
            producer.flush()
            for promise in promises:
                promise.result()
        except FencelineError:
            # After a failure the producer's sequence numbers may be wrong: the next task gets a new producer.
            connect.forget("producer", self._options.client)
            raise
        workers.freeze_gc()
        return RecordsWritten(count)

    def _send(self, producer: Any, topic: str, rows: pa.RecordBatch) -> Any:
        columns = {name: name for name in ("key", "headers", "partition") if name in self._columns}
        return producer.send_arrow(rows, topic, value="value", **columns)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise OperatorError(
                "null topic present in the data. Use the topic option for setting a default topic.",
            )
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield str(name), batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


class TopicWriter(_TopicTask, DataSourceArrowWriter):
    """A batch write."""


class TopicStreamWriter(_TopicTask, DataSourceStreamArrowWriter):
    """At least once: a replayed batch is written again, and every record is acknowledged before the batch ends."""
