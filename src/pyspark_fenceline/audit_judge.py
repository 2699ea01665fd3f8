"""What is wrong with one stretch of a table, given its runs and the log.

Owns the second step of an audit: runs of one bucket against the log's epochs (`log_matching`) and, where the table has
holes, against the log's batches. Ranges are computed with, never single rows. Talks to brokers only through the `find`
that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_fenceline.audit_log import Found
from pyspark_fenceline.log_matching import AFTER_ALL, BEFORE_ALL, LogView, held_interval

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]


class Kind(StrEnum):
    """What a range of offsets is found to be."""

    STALE = "stale"
    """Rows that the log does not hold any more: it was truncated there."""
    BEYOND = "beyond"
    """Rows above the end of the log, or of an epoch that it does not know: not proved to be lost, but not in it."""
    DUPLICATE = "duplicate"
    """Offsets that are in more than one row. `rows`: how many of them are too many."""
    MISSING = "missing"
    """Records of the log that no row has, before the last one that the table has."""
    BEHIND = "behind"
    """Records of the log after the last one that the table has."""
    ABORTED = "aborted"
    """Rows of aborted transactions, in a table that is to hold committed ones only."""
    FOREIGN = "foreign"
    """Rows of a topic or partition that the cluster does not have, or that is not asked for."""
    INVALID = "invalid"
    """Rows without topic, partition or offset."""
    UNREADABLE = "unreadable"
    """Batches of the log with a wrong checksum where the table has no rows: what is missing can not be told."""
    EXPIRED = "expired"
    """Below the log's start. `rows`: how many the table has there; with 0 they are in neither."""
    COMPACTED = "compacted"
    """Rows whose records compaction has taken out of the log since."""
    UNPROVEN = "unproven"
    """Rows that have no epoch, or of which the log does not know its own any more."""


FAULTS = frozenset(
    {
        Kind.STALE,
        Kind.BEYOND,
        Kind.DUPLICATE,
        Kind.MISSING,
        Kind.ABORTED,
        Kind.FOREIGN,
        Kind.INVALID,
        Kind.UNREADABLE,
    }
)
"""Kinds in which the table differs from the log."""


class Finding(NamedTuple):
    """One range of offsets [start_offset, end_offset_exclusive) of a partition."""

    kind: Kind
    start_offset: int
    end_offset_exclusive: int
    rows: int
    epochs: tuple[int, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the table is to hold of one partition.

    `readable_end`: high watermark or last stable offset. `from_offset`: below it nothing is missing. `rows_end`: behind
    the last row of the table that is in the log. `everything`: look at the whole log, not only where rows are missing.
    """

    view: LogView
    readable_end: int
    from_offset: int = 0
    rows_end: int = 0
    everything: bool = False
    committed_only: bool = False


Find = Callable[[Sequence[tuple[int, int]], str], Found]
"""`find(ranges, isolation_level)`: where the log has records."""


def judge(
    expected: Expected,
    bucket: tuple[int, int],
    firsts: Offsets,
    ends: Offsets,
    epochs: Offsets,
    find: Find,
) -> list[Finding]:
    """Findings about the offsets of `bucket`, [start, end). `firsts`, `ends`, `epochs`: the table's runs in it."""
    view = expected.view
    findings: list[Finding] = []
    held: list[tuple[Offsets, Offsets]] = []
    expired: list[tuple[Offsets, Offsets]] = []
    for epoch, own_firsts, own_ends in _by_epoch(firsts, ends, epochs):

        def note(kind: Kind, low: int, high: int, detail: str = "", *, epoch: int = epoch) -> None:
            starts, stops = _clip(own_firsts, own_ends, low, high)  # noqa: B023 - called in this round only
            for start, stop in _joined(starts, stops):
                findings.append(Finding(kind, start, stop, stop - start, (epoch,), detail))

        if 0 <= view.leader_epoch < epoch:
            note(Kind.BEYOND, BEFORE_ALL, AFTER_ALL, f"the log's leader is at epoch {view.leader_epoch}")
            continue
        low, high = held_interval(view, epoch)
        detail = _instead(view)
        note(Kind.STALE, BEFORE_ALL, low, detail)
        note(Kind.STALE, max(low, high), AFTER_ALL, detail)
        note(Kind.BEYOND, max(low, view.end_offset), high, f"the log ends at {view.end_offset}")
        note(Kind.EXPIRED, low, min(high, view.start_offset), f"the log starts at {view.start_offset}")
        expired.append(_clip(own_firsts, own_ends, low, min(high, view.start_offset)))
        inside = max(low, view.start_offset), min(high, view.end_offset)
        known_from = view.epochs[0].offset if view.epochs and epoch >= 0 else AFTER_ALL
        note(Kind.UNPROVEN, inside[0], min(inside[1], known_from), _why_unproven(view, epoch))
        held.append(_clip(own_firsts, own_ends, *inside))
    findings += _duplicates([*held, *expired])
    start, end = bucket
    lost = _gaps(expired, max(start, expected.from_offset), min(end, view.start_offset))
    findings += [
        Finding(Kind.EXPIRED, a, b, 0, (), f"the log starts at {view.start_offset}, and the table has no rows there")
        for a, b in lost
    ]
    wanted = max(start, view.start_offset, expected.from_offset), min(end, expected.readable_end)
    findings += _against_the_log(expected, wanted, held, find)
    return sorted(findings, key=lambda one: (one.start_offset, one.kind))


def _against_the_log(
    expected: Expected, wanted: tuple[int, int], held: Sequence[tuple[Offsets, Offsets]], find: Find
) -> list[Finding]:
    """What the log has and the table has not, and where everything is looked at, the other way round."""
    start, end = wanted
    if start >= end:
        return []
    level = "read_committed" if expected.committed_only else "read_uncommitted"
    gaps = _gaps(held, start, end)
    looked_at = [(start, end)] if expected.everything else gaps
    if not looked_at:
        return []
    found = find(looked_at, level)
    findings: list[Finding] = []
    unreadable = _cut(found.unreadable, gaps)
    findings += [
        Finding(Kind.UNREADABLE, a, b, 0, (), "a batch of the log has a wrong checksum") for a, b in unreadable
    ]
    for a, b in _cut(found.present, gaps):
        middle = min(max(a, expected.rows_end), b)
        if a < middle:
            findings.append(Finding(Kind.MISSING, a, middle, middle - a, _epochs_between(expected.view, a, middle)))
        if middle < b:
            findings.append(Finding(Kind.BEHIND, middle, b, b - middle, _epochs_between(expected.view, middle, b)))
    if expected.everything:
        findings += _not_in_batches(expected, wanted, held, found, find)
    return findings


def _not_in_batches(
    expected: Expected,
    wanted: tuple[int, int],
    held: Sequence[tuple[Offsets, Offsets]],
    found: Found,
    find: Find,
) -> list[Finding]:
    """Rows of the right epoch at offsets where the log has no record (for this reader)."""
    without = _outside([*found.present, *found.unreadable], *wanted)
    rows = _cut(_covered(held), without)
    if not rows:
        return []
    # Who reads uncommitted records too sees those of aborted transactions; what nobody sees was compacted away.
    aborted = find(rows, "read_uncommitted").present if expected.committed_only else []
    of_aborted = _cut(rows, aborted)
    findings = [Finding(Kind.ABORTED, a, b, b - a, _epochs_between(expected.view, a, b)) for a, b in of_aborted]
    for a, b in rows:
        for c, d in _outside(of_aborted, a, b):
            findings.append(Finding(Kind.COMPACTED, c, d, d - c, _epochs_between(expected.view, c, d)))
    return findings


# Ranges ---------------------------------------------------------------------------------------------------------------


def _by_epoch(firsts: Offsets, ends: Offsets, epochs: Offsets) -> Iterable[tuple[int, Offsets, Offsets]]:
    import numpy as np

    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        yield epoch, firsts[own], ends[own]


def _clip(firsts: Offsets, ends: Offsets, low: int, high: int) -> tuple[Offsets, Offsets]:
    """The parts of ranges that lie in [low, high)."""
    import numpy as np

    if low >= high:
        return firsts[:0], ends[:0]
    starts, stops = np.maximum(firsts, low), np.minimum(ends, high)
    left = starts < stops
    return starts[left], stops[left]


def _joined(starts: Offsets, stops: Offsets) -> list[tuple[int, int]]:
    """Ranges in rising order, those that touch each other as one. Ranges that overlap stay apart."""
    import numpy as np

    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks - 1, [len(starts) - 1]))
    return list(zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True))


def _coverage(ranges: Sequence[tuple[Offsets, Offsets]]) -> tuple[Offsets, Offsets, Offsets]:
    """Ranges between which the number of covering ranges changes: starts, ends, counts."""
    import numpy as np

    starts = np.concatenate([one[0] for one in ranges]) if ranges else np.zeros(0, dtype=np.int64)
    stops = np.concatenate([one[1] for one in ranges]) if ranges else starts
    points, inverse = np.unique(np.concatenate((starts, stops)), return_inverse=True)
    steps = np.bincount(inverse, np.concatenate((np.ones(len(starts)), -np.ones(len(stops)))), len(points))
    counts = np.cumsum(steps).astype(np.int64)
    return points[:-1], points[1:], counts[:-1]


def _covered(ranges: Sequence[tuple[Offsets, Offsets]]) -> list[tuple[int, int]]:
    starts, stops, counts = _coverage(ranges)
    return _joined(starts[counts > 0], stops[counts > 0])


def _duplicates(ranges: Sequence[tuple[Offsets, Offsets]]) -> list[Finding]:
    starts, stops, counts = _coverage(ranges)
    twice = counts > 1
    return [
        Finding(Kind.DUPLICATE, start, stop, (stop - start) * (count - 1), (), f"{count} rows an offset")
        for start, stop, count in zip(
            starts[twice].tolist(), stops[twice].tolist(), counts[twice].tolist(), strict=True
        )
    ]


def _gaps(ranges: Sequence[tuple[Offsets, Offsets]], start: int, end: int) -> list[tuple[int, int]]:
    return _outside(_covered(ranges), start, end)


def _outside(ranges: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """What of [start, end) none of the ranges has."""
    left: list[tuple[int, int]] = []
    position = start
    for first, stop in sorted(ranges):
        if first > position and position < end:
            left.append((position, min(first, end)))
        position = max(position, stop)
    if position < end:
        left.append((position, end))
    return left


def _cut(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What both have. Both in rising order, without overlaps."""
    both: list[tuple[int, int]] = []
    at = 0
    for start, end in ranges:
        while at < len(others) and others[at][1] <= start:
            at += 1
        number = at
        while number < len(others) and others[number][0] < end:
            both.append((max(start, others[number][0]), min(end, others[number][1])))
            number += 1
    return both


# Words ----------------------------------------------------------------------------------------------------------------


def _epochs_between(view: LogView, start: int, end: int) -> tuple[int, ...]:
    known = [one.epoch for one in view.epochs if start < one.offset < end]
    first = view.epoch_at(start)
    return tuple(known) if first < 0 else (first, *known)


def _instead(view: LogView) -> str:
    shown = ", ".join(f"{one.epoch} from {one.offset}" for one in view.epochs[-4:])
    return f"epochs of the log: {shown}; it ends at {view.end_offset}" if shown else f"it ends at {view.end_offset}"


def _why_unproven(view: LogView, epoch: int) -> str:
    if epoch < 0:
        return "the rows have no epoch"
    return "the brokers keep no epochs" if view.leader_epoch < 0 else "the log's epochs there are not known"


def as_columns(findings: Iterable[tuple[Any, Any, Finding]]) -> dict[str, list[Any]]:
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
