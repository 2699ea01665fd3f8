"""`backfill`: adds missing leader epochs to the rows of a table.

Owns making a table that was written without `leader_epoch`, as with Spark's own Kafka connector, comparable with the
log. A row gets the epoch of the log's record at its offset only if its values are that record's (`auditing.content`,
`auditing.transform`). Rows whose values differ are stale; they get no epoch and stay, for a repair that compares
values. With `apply` files are rewritten with the column, in one commit, after a commit that adds the column if the
table lacks it; without it nothing is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.content import ByValues, refuse_other_columns
from pyspark_fenceline.auditing.ranges import Range, runs_in
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, SAME_VALUES
from pyspark_fenceline.auditing.table import AuditSettings, OpenedTable, comparison_of, open_for_audit, settings
from pyspark_fenceline.auditing.transform import ByTransform, RowMapping, Transform
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.execution import active_session, map_pieces
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, LogColumns
from pyspark_fenceline.common.log_epochs import readable_ends, readable_ranges
from pyspark_fenceline.delta.files import DataFile, delete_files
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.properties import APPEND_ONLY, is_set
from pyspark_fenceline.delta.replacement import TableChanged, replace_files
from pyspark_fenceline.delta.rewrite import with_epochs
from pyspark_fenceline.delta.schema import fit
from pyspark_fenceline.delta.table_files import TableFile, open_table, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import SparkSession

    Mask = npt.NDArray[np.bool_]
    Numbers = npt.NDArray[np.int64]

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 5
_MAX_RANGES: Final = 50


@dataclass(frozen=True, slots=True)
class StaleRows:
    """Rows of [start_offset, end_offset_exclusive) whose values are not those of the log's records there."""

    topic: str
    partition: int
    start_offset: int
    end_offset_exclusive: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill did, or would do. `version`: of the table afterwards, None if nothing was changed.

    `proven_rows` get their epochs. `same_rows` have the log's values too, but the brokers keep no epochs. The log has
    no records for `unknown_rows`: retention, compaction, another topic.
    """

    is_applied: bool
    proven_rows: int
    same_rows: int
    unknown_rows: int
    stale_rows: int
    stale: Sequence[StaleRows]
    files: int
    version: int | None = None

    def sentence(self) -> str:
        """The result as a sentence."""
        if not self.proven_rows + self.same_rows + self.unknown_rows + self.stale_rows:
            return "Every row has an epoch."
        if self.version is not None:
            what = f"{self.proven_rows} rows got their epochs, in version {self.version} ({self.files} files rewritten)"
        elif self.is_applied:
            what = "No row got an epoch"
        else:
            what = f"{self.proven_rows} rows would get their epochs; nothing was changed, use apply=True (--apply)"
        parts = [
            f"{self.stale_rows} rows are stale: the log's records at their offsets have other values"
            " (repair with by_values removes them)"
            if self.stale_rows
            else "",
            f"{self.same_rows} rows have the log's values, but the brokers keep no epochs" if self.same_rows else "",
            f"{self.unknown_rows} rows cannot be compared: the log has no record at their offsets"
            if self.unknown_rows
            else "",
        ]
        return "; ".join([what, *(part for part in parts if part)]) + "."


def backfill(
    table: str,
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    *,
    apply: bool = False,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
    transform: Transform | None = None,
) -> Backfill:
    """Compare the rows of a Delta table that have no epoch with the log, and with `apply` write their epochs.

    Rows are compared by those of key, value and timestamp that the table has, or by the result of `transform` (from the
    source's columns to the table's). Raises `OperatorError` for a table whose rows cannot be compared and for a record
    on which `transform` fails (with its offset; nothing is written), and the brokers' errors.
    """
    chosen = settings(bootstrap, topics, by_values=True, mapping=RowMapping(transform))
    return _backfill(table, chosen, storage, spark or active_session(), apply=apply)


def backfill_here(
    table: str, chosen: AuditSettings, *, apply: bool = False, storage: Mapping[str, str] | None = None
) -> Backfill:
    """As `backfill`, in this process and without Spark. `chosen`: with `by_values`."""
    return _backfill(table, chosen, storage, None, apply=apply)


@dataclass(frozen=True, slots=True)
class _FileResult:
    """The result for one file. `known_rows`: rows with an epoch. `copy`: the rewritten file, if there is one."""

    path: str
    proven_rows: int
    same_rows: int
    unknown_rows: int
    stale: Mapping[TopicPartition, list[Range]]
    stale_rows: int
    known_rows: int
    copy: DataFile | None = None


@dataclass(frozen=True, slots=True)
class _Filler:
    """Compares one file, and rewrites it with `kind`; sent to executors. `kind`: Arrow's name of the column's type;
    None: nothing is written. `topics`: None for all.
    """

    options: DeltaOptions
    compared: ByValues | ByTransform
    kind: str | None
    topics: frozenset[str] | None

    def __call__(self, file: TableFile) -> _FileResult:
        import numpy as np

        columns = read_log_columns(self.options, file)
        concerned = columns.epochs == -1
        if self.topics is not None:
            codes = [code for code, tp in enumerate(columns.partitions) if tp.topic in self.topics]
            concerned &= np.isin(columns.codes, np.array(codes, dtype=np.int64))
        found, copy = columns.epochs, None
        if concerned.any():
            found, copy = self._compare(file, columns, concerned)
        stale = concerned & (found == NOT_IN_LOG)
        proven = concerned & (found >= 0)
        return _FileResult(
            file.path,
            int(proven.sum()),
            int((concerned & (found == SAME_VALUES)).sum()),
            int((concerned & (found == -1)).sum()),
            {
                tp: runs_in(columns.offsets[stale & (columns.codes == code)])
                for code, tp in enumerate(columns.partitions)
                if (stale & (columns.codes == code)).any()
            },
            int(stale.sum()),
            int((columns.epochs >= 0).sum()),
            copy,
        )

    def _compare(self, file: TableFile, columns: LogColumns, concerned: Mask) -> tuple[Numbers, DataFile | None]:
        """The results in place of the rows' epochs, and the file with the epochs of the `concerned` rows."""
        import numpy as np
        import pyarrow as pa

        found = self.compared.of_file(self.options, file, columns).epochs
        proven = concerned & (found >= 0)
        if self.kind is None or not proven.any():
            return found, None
        epochs = np.where(proven, found, columns.epochs)
        column = pa.array(epochs, pa.int64(), mask=epochs < 0).cast(pa.type_for_alias(self.kind))
        return found, with_epochs(self.options, file.path, file.partition_values, pa.chunked_array([column]))


def _backfill(
    path: str, chosen: AuditSettings, storage: Mapping[str, str] | None, session: SparkSession | None, *, apply: bool
) -> Backfill:
    for _ in range(_ATTEMPTS):
        table = open_for_audit(path, storage, to_write=True)
        if apply:
            _require_fillable(table)
        files = [file for file in table.files if file.has_null_epochs]
        cluster = connect.connect({**chosen.client, "isolation.level": "read_uncommitted"})
        readable, under = _bounds(cluster, table, chosen, files)
        compared = comparison_of(table, chosen, session, readable)
        topics = None if chosen.topics is None else frozenset(chosen.topics)
        kind = _kind_of(table) if apply else None
        found = map_pieces(session, _Filler(table.options, compared, kind, topics), files, few=1)
        copies = [one.copy for one in found if one.copy is not None]
        if any(readable_ends(cluster, under)[tp].leader_epoch != epoch for tp, epoch in under.items()):
            _log.warning("leaders changed while the table at %s was compared with the log, comparing again", path)
            delete_files(table.options, [copy.path for copy in copies])
            continue
        if chosen.mapping.transform is None:
            others = len(files) < len(table.files)
            known = sum(one.proven_rows + one.same_rows + one.known_rows for one in found)
            refuse_other_columns(sum(one.stale_rows for one in found), known + others, table.what)
        if not copies:
            return _result(found, apply=apply, version=None)
        replaced = [file for file in files if any(one.path == file.path and one.copy is not None for one in found)]
        try:
            return _result(found, apply=apply, version=_commit(table, replaced, copies, found))
        except TableChanged as changed:
            _log.warning("the table at %s was changed during the backfill, starting again", path)
            if not changed.may_be_committed:
                delete_files(table.options, [copy.path for copy in copies])
    raise OperatorError(
        f"The table at {path} or the leaders of its topics changed during each of {_ATTEMPTS} attempts of the backfill",
        "Stop jobs that rewrite the table (OPTIMIZE, deletes), and run the backfill again.",
    )


def _require_fillable(table: OpenedTable) -> None:
    opened = open_table(table.options)
    assert opened is not None, "the table was opened a moment ago"
    fit(opened, table.schema, (), table.options.path)
    if is_set(opened, APPEND_ONLY):
        raise OperatorError(
            f"The files of {table.what} cannot be rewritten, because delta.appendOnly is set",
            "Unset the table property delta.appendOnly during the backfill.",
        )
    if LEADER_EPOCH in opened.metadata().partition_columns:
        raise OperatorError(
            f"{table.what} is partitioned by {LEADER_EPOCH}: a backfill cannot move rows to other partitions",
            "Write the rows to a table with other partition columns.",
        )


def _kind_of(table: OpenedTable) -> str:
    """The column's type, by Arrow's name."""
    if LEADER_EPOCH not in table.schema.names:
        return "int32"
    kind = table.schema[LEADER_EPOCH].dataType.typeName()
    known = {"integer": "int32", "long": "int64", "short": "int16"}
    if kind not in known:
        raise OperatorError(
            f"Column {LEADER_EPOCH} of {table.what} is of type {kind}", "Change it to an integer, or rename it."
        )
    return known[kind]


def _bounds(
    cluster: SourceCluster, table: OpenedTable, chosen: AuditSettings, files: Iterable[TableFile]
) -> tuple[dict[TopicPartition, Range], dict[TopicPartition, int]]:
    """The bounds of the logs of the affected topics, and their leaders' epochs."""
    names = set(chosen.topics or ())
    if chosen.topics is None:
        for file in files:
            only = file.only_partition
            found = read_log_columns(table.options, file).partitions if only is None else [only]
            names |= {tp.topic for tp in found}
    facts = cluster.topics(names) if names else {}
    missing = sorted(set(chosen.topics or ()) - set(facts))
    if missing:
        raise OperatorError(f"There is no topic {', '.join(missing)}", "List topics with: fenceline topics list")
    return readable_ranges(cluster, facts)


def _commit(
    table: OpenedTable, replaced: Sequence[TableFile], copies: Sequence[DataFile], found: Sequence[_FileResult]
) -> int:
    if LEADER_EPOCH not in table.schema.names:
        _add_column(table)
    rows = sum(one.proven_rows for one in found)
    stale = _stale(found)
    own_metadata: dict[str, Any] = {
        "backfill": {
            "proven_rows": rows,
            "stale_rows": sum(one.stale_rows for one in found),
            "stale_ranges": [{name: getattr(one, name) for name in one.__slots__} for one in stale[:_MAX_RANGES]],
            "stale_range_count": len(stale),
        }
    }
    # The stored state of the comparison with the log is dropped: rows are comparable now that were not before.
    return replace_files(
        table.options, table.files, replaced, copies, own_metadata, keeps_state=False, updated_row_count=rows
    )


def _add_column(table: OpenedTable) -> None:
    from deltalake import Field
    from deltalake.exceptions import DeltaError
    from deltalake.schema import PrimitiveType

    opened = open_table(table.options)
    assert opened is not None, "the table was opened a moment ago"
    try:
        opened.alter.add_columns([Field(LEADER_EPOCH, PrimitiveType("integer"), nullable=True)])
    except DeltaError as error:
        # Another writer may have added it meanwhile.
        raise TableChanged() from error


def _stale(found: Iterable[_FileResult]) -> list[StaleRows]:
    ranges = sorted((tp, start, end) for one in found for tp, each in one.stale.items() for start, end in each)
    return [StaleRows(tp.topic, tp.partition, start, end) for tp, start, end in ranges]


def _result(found: Sequence[_FileResult], *, apply: bool, version: int | None) -> Backfill:
    return Backfill(
        apply,
        sum(one.proven_rows for one in found),
        sum(one.same_rows for one in found),
        sum(one.unknown_rows for one in found),
        sum(one.stale_rows for one in found),
        _stale(found),
        sum(one.copy is not None for one in found),
        version,
    )
