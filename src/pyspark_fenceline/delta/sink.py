"""`format("fenceline_delta")`: an append or complete-mode sink into a Delta table, exactly once, without a JVM library.
With the brokers' address it keeps the table equal to the log.

Owns the Spark side: writers for batch and stream, and the commit messages of tasks. Files and commits are in
`delta.files` and `delta.commit`. A stream's batches are identified by `(query id, batch id)`; the query id is in the
application id because a new checkpoint restarts batch ids (`pyspark.md` S15, S23).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from fenceline.errors import InternalError, OperatorError
from pyspark_fenceline.common import workers
from pyspark_fenceline.common.worker_socket import acknowledge_command
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions, delta_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fenceline.ids import TopicPartition
    from pyspark_fenceline.delta.evidence import TruncationEvidence
    from pyspark_fenceline.delta.files import DataFile
    from pyspark_fenceline.delta.schema import TableShape

_QUERY_ID: Final = "sql.streaming.queryId"


def app_id(query_id: str) -> str:
    """The application id under which a streaming query's batches are recorded in the table."""
    return f"fenceline:{query_id}"


@dataclass
class FilesWritten(WriterCommitMessage):
    """One task's files. `query_id` is None in batch writes, `evidence` if the table is not compared with the log."""

    files: list[DataFile]
    query_id: str | None
    evidence: TruncationEvidence | None = None


class DeltaDataSource(DataSource):
    """Write only."""

    @classmethod
    def name(cls) -> str:
        return "fenceline_delta"

    def schema(self) -> StructType:
        raise OperatorError(
            "format('fenceline_delta') is write-only", "Read the table with deltalake.DeltaTable or Delta's own reader."
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DeltaWriter(_TaskWriter(self._checked(), schema, overwrite=overwrite), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._checked()
        if options.transaction is not None:
            raise OperatorError(
                "Options 'txnAppId' and 'txnVersion' are for batch writes only: a stream's batches are identified by "
                "query id and batch id",
                "Remove both options.",
            )
        return DeltaStreamWriter(_TaskWriter(options, schema, overwrite=overwrite), overwrite=overwrite)

    def _checked(self) -> DeltaOptions:
        options = delta_options(self.options)
        if options.client is not None:
            from pyspark_fenceline.common.connect import check_addresses
            from pyspark_fenceline.common.task_login import with_token

            check_addresses(options.client["bootstrap.servers"])
            return replace(options, client=with_token(options.client))
        return options


class _TaskWriter:
    """Writes a task's files. Created on the driver, which reads the table's state, then pickled. The commit uses
    another instance.
    """

    def __init__(self, options: DeltaOptions, schema: StructType, *, overwrite: bool) -> None:
        from pyspark_fenceline.delta.beyond import check_before_write
        from pyspark_fenceline.delta.commit import check_tracked, partition_columns
        from pyspark_fenceline.delta.properties import check_properties
        from pyspark_fenceline.delta.schema import delta_schema, fit, new_shape, required_columns
        from pyspark_fenceline.delta.table_cache import table_summary
        from pyspark_fenceline.delta.table_files import refuse_deletion_vectors
        from pyspark_fenceline.delta.upsert import check_keys

        delta_schema(schema)
        check_tracked(options, schema)
        check_keys(options, schema, overwrite=overwrite)
        self.options = options
        self.schema = schema
        self.known: Mapping[TopicPartition, int] | None = None
        self.seen = seen = table_summary(options)
        table = None if seen is None else seen.table
        self.shape: TableShape
        if table is None:
            self.shape, self.required = new_shape(schema, partition_columns(options)), frozenset[str]()
        else:
            self.shape = fit(table, schema, options.partition_by, options.path, may_grow=options.merge_schema)
            self.required = required_columns(table)
            check_properties(table, options.properties, options.path)
            if overwrite or options.loses_rows:
                refuse_deletion_vectors(table, options.path)
            if not overwrite and seen is not None and seen.state is None:
                check_before_write(options, table)

    def __getstate__(self) -> dict[str, Any]:
        """For a task, which needs the epochs that the table was compared with, but cannot have the table handle."""
        from pyspark_fenceline.delta.table_files import compared_epochs

        if self.known is None and self.options.client is not None:
            self.known = {} if self.seen is None else compared_epochs(self.options, self.seen.table, self.seen.state)
        # Pickling is the last step of the process that plans the write.
        workers.freeze_gc()
        return {**self.__dict__, "seen": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge_command()
        self.__dict__.update(state)

    def write(self, batches: Iterator[pa.RecordBatch]) -> FilesWritten:
        from pyspark_fenceline.delta.files import FileWriter
        from pyspark_fenceline.delta.schema import file_schema

        context = TaskContext.get()
        assert context is not None, "a writer runs inside a task"
        writer = FileWriter(
            self.options,
            self.shape,
            file_schema(self.schema, self.shape),
            self.required,
            task_number=context.partitionId(),
            is_tracked=self.options.client is not None,
        )
        try:
            for batch in batches:
                writer.write(batch)
            files = writer.finish()
            evidence = self._evidence(files, is_first=context.partitionId() == 0)
        except BaseException:
            writer.discard()
            raise
        workers.freeze_gc()
        return FilesWritten(files, context.getLocalProperty(_QUERY_ID), evidence)

    def _evidence(self, files: Sequence[DataFile], *, is_first: bool) -> TruncationEvidence | None:
        """The log's current state of the task's partitions; the first task also asks for the table's other ones."""
        if self.options.client is None:
            return None
        from pyspark_fenceline.delta.evidence import gather_evidence

        spans = [span for file in files for span in file.spans]
        own = {span.topic_partition for span in spans}
        known = {tp: epoch for tp, epoch in (self.known or {}).items() if is_first or tp in own}
        return gather_evidence(self.options.client, spans, known, self.options.retries)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        *,
        transaction: AppTransaction | None,
        overwrite: bool,
        query_id: str | None = None,
    ) -> None:
        from pyspark_fenceline.delta.commit import commit_files
        from pyspark_fenceline.delta.evidence import merge_evidence
        from pyspark_fenceline.delta.table_cache import cached_table, refresh

        written = _written(messages)
        files = [file for message in written for file in message.files]
        parts = [message.evidence for message in written if message.evidence is not None]
        commit_files(
            self.options,
            self.schema,
            files,
            transaction=transaction,
            overwrite=overwrite,
            evidence=merge_evidence(parts) if parts else None,
            opened=cached_table(self.options),
            query_id=query_id,
        )
        refresh(self.options)
        workers.freeze_gc()


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[FilesWritten]:
    return [message for message in messages if isinstance(message, FilesWritten)]


class DeltaWriter(DataSourceArrowWriter):
    """A batch write; idempotent with `txnAppId` and `txnVersion`."""

    def __init__(self, tasks: _TaskWriter, *, overwrite: bool) -> None:
        self._tasks = tasks
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._tasks.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tasks.commit(messages, transaction=self._tasks.options.transaction, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark also aborts after a failed commit, which may have succeeded: files are left to Delta's vacuum."""


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """One query's writes. Complete mode (`overwrite`) replaces all rows with every batch."""

    def __init__(self, tasks: _TaskWriter, *, overwrite: bool) -> None:
        self._tasks = tasks
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._tasks.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_ids = {message.query_id for message in _written(messages)}
        if not query_ids:
            return
        query_id = query_ids.pop()
        if query_id is None or query_ids:
            raise InternalError(f"the tasks of batch {batchId} have different query ids")
        self._tasks.commit(
            messages,
            transaction=AppTransaction(app_id(query_id), batchId),
            overwrite=self._overwrite,
            query_id=query_id,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As in `DeltaWriter.abort`: nothing is removed."""
