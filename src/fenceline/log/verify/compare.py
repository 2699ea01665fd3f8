"""Compares replicas of one partition: the first offset from which their histories differ (KIP-101).

Owns the comparison of two logs batch by batch: offsets, leader epoch, checksum. Does not compare records: the checksum
covers them. Data above every known high watermark may differ, as it was never acknowledged: the follower's next fetch
truncates it. Reads only; keeps two windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import LOG_SUFFIX, segment_bases, stem
from fenceline.log.verify.findings import LogFinding, LogFindingKind, Report, Severity
from fenceline.log.verify.segment import Rows, SegmentWalk

_CUT_ADVICE: Final = (
    "Records above the high watermark are not committed: the follower truncates them, with a receipt, on its next "
    "fetch."
)
_COMMITTED_ADVICE: Final = (
    "Acknowledged records differ. After an unclean election the new leader's history counts, and the others truncate "
    "theirs when they fetch: see `fenceline losses list`. If both replicas were in sync, stop the node with the "
    "wrong replica and move that directory away."
)
_CONTENT_ADVICE: Final = (
    "Batches with the same offsets and epoch must be identical: one of the replicas was changed outside of the "
    "protocol. Find out which one is right before a node starts from it."
)


_OF_HISTORY: Final = ("base_offset", "last_offset", "leader_epoch")
_OF_CONTENT: Final = (*_OF_HISTORY, "crc")
_OF_A_BATCH: Final = (*_OF_CONTENT, "position")


class BatchAt(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    path: str
    position: int


Progress = Callable[[int], None]


class _Batches:
    """The valid batches of a verified partition directory, up to its end at that time: one after the other, or many at
    once if the other log has the same. Every step raises OSError."""

    def __init__(self, disk: Disk, report: Report, progress: Progress | None = None) -> None:
        self._end_offset = report.end_offset
        self._steps = _rows_of(disk, report, progress)
        self._rows: Rows | None = None
        self._path = ""
        self._at = 0
        self.advance()

    @property
    def current(self) -> BatchAt | None:
        """None at the end."""
        rows, at = self._rows, self._at
        if rows is None:
            return None
        base, last, epoch, crc, position = (rows.value(name, at) for name in _OF_A_BATCH)
        return BatchAt(base, last, epoch, crc, self._path, position) if base < self._end_offset else None

    def advance(self, count: int = 1) -> None:
        self._at += count
        if self._rows is None or self._at >= self._rows.count:
            self._rows, self._path = next(self._steps, (None, ""))
            self._at = 0

    def same_as(self, other: _Batches, columns: Sequence[str]) -> int:
        """A lower bound of the number of identical batches from here on."""
        if self._rows is None or other._rows is None:
            return 0
        mine, theirs = ([log._rows.column(name)[log._at :] for name in columns] for log in (self, other) if log._rows)
        if any(a[0] != b[0] for a, b in zip(mine, theirs, strict=True)):
            return 0
        count = min(len(mine[0]), len(theirs[0]))
        while count and any(a[:count] != b[:count] for a, b in zip(mine, theirs, strict=True)):
            count //= 2
        return count


def _rows_of(disk: Disk, report: Report, progress: Progress | None) -> Iterator[tuple[Rows, str]]:
    due = 0
    for base in segment_bases(disk.listdir(report.path)):
        path = stem(report.path, base) + LOG_SUFFIX
        found = disk.stat(path)
        if found is None:
            continue
        due = max(due, base)
        walk = SegmentWalk(disk, path, end=found.size_bytes, next_offset=due, check_crc=report.damaged)
        reported = 0
        for step in walk:
            if progress is not None:
                progress(walk.position - reported)
                reported = walk.position
            if isinstance(step, Rows):  # a flaw was reported when the log was verified
                yield step, path
        due = max(due, walk.next_offset)


def compare(disk: Disk, one: Report, other: Report, progress: Progress | None = None) -> LogFinding | None:
    """The first difference between two replicas up to the shorter one's end, or None. Raises OSError.

    `progress` is called with the number of further bytes of `other` that were read.
    """
    if one.topic_id is not None and other.topic_id is not None and one.topic_id != other.topic_id:
        return LogFinding(
            LogFindingKind.TOPIC_ID,
            Severity.ERROR,
            other.path,
            -1,
            -1,
            f"belongs to another topic of that name than {one.path}: id {other.topic_id}, not {one.topic_id}",
            "They are not replicas of each other: an older topic was not deleted completely, or directories were "
            "mixed up.",
        )
    start = max(one.start_offset, other.start_offset)
    compacted = one.compacted or other.compacted or one.damaged or other.damaged
    columns = _OF_HISTORY if compacted else _OF_CONTENT
    mine, theirs = _Batches(disk, one), _Batches(disk, other, progress)
    while (left := mine.current) is not None and (right := theirs.current) is not None:
        if (same := mine.same_as(theirs, columns)) > 0:
            mine.advance(same)
            theirs.advance(same)
        elif left.last_offset < start or (left.last_offset < right.base_offset and compacted):
            mine.advance()
        elif right.last_offset < start or (right.last_offset < left.base_offset and compacted):
            theirs.advance()
        elif left.leader_epoch != right.leader_epoch:
            return _divergence(one, other, left, right, max(left.base_offset, right.base_offset, start))
        elif not compacted:
            return _content(one, other, left, right)
        elif left.last_offset <= right.last_offset:
            mine.advance()
        else:
            theirs.advance()
    return None


def _divergence(one: Report, other: Report, left: BatchAt, right: BatchAt, offset: int) -> LogFinding:
    known = [report.high_watermark for report in (one, other) if report.high_watermark is not None]
    committed = not known or offset < max(known)
    lengths = (one.end_offset - offset, other.end_offset - offset)
    watermark = f"; the high watermark is {max(known)}" if known else ""
    return LogFinding(
        LogFindingKind.DIVERGENCE,
        Severity.ERROR if committed else Severity.NOTE,
        right.path,
        right.position,
        offset,
        f"differs from {left.path} (byte {left.position}) from offset {offset} on: epoch {right.leader_epoch} here,"
        f" epoch {left.leader_epoch} there; {lengths[1]} offsets here and {lengths[0]} there are"
        f" after that point{watermark}",
        _COMMITTED_ADVICE if committed else _CUT_ADVICE,
    )


def _content(one: Report, other: Report, left: BatchAt, right: BatchAt) -> LogFinding:
    offset = max(min(left.base_offset, right.base_offset), one.start_offset, other.start_offset)
    return LogFinding(
        LogFindingKind.CONTENT,
        Severity.ERROR,
        right.path,
        right.position,
        offset,
        f"differs from {left.path} (byte {left.position}) at offset {offset} in the same epoch {right.leader_epoch}:"
        f" offsets {right.base_offset}-{right.last_offset} with checksum {right.crc:#010x} here,"
        f" {left.base_offset}-{left.last_offset} with {left.crc:#010x} there",
        _CONTENT_ADVICE,
    )


def reference_of(reports: list[Report]) -> Report:
    """The replica that the others are compared with, as an election would choose: the newest epoch, then the highest
    end."""
    return max(reports, key=lambda report: (report.runs[-1].epoch if report.runs else -1, report.end_offset))
