"""Rows that were deleted from a table on purpose, according to the table's own log.

Owns the reading of other writers' commits: the offsets that a commit removed and did not add again. Such rows are not
"missing" even if the log still has their records, and are restored only on request. A commit whose files vacuum has
removed is reported, because its deleted rows are unknown. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.ranges import Range, common, runs_in
from pyspark_fenceline.common.log_columns import LogColumns
from pyspark_fenceline.common.log_matching import LogEpochs, held_interval
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.state import KEY
from pyspark_fenceline.delta.table_changes import ChangedFile, files_of_version
from pyspark_fenceline.delta.table_files import TableFile, open_table, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from deltalake import DeltaTable

    Offsets = npt.NDArray[np.int64]

_KEEPS_ROWS: Final = frozenset(
    {
        "CREATE TABLE",
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMN",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "ADD FEATURE",
        "SET TABLE PROPERTIES",
    }
)
"""Operations that delete no row. Whether a write replaces rows depends on its mode."""


class Deletion(NamedTuple):
    """Rows of one epoch (-1: without one) of a partition that a commit deleted. `by`: that commit, as text."""

    epoch: int
    ranges: list[Range]
    by: str

    def of_records(self, log: LogEpochs) -> list[Range]:
        """Ranges of which the log may still hold the deleted records: not those of stale rows, at whose offsets the log
        has other records now.
        """
        return common(self.ranges, [held_interval(log, self.epoch)])


@dataclass(frozen=True, slots=True)
class TableDeletions:
    """`found`: of each partition, oldest first. `unknown`: commits whose deleted rows are unknown. `first_version`: of
    the oldest commit in the table's log; earlier deletions are unknown.
    """

    found: Mapping[TopicPartition, Sequence[Deletion]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    first_version: int = 0


def deletions(options: DeltaOptions, concerned: Collection[TopicPartition]) -> TableDeletions:
    """Other writers' deletions from these partitions, as far as the table's log goes back."""
    table = open_table(options)
    if table is None or not concerned:
        return TableDeletions()
    found: dict[TopicPartition, list[Deletion]] = {}
    unknown: list[str] = []
    history = sorted(table.history(), key=lambda entry: int(entry["version"]))
    for entry in history:
        if not _may_delete(entry):
            continue
        by = f"version {entry['version']} of the table ({entry.get('operation', 'of an unknown operation')})"
        try:
            for (tp, epoch), offsets in _deleted(options, int(entry["version"]), concerned).items():
                found.setdefault(tp, []).append(Deletion(epoch, runs_in(offsets), by))
        except (FileNotFoundError, OperatorError):
            unknown.append(by)
    return TableDeletions(found, tuple(unknown), int(history[0]["version"]) if history else 0)


def _may_delete(entry: Mapping[str, Any]) -> bool:
    if KEY in entry:
        return False
    operation = str(entry.get("operation", "")).upper()
    parameters = entry.get("operationParameters") or {}
    mode = str(parameters.get("mode", parameters.get("outputMode", "")))
    if operation in ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT"):
        return mode.strip('"').upper() not in ("APPEND", "ERRORIFEXISTS", "ERROR", "IGNORE")
    return operation not in _KEEPS_ROWS


def _deleted(
    options: DeltaOptions, version: int, concerned: Collection[TopicPartition]
) -> dict[tuple[TopicPartition, int], Offsets]:
    """Offsets by partition and epoch that the commit removes and does not add again."""
    import numpy as np

    files = files_of_version(options, version)
    removed = [file for file in files if file.kind == "delete"]
    added = [file for file in files if file.kind == "insert"]
    if not removed:
        return {}
    vectors = kept_rows(options, version) if any(file.has_vector for file in added) else {}
    before = _offsets(options, removed, {}, concerned)
    after = _offsets(options, added, vectors, concerned)
    left: dict[TopicPartition, list[Offsets]] = {}
    for (tp, _), offsets in after.items():
        left.setdefault(tp, []).append(offsets)
    nothing = [np.zeros(0, dtype=np.int64)]
    deleted = {
        (tp, epoch): np.setdiff1d(offsets, np.concatenate(left.get(tp, nothing)))
        for (tp, epoch), offsets in before.items()
    }
    return {place: offsets for place, offsets in deleted.items() if len(offsets)}


def _offsets(
    options: DeltaOptions,
    files: Iterable[ChangedFile],
    vectors: Mapping[str, npt.NDArray[np.bool_]],
    concerned: Collection[TopicPartition],
) -> dict[tuple[TopicPartition, int], Offsets]:
    import numpy as np

    found: dict[tuple[TopicPartition, int], list[Offsets]] = {}
    for file in files:
        columns = read_log_columns(options, TableFile(file.path, 0, file.partition_values))
        if file.has_vector and file.path in vectors:
            columns = without_deleted(columns, vectors[file.path])
        for code, tp in enumerate(columns.partitions):
            if tp not in concerned:
                continue
            own = columns.codes == code
            for epoch in np.unique(columns.epochs[own]).tolist():
                found.setdefault((tp, epoch), []).append(columns.offsets[own & (columns.epochs == epoch)])
    return {place: np.concatenate(each) for place, each in found.items()}


def kept_rows(options: DeltaOptions, version: int | None = None) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the rows that deletion vectors have not deleted, by the file's path in the table."""
    from deltalake import DeltaTable

    storage = dict(options.storage) if options.storage else None
    return vectors_of(DeltaTable(options.path, version=version, storage_options=storage))


def vectors_of(table: DeltaTable) -> dict[str, npt.NDArray[np.bool_]]:
    """As `kept_rows`, of an open table."""
    import numpy as np
    import pyarrow as pa

    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    paths = {_name(path): path for path in pa.table(table.get_add_actions())["path"].to_pylist()}
    kept: dict[str, npt.NDArray[np.bool_]] = {}
    for batch in table.deletion_vectors():
        rows = pa.record_batch(batch)
        for uri, vector in zip(rows["filepath"], rows["selection_vector"], strict=True):
            kept[paths[_name(uri.as_py())]] = np.asarray(vector.values)
    return kept


def _name(path: str) -> str:
    """A file's name, unique in the table because it contains a UUID."""
    return unquote(unquote(path)).rsplit("/", 1)[-1]


def without_deleted(columns: LogColumns, kept: npt.NDArray[np.bool_]) -> LogColumns:
    """`kept` may be shorter than the file: the rows after it are not deleted."""
    import numpy as np

    deleted_rows = np.flatnonzero(~kept)
    return columns.rows(np.delete(np.arange(len(columns)), deleted_rows[deleted_rows < len(columns)]))
