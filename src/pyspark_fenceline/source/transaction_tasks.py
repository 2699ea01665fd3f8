"""Writes the rows of one task in the transaction of a micro-batch (`exactly_once`). Runs in executors.

Owns which Kafka partition a row belongs to, and the refusals of a task. A partition is written by one task, and by it
once: sequence numbers start at 0 in each transaction, so a second writer is taken for a retry of the first
(`transactions.md X72`). Never ends the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect, workers

if TYPE_CHECKING:
    import pyarrow as pa

    from fenceline.client.producer.transaction_handle import TransactionHandle

PARTITION: Final = "__fenceline_partition"
"""The column with the number of the Kafka partition."""
RESULT_SCHEMA: Final = "records long"
SECOND_ATTEMPT: Final = "FENCELINE_SECOND_ATTEMPT"
"""In the error of a task that would write a second time: the batch is written again, in a new transaction."""


@dataclass(frozen=True)
class RowPartitioner:
    """The Kafka partition of rows, as a producer chooses it: the column `partition` if it has a value, else by the key,
    else a partition for each Arrow batch in turn. `count`: the topic's partitions."""

    count: int
    batch_id: int

    def __call__(self, keys: pa.Array | None, chosen: pa.Array | None, rows: int, number: int) -> pa.Array:
        """`number`: of the task and of its batch."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from fenceline.records.arrow import hash_keys

        any_partition = pa.scalar((number + self.batch_id) % self.count, pa.int32())
        found = pa.repeat(any_partition, rows)
        if keys is not None:
            hashes = hash_keys(keys)
            by_key = pc.subtract(hashes, pc.multiply(pc.divide(hashes, self.count), self.count)).cast(pa.int32())
            found = pc.coalesce(by_key, found)
        if chosen is not None:
            wrong = pc.any(pc.or_(pc.less(chosen, 0), pc.greater_equal(chosen, self.count)))
            if wrong.as_py():
                raise OperatorError(
                    f"Column 'partition' has a value outside 0 to {self.count - 1}", "The topic has no such partition."
                )
            found = pc.coalesce(chosen, found)
        return found


class TransactionTask:
    """For `mapInArrow`; pickled from the driver. Yields one row: the number of records."""

    def __init__(
        self, client: Mapping[str, str], topic: str, handle: TransactionHandle, columns: Sequence[str]
    ) -> None:
        """`columns`: those of `key`, `headers` that the rows have, besides `value` and the column of the partition."""
        self._client = dict(client)
        self._topic = topic
        self._handle = handle
        self._columns = {name: name for name in columns}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        count = 0
        if first is not None:
            self._refuse_second_attempt()
            count = self._write(first, rows)
        workers.freeze_gc()
        yield pa.RecordBatch.from_pydict({"records": pa.array([count], pa.int64())})

    def _write(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> int:
        from fenceline.client.producer.transaction_owner import transaction_writer

        count = 0
        checked: set[int] = set()
        with transaction_writer(self._client, self._handle) as producer:
            promises: list[Any] = []
            for batch in chain((first,), rest):
                self._refuse_written(batch, checked)
                promises.append(
                    producer.send_arrow(batch, self._topic, value="value", partition=PARTITION, **self._columns)
                )
                count += batch.num_rows
            producer.flush()
            for promise in promises:
                promise.result()
        return count

    def _refuse_second_attempt(self) -> None:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise OperatorError(
                f"{SECOND_ATTEMPT}: attempt {context.attemptNumber()} of a task that may have written already",
                "The batch is written again in a new transaction. Turn spark.speculation off for this query.",
            )

    def _refuse_written(self, batch: pa.RecordBatch, checked: set[int]) -> None:
        """A stage that Spark runs again has tasks of attempt 0, too: the leaders know which partitions are written."""
        import pyarrow.compute as pc

        new = {int(each) for each in pc.unique(batch.column(PARTITION)).to_pylist()} - checked
        if not new:
            return
        checked |= new
        partitions = [TopicPartition(self._topic, index) for index in sorted(new)]
        for where, producers in connect.connect(self._client).producers(partitions).items():
            # The end marker before has this epoch, too, and opens nothing.
            if any(
                (each.producer_id, each.producer_epoch) == (self._handle.producer_id, self._handle.epoch)
                and each.transaction_start_offset >= 0
                for each in producers
            ):
                raise OperatorError(f"{SECOND_ATTEMPT}: {where} is already written in this transaction")
