"""Set operations on ranges of offsets [start, end). Pure; never single rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]

Range = tuple[int, int]


def clip(firsts: Offsets, ends: Offsets, low: int, high: int) -> tuple[Offsets, Offsets]:
    """The parts of ranges that lie in [low, high)."""
    import numpy as np

    if low >= high:
        return firsts[:0], ends[:0]
    starts, stops = np.maximum(firsts, low), np.minimum(ends, high)
    left = starts < stops
    return starts[left], stops[left]


def joined(starts: Offsets, stops: Offsets) -> list[tuple[int, int]]:
    """Ranges in ascending order, adjacent ones merged. Ranges that overlap stay apart."""
    import numpy as np

    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks - 1, [len(starts) - 1]))
    return list(zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True))


def merged(ranges: Iterable[Range], near: int = 0) -> list[Range]:
    """In ascending order, those that overlap or are at most `near` offsets apart as one. Empty ones are left out."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if found and start - found[-1][1] <= near:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def coverage(ranges: Sequence[tuple[Offsets, Offsets]]) -> tuple[Offsets, Offsets, Offsets]:
    """Ranges between which the number of covering ranges changes: starts, ends, counts."""
    import numpy as np

    starts = np.concatenate([one[0] for one in ranges]) if ranges else np.zeros(0, dtype=np.int64)
    stops = np.concatenate([one[1] for one in ranges]) if ranges else starts
    points, inverse = np.unique(np.concatenate((starts, stops)), return_inverse=True)
    steps = np.bincount(inverse, np.concatenate((np.ones(len(starts)), -np.ones(len(stops)))), len(points))
    # Where as many ranges end as begin, the count stays the same.
    points, steps = points[steps != 0], steps[steps != 0]
    counts = np.cumsum(steps).astype(np.int64)
    return points[:-1], points[1:], counts[:-1]


def covered(ranges: Sequence[tuple[Offsets, Offsets]]) -> list[tuple[int, int]]:
    starts, stops, counts = coverage(ranges)
    return joined(starts[counts > 0], stops[counts > 0])


def gaps(ranges: Sequence[tuple[Offsets, Offsets]], start: int, end: int) -> list[tuple[int, int]]:
    return outside(covered(ranges), start, end)


def outside(ranges: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that no range covers."""
    left: list[tuple[int, int]] = []
    position = start
    for first, stop in sorted(ranges):
        if first > position and position < end:
            left.append((position, min(first, end)))
        position = max(position, stop)
    if position < end:
        left.append((position, end))
    return left


def common(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intersection. Both in ascending order, without overlaps."""
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


def runs_in(offsets: Offsets) -> list[Range]:
    """Offsets, in any order and with duplicates, as ranges in ascending order."""
    import numpy as np

    found = offsets if bool(np.all(np.diff(offsets) >= 0)) else np.sort(offsets)
    found = found[np.concatenate(([True], np.diff(found) > 0))] if len(found) else found
    return joined(found, found + 1)
