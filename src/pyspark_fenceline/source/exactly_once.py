"""Writes micro-batches to a topic exactly once: a function for `foreachBatch`. Runs in the driver.

The records of a micro-batch and the batch's number are one transaction of one transactional id:

1. begin: the former run of the query is fenced, and what it left open is aborted. Its progress is read: a batch that is
   committed already is skipped;
2. the rows are distributed by Kafka partition, and each partition is written by one task (`transaction_tasks`);
3. commit: the number of the batch, as an offset of a private group, and the records together. The coordinator answers
   with the epoch of the next transaction.

The driver may die between any two of these: Spark runs the batch again, and step 1 tells whether it is committed. If a
task fails, or runs twice, the transaction is aborted and the batch is written again, in a new transaction; so it is if
the cluster has aborted the transaction, as a leader that recovers after an unclean election does. A task that outlives
its transaction is fenced by the epoch.

Owns these steps and their repetition. Never decides what a row contains. Rules: transactions.md X69-X74; decision 033.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fenceline.client.core.errors import ProducerFenced, TransactionFailed
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import FencelineError, OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.task_login import of_driver, with_token
from pyspark_fenceline.source.options import write_options
from pyspark_fenceline.source.topic_sink import check_columns
from pyspark_fenceline.source.transaction_tasks import (
    PARTITION,
    RESULT_SCHEMA,
    SECOND_ATTEMPT,
    RowPartitioner,
    TransactionTask,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fenceline.client.producer.transaction_handle import TransactionHandle
    from fenceline.client.producer.transaction_owner import TransactionOwner

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 3
_TIMEOUT_MS: Final = "900000"
"""Of a transaction that the options do not limit: Kafka's default of transaction.max.timeout.ms."""
_MAY_PASS: Final = (SECOND_ATTEMPT, "TransactionAbortable", "ConnectionLost", "TimedOut")
"""In the error of a task."""
_QUERY_ID: Final = "sql.streaming.queryId"


def exactly_once(transactional_id: str, options: Mapping[str, str]) -> ExactlyOnceTopic:
    """A function for `foreachBatch` that writes each micro-batch to a topic exactly once.

    `transactional_id`: the name of this query's output, the same over restarts; a consumer group of that name keeps its
    progress. `options`: those of the topic sink: `topic`, `kafka.bootstrap.servers` and other `kafka.*`. Requires
    brokers with transaction.version 2 (Kafka 4.0 or newer). Readers need `isolation.level=read_committed`.

    Raises OperatorError for invalid options.
    """
    return ExactlyOnceTopic(transactional_id, options)


class ExactlyOnceTopic:
    """See `exactly_once`. Call it with a DataFrame and the number of its micro-batch."""

    def __init__(self, transactional_id: str, options: Mapping[str, str]) -> None:
        if not transactional_id.strip():
            raise OperatorError("The transactional id is empty", "Give the output of this query a name that it keeps.")
        found = write_options(options)
        if found.topic is None:
            raise OperatorError(
                "Option 'topic' is required to write exactly once",
                "Write the rows of each topic with a query of its own, or with format('fenceline'), at least once.",
            )
        self._client = {"transaction.timeout.ms": _TIMEOUT_MS, **found.client}
        self._client.pop("transactional.id", None)
        self._topic = found.topic
        self._transactional_id = transactional_id
        self._owner: TransactionOwner | None = None
        self._handle: TransactionHandle | None = None
        """Of the next transaction; None before the first, and after a failure."""
        self._newest: TransactionHandle | None = None
        """The last one that there was."""
        self._next_batch = 0
        """The first batch that is not committed, if there is a handle."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Returns once the batch is committed, by this call or a former one. Raises what a task raised, OperatorError
        if another run has taken over, and errors of the cluster."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._write_once(batch, batch_id)
                return
            except Exception as error:
                was_aborted = self._give_up(error)
                if attempt == _ATTEMPTS and was_aborted:
                    raise self._aborted(batch_id) from error
                if attempt == _ATTEMPTS or not (was_aborted or _may_succeed(error)):
                    raise
                _log.warning("micro-batch %d is written again to %s: %s", batch_id, self._topic, _first_line(error))

    def close(self) -> None:
        """Close the connections. What is open is aborted by the next run, or by its time-out."""
        owner, self._owner, self._handle = self._owner, None, None
        if owner is not None:
            owner.close()

    # --- one attempt ----------------------------------------

    def _write_once(self, batch: DataFrame, batch_id: int) -> None:
        query_id = _query_id(batch)
        handle = self._newest = self._handle if self._handle is not None else self._begin(query_id, batch_id)
        if batch_id < self._next_batch:
            _log.info("micro-batch %d is in %s already", batch_id, self._topic)
            return
        self._write(batch, batch_id, handle)
        progress = CommittedOffset(batch_id + 1, metadata=query_id)
        self._handle = None  # unknown until the answer is there
        self._handle = self._connected().commit(handle, {self._progress_partition: progress})
        self._next_batch = batch_id + 1

    def _begin(self, query_id: str, batch_id: int) -> TransactionHandle:
        owner = self._connected()
        handle = owner.begin()
        progress = owner.progress([self._progress_partition]).get(self._progress_partition)
        self._next_batch = 0 if progress is None else progress.offset
        if progress is not None and query_id and progress.metadata and progress.metadata != query_id:
            raise OperatorError(
                f"The transactional id {self._transactional_id!r} has the progress of another query "
                f"({progress.metadata}, up to batch {progress.offset - 1}); this one is {query_id}, at {batch_id}",
                "A new checkpoint begins at batch 0 again: use another transactional id, or, if the topic has what "
                f"you want, delete the consumer group {self._transactional_id!r}.",
            )
        self._handle = handle
        return handle

    def _write(self, batch: DataFrame, batch_id: int, handle: TransactionHandle) -> None:
        check_columns(batch.schema, self._topic)
        names = set(batch.columns)
        partitioner = RowPartitioner(self._partition_count(), batch_id)
        task = TransactionTask(
            with_token(self._client), self._topic, handle, [name for name in ("key", "headers") if name in names]
        )
        rows = distributed(batch.select(*[name for name in _COLUMNS if name in names]), partitioner)
        rows.mapInArrow(task, RESULT_SCHEMA).collect()

    def _partition_count(self) -> int:
        facts = connect.connect(self._client).topics([self._topic]).get(self._topic)
        if facts is None:
            raise OperatorError(f"Topic {self._topic} does not exist", "Create it before the query starts.")
        return len(facts.partitions)

    @property
    def _progress_partition(self) -> TopicPartition:
        return TopicPartition(self._topic, 0)

    def _connected(self) -> TransactionOwner:
        from fenceline.client.producer.transaction_owner import TransactionOwner

        if self._owner is None:
            self._owner = TransactionOwner(of_driver(self._client), self._transactional_id)
        return self._owner

    # --- failures ----------------------------------------

    def _give_up(self, error: Exception) -> bool:
        """Abort, so that no reader waits for the time-out. Whether the cluster had done that before. Raises
        OperatorError if another run has taken over."""
        handle, self._handle = self._handle, None
        if isinstance(error, ProducerFenced):
            return self._was_aborted(error)
        if handle is None or self._owner is None:
            return False
        try:
            self._owner.abort(handle)
        except ProducerFenced as fenced:
            # Tasks were fenced as well, whatever their errors are.
            return self._was_aborted(fenced)
        except FencelineError as failure:
            _log.warning("the transaction of %s stays open until the next begins: %s", self._topic, failure)
        return False

    def _was_aborted(self, fenced: ProducerFenced) -> bool:
        """True if the cluster has aborted the transaction. Raises OperatorError if another run has taken over."""
        try:
            if self._owner is not None and self._newest is not None and self._owner.was_aborted(self._newest):
                return True
        except FencelineError as failure:
            _log.warning("could not find out what fenced the transaction of %s: %s", self._topic, failure)
        raise OperatorError(
            f"Another run with the transactional id {self._transactional_id!r} has taken over",
            "Run a query once at a time, with a transactional id of its own.",
        ) from fenced

    def _aborted(self, batch_id: int) -> OperatorError:
        return OperatorError(
            f"The cluster has aborted the transaction of micro-batch {batch_id} in each of {_ATTEMPTS} attempts",
            f"If it takes longer than transaction.timeout.ms ({self._client['transaction.timeout.ms']}), write smaller "
            "batches (maxOffsetsPerTrigger), or raise kafka.transaction.timeout.ms and the broker's "
            "transaction.max.timeout.ms. Otherwise the brokers' logs name leaders that recover.",
        )


_COLUMNS: Final = ("key", "value", "headers", "partition")


def distributed(rows: DataFrame, partitioner: RowPartitioner) -> DataFrame:
    """With the column of the Kafka partition; all rows of a Kafka partition are in one task."""
    from pyspark.sql import functions as f

    names = set(rows.columns)
    count = partitioner.count
    if not names & {"key", "partition"}:
        # Any partition will do: no row moves further than to a neighbouring task.
        chosen = (f.spark_partition_id() + f.lit(partitioner.batch_id)) % f.lit(count)
        return rows.coalesce(count).withColumn(PARTITION, chosen.cast("int"))
    key = f.col("key").cast("binary") if "key" in names else f.lit(None).cast("binary")
    chosen = f.col("partition") if "partition" in names else f.lit(None).cast("int")
    numbered = rows.withColumn(PARTITION, _partition_function(partitioner)(key, chosen)).drop("partition")
    return numbered.repartitionById(count, f.col(PARTITION))


def _partition_function(partitioner: RowPartitioner):  # type: ignore[no-untyped-def]
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.taskcontext import TaskContext

    number = 0

    def partition_of(keys: pa.Array, chosen: pa.Array) -> pa.Array:
        nonlocal number
        context = TaskContext.get()
        number += 1
        return partitioner(keys, chosen, len(keys), number + (context.partitionId() if context is not None else 0))

    # Without annotations: Spark would look their names up in the executor.
    partition_of.__annotations__ = {"keys": pa.Array, "chosen": pa.Array, "return": pa.Array}
    return arrow_udf(partition_of, "int")  # type: ignore[call-overload]


def _query_id(batch: DataFrame) -> str:
    """The query's id in its checkpoint; empty if it is not known, as under Spark Connect."""
    try:
        return batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
    except Exception:
        return ""


def _may_succeed(error: Exception) -> bool:
    """Whether the batch may succeed in a new transaction. An invalid row fails again."""
    if isinstance(error, FencelineError):
        return not isinstance(error, OperatorError | TransactionFailed)
    return any(each in str(error) for each in _MAY_PASS)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
