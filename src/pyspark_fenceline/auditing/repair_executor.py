"""Executes the file work of a repair in Spark's tasks or in the threads of this process.

Owns two jobs: rewriting files without the removed rows, and writing files of missing records. Decides nothing
(`repair_plan`) and commits nothing (`repair_table`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.executor import parallelism
from pyspark_fenceline.auditing.repair_plan import FileRewrite
from pyspark_fenceline.auditing.table import Settings
from pyspark_fenceline.auditing.transform import records, source_schema, with_failing_offset
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.planning import OffsetRange, Task, plan_tasks
from pyspark_fenceline.delta.files import DataFile, FileWriter
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.rewrite import rewrite
from pyspark_fenceline.delta.schema import TableShape, file_schema, fit, required_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_THREADS: Final = 4
Absent = Sequence[tuple[TopicPartition, int, int]]
"""Ranges of records without a row."""


@dataclass(frozen=True, slots=True)
class _Filler:
    """Writes missing records to files of the table; sent to executors."""

    options: DeltaOptions
    client: Mapping[str, str]
    tasks: Sequence[Task]
    source: StructType
    rows: StructType
    shape: TableShape
    required: frozenset[str]

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """The records of one task, in the source's columns."""
        from pyspark_fenceline.common.schema import arrow_schema, client_columns, to_spark

        target = arrow_schema(self.source)
        columns, waiting = client_columns(target), list(self.tasks[number])
        while waiting:
            # One range of a partition at a time.
            now = {one.topic_partition: one for one in reversed(waiting)}
            ranges = {tp: (one.start_offset, one.end_offset_exclusive) for tp, one in now.items()}
            for batch in connect.reader(self.client).read(ranges, **columns):
                yield to_spark(batch, target)
            waiting = [one for one in waiting if now[one.topic_partition] is not one]

    def write(self, batches: Iterator[pa.RecordBatch], task_number: int) -> list[DataFile]:
        """Rows in the table's columns."""
        writer = FileWriter(
            self.options,
            self.shape,
            file_schema(self.rows, self.shape),
            self.required,
            task_number=task_number,
            is_tracked=True,
        )
        try:
            for batch in batches:
                writer.write(batch)
            return writer.finish()
        except BaseException:
            writer.discard()
            raise


def _source_columns(table: DeltaTable) -> StructType:
    """The source's columns that the table has. Raises `OperatorError` if the table has other columns."""
    from pyspark.sql.types import StructType

    source = source_schema()
    names = {one.name for one in table.schema().fields}
    unknown = sorted(names - set(source.names))
    if unknown:
        raise OperatorError(
            f"The missing records cannot be added: the table's columns {', '.join(unknown)} are not the source's",
            "Pass the function that makes the table's rows from the source's columns as transform=... (in Spark).",
        )
    return StructType([one for one in source if one.name in names])


class RepairExecutor:
    session: SparkSession | None = None

    def collect(self, findings: Any) -> list[Mapping[str, Any]]:
        raise NotImplementedError

    def rewrite(self, options: DeltaOptions, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        raise NotImplementedError

    def fill(self, options: DeltaOptions, table: DeltaTable, chosen: Settings, absent: Absent) -> list[DataFile]:
        """Write the records in these ranges to files."""
        raise NotImplementedError


class LocalExecutor(RepairExecutor):
    def collect(self, findings: Any) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = findings.to_pylist()
        return rows

    def rewrite(self, options: DeltaOptions, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda one: _copy(options, one), rewrites))

    def fill(self, options: DeltaOptions, table: DeltaTable, chosen: Settings, absent: Absent) -> list[DataFile]:
        source = _source_columns(table)
        tasks = plan_tasks([OffsetRange(tp, start, end) for tp, start, end in absent])
        filler = _filler(options, table, chosen, tasks, source, source)
        return [file for number in range(len(tasks)) for file in filler.write(filler.read(number), number)]


def _copy(options: DeltaOptions, one: FileRewrite) -> DataFile:
    assert one.keep is not None, "a file without rows is not written"
    return rewrite(options, one.file.path, one.file.partition_values, one.keep)


def _filler(
    options: DeltaOptions,
    table: DeltaTable,
    chosen: Settings,
    tasks: Sequence[Task],
    source: StructType,
    rows: StructType,
) -> _Filler:
    shape = fit(table, rows, (), options.path)
    return _Filler(options, _reader_of(chosen), tasks, source, rows, shape, required_columns(table))


def _reader_of(chosen: Settings) -> Mapping[str, str]:
    level = "read_committed" if chosen.committed_only else "read_uncommitted"
    return {**chosen.client, "isolation.level": level}


class SparkExecutor(RepairExecutor):
    def __init__(self, session: SparkSession) -> None:
        self.session: SparkSession = session

    def collect(self, findings: Any) -> list[Mapping[str, Any]]:
        rows = [row.asDict() for row in findings.collect()]
        findings.unpersist()
        return rows

    def rewrite(self, options: DeltaOptions, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        if len(rewrites) <= _THREADS:
            return LocalExecutor().rewrite(options, rewrites)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pickled([_copy(options, rewrites[number])])

        numbers = self.session.range(0, len(rewrites), 1, min(len(rewrites), parallelism(self.session) * 2))
        return unpickled(numbers.mapInArrow(run, "files binary").collect())

    def fill(self, options: DeltaOptions, table: DeltaTable, chosen: Settings, absent: Absent) -> list[DataFile]:
        mapping = chosen.mapping
        source = None if mapping.transform is not None else _source_columns(table)
        rows = mapping.rows(records(self.session, chosen.client, absent, chosen.isolation_level))
        if source is not None:
            rows = rows.select(*source.names)
        filler = _filler(options, table, chosen, (), source_schema(), rows.schema)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            yield pickled(filler.write(batches, 0 if context is None else context.partitionId()))

        return with_failing_offset(
            lambda: unpickled(rows.mapInArrow(write, "files binary").collect()),
            self.session,
            chosen.client,
            mapping,
            absent,
        )


def pickled(files: Sequence[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"files": pa.array([pickle.dumps(list(files))], pa.binary())})


def unpickled(rows: Sequence[Any]) -> list[Any]:
    """The results of this job's tasks."""
    return [file for row in rows for file in pickle.loads(bytes(row[0]))]
