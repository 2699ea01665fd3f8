"""`audit`: does a table hold exactly what the log holds?

Owns the order of an audit and its report. The table is looked at first and the log afterwards, so that a stream that
goes on writing is no finding. Two steps, both spread over Spark's tasks (or this process's threads, for the command
line): rows become runs of offsets (`audit_runs`), and each bucket of a partition's offsets is judged by itself
(`audit_judge`). The log is read only where the table has holes, and there only its batch headers.

By log matching (`log_matching`) offset and epoch name a record: that the values are those of the log is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline import connect
from pyspark_fenceline.audit_judge import FAULTS, Expected, Finding, Kind, as_columns, judge
from pyspark_fenceline.audit_log import find_records
from pyspark_fenceline.audit_runs import RUNS_DDL, runs_of_batches, runs_of_files, runs_schema
from pyspark_fenceline.delta_index import LOG_COLUMNS, missing_columns
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import TableFile, table_files
from pyspark_fenceline.log_matching import held_interval
from pyspark_fenceline.log_view import CAN_NOT_SEE, Views, existing, leader_epochs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_DDL: Final = (
    "topic string, partition int, kind string, start_offset long, end_offset_exclusive long, rows long, "
    "epochs array<int>, detail string"
)
Starting = Literal["earliest", "table"]
_SMALLEST_BUCKET: Final = 250_000
_USUAL_BUCKET: Final = 2_000_000
_LARGEST_BUCKET: Final = 16_000_000
_BUCKETS_A_TASK: Final = 3
_LOCAL_TASKS: Final = 4
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What an audit compares with. `topics`: None for those of the table. `client`: properties, with the brokers'
    address. `starting`: from where on the table is to be complete: the log's start, or its own first row.
    `committed_only`: the table is to hold committed records only. `everything`: read all of the log's batch headers,
    which also tells rows that compaction has taken out of the log.
    """

    client: Mapping[str, str]
    topics: tuple[str, ...] | None = None
    starting: Starting = "earliest"
    committed_only: bool = False
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of an audit. `ranges` and `rows`: by kind of finding. `is_equal`: nothing differs."""

    ranges: Mapping[Kind, int]
    rows: Mapping[Kind, int]
    row_count: int
    partition_count: int
    sees_truncation: bool
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """The table holds a beginning of the log, and nothing else: what it lacks are the newest records."""
        return not any(self.ranges.get(kind) for kind in FAULTS)

    @property
    def is_equal(self) -> bool:
        return self.is_right and not self.ranges.get(Kind.BEHIND)

    @property
    def word(self) -> str:
        """equal, behind or different."""
        return "equal" if self.is_equal else "behind" if self.is_right else "different"

    def sentence(self) -> str:
        """The answer for a person."""
        faults = [
            f"{self.rows.get(kind, 0) or self.ranges[kind]} {kind}"
            for kind in (*sorted(FAULTS), Kind.BEHIND)
            if self.ranges.get(kind)
        ]
        what = {
            "equal": "The table equals the log",
            "behind": "The table holds what the log holds, but not its newest records",
            "different": "The table differs from the log",
        }[self.word]
        about = f"{self.row_count} rows of {self.partition_count} partitions"
        more = "".join(f"; {note}" for note in self.notes)
        return f"{what} ({about}{': ' if faults else ''}{', '.join(faults)}){more}."


@dataclass(slots=True)
class Audit:
    """`findings`: a DataFrame of `FINDINGS_DDL` (from `audit`) or an Arrow table (from `audit_here`)."""

    findings: Any
    verdict: Verdict

    def __str__(self) -> str:
        return self.verdict.sentence()


def audit(
    table: str | DataFrame,
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    *,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_uncommitted",
    everything: bool | None = None,
) -> Audit:
    """Compare a Delta table (its path) or any DataFrame with the log, as a Spark job.

    `bootstrap`: brokers, or a client's properties. `topics`: None for those that the rows name. `isolation_level`: what
    the table was read with; with read_committed all of the log is looked at, else only where rows are missing
    (`everything` chooses otherwise). Raises `OperatorError` for a table that has not the columns topic, partition,
    offset and leader_epoch, and what the brokers refused.
    """
    chosen = settings(bootstrap, topics, starting, isolation_level, everything)
    if isinstance(table, str):
        options, files = open_for_audit(table, storage)
        return audit_files(options, files, chosen, spark or the_session())
    _require_columns(table.columns, "The DataFrame")
    findings, verdict = _run(_SparkRows(table), chosen)
    return Audit(findings, verdict)


def audit_here(
    table: str,
    chosen: Settings,
    *,
    storage: Mapping[str, str] | None = None,
) -> Audit:
    """As `audit`, in this process and without Spark."""
    return audit_files(*open_for_audit(table, storage), chosen, None)


def settings(
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_uncommitted",
    everything: bool | None = None,
) -> Settings:
    """Check what was asked for. Raises `OperatorError`."""
    client = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)
    if isolation_level not in ("read_committed", "read_uncommitted"):
        raise OperatorError(
            f"There is no isolation level {isolation_level!r}", "Use read_committed or read_uncommitted."
        )
    if starting not in ("earliest", "table"):
        raise OperatorError(f"An audit can not start at {starting!r}", "Use earliest or table.")
    committed = isolation_level == "read_committed"
    names = (topics,) if isinstance(topics, str) else None if topics is None else tuple(topics)
    return Settings(client, names, starting, committed, committed if everything is None else everything)


def audit_files(
    options: DeltaOptions, files: Sequence[TableFile], chosen: Settings, session: SparkSession | None
) -> Audit:
    """Compare these files, by Spark where there is a session, else in this process."""
    findings, verdict = _run(
        _LocalFiles(options, files) if session is None else _SparkFiles(session, options, files), chosen
    )
    return Audit(findings, verdict)


def open_for_audit(path: str, storage: Mapping[str, str] | None) -> tuple[DeltaOptions, list[TableFile]]:
    """The table's files. Raises `OperatorError` where there is no table, or one that can not be compared."""
    from pyspark_fenceline.delta_commit import open_table

    options = DeltaOptions(path, storage=storage or None)
    table = open_table(options)
    if table is None:
        raise OperatorError(f"There is no Delta table at {path}", "Check the path, and the storage options.")
    _require_columns([one.name for one in table.schema().fields], f"The Delta table at {path}")
    return options, table_files(table)


def _require_columns(names: Iterable[str], what: str) -> None:
    missing = missing_columns(names)
    if missing:
        raise OperatorError(
            f"{what} can not be compared with a log: it has no column {', '.join(missing)}",
            "Rows need topic, partition, offset and leader_epoch, as format('fenceline') with includeLeaderEpoch gives"
            " them; rename columns in a DataFrame.",
        )


def the_session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


# The two steps, and who runs them -------------------------------------------------------------------------------------


class _Work:
    """Rows of a table, wherever the work on them is done."""

    task_count = _LOCAL_TASKS

    def topics(self) -> set[str] | None:
        """The topics of the rows, where that is known without looking at them."""
        return None

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        """First step, kept for the second: topic, partition, epoch, first offset, end, number of rows."""
        raise NotImplementedError

    def findings(self, judging: _Judging, stretches: Sequence[tuple[str, int, int]]) -> Any:
        """Second step, about all runs and about these (topic, partition, bucket), in which there may be no rows."""
        raise NotImplementedError

    def counts(self, findings: Any) -> list[tuple[str, int, int]]:
        """Kind, number of findings, number of rows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Judging:
    """What the second step needs to know; goes to executors."""

    client: Mapping[str, str]
    bucket_size: int
    expected: Mapping[TopicPartition, Expected]
    topics: tuple[str, ...] | None

    def __call__(self, runs: pa.Table) -> pa.Table:
        """Findings about one bucket: all rows of `runs` have one topic, partition and bucket."""
        import numpy as np
        import pyarrow as pa

        topic, partition, bucket = (runs.column(name)[0].as_py() for name in ("topic", "partition", "bucket"))
        firsts, ends = (np.asarray(runs.column(name).combine_chunks()) for name in ("first_offset", "end_offset"))
        epochs = np.asarray(runs.column("epoch").combine_chunks()).astype(np.int64)
        rows = ends > firsts
        firsts, ends, epochs = firsts[rows], ends[rows], epochs[rows]
        if topic is None:
            found = [Finding(Kind.INVALID, 0, 0, int(ends.sum()), (), "no topic, partition or offset")]
        else:
            found = self._judge(TopicPartition(topic, partition), bucket, firsts, ends, epochs)
        return pa.table(as_columns((topic, partition, one) for one in found), schema=findings_schema())

    def _judge(self, tp: TopicPartition, bucket: int, firsts: Any, ends: Any, epochs: Any) -> list[Finding]:
        start = bucket * self.bucket_size
        expected = self.expected.get(tp)
        if expected is None:
            if self.topics is not None and tp.topic not in self.topics:
                return []
            return [
                Finding(Kind.FOREIGN, first, end, end - first, (epoch,), "the cluster has no such partition")
                for first, end, epoch in zip(firsts.tolist(), ends.tolist(), epochs.tolist(), strict=True)
            ]

        def find(ranges: Sequence[tuple[int, int]], isolation_level: str) -> Any:
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


class _LocalFiles(_Work):
    def __init__(self, options: DeltaOptions, files: Sequence[TableFile]) -> None:
        self._options = options
        self._files = files
        self._runs: Any = None

    def topics(self) -> set[str] | None:
        return _topics_of(self._files)

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        def read(file: TableFile) -> list[pa.RecordBatch]:
            return list(runs_of_files(self._options, [file], bucket_size))

        with ThreadPoolExecutor(self.task_count) as pool:
            batches = [batch for part in pool.map(read, self._files) for batch in part]
        self._runs = pa.Table.from_batches(batches, schema=runs_schema())
        rows = pc.subtract(self._runs["end_offset"], self._runs["first_offset"])
        grouped = (
            self._runs.append_column("rows", rows)
            .group_by(["topic", "partition", "epoch"])
            .aggregate([("first_offset", "min"), ("end_offset", "max"), ("rows", "sum")])
        )
        names = ("topic", "partition", "epoch", "first_offset_min", "end_offset_max", "rows_sum")
        return [tuple(row[name] for name in names) for row in grouped.to_pylist()]

    def findings(self, judging: _Judging, stretches: Sequence[tuple[str, int, int]]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        runs = pa.concat_tables([self._runs, _empty_runs(stretches)]).sort_by(
            [("topic", "ascending"), ("partition", "ascending"), ("bucket", "ascending")]
        )
        keys = pc.binary_join_element_wise(
            pc.fill_null(runs["topic"], "\0"),
            *(pc.fill_null(runs[name], -1).cast(pa.string()) for name in ("partition", "bucket")),
            "\0",
        )
        ends = pc.run_end_encode(keys.combine_chunks(), run_end_type=pa.int64()).run_ends.to_pylist()
        starts = [0, *ends[:-1]]
        with ThreadPoolExecutor(self.task_count) as pool:
            parts = list(pool.map(lambda at: judging(runs.slice(at[0], at[1] - at[0])), zip(starts, ends, strict=True)))
        found = pa.concat_tables([findings_schema().empty_table(), *parts])
        return found.sort_by([("topic", "ascending"), ("partition", "ascending"), ("start_offset", "ascending")])

    def counts(self, findings: pa.Table) -> list[tuple[str, int, int]]:
        grouped = findings.group_by("kind").aggregate([("start_offset", "count"), ("rows", "sum")])
        return [(row["kind"], row["start_offset_count"], row["rows_sum"]) for row in grouped.to_pylist()]


def _topics_of(files: Sequence[TableFile]) -> set[str] | None:
    names = {file.topics[0] for file in files if file.topics is not None and file.topics[0] == file.topics[1]}
    is_known = all(file.topics is not None and file.topics[0] == file.topics[1] for file in files)
    return names if is_known else None


def _empty_runs(stretches: Sequence[tuple[str, int, int]]) -> pa.Table:
    """A run without rows for each of (topic, partition, bucket)."""
    import pyarrow as pa

    topics, partitions, buckets = zip(*stretches, strict=True) if stretches else ((), (), ())
    zeros = [0] * len(stretches)
    columns = [list(topics), list(partitions), list(buckets), zeros, zeros, [-1] * len(stretches)]
    return pa.table(
        [pa.array(column, one.type) for column, one in zip(columns, runs_schema(), strict=True)], runs_schema()
    )


class _SparkWork(_Work):
    _session: SparkSession
    _runs: Any = None

    def _make_runs(self, bucket_size: int) -> DataFrame:
        raise NotImplementedError

    def totals(self, bucket_size: int) -> list[tuple[str | None, int, int, int, int, int]]:
        from pyspark.sql import functions as f

        self._runs = self._make_runs(bucket_size).persist()
        grouped = self._runs.groupBy("topic", "partition", "epoch").agg(
            f.min("first_offset"), f.max("end_offset"), f.sum(f.col("end_offset") - f.col("first_offset"))
        )
        return [tuple(row) for row in grouped.collect()]

    def findings(self, judging: _Judging, stretches: Sequence[tuple[str, int, int]]) -> DataFrame:
        def empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                chosen = [stretches[number] for number in batch.column(0).to_pylist()]
                yield from _empty_runs(chosen).to_batches()

        runs = self._runs
        if stretches:
            numbers = self._session.range(0, len(stretches), 1, 1)
            runs = runs.unionByName(numbers.mapInArrow(empty, RUNS_DDL))
        keys = ("topic", "partition", "bucket")
        # As many tasks as there are places: Spark would join small ones, and they are small until they read the log.
        groups = runs.repartition(self.task_count, *keys).groupBy(*keys)
        found: DataFrame = groups.applyInArrow(_one(judging), FINDINGS_DDL).persist()
        return found

    def counts(self, findings: DataFrame) -> list[tuple[str, int, int]]:
        from pyspark.sql import functions as f

        counted = findings.groupBy("kind").agg(f.count("*"), f.sum("rows")).collect()
        self._runs.unpersist()
        return [tuple(row) for row in counted]


def _one(judging: _Judging) -> Callable[[pa.Table], pa.Table]:
    """A plain function, which is what Spark takes."""

    def run(runs: pa.Table) -> pa.Table:
        return judging(runs)

    return run


class _SparkFiles(_SparkWork):
    def __init__(self, session: SparkSession, options: DeltaOptions, files: Sequence[TableFile]) -> None:
        self._session = session
        self._options = options
        self._files = files
        self.task_count = parallelism(session) * _BUCKETS_A_TASK

    def _make_runs(self, bucket_size: int) -> DataFrame:
        options, parts = self._options, in_parts(self._files, self.task_count)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from runs_of_files(options, parts[number], bucket_size)

        return self._session.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, RUNS_DDL)

    def topics(self) -> set[str] | None:
        return _topics_of(self._files)


class _SparkRows(_SparkWork):
    def __init__(self, rows: DataFrame) -> None:
        self._session = rows.sparkSession
        self._rows = rows.select(*LOG_COLUMNS)
        self.task_count = parallelism(self._session) * _BUCKETS_A_TASK

    def _make_runs(self, bucket_size: int) -> DataFrame:
        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return runs_of_batches(batches, bucket_size)

        runs: DataFrame = self._rows.mapInArrow(read, RUNS_DDL)
        return runs


def parallelism(session: SparkSession) -> int:
    try:
        return max(int(session.sparkContext.defaultParallelism), 1)
    except Exception:
        # A client of Spark Connect has no context; the server may say.
        return int(session.conf.get("spark.default.parallelism", None) or 8)


def in_parts(files: Sequence[TableFile], count: int) -> list[list[TableFile]]:
    """Files in at most `count` parts of about the same size, largest first into the emptiest."""
    parts: list[list[TableFile]] = [[] for _ in range(min(count, len(files)))]
    loads = [0] * len(parts)
    for file in sorted(files, key=lambda one: -one.size_bytes):
        least = loads.index(min(loads))
        parts[least].append(file)
        loads[least] += file.size_bytes
    return parts


# The order of an audit ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Totals:
    """What the table has of each partition, by epoch: first offset, end, rows."""

    partitions: dict[TopicPartition, list[tuple[int, int, int]]] = field(default_factory=dict)
    epochs: dict[TopicPartition, list[int]] = field(default_factory=dict)
    row_count: int = 0


def _run(work: _Work, chosen: Settings) -> tuple[Any, Verdict]:
    cluster = connect.connect(
        {**chosen.client, "isolation.level": "read_committed" if chosen.committed_only else "read_uncommitted"}
    )
    known = list(chosen.topics) if chosen.topics is not None else []
    likely = known or sorted(work.topics() or ())
    bucket_size = _USUAL_BUCKET
    if likely:
        facts = cluster.topics(likely)
        missing = [name for name in known if name not in facts]
        if missing:
            raise OperatorError(f"There is no topic {', '.join(missing)}", "See what there is: fenceline topics list")
        every = [TopicPartition(name, index) for name, one in facts.items() for index in one.partitions]
        total = sum(end.offset for end in leader_epochs(cluster, every).values())
        bucket_size = _bucket_size(total, work.task_count)
    totals = _totals(work.totals(bucket_size), chosen)
    for attempt in range(1, _ATTEMPTS + 1):
        names = known or sorted({tp.topic for tp in totals.partitions})
        facts = cluster.topics(names) if names else {}
        asked = [TopicPartition(name, index) for name, one in facts.items() for index in one.partitions]
        there = existing(cluster, asked)
        views = Views(cluster).fresh(there)
        readable = leader_epochs(cluster, there)
        expected = {
            tp: _expected(totals, tp, chosen, Expected(view, max(readable[tp].offset, 0))) for tp, view in views.items()
        }
        judging = _Judging(chosen.client, bucket_size, expected, chosen.topics)
        findings = work.findings(judging, _stretches(expected, bucket_size))
        counted = work.counts(findings)
        now = leader_epochs(cluster, there)
        if all(now[tp].leader_epoch == view.leader_epoch for tp, view in views.items()) or attempt == _ATTEMPTS:
            break
    kinds = {Kind(kind): (ranges, rows) for kind, ranges, rows in counted}
    sees = all(view.leader_epoch >= 0 for view in views.values())
    verdict = Verdict(
        {kind: ranges for kind, (ranges, _) in kinds.items()},
        {kind: rows for kind, (_, rows) in kinds.items()},
        totals.row_count,
        len(expected),
        sees,
        () if sees else (CAN_NOT_SEE,),
    )
    return findings, verdict


def _bucket_size(total: int, task_count: int) -> int:
    return max(_SMALLEST_BUCKET, min(_LARGEST_BUCKET, total // (task_count * _BUCKETS_A_TASK) + 1))


def _totals(rows: Iterable[tuple[str | None, int, int, int, int, int]], chosen: Settings) -> _Totals:
    totals = _Totals()
    for topic, partition, epoch, first, end, count in rows:
        if topic is None:
            totals.row_count += count
            continue
        if chosen.topics is not None and topic not in chosen.topics:
            continue
        tp = TopicPartition(topic, partition)
        totals.partitions.setdefault(tp, []).append((first, end, count))
        totals.epochs.setdefault(tp, []).append(epoch)
        totals.row_count += count
    return totals


def _expected(totals: _Totals, tp: TopicPartition, chosen: Settings, bare: Expected) -> Expected:
    """What the table is to hold, given where its rows that are in the log begin and end."""
    begins: list[int] = []
    ends: list[int] = []
    for (first, end, _), epoch in zip(totals.partitions.get(tp, ()), totals.epochs.get(tp, ()), strict=True):
        low, high = held_interval(bare.view, epoch)
        first, end = max(first, low), min(end, high, bare.view.end_offset)
        if first < end:
            begins.append(first)
            ends.append(end)
    from_offset = 0
    if chosen.starting == "table":
        from_offset = min(begins, default=bare.readable_end)
    return replace(
        bare,
        from_offset=from_offset,
        rows_end=max(ends, default=0),
        everything=chosen.everything,
        committed_only=chosen.committed_only,
    )


def _stretches(expected: Mapping[TopicPartition, Expected], bucket_size: int) -> list[tuple[str, int, int]]:
    """Every bucket of every log, so that those in which the table has no rows are judged too."""
    return [
        (tp.topic, tp.partition, bucket)
        for tp, one in expected.items()
        for bucket in range(one.from_offset // bucket_size, -(-one.readable_end // bucket_size))
    ]
