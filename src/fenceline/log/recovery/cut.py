"""Truncation by recovery: whether a log may be cut, and where the cut bytes go.

Owns the order: the note first (`recovery.note`), then the evidence, then the cut. No other part of recovery removes
records. Never cuts data that was safe on the disk, below the recovery point or after a clean shutdown: that is
`CorruptLog`. Cut bytes go into the partition's `lost+found`, except the torn end of one write with no complete batch
after it. A log that is fsynced before it counts (`only_torn`) is not cut before a complete batch, which may have been
acknowledged, unless `before_cut` allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fenceline.errors import OperatorError
from fenceline.log.core.compaction_bound import forget_bounds, lower_bound
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.core.lost_and_found import EVIDENCE_DIR, INTENDED_SUFFIX, evidence_in, keep_file, keep_tail
from fenceline.log.core.lost_batches import LostBatches, LostPiece, count_lost
from fenceline.log.core.scan import SEARCH_BYTES, BadBatch, next_complete_batch
from fenceline.log.core.segment import Segment
from fenceline.log.recovery.note import RecoveryNote, write_note


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a log. `evidence`: the files that now hold the cut bytes."""

    clean: bool
    scanned_bytes: int = 0
    torn_bytes: int = 0
    """The torn end of one write, with no complete batch after it."""
    cut_bytes: int = 0
    """All other bytes that were removed from the log."""
    reason: str = ""
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a directory is opened: see `recovery.load`."""

    disk: Disk
    directory: str
    config: LogConfig
    recovery_point: int
    clean: bool
    now_ms: int
    knows_gaps: bool
    only_torn: bool
    before_cut: Callable[[CorruptLog], None] | None
    read_only: bool
    was_truncated: bool


class Cutting:
    """Truncation of one log while it is opened; `report` holds the result.

    If it is opened read-only, the log ends in memory where it would be cut, and the disk stays unchanged.
    """

    def __init__(self, opening: Opening, report: RecoveryReport) -> None:
        self._given = opening
        self._disk = opening.disk
        self._directory = opening.directory
        self._report = report

    def cut(self, segments: list[Segment], number: int, end: int, bad: BadBatch) -> None:
        """End the log at offset `end`, inside segment `number`: keep the evidence, drop the rest.

        Raises CorruptLog, OperatorError, OSError, whatever `before_cut` raises.
        """
        segment = segments[number]
        if self._given.clean or end < self._given.recovery_point:
            below = f"below the recovery point {self._given.recovery_point}"
            known = "after a clean shutdown" if self._given.clean else below
            raise CorruptLog(
                segment.path,
                bad.position,
                f"{bad.reason} (offset {end}, {known}: these bytes had been safe on the disk)",
                restore_advice("partition"),
            )
        following = segments[number + 1 :]
        batch_follows = any(later.size_bytes for later in following) or _complete_batch_follows(segment, bad.position)
        if self._given.only_torn and batch_follows:
            damage = CorruptLog(
                segment.path,
                bad.position,
                f"{bad.reason}, and complete batches follow (offset {end})",
                restore_advice("partition"),
            )
            if self._given.before_cut is None:
                raise damage
            self._given.before_cut(damage)
        if self._given.read_only:
            del segments[number + 1 :]
            segment.size_bytes, segment.sealed = bad.position, False
            return
        report = self._report
        report.reason = f"{segment.path}: at byte {bad.position}: {bad.reason}"
        found = self._disk.stat(segment.path)
        tail_bytes = (found.size_bytes if found is not None else bad.position) - bad.position
        if not self._given.only_torn:
            pieces = [LostPiece(segment.path, bad.position, bad.position + tail_bytes)]
            pieces += [LostPiece(later.path, 0, later.size_bytes) for later in following]
            lost = count_lost(self._disk, pieces, start_offset=end)
            torn = bad.torn and not batch_follows
            others = tuple(evidence_in(self._disk, self._directory))
            write_note(self._disk, self._directory, RecoveryNote(lost, report.reason, torn, self._given.now_ms, others))
        if bad.torn and not batch_follows:
            report.torn_bytes += tail_bytes
        elif tail_bytes:
            report.cut_bytes += tail_bytes
            kept = keep_tail(self._disk, self._directory, segment.path, bad.position)
            if self._given.only_torn and batch_follows and not kept:
                raise OperatorError(
                    f"{segment.path}: the bytes from position {bad.position} on cannot be moved to {EVIDENCE_DIR}, "
                    "so the log was not truncated.",
                    "Free disk space and check that the disk is healthy; then start the node again.",
                )
            report.evidence += kept
        moved: list[str] = []
        # Last to first: after a crash the rest is cut at the same place, with the same note.
        for later in reversed(following):
            report.cut_bytes += later.size_bytes
            moved[:0] = keep_file(self._disk, self._directory, later.path)
            later.delete_index_files()
        report.evidence += moved
        del segments[number + 1 :]
        fd = self._disk.open_append(segment.path)
        try:
            self._disk.truncate(fd, bad.position)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        lower_bound(self._disk, self._directory, end)
        self._disk.fsync_dir(self._directory)
        segment.size_bytes = bad.position
        segment.sealed = False
        segment.indexes_saved = False

    def empty(self, segments: list[Segment], end: int, log_start_offset: int) -> None:
        """The log ends below its log start: records were deleted further than what survived a crash. The surviving
        records were deleted as well, so they must not be served again; the note records this. Raises OSError."""
        if self._given.read_only:
            segments.clear()
            return
        report, first = self._report, segments[0]
        report.reason = f"{first.path}: the log ends at offset {end}, below its log start {log_start_offset}"
        if not self._given.only_torn:
            pieces = [LostPiece(segment.path, 0, segment.size_bytes) for segment in segments if segment.size_bytes]
            if pieces:
                lost = count_lost(self._disk, pieces, start_offset=first.base_offset)
                others = tuple(evidence_in(self._disk, self._directory))
                note = RecoveryNote(lost, report.reason, False, self._given.now_ms, others, log_start_offset)
                write_note(self._disk, self._directory, note)
        # Last to first: what a crash leaves is still a log.
        for segment in reversed(segments):
            report.cut_bytes += segment.size_bytes
            report.evidence[:0] = keep_file(self._disk, self._directory, segment.path)
            segment.delete_index_files()
        forget_bounds(self._disk, self._directory)
        segments.clear()

    def note_missing_end(self, end: int, known_end: int) -> None:
        """The files end at offset `end`, but complete records up to `known_end` were safe and committed: a file or its
        end is lost without a trace. Raises CorruptLog after a clean shutdown, OSError."""
        reason = f"the log ends at offset {end}, but the records up to {known_end} had been safe on the disk"
        if self._given.clean:
            raise CorruptLog(self._directory, 0, f"{reason}, after a clean shutdown", restore_advice("partition"))
        if self._given.read_only:
            return
        names = tuple(evidence_in(self._disk, self._directory))
        if any(name.endswith(INTENDED_SUFFIX) for name in names):
            return  # a truncation was in progress; it is examined and reported
        lost = LostBatches(end, known_end, known_end - end, 0, ())
        self._report.reason = self._report.reason or f"{self._directory}: {reason}"
        note = RecoveryNote(lost, f"{self._directory}: {reason}", False, self._given.now_ms, names, is_missing=True)
        write_note(self._disk, self._directory, note)

    def note_missing_start(self, start: int, end: int) -> None:
        """The first segment files are missing, with the offsets from `start` to `end`; the log starts after them, as in
        Apache Kafka. Raises OSError."""
        self._note_missing_files(start, end, "the first segment files of the log are missing")

    def note_missing_range(self, start: int, end: int) -> None:
        """Offsets between two segments are missing, past the recovery point: the log is cut there, and nothing is left
        of these. Raises OSError."""
        if not (self._given.clean or start < self._given.recovery_point):
            self._note_missing_files(start, end, "the range between two segment files is missing")

    def _note_missing_files(self, start: int, end: int, what: str) -> None:
        if self._given.read_only:
            return
        names = tuple(evidence_in(self._disk, self._directory))
        if any(name.endswith(INTENDED_SUFFIX) for name in names):
            return  # a truncation was in progress; it is examined and reported
        reason = f"{self._directory}: {what}, with offsets {start} to {end - 1}"
        self._report.reason = self._report.reason or reason
        lost = LostBatches(start, end, end - start, 0, ())
        note = RecoveryNote(lost, reason, False, self._given.now_ms, names, is_missing=True, is_untold=True)
        write_note(self._disk, self._directory, note)


def _complete_batch_follows(segment: Segment, position: int) -> bool:
    """Whether a completely written batch follows a bad place of a file; the search is bounded."""
    fd = segment.disk.open_read(segment.path)
    try:
        return next_complete_batch(segment.disk, fd, position, position + 1 + SEARCH_BYTES) is not None
    finally:
        segment.disk.close(fd)


def restore_advice(what: str) -> str:
    """Remedies for a "segment" or "partition" whose damage recovery does not truncate."""
    return (
        f"This partition is offline, the others are served. Restore the {what} from another replica or a backup. Or, "
        "to continue without the damaged part, stop the node, move the partition's directory away and start the node "
        "again: its records are then lost to this node."
    )
