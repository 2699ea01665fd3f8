"""`repair`: reports the changes that make a table match the log, and applies them on request.

Owns the order of a repair: audit, then one commit that removes rows that the log does not hold, and one that adds
missing records, read from the log (two commits, so that readers that skip changes get the new rows: decision 026).
Without `apply` nothing is changed. Acts only on the kinds that the caller has chosen; rows that were deleted on purpose
are restored only if the caller names that kind. Only files with rows to remove are rewritten, and only the missing
ranges are read. A second repair finds nothing to do, and completes one that ended between its two commits. Concurrent
writers are allowed, as long as the affected files stay and they do not add the missing ranges; else the repair starts
again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.auditing.judge import TableFindingKind
from pyspark_fenceline.auditing.repair_files import rewrite_files, write_absent
from pyspark_fenceline.auditing.repair_plan import FileRewrite, RepairWork, chosen_kinds, file_rewrites, repair_work
from pyspark_fenceline.auditing.table import (
    AuditSettings,
    AuditVerdict,
    OpenedTable,
    Starting,
    audit_files,
    open_for_audit,
    session_for,
    settings,
)
from pyspark_fenceline.auditing.transform import RowMapping, Transform
from pyspark_fenceline.common.execution import active_session
from pyspark_fenceline.common.log_columns import bounds
from pyspark_fenceline.delta.change import MAX_RANGES_SHOWN, Removed
from pyspark_fenceline.delta.files import DataFile, delete_files
from pyspark_fenceline.delta.properties import refuse_append_only
from pyspark_fenceline.delta.replacement import TableChanged, replace_files
from pyspark_fenceline.delta.table_files import TableFile, open_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 5
ROWS_DIFFER: Final = "rows that differ are kept: name the columns that identify rows of one record (row_key)"


@dataclass(frozen=True, slots=True)
class Added:
    """Records [start_offset, end_offset_exclusive) of the log that the table lacked."""

    topic: str
    partition: int
    start_offset: int
    end_offset_exclusive: int


@dataclass(slots=True)
class TableRepair:
    """What a repair did, or would do. `version`: of the table afterwards, None if nothing was changed. `is_applied`:
    called with `apply`. `left`: differences that it leaves unchanged: of kinds that were not chosen, or because nothing
    proves that the rows are wrong. Without `is_applied` the number of added files is unknown.
    """

    before: AuditVerdict
    is_applied: bool = False
    version: int | None = None
    removed: Sequence[Removed] = ()
    added: Sequence[Added] = ()
    added_rows: int = 0
    files_removed: int = 0
    files_added: int = 0
    left: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def removed_rows(self) -> int:
        return sum(one.row_count for one in self.removed)

    def sentence(self) -> str:
        """The result as a sentence."""
        by_kind: dict[str, int] = {}
        for one in self.removed:
            by_kind[str(one.reason)] = by_kind.get(str(one.reason), 0) + one.row_count
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind.items()))
        rows = f"{self.removed_rows} rows{f' ({counts})' if counts else ''}"
        if not self.is_applied and (self.removed or self.added):
            what = (
                f"Would remove {rows} and add {self.added_rows}: {self.files_removed} files would be removed; nothing"
                " was changed, use apply=True (--apply)"
            )
        elif self.version is None:
            what = "Nothing was changed" if self.is_applied or not self.left else "Nothing would be changed"
        else:
            what = (
                f"Removed {rows} and added {self.added_rows}, in version {self.version}: {self.files_removed} files"
                f" removed, {self.files_added} files added"
            )
        kinds = sorted({str(one["kind"]) for one in self.left})
        more = f"; {len(self.left)} findings are left unchanged ({', '.join(kinds)})" if kinds else ""
        unknown = "; ".join(self.before.unknown_deletions)
        held = f"; missing rows may have been deleted on purpose by {unknown}" if unknown else ""
        notes = "".join(f"; {note}" for note in self.before.notes) if self.added else ""
        torn = "".join(f"; {each}" for each in self.before.torn)
        return f"{what}{more}{held}{torn}{notes}."


def repair(
    table: str,
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    *,
    apply: bool = False,
    kinds: Collection[str] | None = None,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
    transform: Transform | None = None,
    where: str | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_uncommitted",
    everything: bool | None = None,
    by_values: bool = False,
    row_key: Collection[str] | None = None,
    deleted: str | DataFrame | pa.Table | None = None,
) -> TableRepair:
    """Report the changes that make the Delta table at a path match the log, and with `apply` make them, as Spark jobs.

    `kinds`: of the findings to act on; None for proven errors (stale, beyond). Others: missing, behind (records that
    the table has not reached yet: do not use it while a sink that may add them too is writing), duplicate, aborted,
    foreign, newer, and deleted (which restores rows that were deleted on purpose). `transform`: from the source's
    columns (with headers and leader_epoch) to the table's, if they differ. Of duplicates, rows are removed that are
    equal in every column, or in `row_key`. The other arguments and errors are those of `audit`.
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
    return _repair(table, chosen, storage, spark or active_session(), chosen_kinds(kinds), apply=apply)


def repair_here(
    table: str,
    chosen: AuditSettings,
    *,
    apply: bool = False,
    kinds: Collection[str] | None = None,
    storage: Mapping[str, str] | None = None,
) -> TableRepair:
    """As `repair`, in this process, with Spark only if `chosen` has a predicate or a transform."""
    return _repair(table, chosen, storage, session_for(chosen), chosen_kinds(kinds), apply=apply)


@dataclass(slots=True)
class _Progress:
    """The changes that this repair has committed, including those of earlier attempts."""

    version: int | None = None
    removed: list[Removed] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    added_rows: int = 0
    files_removed: int = 0
    files_added: int = 0

    def result(self, before: AuditVerdict, left: Sequence[Mapping[str, Any]]) -> TableRepair:
        return TableRepair(
            before,
            True,
            self.version,
            self.removed,
            self.added,
            self.added_rows,
            self.files_removed,
            self.files_added,
            left,
        )


def _repair(
    path: str,
    chosen: AuditSettings,
    storage: Mapping[str, str] | None,
    session: SparkSession | None,
    kinds: Collection[TableFindingKind],
    *,
    apply: bool,
) -> TableRepair:
    done = _Progress()
    before: AuditVerdict | None = None
    for _ in range(_ATTEMPTS):
        table = open_for_audit(path, storage, to_write=True)
        found = audit_files(table, chosen, session)
        before = before or found.verdict
        may_add = not found.verdict.unknown_deletions or TableFindingKind.DELETED in kinds
        work = repair_work(_rows(found.findings, session), kinds, may_add=may_add)
        if work.is_empty:
            return done.result(before, work.left) if apply else TableRepair(before, left=work.left)
        try:
            rewrites, removed, differing = file_rewrites(table.options, table.files, work, chosen.row_key, found.refine)
        except FileNotFoundError:
            # Another writer has rewritten the table, and vacuum has removed the files.
            continue
        work.left += [{**one, "detail": f"{one['detail']}; {ROWS_DIFFER}"} for one in differing]
        if not apply:
            return _planned(before, work, rewrites, removed)
        try:
            _apply(table, chosen, session, work, rewrites, removed, done)
        except TableChanged:
            _log.warning("the table at %s was changed during the repair, starting again", path)
            continue
        return done.result(before, work.left)
    raise OperatorError(
        f"The Delta table at {path} was changed during each of {_ATTEMPTS} attempts of the repair",
        "Stop jobs that rewrite the table (OPTIMIZE, deletes) during a repair.",
    )


def _rows(findings: Any, session: SparkSession | None) -> list[Mapping[str, Any]]:
    """The findings of an audit, in this process."""
    if session is None:
        rows: list[Mapping[str, Any]] = findings.to_pylist()
        return rows
    rows = [row.asDict() for row in findings.collect()]
    findings.unpersist()
    return rows


def _planned(
    before: AuditVerdict, work: RepairWork, rewrites: Sequence[FileRewrite], removed: Sequence[Removed]
) -> TableRepair:
    added = [Added(tp.topic, tp.partition, start, end) for tp, start, end in work.absent]
    rows = sum(one.end_offset_exclusive - one.start_offset for one in added)
    return TableRepair(before, False, None, removed, added, rows, len(rewrites), 0, work.left)


def _apply(
    table: OpenedTable,
    chosen: AuditSettings,
    session: SparkSession | None,
    work: RepairWork,
    rewrites: Sequence[FileRewrite],
    removed: Sequence[Removed],
    done: _Progress,
) -> None:
    """One or two commits. Raises `TableChanged` for a concurrent change; the result of the first commit stays valid and
    is in `done`.
    """
    options = table.options
    opened = open_table(options)
    assert opened is not None, "the table was audited a moment ago"
    if rewrites:
        refuse_append_only(opened, options.path)
    # This may fail at a record, so it comes first: then nothing is committed.
    filled = write_absent(options, opened, chosen, work.absent, session) if work.absent else []
    written = list(filled)
    try:
        known = list(table.files)
        if rewrites:
            copies = rewrite_files(options, [rewrite for rewrite in rewrites if rewrite.keep is not None], session)
            written += copies
            remove = [rewrite.file for rewrite in rewrites]
            deleted = sum(one.row_count for one in removed)
            done.version = replace_files(
                options, known, remove, copies, {"repair": _commit_metadata(removed, [])}, deleted_row_count=deleted
            )
            done.removed += removed
            done.files_removed += len(remove)
            done.files_added += len(copies)
            written = list(filled)
            paths = {file.path for file in remove}
            known = [file for file in known if file.path not in paths]
            known += [TableFile(file.path, file.size_bytes, file.partition_values) for file in copies]
        if filled:
            incoming = bounds(span for file in filled for span in file.spans)
            done.version = replace_files(
                options, known, [], filled, {"repair": _commit_metadata([], filled)}, incoming=incoming
            )
            done.added += [Added(tp.topic, tp.partition, start, end) for tp, start, end in work.absent]
            done.added_rows += sum(file.record_count for file in filled)
            done.files_added += len(filled)
    except TableChanged as changed:
        if not changed.may_be_committed:
            delete_files(options, [file.path for file in written])
        raise


def _commit_metadata(removed: Sequence[Removed], filled: Sequence[DataFile]) -> dict[str, Any]:
    return {
        "removed_rows": sum(one.row_count for one in removed),
        "added_rows": sum(file.record_count for file in filled),
        "ranges": [{**one.to_json(), "reason": str(one.reason)} for one in removed[:MAX_RANGES_SHOWN]],
        "range_count": len(removed),
    }
