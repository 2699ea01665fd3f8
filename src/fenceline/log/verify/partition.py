"""Verifies one partition directory: its segments as one log, and every other file that describes it.

Owns the checks across files: contiguous segments, no gaps unless the log was compacted, the epoch checkpoint and the
batches, checkpoints and the log end. Reads only. Something that a running node or a crash left unfinished, and that the
next start repairs, is a note; if the log was closed it is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from fenceline.ids import CONSUMER_OFFSETS_TOPIC, LOSSES_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.log.core.checkpoints import BadCheckpoint, read_partition_metadata
from fenceline.log.core.compaction_bound import read_bound, read_complete_from
from fenceline.log.core.disk import Disk, read_file
from fenceline.log.core.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    EPOCH_FILE,
    LOG_SUFFIX,
    METADATA_FILE,
    OFFSET_DIGITS,
    SWAP_SUFFIX,
    offset_in,
    segment_bases,
    stem,
)
from fenceline.log.core.producer_snapshots import offsets_in
from fenceline.log.verify import epochs as verify_epochs
from fenceline.log.verify.findings import EpochRun, LogFindingKind, Report, Severity
from fenceline.log.verify.indexes import IndexCheck, check_producer_snapshot
from fenceline.log.verify.records import RecordChecks
from fenceline.log.verify.segment import Flaw, Rows, SegmentWalk

if TYPE_CHECKING:
    from fenceline.log.verify.places import PartitionPlace

GROWTH_WAIT_S: Final = 0.05
GROWTH_TRIES: Final = 20
_COMPACTED_TOPICS: Final = frozenset((CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, LOSSES_TOPIC))
_PART_SUFFIX: Final = ".part"
_LEFTOVERS: Final = {
    DELETED_SUFFIX: ("is due for deletion", "The node removes it after file.delete.delay.ms or at its start."),
    CLEANED_SUFFIX: ("is the unfinished output of a compaction", "The next start of the node removes it."),
    _PART_SUFFIX: ("is a partly written file", "The node finishes it, or removes it at its next start."),
    SWAP_SUFFIX: (
        "is the output of a compaction that is about to replace "
        "segments", "The next start completes the replacement."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What to check.

    `deep`: decompress every batch and read its records. `sequences`: also check that each producer's sequences are
    contiguous. `allow_gaps`: treat every topic as compacted. `progress` is called with the number of further bytes
    read. `wait`: sleeps between two checks of a file that may grow.
    """

    deep: bool = False
    sequences: bool = False
    allow_gaps: bool = False
    progress: Callable[[int], None] | None = None
    wait: Callable[[float], None] = time.sleep


def verify_partition(disk: Disk, place: PartitionPlace, settings: VerifySettings) -> Report:
    """Check every file of a partition directory. A read error is a finding, too."""
    report = Report(place.path, place.topic_partition, high_watermark=place.high_watermark)
    try:
        _Verifier(disk, place, settings, report).run()
    except FileNotFoundError as error:
        report.findings.add_new(
            Severity.ERROR if place.closed else Severity.NOTE,
            LogFindingKind.GONE,
            error.filename or place.path,
            "does not exist any more",
            "A running node removes partitions that are deleted or reassigned. Verify again when in doubt.",
        )
    except OSError as error:
        report.findings.error(
            LogFindingKind.UNREADABLE,
            error.filename or place.path,
            f"cannot be read: {error.strerror or error}",
            "Run as a user with read permission, and check the disk.",
        )
    return report


class _Verifier:
    def __init__(self, disk: Disk, place: PartitionPlace, settings: VerifySettings, report: Report) -> None:
        self._disk = disk
        self._place = place
        self._settings = settings
        self._report = report
        self._findings = report.findings
        self._next_offset = -1
        self._epoch = -1
        self._gaps = 0
        self._missing_offsets = 0
        self._first_gap = (-1, -1, "", -1)
        self._holes = 0
        self._is_being_compacted = False
        self._compacted_to = 0
        self._missing_indexes: list[str] = []
        self._records = RecordChecks(settings.deep, settings.sequences, self._findings)
        self._open_severity = Severity.ERROR if place.closed else Severity.NOTE

    def run(self) -> None:
        names = sorted(self._disk.listdir(self._place.path))
        bases = segment_bases(names)
        self._metadata(names)
        epochs_before = read_file(self._disk, f"{self._place.path}/{EPOCH_FILE}")
        for base, following in zip_longest(bases, bases[1:]):
            self._segment(base, following)
        self._report_missing_indexes()
        self._report.segments = len(bases)
        self._report.end_offset = max(self._next_offset, 0)
        self._report.start_offset = max(bases[0] if bases else 0, self._place.log_start_offset)
        self._is_being_compacted = any(
            name.endswith((LOG_SUFFIX + CLEANED_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX)) for name in names
        )
        self._names(names, bases)
        self._report_gaps()
        if not self._report.damaged:
            verify_epochs.check_epochs(self._disk, self._place, self._report, epochs_before)
            self._checkpoints(stem(self._place.path, bases[-1]) + LOG_SUFFIX if bases else self._place.path)

    # -- segments -----------------------------------------------------------------------------------------------

    def _segment(self, base: int, following: int | None) -> None:
        """`following`: base offset of the next segment, None for the newest one."""
        last = following is None
        path = stem(self._place.path, base) + LOG_SUFFIX
        found = self._disk.stat(path)
        if found is None:
            self._report_removed(path)
            return
        if self._next_offset > base:
            self._findings.error(
                LogFindingKind.SEGMENTS,
                path,
                f"has base offset {base}, but the segment before it ends at {self._next_offset}",
                "Compare with the other replicas; the node does not load such a log.",
                offset=base,
            )
        elif 0 <= self._next_offset < base and not self._was_compacted_to(base):
            self._note_gaps(1, base - self._next_offset, self._next_offset, base, path, 0)
        saved = self._has_saved_indexes(following)
        severity = Severity.ERROR if saved else self._open_severity
        index = IndexCheck(self._disk, path.removesuffix(LOG_SUFFIX), base, severity, self._findings)
        if saved and found.size_bytes:
            self._missing_indexes += index.missing
        walk = SegmentWalk(
            self._disk,
            path,
            end=found.size_bytes,
            next_offset=base,
            leader_epoch=self._epoch,
            grow=self._watch(path) if last and not self._place.closed else None,
        )
        try:
            complete = self._walk(walk, path, index, last=last)
        except FileNotFoundError:
            self._report_removed(path)
            return
        self._next_offset, self._epoch = max(walk.next_offset, base), walk.leader_epoch
        index.finish(path, complete=complete)

    def _has_saved_indexes(self, following: int | None) -> bool:
        """A node saves them before the recovery point passes the segment's end, and all when it is closed."""
        known = self._place.recovery_point
        return self._place.closed or (following is not None and known is not None and following <= known)

    def _report_missing_indexes(self) -> None:
        if self._missing_indexes:
            more = len(self._missing_indexes) - 1
            self._findings.note(
                LogFindingKind.OFFSET_INDEX,
                self._missing_indexes[0],
                f"is missing, as are {more} more index files of this log" if more else "is missing",
                "The node rebuilds it from the log.",
            )

    def _walk(self, walk: SegmentWalk, path: str, index: IndexCheck, *, last: bool) -> bool:
        """Whether every batch could be seen."""
        complete = True
        due = walk.next_offset
        for step in walk:
            before = walk.position
            match step:
                case Rows():
                    self._process(step, path, index, due)
                    before = step.value("position", 0)
                case Flaw():
                    complete = False
                    self._flaw(step, path, last=last)
                    before = step.position
            due = walk.next_offset
            self._report.size_bytes += walk.position - before
            if self._settings.progress is not None:
                self._settings.progress(walk.position - before)
        return complete

    def _process(self, rows: Rows, path: str, index: IndexCheck, due: int) -> None:
        report, totals = self._report, rows.totals
        report.batches += rows.count
        report.records += totals["records"]
        self._holes += totals["holes"]
        if totals["gaps"] and not self._was_compacted_to(rows.value("base_offset", rows.count - 1)):
            self._check_gaps(rows, path, due)
        self._add_runs(rows, path)
        index.see(rows)
        if totals["control_batches"]:
            self._records.markers(rows, index.marker)
        if self._records.wanted:
            self._records.see(rows, path)

    def _flaw(self, flaw: Flaw, path: str, *, last: bool) -> None:
        self._records.missed()
        header = flaw.header
        offset = header.base_offset if header is not None else -1
        harmless = flaw.torn and last and not self._place.closed
        for problem in flaw.problems:
            severity = (
                Severity.NOTE
                if harmless or (problem.kind is LogFindingKind.GONE and not self._place.closed)
                else Severity.ERROR
            )
            self._findings.add_new(
                severity, problem.kind, path, problem.message, problem.advice, position=flaw.position, offset=offset
            )
        if header is not None:
            self._report.batches += 1
            self._report.records += max(header.record_count, 0)
            if flaw.crc_ok is True:
                self._add_run(header.leader_epoch, header.base_offset, header.last_offset, path, flaw.position)
        if flaw.problems and not (flaw.torn and last):
            self._report.damaged = True

    def _report_removed(self, path: str) -> None:
        self._report.damaged = True
        self._findings.add_new(
            self._open_severity,
            LogFindingKind.GONE,
            path,
            "does not exist any more",
            "Retention deletes segments of a running node. Verify again when in doubt.",
        )

    def _watch(self, path: str) -> Callable[[int], int]:
        def grow(size_bytes: int) -> int:
            for _ in range(GROWTH_TRIES):
                found = self._disk.stat(path)
                if found is not None and found.size_bytes > size_bytes:
                    return found.size_bytes
                self._settings.wait(GROWTH_WAIT_S)
            return size_bytes

        return grow

    # -- epochs and gaps ----------------------------------------------------------------------------------------

    def _add_runs(self, rows: Rows, path: str) -> None:
        epochs = rows.column("leader_epoch")
        bases, lasts, positions = rows.column("base_offset"), rows.column("last_offset"), rows.column("position")
        start = 0
        while start < rows.count:
            epoch = epochs[start]
            # Epochs of plain batches never decrease: the last one shows whether there is a change.
            end = rows.count if epochs[-1] == epoch else _first_after(epochs, epoch, start)
            self._add_run(epoch, bases[start], lasts[end - 1], path, positions[start])
            start = end

    def _add_run(self, epoch: int, first: int, last: int, path: str, position: int) -> None:
        runs = self._report.runs
        if runs and runs[-1].epoch == epoch:
            runs[-1] = replace(runs[-1], last_offset=last)
        else:
            runs.append(EpochRun(epoch, first, last, path, position))

    def _note_gaps(self, count: int, missing: int, start: int, end: int, path: str, position: int) -> None:
        if not self._gaps:
            self._first_gap = (start, end, path, position)
        self._gaps += count
        self._missing_offsets += missing

    def _check_gaps(self, rows: Rows, path: str, due: int) -> None:
        """`due`: the expected base offset of the first row."""
        bases, lasts = rows.column("base_offset"), rows.column("last_offset")
        for row in range(rows.totals["first_gap_row"], rows.count):
            start = lasts[row - 1] + 1 if row else due
            if start < bases[row] > self._compacted_to:
                self._note_gaps(1, bases[row] - start, start, bases[row], path, rows.value("position", row))

    def _was_compacted_to(self, offset: int) -> bool:
        """Whether a compaction, here or on the leader the records were fetched from, may have removed offsets below.
        The files are read again for each offset above their last value: a running node raises it before it compacts."""
        if offset > self._compacted_to:
            disk, path = self._disk, self._place.path
            self._compacted_to = max(read_bound(disk, path), read_complete_from(disk, path).offset)
        return offset <= self._compacted_to

    def _report_gaps(self) -> None:
        """Gaps above the compaction bound are losses, unless Apache Kafka compacts the log: it writes no bound."""
        place = self._place
        compacts = bool(
            self._settings.allow_gaps
            or self._holes
            or self._is_being_compacted
            or place.cleaned
            or place.topic in _COMPACTED_TOPICS
        )
        self._report.compacted = compacts or self._was_compacted_to(1)
        if not self._gaps or compacts or self._report.damaged:
            return
        start, end, path, position = self._first_gap
        more = f", and {self._missing_offsets - end + start} more in {self._gaps - 1} places" if self._gaps > 1 else ""
        self._findings.error(
            LogFindingKind.GAP,
            path,
            f"offsets {start} to {end - 1} are missing{more}",
            "This is normal in a compacted topic (--allow-gaps). In any other topic, compare with the other "
            "replicas: batches are lost, or an offset, which no checksum covers, is damaged.",
            position=position,
            offset=start,
        )

    # -- other files --------------------------------------------------------------------------------------------

    def _metadata(self, names: list[str]) -> None:
        path = f"{self._place.path}/{METADATA_FILE}"
        if METADATA_FILE not in names:
            return
        try:
            self._report.topic_id = read_partition_metadata(self._disk, path)
        except BadCheckpoint as error:
            self._findings.error(
                LogFindingKind.PARTITION_METADATA,
                path,
                str(error).removeprefix(f"{path}: "),
                "Copy the file from another replica of the partition while the node is stopped.",
            )

    def _names(self, names: list[str], bases: list[int]) -> None:
        for name in names:
            for suffix, (words, advice) in _LEFTOVERS.items():
                if name.endswith(suffix):
                    self._findings.note(LogFindingKind.LEFTOVER, f"{self._place.path}/{name}", words, advice)
        for offset in offsets_in(names):
            check_producer_snapshot(self._disk, stem(self._place.path, offset), self._findings)
        known = set(bases)
        for name in names:
            base = offset_in(name, ".index")
            if base is not None and base not in known and f"{base:0{OFFSET_DIGITS}d}.index" == name:
                self._findings.note(
                    LogFindingKind.LEFTOVER, f"{self._place.path}/{name}", "belongs to no segment", "It can be removed."
                )

    def _checkpoints(self, path: str) -> None:
        """`path`: of the newest segment, where the log ends."""
        place, end = self._place, self._report.end_offset
        checkpointed = (("high watermark", place.high_watermark), ("recovery point", place.recovery_point))
        for what, offset in checkpointed:
            if offset is not None and offset > end:
                self._findings.add_new(
                    self._open_severity,
                    LogFindingKind.OFFSET_CHECKPOINT,
                    path,
                    f"ends at offset {end}, but its {what} was {offset}: records in between are lost",
                    "Compare with the other replicas, and see `fenceline losses list` for records that were truncated.",
                    offset=end,
                )
        point = place.recovery_point
        if place.closed and point is not None and end > point and self._report.batches:
            self._findings.error(
                LogFindingKind.OFFSET_CHECKPOINT,
                path,
                f"ends at offset {end}, but it was closed with its end at {point}: the offset of a batch, which no "
                "checksum covers, is damaged, or batches were added",
                "Compare with the other replicas. If one of them has the batches, stop the node and remove the "
                "partition's directory: it is then fetched again.",
                offset=point,
            )


def _first_after(epochs: memoryview, epoch: int, start: int) -> int:
    low, high = start + 1, len(epochs)
    while low < high:
        middle = (low + high) // 2
        if epochs[middle] > epoch:
            high = middle
        else:
            low = middle + 1
    return low
