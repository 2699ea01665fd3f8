"""Which rows of which files a repair takes out.

Owns the step from an audit's findings to masks over files. Files are chosen by their bounds, then four columns of them
are read. Of an offset that has several rows the first is kept, in the order of the files' names. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.ids import TopicPartition
from pyspark_fenceline.audit_judge import Kind
from pyspark_fenceline.delta_change import Removed
from pyspark_fenceline.delta_index import LogColumns
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import TableFile, read_log_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

DOUBTFUL: Final = (Kind.FOREIGN, Kind.INVALID)
"""Rows of which the log says nothing: they only go when that is asked for. So do those of an unknown newer epoch."""


@dataclass(frozen=True, slots=True)
class BadRange:
    """Rows of [start, end) that are to go; of one epoch, where `epoch` is given."""

    kind: Kind
    start: int
    end: int
    epoch: int | None


@dataclass(slots=True)
class Work:
    """What the findings ask for. `left`: findings that a repair leaves as they are."""

    bad: dict[TopicPartition, list[BadRange]] = field(default_factory=dict)
    absent: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    left: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.bad and not self.absent


def work_of(findings: Iterable[Mapping[str, Any]], *, catch_up: bool, doubtful_rows: str) -> Work:
    """`findings`: rows of a report. `catch_up`: also add what the table has not reached yet."""
    work = Work()
    for one in findings:
        kind = Kind(one["kind"])
        start, end, epochs = one["start_offset"], one["end_offset_exclusive"], one["epochs"]
        if kind in (Kind.MISSING, Kind.BEHIND):
            if kind is Kind.MISSING or catch_up:
                work.absent.append((TopicPartition(one["topic"], one["partition"]), start, end))
            continue
        is_doubtful = kind in DOUBTFUL or (kind is Kind.BEYOND and "leader is at epoch" in one["detail"])
        if kind in (Kind.UNREADABLE, Kind.INVALID) or (is_doubtful and doubtful_rows != "delete"):
            work.left.append(one)
        elif kind in (Kind.STALE, Kind.BEYOND, Kind.FOREIGN, Kind.ABORTED, Kind.DUPLICATE):
            epoch = epochs[0] if kind in (Kind.STALE, Kind.BEYOND, Kind.FOREIGN) and epochs else None
            tp = TopicPartition(one["topic"], one["partition"])
            work.bad.setdefault(tp, []).append(BadRange(kind, start, end, epoch))
    return work


@dataclass(frozen=True, slots=True)
class Cut:
    """A file with rows that go. `keep`: which rows stay; None when none does."""

    file: TableFile
    keep: Mask | None


def cuts_of(
    options: DeltaOptions, files: Sequence[TableFile], bad: Mapping[TopicPartition, Sequence[BadRange]]
) -> tuple[list[Cut], list[Removed]]:
    """Files that change, and the ranges that go with them."""
    seen: dict[TopicPartition, Any] = {}
    cuts: list[Cut] = []
    removed: list[Removed] = []
    for file in sorted(files, key=lambda one: one.path):
        if not any(True for _ in _concerning(file, bad)):
            continue
        columns = read_log_columns(options, file)
        gone = _rows_to_go(columns, bad, seen, removed)
        if gone.any():
            cuts.append(Cut(file, None if gone.all() else ~gone))
    return cuts, removed


def _concerning(file: TableFile, bad: Mapping[TopicPartition, Sequence[BadRange]]) -> Iterator[BadRange]:
    only = file.only_partition
    for tp in [only] if only is not None else [tp for tp in bad if file.may_hold(tp)]:
        for one in bad.get(tp, ()):
            if file.may_hold_offsets(one.start, one.end - 1):
                yield one


def _rows_to_go(
    columns: LogColumns,
    bad: Mapping[TopicPartition, Sequence[BadRange]],
    seen: dict[TopicPartition, Any],
    removed: list[Removed],
) -> Mask:
    import numpy as np

    gone = np.zeros(len(columns), dtype=np.bool_)
    for code, tp in enumerate(columns.partitions):
        if tp not in bad:
            continue
        of_partition = columns.codes == code
        for one in sorted(bad[tp], key=lambda each: each.kind is Kind.DUPLICATE):
            inside = of_partition & (columns.offsets >= one.start) & (columns.offsets < one.end) & ~gone
            if one.epoch is not None:
                inside &= columns.epochs == one.epoch
            if one.kind is Kind.DUPLICATE:
                inside = _repeated(columns, inside, tp, seen)
            if not inside.any():
                continue
            gone |= inside
            for epoch in np.unique(columns.epochs[inside]).tolist():
                offsets = columns.offsets[inside & (columns.epochs == epoch)]
                removed.append(
                    Removed(
                        tp.topic, tp.partition, epoch, int(offsets.min()), int(offsets.max()), len(offsets), one.kind
                    )
                )
    return gone


def _repeated(columns: LogColumns, inside: Mask, tp: TopicPartition, seen: dict[TopicPartition, Any]) -> Mask:
    """Rows whose offset came before, in this file or in another one."""
    import numpy as np

    rows = np.flatnonzero(inside)
    offsets = columns.offsets[rows]
    known = seen.get(tp, np.zeros(0, dtype=np.int64))
    first = np.zeros(len(rows), dtype=np.bool_)
    first[np.unique(offsets, return_index=True)[1]] = True
    fresh = first & ~np.isin(offsets, known)
    seen[tp] = np.concatenate((known, offsets[fresh]))
    repeated = np.zeros(len(columns), dtype=np.bool_)
    repeated[rows[~fresh]] = True
    return repeated
