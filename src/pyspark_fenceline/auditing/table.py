"""`audit`: whether a table matches the log.

Owns the order of an audit and its report. The table is read first and the log afterwards, so that a stream that keeps
writing causes no findings. Two steps, both distributed over Spark's tasks (or this process's threads, for the command
line): rows become runs of offsets (`auditing.runs`), and each bucket of a partition's offsets is judged independently
(`auditing.judge`). The log is read only where the table has gaps, and there only its batch headers.

By log matching (`log_matching`) offset and epoch identify a record, so values are not compared. Rows without an epoch
prove nothing, except in a log of one epoch. On request their values are compared (`auditing.content`,
`auditing.transform`), and loss receipts name the doubtful ones (`auditing.receipts`). Records without a row are
compared with what the table should hold, and with what was deleted from it (`auditing.missing`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.content import ByValues, content_columns, refuse_other_columns
from pyspark_fenceline.auditing.duplicates import duplicates_by_key
from pyspark_fenceline.auditing.executor import (
    BUCKETS_PER_TASK,
    AuditExecutor,
    BucketJudge,
    Findings,
    LocalFilesAudit,
    SparkFilesAudit,
    SparkRowsAudit,
    counts_of,
)
from pyspark_fenceline.auditing.judge import FAULTS, ExpectedRows, TableFindingKind
from pyspark_fenceline.auditing.missing import (
    MISSING_KINDS,
    DeletedRows,
    deleted_ranges,
    missing_ranges,
    narrow_missing,
    read_deleted_rows,
)
from pyspark_fenceline.auditing.ranges import Range
from pyspark_fenceline.auditing.receipts import LedgerReceipts, read_receipts
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, SAME_VALUES, Refine
from pyspark_fenceline.auditing.table_deletions import TableDeletions, deletions, vectors_of, without_deleted
from pyspark_fenceline.auditing.transform import (
    EVERY_RECORD,
    ByTransform,
    RowMapping,
    Transform,
    compare_rows,
    expected_offsets,
)
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import ReadableEnd, SourceCluster, partitions_of
from pyspark_fenceline.common.execution import active_session
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, LOG_COLUMNS, LogColumns, missing_columns
from pyspark_fenceline.common.log_epochs import (
    NO_EPOCHS_WARNING,
    LogEpochsCache,
    existing_partitions,
    readable_ends,
    readable_ranges,
)
from pyspark_fenceline.common.log_matching import LogEpochs, held_interval, proven_without_epoch
from pyspark_fenceline.common.task_login import with_token
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, open_table, table_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Starting = Literal["earliest", "table"]
Outcome = Literal["equal", "behind", "unproven", "different"]
_SMALLEST_BUCKET: Final = 250_000
_USUAL_BUCKET: Final = 2_000_000
_LARGEST_BUCKET: Final = 16_000_000
_ATTEMPTS: Final = 3
ONE_EPOCH: Final = (
    "rows without an epoch count as records of the log because it has had only one leader epoch; this is wrong for rows"
    " that were read before the topic was deleted and recreated"
)


_SHOWN_BESIDE_FAULTS: Final = (
    TableFindingKind.UNPROVEN,
    TableFindingKind.UNDECIDED,
    TableFindingKind.BEHIND,
    TableFindingKind.DELETED,
)


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Settings of an audit. `topics`: None for those of the table. `client`: properties, with the brokers' address.
    `starting`: from where on the table should be complete: the log's start, or its own first row. `committed_only`: the
    table should hold committed records only. `everything`: read all batch headers of the log, which also finds rows
    whose records compaction has removed. `by_values`: compare rows without an epoch with the log's records by value.
    `mapping`: the rows that the table should have of the log's records. `row_key`: columns that identify rows of one
    record, None if a record is one row. `deleted`: what was deleted on purpose, in addition to the table's own log.
    """

    client: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] | None = None
    starting: Starting = "earliest"
    committed_only: bool = False
    everything: bool = False
    by_values: bool = False
    mapping: RowMapping = EVERY_RECORD
    row_key: tuple[str, ...] | None = None
    deleted: DeletedRows | None = None

    @property
    def isolation_level(self) -> str:
        return "read_committed" if self.committed_only else "read_uncommitted"


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of an audit. `ranges` and `rows`: by kind of finding. `is_equal`: all rows are proven to be the log's
    records, and nothing differs. `unknown_deletions`: if records are missing, the entries of the table's log whose
    deleted rows are unknown. `torn`: transactions that a loss has torn, each with its receipt.
    """

    ranges: Mapping[TableFindingKind, int]
    rows: Mapping[TableFindingKind, int]
    row_count: int
    partition_count: int
    sees_truncation: bool
    notes: tuple[str, ...] = ()
    unknown_deletions: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if any(self.ranges.get(kind) for kind in FAULTS):
            return "different"
        if self.ranges.get(TableFindingKind.UNPROVEN) or self.ranges.get(TableFindingKind.UNDECIDED):
            return "unproven"
        return "behind" if self.ranges.get(TableFindingKind.BEHIND) else "equal"

    @property
    def is_right(self) -> bool:
        """The table holds a prefix of the log and nothing else: it lacks only the newest records."""
        return self.outcome in ("equal", "behind")

    @property
    def is_equal(self) -> bool:
        return self.outcome == "equal"

    def sentence(self) -> str:
        """The result as a sentence."""
        counts = [
            f"{self.rows.get(kind, 0) or self.ranges[kind]} {kind}"
            for kind in (*sorted(FAULTS), *_SHOWN_BESIDE_FAULTS)
            if self.ranges.get(kind)
        ]
        if self.rows.get(TableFindingKind.EXPIRED):
            counts.append(f"{self.rows[TableFindingKind.EXPIRED]} {TableFindingKind.EXPIRED}")
        what = {
            "equal": "The table equals the log",
            "behind": "The table holds what the log holds, but not its newest records",
            "unproven": "The table is not proven to equal the log",
            "different": "The table differs from the log",
        }[self.outcome]
        if self.ranges.get(TableFindingKind.DELETED) and self.outcome == "equal":
            what += " except for rows that were deleted on purpose"
        about = f"{self.row_count} rows of {self.partition_count} partitions"
        more = "".join(f"; {note}" for note in (*self._advice(), *self.torn, *self.notes))
        return f"{what} ({about}{': ' if counts else ''}{', '.join(counts)}){more}."

    def _advice(self) -> list[str]:
        unproven = self.rows.get(TableFindingKind.UNPROVEN, 0)
        if not unproven:
            return []
        return [
            f"{unproven} of {self.row_count} rows have no epoch that the log knows, so they are not proven to be its"
            " records: compare their values (by_values, --by-values), and add their epochs"
            " (pyspark_fenceline.backfill, --backfill)"
        ]


@dataclass(slots=True)
class Audit:
    """`findings`: a DataFrame of `auditing.executor.FINDINGS_DDL` (from `audit`) or an Arrow table (from `audit_here`).
    `refine`: as the audit used it.
    """

    findings: Any
    verdict: AuditVerdict
    refine: Refine | None = None

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
    by_values: bool = False,
    transform: Transform | None = None,
    where: str | None = None,
    row_key: Collection[str] | None = None,
    deleted: str | DataFrame | pa.Table | None = None,
) -> Audit:
    """Compare a Delta table (its path) or any DataFrame with the log, as a Spark job.

    `bootstrap`: brokers, or a client's properties. `topics`: None for those that the rows name. `isolation_level`: what
    the table was read with; with read_committed the complete log is read, else only where rows are missing
    (`everything` overrides this).

    `by_values`: compare rows without an epoch with the log's records by value: by the result of `transform`, if given,
    else by key, value and timestamp. `transform`: from the source's columns to the table's; `where`: a Spark SQL
    condition on its result (or on the source's columns). Records that they drop are not missing. `row_key`: columns
    that identify the rows of one record, if a record may become several. `deleted`: what was deleted on purpose, as a
    file or a table with the columns of `auditing.missing.parse_deleted_rows`.

    Raises `OperatorError` for a table without the columns topic, partition and offset, and for a record on which
    `transform` fails (with its offset), and the brokers' errors.
    """
    chosen = settings(
        bootstrap,
        topics,
        starting,
        isolation_level,
        everything,
        by_values=by_values,
        mapping=RowMapping(transform, where),
        row_key=row_key,
        deleted=deleted,
    )
    if isinstance(table, str):
        return audit_files(open_for_audit(table, storage), chosen, spark or active_session())
    _require_columns(table.columns, "The DataFrame")
    _require_key(table.columns, chosen, "The DataFrame")
    compared = None
    if chosen.by_values:
        if chosen.mapping.transform is not None:
            raise OperatorError(
                "by_values with transform requires a Delta table", "Pass the path of a Delta table, not a DataFrame."
            )
        compared = ByValues(chosen.client, content_columns(table.columns, "the DataFrame"))
    findings, verdict = _run(SparkRowsAudit(table, compared, chosen.row_key), chosen, table.sparkSession, None)
    return Audit(findings, verdict)


def audit_here(
    table: str,
    chosen: AuditSettings,
    *,
    storage: Mapping[str, str] | None = None,
) -> Audit:
    """As `audit`, in this process, with Spark only if `chosen` has a predicate or a transform."""
    return audit_files(open_for_audit(table, storage), chosen, session_for(chosen))


def session_for(chosen: AuditSettings) -> SparkSession | None:
    """A session if the work requires one: predicates and transforms run in Spark."""
    return None if chosen.mapping.is_all else active_session()


def settings(
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_uncommitted",
    everything: bool | None = None,
    *,
    by_values: bool = False,
    mapping: RowMapping | None = None,
    row_key: Collection[str] | None = None,
    deleted: str | DataFrame | pa.Table | None = None,
) -> AuditSettings:
    """Check the arguments. Raises `OperatorError`."""
    client = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)
    if isolation_level not in ("read_committed", "read_uncommitted"):
        raise OperatorError(f"Unknown isolation level {isolation_level!r}", "Use read_committed or read_uncommitted.")
    if starting not in ("earliest", "table"):
        raise OperatorError(f"Unknown value {starting!r} of starting", "Use earliest or table.")
    committed = isolation_level == "read_committed"
    names = (topics,) if isinstance(topics, str) else None if topics is None else tuple(topics)
    key = (row_key,) if isinstance(row_key, str) else None if row_key is None else tuple(row_key)
    return AuditSettings(
        with_token(client),
        names,
        starting,
        committed,
        committed if everything is None else everything,
        by_values,
        mapping or EVERY_RECORD,
        key,
        None if deleted is None else read_deleted_rows(deleted),
    )


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A Delta table under audit. `kept`: masks of the rows that deletion vectors have not deleted, by file."""

    options: DeltaOptions
    files: Sequence[TableFile]
    schema: StructType
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return f"the Delta table at {self.options.path}"


def audit_files(table: OpenedTable, chosen: AuditSettings, session: SparkSession | None) -> Audit:
    """Compare a table's files, with Spark if there is a session, else in this process."""
    _require_key(table.schema.names, chosen, f"The Delta table at {table.options.path}")
    if chosen.by_values and chosen.mapping.transform is None:
        content_columns(table.schema.names, table.what)
    work: AuditExecutor[Any] = (
        LocalFilesAudit(table.options, table.files)
        if session is None
        else SparkFilesAudit(session, table.options, table.files)
    )
    findings, verdict = _run(work, chosen, session, table)
    return Audit(findings, verdict, work.refine)


def open_for_audit(path: str, storage: Mapping[str, str] | None, *, to_write: bool = False) -> OpenedTable:
    """The table's files. Raises `OperatorError` if there is no table, or it cannot be compared or, with `to_write`, its
    files cannot be rewritten.
    """
    from pyspark.sql.types import StructType

    options = DeltaOptions(path, storage=storage or None)
    table = open_table(options)
    if table is None:
        raise OperatorError(f"There is no Delta table at {path}", "Check the path, and the storage options.")
    _require_columns([one.name for one in table.schema().fields], f"The Delta table at {path}")
    files = table_files(table, reads_vectors=not to_write)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return OpenedTable(options, files, schema, {} if to_write else vectors_of(table))


def _require_columns(names: Iterable[str], what: str) -> None:
    known = list(names)
    missing = [name for name in missing_columns(known) if name != LEADER_EPOCH]
    if missing:
        raise OperatorError(
            f"{what} cannot be compared with the log: it has no column {', '.join(missing)}",
            "Rows need topic, partition and offset as format('fenceline') returns them, and leader_epoch"
            " (includeLeaderEpoch) to prove that they are in the log; rename columns in a DataFrame.",
        )
    twice = sorted({name for name in LOG_COLUMNS if sum(one.lower() == name for one in known) > 1})
    if twice:
        raise OperatorError(
            f"{what} cannot be compared with the log: it has more than one column {', '.join(twice)}",
            "Spark treats names that differ only in case as one column: drop or rename all but one.",
        )


def _require_key(names: Iterable[str], chosen: AuditSettings, what: str) -> None:
    missing = sorted(set(chosen.row_key or ()) - set(names))
    if missing:
        raise OperatorError(
            f"{what} has no column {', '.join(missing)}, which row_key names",
            "Name columns of the table that identify the rows of one record.",
        )


def comparison_of(
    table: OpenedTable, chosen: AuditSettings, session: SparkSession | None, readable: Mapping[TopicPartition, Range]
) -> ByValues | ByTransform:
    """The comparison of rows without an epoch with the log. `readable`: the bounds of the logs."""
    if chosen.mapping.transform is None:
        return ByValues(chosen.client, content_columns(table.schema.names, table.what))
    assert session is not None, "a transform needs Spark"
    return compare_rows(session, chosen.client, table.options, table.files, table.schema, chosen.mapping, readable)


def refine_of(
    table: OpenedTable, chosen: AuditSettings, session: SparkSession | None, readable: Mapping[TopicPartition, Range]
) -> Refine | None:
    """What completes the log columns of the table's files, or None. `readable`: the bounds of the logs."""
    compared = comparison_of(table, chosen, session, readable) if chosen.by_values else None
    if compared is None and not table.kept:
        return None
    return _Refined(table.options, compared, table.kept)


@dataclass(frozen=True, slots=True)
class _Refined:
    """A `Refine`; sent to executors."""

    options: DeltaOptions
    compared: ByValues | ByTransform | None
    kept: Mapping[str, Any]

    def __call__(self, file: TableFile, columns: LogColumns) -> LogColumns:
        found = columns if self.compared is None else self.compared.of_file(self.options, file, columns)
        return without_deleted(found, self.kept[file.path]) if file.path in self.kept else found


# The order of an audit ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Totals:
    """The rows of each partition by epoch: first offset, end, number of rows."""

    partitions: dict[TopicPartition, list[tuple[int, int, int]]] = field(default_factory=dict)
    epochs: dict[TopicPartition, list[int]] = field(default_factory=dict)
    row_count: int = 0

    def differing(self) -> tuple[int, int]:
        """Number of rows whose values differ from the log's, and of rows with an epoch or with the log's values."""
        counts = [
            (epoch, count)
            for tp, each in self.partitions.items()
            for epoch, (_, _, count) in zip(self.epochs[tp], each, strict=True)
        ]
        return (
            sum(count for epoch, count in counts if epoch == NOT_IN_LOG),
            sum(count for epoch, count in counts if epoch >= 0 or epoch == SAME_VALUES),
        )


def _run(
    work: AuditExecutor[Findings], chosen: AuditSettings, session: SparkSession | None, table: OpenedTable | None
) -> tuple[Findings, AuditVerdict]:
    cluster = connect.connect({**chosen.client, "isolation.level": chosen.isolation_level})
    known = list(chosen.topics) if chosen.topics is not None else []
    likely = known or sorted(work.topics() or ())
    bucket_size = _USUAL_BUCKET
    if likely:
        facts = cluster.topics(likely)
        missing = [name for name in known if name not in facts]
        if missing:
            raise OperatorError(f"There is no topic {', '.join(missing)}", "List topics with: fenceline topics list")
        every = partitions_of(facts)
        total = sum(end.offset for end in readable_ends(cluster, every).values())
        bucket_size = _bucket_size(total, work.task_count)
    totals = _Totals()
    compared_under: Mapping[TopicPartition, int] = {}
    for attempt in range(1, _ATTEMPTS + 1):
        if attempt == 1 or chosen.by_values:
            # Values are compared with the current log: after a leader change they are compared again.
            compared_under, work.refine = _refine(work, cluster, chosen, session, table, likely, bucket_size)
            totals = _totals(work.totals(bucket_size), chosen)
            if chosen.by_values and chosen.mapping.transform is None:
                refuse_other_columns(*totals.differing(), "the table" if table is None else table.what)
        names = known or sorted({tp.topic for tp in totals.partitions})
        facts = cluster.topics(names) if names else {}
        asked = partitions_of(facts)
        there = existing_partitions(cluster, asked)
        logs = LogEpochsCache(cluster).fetch(there)
        readable = readable_ends(cluster, there)
        receipts = _receipts(cluster, chosen, totals, logs)
        expected = {
            tp: _expected(totals, tp, chosen, ExpectedRows(log, max(readable[tp].offset, 0)), receipts)
            for tp, log in logs.items()
        }
        judging = BucketJudge(chosen.client, bucket_size, expected, chosen.topics)
        findings = work.findings(judging, _all_buckets(expected, bucket_size))
        counted = work.counts(findings)
        now = readable_ends(cluster, there)
        is_still = all(now[tp].leader_epoch == log.leader_epoch for tp, log in logs.items()) and all(
            tp not in logs or logs[tp].leader_epoch == epoch for tp, epoch in compared_under.items()
        )
        if is_still or attempt == _ATTEMPTS:
            break
    if chosen.by_values and not is_still:
        raise OperatorError(
            f"Leaders of the topic changed during each of {_ATTEMPTS} comparisons of values", "Run the audit again."
        )
    notes = [*_undecided(chosen, readable, there), *receipts.notes]
    if any(_relies_on_one_epoch(totals, tp, log, receipts) for tp, log in logs.items()):
        notes.append(ONE_EPOCH)
    findings, counted, unknown = _check_again(work, chosen, session, table, logs, findings, counted, notes)
    kinds = {TableFindingKind(kind): (ranges, rows) for kind, ranges, rows in counted}
    sees = all(log.leader_epoch >= 0 for log in logs.values())
    if not sees:
        notes.insert(0, NO_EPOCHS_WARNING)
    if not expected:
        notes.append("nothing was compared: no topic was given, and the rows name no existing topic")
    verdict = AuditVerdict(
        {kind: ranges for kind, (ranges, _) in kinds.items()},
        {kind: rows for kind, (_, rows) in kinds.items()},
        totals.row_count,
        len(expected),
        sees,
        tuple(notes),
        unknown,
        receipts.torn,
    )
    return findings, verdict


def _refine(
    work: AuditExecutor[Any],
    cluster: SourceCluster,
    chosen: AuditSettings,
    session: SparkSession | None,
    table: OpenedTable | None,
    likely: Sequence[str],
    bucket_size: int,
) -> tuple[Mapping[TopicPartition, int], Refine | None]:
    """The leader epochs under which values are compared, and what completes the log columns."""
    if not chosen.by_values:
        return {}, None if table is None else refine_of(table, chosen, session, {})
    names = list(likely)
    if not names:
        work.refine = None
        names = sorted({tp.topic for tp in _totals(work.totals(bucket_size), chosen).partitions})
    facts = cluster.topics(names) if names else {}
    readable, under = readable_ranges(cluster, facts)
    return under, None if table is None else refine_of(table, chosen, session, readable)


def _receipts(
    cluster: SourceCluster, chosen: AuditSettings, totals: _Totals, logs: Mapping[TopicPartition, LogEpochs]
) -> LedgerReceipts:
    """The receipts of the partitions; of those whose rows are proven without them only the torn transactions."""
    if not logs:
        return LedgerReceipts()
    doubtful = {
        tp for tp, log in logs.items() if any(epoch == -1 or not log.epochs for epoch in totals.epochs.get(tp, ()))
    }
    found = read_receipts(cluster, chosen.client, {tp: log.topic_id for tp, log in logs.items()})
    lost = {tp: each for tp, each in found.lost.items() if tp in doubtful}
    return replace(found, lost=lost, notes=found.notes if doubtful else ())


def _undecided(
    chosen: AuditSettings, readable: Mapping[TopicPartition, ReadableEnd], there: Collection[TopicPartition]
) -> list[str]:
    """What is in the logs behind the first open transaction, which nobody can read as committed yet."""
    if not chosen.committed_only:
        return []
    everything = connect.connect({**chosen.client, "isolation.level": "read_uncommitted"})
    ends = readable_ends(everything, there)
    return [
        f"{tp} has an open transaction at {readable[tp].offset}: {end.offset - readable[tp].offset} offsets from there"
        " on are not decided yet and were not compared"
        for tp, end in sorted(ends.items())
        if end.offset > readable[tp].offset >= 0
    ]


def _relies_on_one_epoch(totals: _Totals, tp: TopicPartition, log: LogEpochs, receipts: LedgerReceipts) -> bool:
    """Whether rows of this partition count as records of the log because it has had only one epoch."""
    low, high = proven_without_epoch(log)
    has_such_rows = -1 in totals.epochs.get(tp, ())
    return has_such_rows and low < high and tp.topic not in receipts.replaced


def _check_again(
    work: AuditExecutor[Findings],
    chosen: AuditSettings,
    session: SparkSession | None,
    table: OpenedTable | None,
    logs: Mapping[TopicPartition, LogEpochs],
    findings: Findings,
    counted: list[tuple[str, int, int]],
    notes: list[str],
) -> tuple[Findings, list[tuple[str, int, int]], tuple[str, ...]]:
    """The findings, their counts and unknown deletions, after checking missing and duplicate rows again."""
    kinds = {kind for kind, _, _ in counted}
    twice = chosen.row_key is not None and table is not None and TableFindingKind.DUPLICATE in kinds
    if not twice and kinds.isdisjoint(MISSING_KINDS):
        return findings, counted, ()
    if not twice and table is None and chosen.mapping.is_all and chosen.deleted is None:
        return findings, counted, ()
    found = work.collect(findings)
    if twice:
        assert table is not None, "only files are checked again"
        found = duplicates_by_key(
            found, table.options, table.files, chosen.row_key, work.refine, has_vectors=bool(table.kept)
        )
    unknown: tuple[str, ...] = ()
    absent = missing_ranges(found)
    if absent:
        meant = None
        if not chosen.mapping.is_all:
            assert session is not None, "a transform needs Spark"
            meant = expected_offsets(session, chosen.client, chosen.mapping, absent, chosen.isolation_level)
        by_table = TableDeletions() if table is None else deletions(table.options, {tp for tp, _, _ in absent})
        deleted = deleted_ranges(absent, by_table, logs, chosen.deleted, chosen.client, chosen.isolation_level)
        found = narrow_missing(found, meant, deleted)
        if missing_ranges(found):
            unknown = by_table.unknown
            notes += [f"the rows deleted by {one} are unknown: vacuum has removed its files" for one in unknown]
            if by_table.first_version > 0:
                notes.append(f"deletions before version {by_table.first_version} of the table are unknown")
    return work.distribute(found), counts_of(found), unknown


def _bucket_size(total: int, task_count: int) -> int:
    return max(_SMALLEST_BUCKET, min(_LARGEST_BUCKET, total // (task_count * BUCKETS_PER_TASK) + 1))


def _totals(rows: Iterable[tuple[str | None, int, int, int, int, int]], chosen: AuditSettings) -> _Totals:
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


def _expected(
    totals: _Totals, tp: TopicPartition, chosen: AuditSettings, bare: ExpectedRows, receipts: LedgerReceipts
) -> ExpectedRows:
    """What the table should hold, given the bounds of its rows that are in the log."""
    begins: list[int] = []
    ends: list[int] = []
    for (first, end, _), epoch in zip(totals.partitions.get(tp, ()), totals.epochs.get(tp, ()), strict=True):
        if epoch == NOT_IN_LOG:
            continue
        low, high = held_interval(bare.log, epoch)
        first, end = max(first, low), min(end, high, bare.log.end_offset)
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
        lost=receipts.lost.get(tp, ()),
        is_replaced=tp.topic in receipts.replaced,
    )


def _all_buckets(expected: Mapping[TopicPartition, ExpectedRows], bucket_size: int) -> list[tuple[str, int, int]]:
    """Every bucket of every log, so that buckets without rows are judged too."""
    return [
        (tp.topic, tp.partition, bucket)
        for tp, one in expected.items()
        for bucket in range(one.from_offset // bucket_size, -(-one.readable_end // bucket_size))
    ]
