"""The file work of a repair, in Spark's tasks or in the threads of this process.

Owns two jobs: rewriting files without the removed rows, and writing files of missing records. Decides nothing
(`repair_plan`) and commits nothing (`repair_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.repair_plan import FileRewrite
from pyspark_fenceline.auditing.table import AuditSettings
from pyspark_fenceline.auditing.transform import (
    record_tasks,
    records,
    records_of_task,
    source_schema,
    with_failing_offset,
)
from pyspark_fenceline.common.execution import THREADS, collect_objects, map_pieces
from pyspark_fenceline.delta.files import DataFile, FileWriter
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.rewrite import rewrite
from pyspark_fenceline.delta.schema import TableShape, file_schema, fit, required_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FEW_FILES: Final = THREADS
"""At most this many files are rewritten in this process."""
Absent = Sequence[tuple[TopicPartition, int, int]]
"""Ranges of records without a row."""


def rewrite_files(
    options: DeltaOptions, rewrites: Sequence[FileRewrite], session: SparkSession | None
) -> list[DataFile]:
    """Copies of files with the rows that stay."""

    def copy(one: FileRewrite) -> DataFile:
        assert one.keep is not None, "a file without rows is not written"
        return rewrite(options, one.file.path, one.file.partition_values, one.keep)

    return map_pieces(session, copy, rewrites, few=FEW_FILES)


def write_absent(
    options: DeltaOptions, table: DeltaTable, chosen: AuditSettings, absent: Absent, session: SparkSession | None
) -> list[DataFile]:
    """Write the records in these ranges to files. Raises `OperatorError` if the table's rows cannot be made of them."""
    if session is None:
        source = _source_columns(table)
        here = _writer(options, table, source)
        return [
            file
            for number, task in enumerate(record_tasks(absent))
            for file in here.write(records_of_task(chosen.client, task, source, chosen.isolation_level), number)
        ]
    mapping = chosen.mapping
    own = None if mapping.transform is not None else _source_columns(table).names
    rows = mapping.rows(records(session, chosen.client, absent, chosen.isolation_level))
    if own is not None:
        rows = rows.select(*own)
    writer = _writer(options, table, rows.schema)

    def write(batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        from pyspark import TaskContext

        context = TaskContext.get()
        return writer.write(batches, 0 if context is None else context.partitionId())

    return with_failing_offset(lambda: collect_objects(rows, write), session, chosen.client, mapping, absent)


@dataclass(frozen=True, slots=True)
class _RowWriter:
    """Writes rows to files of the table; sent to executors."""

    options: DeltaOptions
    rows: StructType
    shape: TableShape
    required: frozenset[str]

    def write(self, batches: Iterable[pa.RecordBatch], task_number: int) -> list[DataFile]:
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


def _writer(options: DeltaOptions, table: DeltaTable, rows: StructType) -> _RowWriter:
    return _RowWriter(options, rows, fit(table, rows, (), options.path), required_columns(table))


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
