"""Executes an audit in Spark's tasks or in the threads of this process.

Owns the execution of the two steps of an audit, runs and findings, but not their meaning (`auditing.runs`,
`auditing.judge`). The functions sent to executors work on Arrow tables, so both ways run the same code. Reading the
table and the log takes most of the time and is distributed over Spark's tasks. Judging runs is distributed too if there
are many; a table with few gaps has few runs, which are judged in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import uuid4

from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.content import ByValues
from pyspark_fenceline.auditing.judge import ORDER, ExpectedRows, TableFinding, TableFindingKind, as_columns, judge
from pyspark_fenceline.auditing.log import find_records
from pyspark_fenceline.auditing.runs import RUNS_DDL, Refine, runs_of_batches, runs_of_files, runs_schema
from pyspark_fenceline.common.execution import THREADS, in_threads, parallelism, rows_of_pieces
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, LOG_COLUMNS
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_DDL: Final = (
    "topic string, partition int, kind string, start_offset long, end_offset_exclusive long, rows long, "
    "epochs array<int>, detail string"
)
Findings = TypeVar("Findings")
"""The findings where they were made: an Arrow table, or a DataFrame of Spark."""
BUCKETS_PER_TASK: Final = 3
FEW_RUNS: Final = 200_000
"""At most this many runs are judged in this process (about 50 bytes each)."""


class _NeedsLog(Exception):
    """A bucket cannot be judged without reading the log."""


class AuditExecutor(Generic[Findings]):
    """Executes the steps of an audit on the rows of a table."""

    task_count = THREADS
    refine: Refine | None = None
    """Completes the rows' log columns; used from the next `totals` on."""

    def topics(self) -> set[str] | None:
        """The topics of the rows, None if that is unknown without reading them."""
        return None

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        """First step; its runs are kept for the second. Topic, partition, epoch, first offset, end, number of rows."""
        raise NotImplementedError

    def findings(self, judging: BucketJudge, buckets: Sequence[tuple[str, int, int]]) -> Findings:
        """Second step, on all runs and on these (topic, partition, bucket), which may have no rows."""
        raise NotImplementedError

    def counts(self, findings: Findings) -> list[tuple[str, int, int]]:
        """Kind, number of findings, number of rows."""
        raise NotImplementedError

    def collect(self, findings: Findings) -> pa.Table:
        """All findings, in this process."""
        raise NotImplementedError

    def distribute(self, findings: pa.Table) -> Findings:
        """The inverse of `collect`: findings in the form that `findings` returns."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class BucketJudge:
    """The second step's function; sent to executors."""

    client: Mapping[str, str] = field(repr=False)
    bucket_size: int
    expected: Mapping[TopicPartition, ExpectedRows]
    topics: tuple[str, ...] | None
    audit_id: str = field(default_factory=lambda: uuid4().hex)
    """Unique to this audit: Spark reuses the cached result of an equal plan, and the log may have changed since."""

    def __call__(self, runs: pa.Table, *, may_read: bool = True) -> pa.Table:
        """Findings about one bucket: all rows of `runs` have one topic, partition and bucket. Raises `_NeedsLog` if
        the log must be read and `may_read` is false.
        """
        import numpy as np
        import pyarrow as pa

        topic, partition, bucket = (runs.column(name)[0].as_py() for name in ("topic", "partition", "bucket"))
        firsts, ends = (np.asarray(runs.column(name).combine_chunks()) for name in ("first_offset", "end_offset"))
        epochs = np.asarray(runs.column("epoch").combine_chunks()).astype(np.int64)
        rows = ends > firsts
        firsts, ends, epochs = firsts[rows], ends[rows], epochs[rows]
        if topic is None:
            found = [TableFinding(TableFindingKind.INVALID, 0, 0, int(ends.sum()), (), "no topic, partition or offset")]
        else:
            found = self._judge(TopicPartition(topic, partition), bucket, firsts, ends, epochs, may_read=may_read)
        return pa.table(as_columns((topic, partition, one) for one in found), schema=findings_schema())

    def _judge(
        self, tp: TopicPartition, bucket: int, firsts: Any, ends: Any, epochs: Any, *, may_read: bool
    ) -> list[TableFinding]:
        start = bucket * self.bucket_size
        expected = self.expected.get(tp)
        if expected is None:
            if self.topics is not None and tp.topic not in self.topics:
                return []
            return [
                TableFinding(
                    TableFindingKind.FOREIGN, first, end, end - first, (epoch,), "the cluster has no such partition"
                )
                for first, end, epoch in zip(firsts.tolist(), ends.tolist(), epochs.tolist(), strict=True)
            ]

        def find(ranges: Sequence[tuple[int, int]], isolation_level: str) -> Any:
            if not may_read:
                raise _NeedsLog
            return find_records(self.client, tp, ranges, isolation_level=isolation_level)

        return judge(expected, (start, start + self.bucket_size), firsts, ends, epochs, find)


def findings_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("kind", pa.string()),
            ("start_offset", pa.int64()),
            ("end_offset_exclusive", pa.int64()),
            ("rows", pa.int64()),
            ("epochs", pa.list_(pa.int32())),
            ("detail", pa.string()),
        ]
    )


class LocalFilesAudit(AuditExecutor["pa.Table"]):
    _runs: pa.Table

    def __init__(self, options: DeltaOptions, files: Sequence[TableFile]) -> None:
        self._options = options
        self._files = files

    def topics(self) -> set[str] | None:
        return _topics_of(self._files)

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        import pyarrow as pa

        def read(file: TableFile) -> list[pa.RecordBatch]:
            return list(runs_of_files(self._options, [file], bucket_size, self.refine))

        batches = [batch for part in in_threads(read, self._files) for batch in part]
        self._runs = pa.Table.from_batches(batches, schema=runs_schema())
        return _totals(self._runs)

    def findings(self, judging: BucketJudge, buckets: Sequence[tuple[str, int, int]]) -> pa.Table:
        return _in_order(in_threads(judging, _buckets(self._runs, buckets)))

    def counts(self, findings: pa.Table) -> list[tuple[str, int, int]]:
        return counts_of(findings)

    def collect(self, findings: pa.Table) -> pa.Table:
        return findings

    def distribute(self, findings: pa.Table) -> pa.Table:
        return findings


def _totals(runs: pa.Table) -> list[tuple[str | None, int, int, int, int, int]]:
    import pyarrow.compute as pc

    rows = pc.subtract(runs["end_offset"], runs["first_offset"])
    grouped = (
        runs.append_column("rows", rows)
        .group_by(["topic", "partition", "epoch"])
        .aggregate([("first_offset", "min"), ("end_offset", "max"), ("rows", "sum")])
    )
    names = ("topic", "partition", "epoch", "first_offset_min", "end_offset_max", "rows_sum")
    return [tuple(row[name] for name in names) for row in grouped.to_pylist()]


def _buckets(runs: pa.Table, buckets: Sequence[tuple[str, int, int]]) -> list[pa.Table]:
    """The runs of each bucket, and of each stretch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ordered = pa.concat_tables([runs, _empty_runs(buckets)]).sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("bucket", "ascending")]
    )
    keys = pc.binary_join_element_wise(
        pc.fill_null(ordered["topic"], "\0"),
        *(pc.fill_null(ordered[name], -1).cast(pa.string()) for name in ("partition", "bucket")),
        "\0",
    )
    ends = pc.run_end_encode(keys.combine_chunks(), run_end_type=pa.int64()).run_ends.to_pylist()
    return [ordered.slice(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def _in_order(parts: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    found = pa.concat_tables([findings_schema().empty_table(), *parts])
    return found.sort_by(list(ORDER))


def counts_of(findings: pa.Table) -> list[tuple[str, int, int]]:
    grouped = findings.group_by("kind").aggregate([("start_offset", "count"), ("rows", "sum")])
    return [(row["kind"], row["start_offset_count"], row["rows_sum"]) for row in grouped.to_pylist()]


def _topics_of(files: Sequence[TableFile]) -> set[str] | None:
    names = {file.topics[0] for file in files if file.topics is not None and file.topics[0] == file.topics[1]}
    is_known = all(file.topics is not None and file.topics[0] == file.topics[1] for file in files)
    return names if is_known else None


def _empty_runs(buckets: Sequence[tuple[str, int, int]]) -> pa.Table:
    """A run without rows for each of (topic, partition, bucket)."""
    import pyarrow as pa

    topics, partitions, buckets = zip(*buckets, strict=True) if buckets else ((), (), ())
    zeros = [0] * len(buckets)
    columns = [list(topics), list(partitions), list(buckets), zeros, zeros, [-1] * len(buckets)]
    return pa.table(
        [pa.array(column, one.type) for column, one in zip(columns, runs_schema(), strict=True)], runs_schema()
    )


class SparkAudit(AuditExecutor["DataFrame"]):
    _session: SparkSession
    _runs: DataFrame
    _few: pa.Table | None = None
    """All runs, if they are few."""
    _local_findings: pa.Table
    """Findings of this process."""
    _spark_findings: DataFrame | None = None
    """Findings of Spark's tasks."""

    def _make_runs(self, bucket_size: int) -> DataFrame:
        raise NotImplementedError

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        from pyspark.sql import functions as f

        self._runs = self._make_runs(bucket_size).persist()
        if self._runs.count() <= FEW_RUNS:
            self._few = self._runs.toArrow().cast(runs_schema())
            self._runs.unpersist()
            return _totals(self._few)
        grouped = self._runs.groupBy("topic", "partition", "epoch").agg(
            f.min("first_offset"), f.max("end_offset"), f.sum(f.col("end_offset") - f.col("first_offset"))
        )
        return [tuple(row) for row in grouped.collect()]

    def findings(self, judging: BucketJudge, buckets: Sequence[tuple[str, int, int]]) -> DataFrame:
        if self._few is not None:
            return self._findings_of_few(self._few, judging, buckets)

        def empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                chosen = [buckets[number] for number in batch.column(0).to_pylist()]
                yield from _empty_runs(chosen).to_batches()

        runs = self._runs
        if buckets:
            numbers = self._session.range(0, len(buckets), 1, 1)
            runs = runs.unionByName(numbers.mapInArrow(empty, RUNS_DDL))
        keys = ("topic", "partition", "bucket")
        # A fixed number of tasks: Spark would coalesce them, because they are small until they read the log.
        groups = runs.repartition(self.task_count, *keys).groupBy(*keys)
        found: DataFrame = groups.applyInArrow(_one(judging), FINDINGS_DDL).persist()
        return found

    def _findings_of_few(
        self, runs: pa.Table, judging: BucketJudge, buckets: Sequence[tuple[str, int, int]]
    ) -> DataFrame:
        """Judges in this process, except the buckets that need the log."""
        parts: list[pa.Table] = []
        unread: list[pa.Table] = []
        for bucket in _buckets(runs, buckets):
            try:
                parts.append(judging(bucket, may_read=False))
            except _NeedsLog:
                unread.append(bucket)
        self._local_findings = _in_order(parts)
        found = self._frame(self._local_findings)
        if self._spark_findings is not None:
            self._spark_findings.unpersist()
            self._spark_findings = None
        if not unread:
            return found

        def read(number: int) -> list[pa.RecordBatch]:
            batches: list[pa.RecordBatch] = judging(unread[number]).to_batches()
            return batches

        read_findings = rows_of_pieces(self._session, read, len(unread), self.task_count, FINDINGS_DDL)
        self._spark_findings = read_findings.persist()
        return found.unionByName(self._spark_findings)

    def collect(self, findings: DataFrame) -> pa.Table:
        return _in_order([findings.toArrow().cast(findings_schema())])

    def distribute(self, findings: pa.Table) -> DataFrame:
        return self._frame(findings)

    def _frame(self, findings: pa.Table) -> DataFrame:
        frame: DataFrame
        if findings.num_rows:
            frame = self._session.createDataFrame(findings)
        else:
            frame = self._session.createDataFrame([], FINDINGS_DDL)
        return frame

    def counts(self, findings: DataFrame) -> list[tuple[str, int, int]]:
        from pyspark.sql import functions as f

        distributed = findings if self._few is None else self._spark_findings
        counted: list[tuple[str, int, int]] = [] if self._few is None else counts_of(self._local_findings)
        if distributed is not None:
            rows = distributed.groupBy("kind").agg(f.count("*"), f.sum("rows")).collect()
            counted += [tuple(row) for row in rows]
        if self._few is None:
            self._runs.unpersist()
        totals: dict[str, tuple[int, int]] = {}
        for kind, ranges, count in counted:
            known = totals.get(kind, (0, 0))
            totals[kind] = known[0] + ranges, known[1] + count
        return [(kind, ranges, count) for kind, (ranges, count) in totals.items()]


def _one(judging: BucketJudge) -> Callable[[pa.Table], pa.Table]:
    """A plain function, as Spark requires."""

    def run(runs: pa.Table) -> pa.Table:
        return judging(runs)

    return run


class SparkFilesAudit(SparkAudit):
    def __init__(self, session: SparkSession, options: DeltaOptions, files: Sequence[TableFile]) -> None:
        self._session = session
        self._options = options
        self._files = files
        self.task_count = parallelism(session) * BUCKETS_PER_TASK

    def _make_runs(self, bucket_size: int) -> DataFrame:
        options, parts, refine = self._options, split_by_size(self._files, self.task_count), self.refine

        def read(number: int) -> Iterator[pa.RecordBatch]:
            return runs_of_files(options, parts[number], bucket_size, refine)

        return rows_of_pieces(self._session, read, len(parts), self.task_count, RUNS_DDL)

    def topics(self) -> set[str] | None:
        return _topics_of(self._files)


class SparkRowsAudit(SparkAudit):
    """`by_values`: compare rows without an epoch with the log's. `row_key`: columns that identify rows of one record,
    None if a record is one row.
    """

    def __init__(
        self, rows: DataFrame, by_values: ByValues | None = None, row_key: Sequence[str] | None = None
    ) -> None:
        from pyspark.sql import functions as f

        self._session = rows.sparkSession
        self._by_values = by_values
        whole = rows
        if LEADER_EPOCH not in rows.columns:
            whole = rows.withColumn(LEADER_EPOCH, f.lit(None).cast("int"))
        names = [*LOG_COLUMNS, *(() if by_values is None else by_values.columns)]
        if row_key is None:
            self._rows = whole.select(*names)
        else:
            # One row for each offset, and one more for each duplicate.
            apart = [*names, *(name for name in row_key if name not in names)]
            each = whole.groupBy(*apart).count()
            again = each.groupBy(*names).agg(f.sum(f.col("count") - 1).alias("_again"))
            self._rows = again.select(*names, f.explode(f.sequence(f.lit(0).cast("long"), "_again"))).select(*names)
        self.task_count = parallelism(self._session) * BUCKETS_PER_TASK

    def _make_runs(self, bucket_size: int) -> DataFrame:
        by_values = self._by_values

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return runs_of_batches(batches, bucket_size, None if by_values is None else by_values.of_rows)

        runs: DataFrame = self._rows.mapInArrow(read, RUNS_DDL)
        return runs


def split_by_size(files: Sequence[TableFile], count: int) -> list[list[TableFile]]:
    """Files in at most `count` parts of about the same size, largest first into the emptiest."""
    parts: list[list[TableFile]] = [[] for _ in range(min(count, len(files)))]
    loads = [0] * len(parts)
    for file in sorted(files, key=lambda one: -one.size_bytes):
        least = loads.index(min(loads))
        parts[least].append(file)
        loads[least] += file.size_bytes
    return parts
