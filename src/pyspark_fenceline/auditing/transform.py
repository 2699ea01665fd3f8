"""The rows that a table should have: the function that makes them from the log's records, and the predicate on them.

Owns running both in Spark: to find which records without a row should be in the table, to compare rows without an epoch
with the log, and to make the rows that a repair adds. If they fail, the error contains the offset of a record at which
they fail. Writes nothing.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.log import LogRanges, read_log
from pyspark_fenceline.auditing.ranges import Range, runs_in
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, RUNS_DDL, SAME_VALUES, runs_of
from pyspark_fenceline.common.execution import rows_of_pieces
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, OFFSET, PARTITION, TOPIC, LogColumns, log_columns
from pyspark_fenceline.common.planning import PlannedRange, Task, plan_tasks
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, read_log_columns, rows_of_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Transform = Callable[["DataFrame"], "DataFrame"]
_PLACE: Final = (TOPIC, PARTITION, OFFSET)
_BUCKET: Final = 1 << 62
_MAX_TASKS: Final = 64
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RowMapping:
    """`transform`: from the source's columns (with headers and leader_epoch) to the table's; a record that it drops
    should not be in the table. `where`: a Spark SQL condition on its result, or on the source's columns without
    `transform`.
    """

    transform: Transform | None = None
    where: str | None = None

    @property
    def is_all(self) -> bool:
        """The table should have a row of every record, as the source returns it."""
        return self.transform is None and self.where is None

    def rows(self, records: DataFrame) -> DataFrame:
        """The rows that the table should have of these records. Raises `OperatorError` if Spark cannot plan them."""
        from pyspark.errors import PySparkException

        try:
            mapping = records if self.transform is None else self.transform(records)
            chosen = mapping if self.where is None else mapping.where(self.where)
            names = chosen.columns
        except PySparkException as error:
            raise OperatorError(
                f"The rows of the table cannot be made from the log's records: {_first_line(error)}",
                "Check transform and where: both are applied to the columns of format('fenceline').",
            ) from error
        missing = [name for name in _PLACE if name not in names]
        if missing:
            raise OperatorError(
                f"The result of transform has no column {', '.join(missing)}",
                "Keep topic, partition and offset: they identify the record of a row.",
            )
        return chosen


EVERY_RECORD: Final = RowMapping()
"""A row of every record, as the source returns it."""


def source_schema() -> StructType:
    """The columns that `RowMapping` is applied to."""
    from pyspark_fenceline.common.schema import spark_schema

    return spark_schema(include_headers=True, include_leader_epoch=True)


def records(
    session: SparkSession, client: Mapping[str, str], ranges: LogRanges, isolation_level: str = "read_uncommitted"
) -> DataFrame:
    """The log's records in these ranges, in the source's columns."""
    schema = source_schema()
    tasks = record_tasks(ranges)
    if not tasks:
        return session.createDataFrame([], schema)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        return records_of_task(client, tasks[number], schema, isolation_level)

    return rows_of_pieces(session, read, len(tasks), len(tasks), schema)


def record_tasks(ranges: LogRanges) -> list[Task]:
    """Ranges in pieces for `records_of_task`."""
    return plan_tasks([PlannedRange(tp, start, end) for tp, start, end in ranges])


def records_of_task(
    client: Mapping[str, str], task: Task, schema: StructType, isolation_level: str
) -> Iterator[pa.RecordBatch]:
    """The log's records in the ranges of one task. `schema`: columns of the source."""
    from pyspark_fenceline.common.schema import arrow_schema, to_spark

    target = arrow_schema(schema)
    ranges = [(one.topic_partition, one.start_offset, one.end_offset_exclusive) for one in task]
    for batch in read_log(client, ranges, isolation_level, include_headers="headers" in target.names):
        yield to_spark(batch, target)


def with_failing_offset(
    run: Callable[[], _T], session: SparkSession, client: Mapping[str, str], mapping: RowMapping, ranges: LogRanges
) -> _T:
    """`run()`, a job that makes rows of these ranges. If it fails at a record, the error names that record."""
    from pyspark.errors import PySparkException

    try:
        return run()
    except PySparkException as error:
        found = _first_failing(session, client, mapping, sorted(ranges))
        if found is None:
            raise
        tp, offset, reason = found
        raise OperatorError(
            f"transform or where failed on the record of {tp} at offset {offset}: {reason}",
            "Nothing was written. Make transform (or where) accept or drop such a record.",
        ) from error


def _first_failing(
    session: SparkSession,
    client: Mapping[str, str],
    mapping: RowMapping,
    ranges: Sequence[tuple[TopicPartition, int, int]],
) -> tuple[TopicPartition, int, str] | None:
    """A record at which the job fails, by bisection; None if the job succeeds now."""
    from pyspark.errors import PySparkException

    def fails(some: LogRanges) -> str | None:
        try:
            mapping.rows(records(session, client, some)).write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            return _first_line(error)
        return None

    left = list(ranges)
    if fails(left) is None:
        return None
    reason = ""
    while True:
        halves = _halves(left)
        if halves is None:
            ((tp, start, _),) = left
            return tp, start, reason or fails(left) or ""
        for half in halves:
            found = fails(half)
            if found is not None:
                left, reason = half, found
                break
        else:
            return None


def _halves(
    ranges: list[tuple[TopicPartition, int, int]],
) -> tuple[list[tuple[TopicPartition, int, int]], list[tuple[TopicPartition, int, int]]] | None:
    """None for a single offset."""
    if len(ranges) > 1:
        return ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]
    ((tp, start, end),) = ranges
    if end - start <= 1:
        return None
    middle = (start + end) // 2
    return [(tp, start, middle)], [(tp, middle, end)]


def _first_line(error: Exception) -> str:
    """The useful line of Spark's message: of an exception in Python code its last line, else the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        raised = [line for line in lines if ": " in line and line.split(":")[0].replace(".", "").isidentifier()]
        return raised[-1] if raised else lines[-1]
    return lines[0] if lines else type(error).__name__


def expected_offsets(
    session: SparkSession, client: Mapping[str, str], mapping: RowMapping, ranges: LogRanges, isolation_level: str
) -> dict[TopicPartition, list[Range]]:
    """The offsets of the ranges at which the log has a record that should have a row in the table."""
    import numpy as np

    def to_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns: dict[str, Any] = {name: batch.column(name) for name in _PLACE}
            yield runs_of(log_columns({**columns, LEADER_EPOCH: None}), _BUCKET)

    def run() -> pa.Table:
        rows = mapping.rows(records(session, client, ranges, isolation_level)).select(*_PLACE)
        found: pa.Table = rows.mapInArrow(to_runs, RUNS_DDL).toArrow()
        return found

    runs = with_failing_offset(run, session, client, mapping, ranges)
    offsets: dict[TopicPartition, list[Any]] = {}
    for row in runs.to_pylist():
        if row["topic"] is not None:
            tp = TopicPartition(row["topic"], row["partition"])
            offsets.setdefault(tp, []).append(np.arange(row["first_offset"], row["end_offset"]))
    return {tp: runs_in(np.concatenate(each)) for tp, each in offsets.items()}


# Rows without an epoch, compared with the rows made from the log ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByTransform:
    """Results for rows without an epoch, by file; sent to executors."""

    found: Mapping[str, bytes]

    def of_file(self, options: DeltaOptions, file: TableFile, columns: LogColumns) -> LogColumns:
        """As `auditing.content.ByValues.of_file`."""
        import numpy as np

        packed = self.found.get(file.path)
        if packed is None:
            return columns
        with np.load(io.BytesIO(zlib.decompress(packed))) as kept:
            epochs = columns.epochs.copy()
            epochs[kept["rows"]] = kept["epochs"]
        return LogColumns(columns.partitions, columns.codes, columns.offsets, epochs)


def compare_rows(
    session: SparkSession,
    client: Mapping[str, str],
    options: DeltaOptions,
    files: Sequence[TableFile],
    schema: StructType,
    mapping: RowMapping,
    readable: Mapping[TopicPartition, Range],
) -> ByTransform:
    """Compare rows without an epoch of these files with the rows that `mapping` makes from the log. `schema`: of the
    table. `readable`: the bounds of the logs. If a record becomes several rows, a row is compared with all of them.
    """
    from pyspark.sql import functions as f

    ours = _rows_without_epoch(session, options, files, schema).persist()
    bounds = ours.groupBy(TOPIC, PARTITION).agg(f.min(OFFSET), f.max(OFFSET)).collect()
    ranges = []
    for topic, partition, first, last in bounds:
        tp = None if topic is None or partition is None else TopicPartition(topic, partition)
        if tp is None or tp not in readable or first is None:
            continue
        start, end = max(first, readable[tp][0]), min(last + 1, readable[tp][1])
        if start < end:
            ranges.append((tp, start, end))
    log = records(session, client, ranges)
    rows = mapping.rows(log)
    compared = [name for name in rows.columns if name in schema.names and name != LEADER_EPOCH]
    if set(compared) <= set(_PLACE):
        raise OperatorError(
            "The result of transform has no columns of the table except topic, partition and offset",
            "Let it return the table's rows, with the table's column names.",
        )
    theirs = rows.select(*[f.col(name).alias(f"_made_{name}") for name in compared]).distinct()
    at = log.select(*[f.col(name).alias(f"_log_{name}") for name in (*_PLACE, LEADER_EPOCH)])
    same_place = [f.col(name) == f.col(f"_log_{name}") for name in _PLACE]
    same_row = [f.col(name).eqNullSafe(f.col(f"_made_{name}")) for name in compared]
    found = (
        ours.join(theirs.withColumn("_same", f.lit(True)), _all(same_row), "left")
        .join(at, _all(same_place), "left")
        .where(f.col(f"_log_{OFFSET}").isNotNull())
        .select(
            "_file",
            "_row",
            f.when(f.col("_same").isNull(), NOT_IN_LOG)
            .when(f.coalesce(f.col(f"_log_{LEADER_EPOCH}"), f.lit(-1)) < 0, SAME_VALUES)
            .otherwise(f.col(f"_log_{LEADER_EPOCH}"))
            .alias("_epoch"),
        )
    )
    packed = with_failing_offset(
        lambda: found.groupBy("_file").applyInArrow(_pack, "file int, packed binary").collect(),
        session,
        client,
        mapping,
        ranges,
    )
    ours.unpersist()
    return ByTransform({files[row["file"]].path: bytes(row["packed"]) for row in packed})


def _all(conditions: Sequence[Any]) -> Any:
    whole = conditions[0]
    for one in conditions[1:]:
        whole = whole & one
    return whole


def _pack(rows: pa.Table) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    kept = io.BytesIO()
    numbers, epochs = (np.asarray(rows.column(name).combine_chunks()) for name in ("_row", "_epoch"))
    np.savez(kept, rows=numbers.astype(np.int64), epochs=epochs.astype(np.int32))
    number = pa.array([rows.column("_file")[0].as_py()], pa.int32())
    return pa.table({"file": number, "packed": pa.array([zlib.compress(kept.getvalue(), 1)], pa.binary())})


def _rows_without_epoch(
    session: SparkSession, options: DeltaOptions, files: Sequence[TableFile], schema: StructType
) -> DataFrame:
    """Their columns, with the number of the file and of the row in it."""
    from pyspark.sql.types import IntegerType, LongType, StructType

    schema_with_row = StructType([*schema.fields]).add("_file", IntegerType()).add("_row", LongType())
    concerned = [number for number, file in enumerate(files) if file.has_null_epochs]

    def read(number: int) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        from pyspark_fenceline.common.schema import arrow_schema

        target = arrow_schema(schema_with_row)
        file = files[concerned[number]]
        without = read_log_columns(options, file).epochs == -1
        start = 0
        for rows in rows_of_file(options, file.path, file.partition_values, target):
            end = start + rows.num_rows
            chosen = np.flatnonzero(without[start:end])
            columns = list(rows.columns)
            columns[-2] = pa.array(np.full(rows.num_rows, concerned[number], dtype=np.int32))
            columns[-1] = pa.array(np.arange(start, end))
            start = end
            if len(chosen):
                whole = pa.RecordBatch.from_arrays(columns, schema=target)
                yield whole.take(pa.array(chosen))

    return rows_of_pieces(session, read, len(concerned), _MAX_TASKS, schema_with_row)
