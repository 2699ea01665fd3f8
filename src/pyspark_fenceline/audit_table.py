"""`audit`: does a table hold exactly what the log holds?

Owns the order of an audit and its report. The table is looked at first and the log afterwards, so that a stream that
goes on writing is no finding. Two steps, both spread over Spark's tasks (or this process's threads, for the command
line): rows become runs of offsets (`audit_runs`), and each bucket of a partition's offsets is judged by itself
(`audit_judge`). The log is read only where the table has holes, and there only its batch headers.

By log matching (`log_matching`) offset and epoch name a record: that the values are those of the log is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline import connect
from pyspark_fenceline.audit_judge import FAULTS, Expected, Kind
from pyspark_fenceline.audit_work import BUCKETS_A_TASK, Judging, LocalFiles, SparkFiles, SparkRows, Work, the_session
from pyspark_fenceline.delta_index import missing_columns
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import TableFile, table_files
from pyspark_fenceline.log_matching import held_interval
from pyspark_fenceline.log_view import CAN_NOT_SEE, Views, ends_of, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Starting = Literal["earliest", "table"]
_SMALLEST_BUCKET: Final = 250_000
_USUAL_BUCKET: Final = 2_000_000
_LARGEST_BUCKET: Final = 16_000_000
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
    """`findings`: a DataFrame of `audit_work.FINDINGS_DDL` (from `audit`) or an Arrow table (from `audit_here`)."""

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
    findings, verdict = _run(SparkRows(table), chosen)
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
        LocalFiles(options, files) if session is None else SparkFiles(session, options, files), chosen
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


# The order of an audit ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Totals:
    """What the table has of each partition, by epoch: first offset, end, rows."""

    partitions: dict[TopicPartition, list[tuple[int, int, int]]] = field(default_factory=dict)
    epochs: dict[TopicPartition, list[int]] = field(default_factory=dict)
    row_count: int = 0


def _run(work: Work, chosen: Settings) -> tuple[Any, Verdict]:
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
        total = sum(end.offset for end in ends_of(cluster, every).values())
        bucket_size = _bucket_size(total, work.task_count)
    totals = _totals(work.totals(bucket_size), chosen)
    for attempt in range(1, _ATTEMPTS + 1):
        names = known or sorted({tp.topic for tp in totals.partitions})
        facts = cluster.topics(names) if names else {}
        asked = [TopicPartition(name, index) for name, one in facts.items() for index in one.partitions]
        there = existing(cluster, asked)
        views = Views(cluster).fresh(there)
        readable = ends_of(cluster, there)
        expected = {
            tp: _expected(totals, tp, chosen, Expected(view, max(readable[tp].offset, 0))) for tp, view in views.items()
        }
        judging = Judging(chosen.client, bucket_size, expected, chosen.topics)
        findings = work.findings(judging, _stretches(expected, bucket_size))
        counted = work.counts(findings)
        now = ends_of(cluster, there)
        if all(now[tp].leader_epoch == view.leader_epoch for tp, view in views.items()) or attempt == _ATTEMPTS:
            break
    kinds = {Kind(kind): (ranges, rows) for kind, ranges, rows in counted}
    sees = all(view.leader_epoch >= 0 for view in views.values())
    notes = [] if sees else [CAN_NOT_SEE]
    if not expected:
        notes.append("nothing was compared: no topic is named, and the rows name none that the cluster has")
    verdict = Verdict(
        {kind: ranges for kind, (ranges, _) in kinds.items()},
        {kind: rows for kind, (_, rows) in kinds.items()},
        totals.row_count,
        len(expected),
        sees,
        tuple(notes),
    )
    return findings, verdict


def _bucket_size(total: int, task_count: int) -> int:
    return max(_SMALLEST_BUCKET, min(_LARGEST_BUCKET, total // (task_count * BUCKETS_A_TASK) + 1))


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
