"""Compares replicas of one partition: the first offset from which on they tell different histories (KIP-101).

Owns the comparison of two logs batch by batch: offsets, leader epoch, checksum. Leaves the records alone: the checksum
stands for them. What lies above every high watermark that is known may differ, since nobody was promised it: the
follower's next fetch cuts it. Reads only; keeps two windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fenceline.log.disk import Disk
from fenceline.log.file_names import LOG_SUFFIX, offset_in, stem
from fenceline.log.verify_findings import Finding, Kind, Report, Severity
from fenceline.log.verify_segment import Flaw, SegmentWalk

_CUT_ADVICE: Final = (
    "Above the high watermark nothing was promised: the follower cuts this off, with a receipt, when it next fetches."
)
_COMMITTED_ADVICE: Final = (
    "Acknowledged records differ. After an unclean election the new leader's history counts, and the others cut theirs"
    " when they fetch: see `fenceline losses list`. If both replicas were in sync, move the wrong one's directory away"
    " while its node is stopped."
)
_CONTENT_ADVICE: Final = (
    "Same offsets of the same epoch must be the same bytes: one of the replicas was changed outside of the protocol."
    " Find out which one is right before a node starts from it."
)


class BatchAt(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    path: str
    position: int


Progress = Callable[[int], None]


def batches_of(disk: Disk, report: Report, progress: Progress | None = None) -> Iterator[BatchAt]:
    """The batches of a verified partition directory that can be believed, up to its end then. Raises OSError."""
    bases = sorted(
        base
        for name in disk.listdir(report.path)
        if (base := offset_in(name, LOG_SUFFIX)) is not None and len(name) == 24
    )
    due = 0
    for base in bases:
        path = stem(report.path, base) + LOG_SUFFIX
        found = disk.stat(path)
        if found is None:
            continue
        due = max(due, base)
        walk = SegmentWalk(disk, path, end=found.size_bytes, next_offset=due, check_crc=report.damaged)
        told = 0
        for step in walk:
            if progress is not None:
                progress(walk.position - told)
                told = walk.position
            if isinstance(step, Flaw):
                continue  # it was said when the log was verified
            rows = zip(
                *(step.column(name) for name in ("base_offset", "last_offset", "leader_epoch", "crc", "position")),
                strict=True,
            )
            for first, last, epoch, crc, position in rows:
                if first >= report.end_offset:
                    return
                yield BatchAt(first, last, epoch, crc, path, position)
        due = max(due, walk.next_offset)


def compare(disk: Disk, one: Report, other: Report, progress: Progress | None = None) -> Finding | None:
    """The first difference between two replicas up to the shorter one's end, or None. Raises OSError.

    `progress` is told how many bytes of `other` more have been read.
    """
    if one.topic_id is not None and other.topic_id is not None and one.topic_id != other.topic_id:
        return Finding(
            Kind.TOPIC_ID,
            Severity.ERROR,
            other.path,
            -1,
            -1,
            f"is of another topic of that name than {one.path}: id {other.topic_id}, not {one.topic_id}",
            "They are no replicas of each other: an older topic was not cleaned away, or directories were mixed up.",
        )
    start = max(one.start_offset, other.start_offset)
    end = min(one.end_offset, other.end_offset)
    compacted = one.compacted or other.compacted or one.damaged or other.damaged
    mine, theirs = batches_of(disk, one), batches_of(disk, other, progress)
    left, right = next(mine, None), next(theirs, None)
    while left is not None and right is not None and max(left.base_offset, right.base_offset) < end:
        if left.last_offset < start or (left.last_offset < right.base_offset and compacted):
            left = next(mine, None)
            continue
        if right.last_offset < start or (right.last_offset < left.base_offset and compacted):
            right = next(theirs, None)
            continue
        if left.leader_epoch != right.leader_epoch:
            return _divergence(one, other, left, right, max(left.base_offset, right.base_offset, start))
        if compacted:
            if left.last_offset <= right.last_offset:
                left = next(mine, None)
            else:
                right = next(theirs, None)
            continue
        if left[:2] != right[:2] or left.crc != right.crc:
            return _content(one, other, left, right)
        left, right = next(mine, None), next(theirs, None)
    return None


def _divergence(one: Report, other: Report, left: BatchAt, right: BatchAt, offset: int) -> Finding:
    known = [report.high_watermark for report in (one, other) if report.high_watermark is not None]
    committed = not known or offset < max(known)
    behind = (one.end_offset - offset, other.end_offset - offset)
    watermark = f"; the high watermark is {max(known)}" if known else ""
    return Finding(
        Kind.DIVERGENCE,
        Severity.ERROR if committed else Severity.NOTE,
        right.path,
        right.position,
        offset,
        f"differs from {left.path} (byte {left.position}) from offset {offset} on: epoch {right.leader_epoch} here,"
        f" epoch {left.leader_epoch} there; {behind[1]} offsets here and {behind[0]} there are"
        f" behind that point{watermark}",
        _COMMITTED_ADVICE if committed else _CUT_ADVICE,
    )


def _content(one: Report, other: Report, left: BatchAt, right: BatchAt) -> Finding:
    offset = max(min(left.base_offset, right.base_offset), one.start_offset, other.start_offset)
    return Finding(
        Kind.CONTENT,
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
    """The replica that the others are compared with: as an election would have it, the newest epoch, then the end."""
    return max(reports, key=lambda report: (report.runs[-1].epoch if report.runs else -1, report.end_offset))
