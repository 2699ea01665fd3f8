"""Plans a repair: which findings it acts on, and which rows of which files it removes.

Owns the step from an audit's findings to masks over files. It acts only on the kinds that the caller has chosen, and
removes a row only if the audit has proven that it is wrong: by its epoch or its values, or because an equal row stays.
Files are selected by their bounds, then their log columns are read. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.duplicates import finding_ranges, repeated_rows
from pyspark_fenceline.auditing.judge import FAULTS, TableFindingKind
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, Refine
from pyspark_fenceline.common.log_columns import LogColumns
from pyspark_fenceline.delta.change import Removed, removed_rows
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import TableFile, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

PROVEN_WRONG: Final = frozenset({TableFindingKind.STALE, TableFindingKind.BEYOND})
"""The default kinds of a repair: rows that the log proves to be none of its records."""
TAKEN_OUT: Final = frozenset(
    {
        *PROVEN_WRONG,
        TableFindingKind.ABORTED,
        TableFindingKind.DUPLICATE,
        TableFindingKind.FOREIGN,
        TableFindingKind.NEWER,
    }
)
ADDED: Final = frozenset({TableFindingKind.MISSING, TableFindingKind.BEHIND, TableFindingKind.DELETED})
REPAIRABLE: Final = TAKEN_OUT | ADDED
_OF_ONE_EPOCH: Final = frozenset(
    {TableFindingKind.STALE, TableFindingKind.BEYOND, TableFindingKind.FOREIGN, TableFindingKind.NEWER}
)


def chosen_kinds(names: Collection[str] | None) -> frozenset[TableFindingKind]:
    """The kinds that a caller names; None for `PROVEN_WRONG`. Raises `OperatorError` for one that has no repair."""
    if names is None:
        return PROVEN_WRONG
    known = {str(kind): kind for kind in REPAIRABLE}
    given = [names] if isinstance(names, str) else list(names)
    unknown = sorted(str(name) for name in given if str(name) not in known)
    if unknown:
        raise OperatorError(
            f"A repair does not support findings of the kind {', '.join(unknown)}",
            f"Choose from: {', '.join(sorted(known))}.",
        )
    return frozenset(known[str(name)] for name in given)


@dataclass(frozen=True, slots=True)
class BadRange:
    """Rows of [start, end) to remove; only those of `epoch`, if given."""

    kind: TableFindingKind
    start: int
    end: int
    epoch: int | None


@dataclass(slots=True)
class RepairWork:
    """The work that the findings require. `left`: differences that this repair leaves unchanged."""

    bad: dict[TopicPartition, list[BadRange]] = field(default_factory=dict)
    repeated: list[Mapping[str, Any]] = field(default_factory=list)
    absent: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    left: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.bad and not self.absent and not self.repeated


def repair_work(
    findings: Iterable[Mapping[str, Any]], kinds: Collection[TableFindingKind], *, may_add: bool = True
) -> RepairWork:
    """`findings`: rows of a report. Without `may_add` no record is added that may have been deleted on purpose."""
    work = RepairWork()
    for one in findings:
        kind = TableFindingKind(one["kind"])
        is_held_back = kind in (TableFindingKind.MISSING, TableFindingKind.BEHIND) and not may_add
        if kind not in kinds or is_held_back:
            if kind in FAULTS or is_held_back:
                work.left.append(one)
        elif kind in ADDED:
            tp = TopicPartition(one["topic"], one["partition"])
            work.absent.append((tp, one["start_offset"], one["end_offset_exclusive"]))
        elif kind is TableFindingKind.DUPLICATE:
            work.repeated.append(one)
        else:
            epoch = None
            if kind in _OF_ONE_EPOCH:
                # A finding without an epoch is about rows whose values prove that they are stale.
                epoch = one["epochs"][0] if len(one["epochs"]) else NOT_IN_LOG
            tp = TopicPartition(one["topic"], one["partition"])
            work.bad.setdefault(tp, []).append(BadRange(kind, one["start_offset"], one["end_offset_exclusive"], epoch))
    return work


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """A file with rows to remove. `keep`: the mask of the rows that stay; None if no row stays."""

    file: TableFile
    keep: Mask | None


def file_rewrites(
    options: DeltaOptions,
    files: Sequence[TableFile],
    work: RepairWork,
    row_key: Sequence[str] | None = None,
    refine: Refine | None = None,
) -> tuple[list[FileRewrite], list[Removed], list[Mapping[str, Any]]]:
    """Files to change, the removed ranges, and findings of duplicates that stay because their rows differ."""
    import numpy as np

    duplicate_ranges = finding_ranges(work.repeated)
    repeated = repeated_rows(options, files, duplicate_ranges, row_key, refine) if duplicate_ranges else {}
    rewrites: list[FileRewrite] = []
    removed: list[Removed] = []
    removed_duplicates = 0
    for file in sorted(files, key=lambda one: one.path):
        duplicates = repeated.get(file.path)
        if (duplicates is None or not duplicates.any()) and not any(True for _ in _concerning(file, work.bad)):
            continue
        columns = read_log_columns(options, file)
        columns = columns if refine is None else refine(file, columns)
        to_remove = _rows_to_remove(columns, work.bad, removed)
        if duplicates is not None:
            duplicates &= ~to_remove
            removed_duplicates += int(duplicates.sum())
            removed += removed_rows(columns, duplicates, TableFindingKind.DUPLICATE)
            to_remove |= duplicates
        if to_remove.any():
            rewrites.append(FileRewrite(file, None if to_remove.all() else np.asarray(~to_remove)))
    differing = work.repeated if removed_duplicates < sum(one["rows"] for one in work.repeated) else []
    return rewrites, removed, list(differing)


def _concerning(file: TableFile, bad: Mapping[TopicPartition, Sequence[BadRange]]) -> Iterator[BadRange]:
    only = file.only_partition
    for tp in [only] if only is not None else [tp for tp in bad if file.may_hold(tp)]:
        for one in bad.get(tp, ()):
            if file.may_hold_offsets(one.start, one.end - 1):
                yield one


def _rows_to_remove(
    columns: LogColumns, bad: Mapping[TopicPartition, Sequence[BadRange]], removed: list[Removed]
) -> Mask:
    import numpy as np

    to_remove = np.zeros(len(columns), dtype=np.bool_)
    for code, tp in enumerate(columns.partitions):
        for one in bad.get(tp, ()):
            inside = (columns.codes == code) & (columns.offsets >= one.start) & (columns.offsets < one.end) & ~to_remove
            if one.epoch is not None:
                inside &= columns.epochs == one.epoch
            removed += removed_rows(columns, inside, one.kind)
            to_remove |= inside
    return to_remove
