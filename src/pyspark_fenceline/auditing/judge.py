"""The findings about one bucket of a table's offsets, given its runs and the log.

Owns the second step of an audit: compares the runs of one bucket with the log's epochs (`log_matching`) and, where the
table has gaps, with the log's batches. Works on ranges, never on single rows. Talks to brokers only through the given
`find`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark_fenceline.auditing.log import RecordRanges
from pyspark_fenceline.auditing.ranges import clip, common, coverage, covered, gaps, joined, outside
from pyspark_fenceline.auditing.runs import NOT_IN_LOG, SAME_VALUES
from pyspark_fenceline.common.log_matching import AFTER_ALL, BEFORE_ALL, LogEpochs, held_interval, proven_without_epoch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]


class TableFindingKind(StrEnum):
    """The kinds of findings."""

    STALE = "stale"
    """Rows that the log does not hold: it was truncated there. Without `epochs`: proven by their values."""
    BEYOND = "beyond"
    """Rows above the end of the log: they are from another cluster, or the log was truncated since."""
    NEWER = "newer"
    """Rows of an epoch that the log's leader does not know: of another cluster, or the leader was deposed."""
    DUPLICATE = "duplicate"
    """Offsets that are in more than one row. `rows`: the number of surplus rows."""
    MISSING = "missing"
    """Records of the log without a row, before the last record that the table has."""
    BEHIND = "behind"
    """Records of the log after the last one that the table has."""
    ABORTED = "aborted"
    """Rows of aborted transactions, in a table that should hold committed records only."""
    UNDECIDED = "undecided"
    """Rows of transactions that are still open, or behind one, in a table that should hold committed records only."""
    FOREIGN = "foreign"
    """Rows of a topic or partition that the cluster does not have."""
    INVALID = "invalid"
    """Rows without topic, partition or offset."""
    UNREADABLE = "unreadable"
    """Batches of the log with a wrong checksum where the table has no rows: what is missing is unknown."""
    EXPIRED = "expired"
    """Below the log's start. `rows`: how many the table has there; with 0 they are in neither."""
    COMPACTED = "compacted"
    """Rows whose records compaction has removed from the log since."""
    UNPROVEN = "unproven"
    """Rows without an epoch, or at offsets whose epochs in the log are unknown."""
    DELETED = "deleted"
    """Records of the log whose rows an entry of the table's own log removed, or that the caller named as deleted."""


FAULTS = frozenset(
    {
        TableFindingKind.STALE,
        TableFindingKind.BEYOND,
        TableFindingKind.NEWER,
        TableFindingKind.DUPLICATE,
        TableFindingKind.MISSING,
        TableFindingKind.ABORTED,
        TableFindingKind.FOREIGN,
        TableFindingKind.INVALID,
        TableFindingKind.UNREADABLE,
    }
)
"""Kinds that are differences between table and log."""


class TableFinding(NamedTuple):
    """One range of offsets [start_offset, end_offset_exclusive) of a partition."""

    kind: TableFindingKind
    start_offset: int
    end_offset_exclusive: int
    rows: int
    epochs: tuple[int, ...]
    detail: str = ""


class LostRecords(NamedTuple):
    """Offsets [start_offset, end_offset_exclusive) that a replica lost, according to a loss receipt. `epochs`: of the
    lost records, empty if unknown. `description`: the receipt as text.
    """

    start_offset: int
    end_offset_exclusive: int
    epochs: tuple[int, ...]
    description: str


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """What the table should hold of one partition.

    `readable_end`: high watermark or last stable offset. `from_offset`: below it nothing is missing. `rows_end`: end of
    the table's rows that are in the log. `everything`: read the complete log, not only where rows are missing. `lost`:
    losses of the partition by loss receipts. `is_replaced`: a topic of this name was deleted, and rows without an epoch
    may be from it.
    """

    log: LogEpochs
    readable_end: int
    from_offset: int = 0
    rows_end: int = 0
    everything: bool = False
    committed_only: bool = False
    lost: tuple[LostRecords, ...] = ()
    is_replaced: bool = False


Find = Callable[[Sequence[tuple[int, int]], str], RecordRanges]
"""`find(ranges, isolation_level)` returns where the log has records."""


def judge(
    expected: ExpectedRows,
    bucket: tuple[int, int],
    firsts: Offsets,
    ends: Offsets,
    row_epochs: Offsets,
    find: Find,
) -> list[TableFinding]:
    """Findings about the offsets of `bucket`, [start, end). `firsts`, `ends`, `row_epochs`: the table's runs in it."""
    log = expected.log
    findings: list[TableFinding] = []
    held: list[tuple[Offsets, Offsets]] = []
    expired: list[tuple[Offsets, Offsets]] = []
    for epoch, own_firsts, own_ends in _by_epoch(firsts, ends, row_epochs):

        def note(kind: TableFindingKind, low: int, high: int, detail: str = "", *, epoch: int = epoch) -> None:
            starts, stops = clip(own_firsts, own_ends, low, high)  # noqa: B023 - called in this round only
            for start, stop in joined(starts, stops):
                epochs = () if epoch == NOT_IN_LOG else (epoch,)
                findings.append(TableFinding(kind, start, stop, stop - start, epochs, detail))

        if epoch == NOT_IN_LOG:
            note(TableFindingKind.STALE, BEFORE_ALL, AFTER_ALL, "the log's record at this offset has other values")
            continue
        if 0 <= log.leader_epoch < epoch:
            note(TableFindingKind.NEWER, BEFORE_ALL, AFTER_ALL, f"the log's leader is at epoch {log.leader_epoch}")
            continue
        low, high = held_interval(log, epoch)
        detail = _epochs_detail(log)
        note(TableFindingKind.STALE, BEFORE_ALL, low, detail)
        note(TableFindingKind.STALE, max(low, high), AFTER_ALL, detail)
        note(TableFindingKind.BEYOND, max(low, log.end_offset), high, f"the log ends at {log.end_offset}")
        note(TableFindingKind.EXPIRED, low, min(high, log.start_offset), f"the log starts at {log.start_offset}")
        expired.append(clip(own_firsts, own_ends, low, min(high, log.start_offset)))
        if expected.committed_only:
            detail = f"the last stable offset is {expected.readable_end}: a transaction from there on is still open"
            note(TableFindingKind.UNDECIDED, max(low, expected.readable_end), min(high, log.end_offset), detail)
        inside = max(low, log.start_offset), min(high, log.end_offset)
        for low, high in _unproven(expected, epoch, *inside):
            for start, stop, why in _by_receipt(expected.lost, epoch, low, high):
                note(TableFindingKind.UNPROVEN, start, stop, "; ".join((_why_unproven(log, epoch), *why)))
        held.append(clip(own_firsts, own_ends, *inside))
    findings += _duplicates([*held, *expired])
    start, end = bucket
    lost = gaps(expired, max(start, expected.from_offset), min(end, log.start_offset))
    findings += [
        TableFinding(
            TableFindingKind.EXPIRED,
            a,
            b,
            0,
            (),
            f"the log starts at {log.start_offset}, and the table has no rows there",
        )
        for a, b in lost
    ]
    wanted = max(start, log.start_offset, expected.from_offset), min(end, expected.readable_end)
    findings += _compare_with_log(expected, wanted, held, find)
    return sorted(findings, key=lambda one: (one.start_offset, one.kind))


def _unproven(expected: ExpectedRows, epoch: int, low: int, high: int) -> list[tuple[int, int]]:
    """Where in [low, high) nothing proves that a row of this epoch is the log's record."""
    log = expected.log
    if epoch == SAME_VALUES:
        return []
    if epoch < 0:
        return outside([] if expected.is_replaced else [proven_without_epoch(log)], low, high)
    known_from = log.epochs[0].offset if log.epochs else AFTER_ALL
    return [(low, min(high, known_from))]


def _by_receipt(
    lost: Sequence[LostRecords], epoch: int, low: int, high: int
) -> Iterable[tuple[int, int, tuple[str, ...]]]:
    """[low, high) in pieces, each with the receipts that name records of this epoch (-1: of any) in it."""
    concerned = [one for one in lost if epoch < 0 or not one.epochs or epoch in one.epochs]
    edges = {edge for one in concerned for edge in one[:2] if low < edge < high}
    points = [low, *sorted(edges), high]
    for start, stop in itertools.pairwise(points):
        if start < stop:
            receipts = [
                one.description for one in concerned if one.start_offset <= start and stop <= one.end_offset_exclusive
            ]
            yield start, stop, tuple(f"records at these offsets were lost: {each}" for each in receipts)


def _compare_with_log(
    expected: ExpectedRows, wanted: tuple[int, int], held: Sequence[tuple[Offsets, Offsets]], find: Find
) -> list[TableFinding]:
    """Records that the table lacks and, if the complete log is read, rows without a record."""
    start, end = wanted
    if start >= end:
        return []
    level = "read_committed" if expected.committed_only else "read_uncommitted"
    holes = gaps(held, start, end)
    looked_at = [(start, end)] if expected.everything else holes
    if not looked_at:
        return []
    found = find(looked_at, level)
    findings: list[TableFinding] = []
    unreadable = common(found.unreadable, holes)
    findings += [
        TableFinding(TableFindingKind.UNREADABLE, a, b, 0, (), "a batch of the log has a wrong checksum")
        for a, b in unreadable
    ]
    for a, b in common(found.present, holes):
        middle = min(max(a, expected.rows_end), b)
        if a < middle:
            findings.append(
                TableFinding(TableFindingKind.MISSING, a, middle, middle - a, _epochs_between(expected.log, a, middle))
            )
        if middle < b:
            findings.append(
                TableFinding(TableFindingKind.BEHIND, middle, b, b - middle, _epochs_between(expected.log, middle, b))
            )
    if expected.everything:
        findings += _not_in_batches(expected, wanted, held, found, find)
    return findings


def _not_in_batches(
    expected: ExpectedRows,
    wanted: tuple[int, int],
    held: Sequence[tuple[Offsets, Offsets]],
    found: RecordRanges,
    find: Find,
) -> list[TableFinding]:
    """Rows of the right epoch at offsets where the log has no record (for this reader)."""
    without = outside([*found.present, *found.unreadable], *wanted)
    rows = common(covered(held), without)
    if not rows:
        return []
    # read_uncommitted also returns records of aborted transactions; what it does not return was compacted away.
    aborted = find(rows, "read_uncommitted").present if expected.committed_only else []
    of_aborted = common(rows, aborted)
    findings = [
        TableFinding(TableFindingKind.ABORTED, a, b, b - a, _epochs_between(expected.log, a, b)) for a, b in of_aborted
    ]
    for a, b in rows:
        for c, d in outside(of_aborted, a, b):
            findings.append(TableFinding(TableFindingKind.COMPACTED, c, d, d - c, _epochs_between(expected.log, c, d)))
    return findings


def _by_epoch(firsts: Offsets, ends: Offsets, epochs: Offsets) -> Iterable[tuple[int, Offsets, Offsets]]:
    import numpy as np

    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        yield epoch, firsts[own], ends[own]


def _duplicates(ranges: Sequence[tuple[Offsets, Offsets]]) -> list[TableFinding]:
    starts, stops, counts = coverage(ranges)
    twice = counts > 1
    return [
        TableFinding(
            TableFindingKind.DUPLICATE, start, stop, (stop - start) * (count - 1), (), f"{count} rows an offset"
        )
        for start, stop, count in zip(
            starts[twice].tolist(), stops[twice].tolist(), counts[twice].tolist(), strict=True
        )
    ]


ORDER: Final = (
    ("topic", "ascending"),
    ("partition", "ascending"),
    ("start_offset", "ascending"),
    ("kind", "ascending"),
)
"""Of the findings in a report."""


# Details --------------------------------------------------------------------------------------------------------------


def _epochs_between(log: LogEpochs, start: int, end: int) -> tuple[int, ...]:
    known = [one.epoch for one in log.epochs if start < one.offset < end]
    first = log.epoch_at(start)
    return tuple(known) if first < 0 else (first, *known)


def _epochs_detail(log: LogEpochs) -> str:
    shown = ", ".join(f"{one.epoch} from {one.offset}" for one in log.epochs[-4:])
    return f"epochs of the log: {shown}; it ends at {log.end_offset}" if shown else f"it ends at {log.end_offset}"


def _why_unproven(log: LogEpochs, epoch: int) -> str:
    if epoch < 0:
        return "the rows have no epoch"
    return "the brokers keep no epochs" if log.leader_epoch < 0 else "the log's epochs at these offsets are unknown"


def as_columns(findings: Iterable[tuple[Any, Any, TableFinding]]) -> dict[str, list[Any]]:
    """Findings of (topic, partition) as the columns of a report."""
    rows = list(findings)
    return {
        "topic": [topic for topic, _, _ in rows],
        "partition": [partition for _, partition, _ in rows],
        "kind": [str(one.kind) for _, _, one in rows],
        "start_offset": [one.start_offset for _, _, one in rows],
        "end_offset_exclusive": [one.end_offset_exclusive for _, _, one in rows],
        "rows": [one.rows for _, _, one in rows],
        "epochs": [list(one.epochs) for _, _, one in rows],
        "detail": [one.detail for _, _, one in rows],
    }
