"""Verifies one file by itself: a segment, evidence in `lost+found`, a snapshot of the metadata log.

Owns the checks that need no other file. Damage in evidence is a note: the file is there because something was wrong.
"""

from __future__ import annotations

import os
from typing import Final

from fenceline.errors import PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import LOG_SUFFIX, frozen_snapshot, is_metadata_snapshot, offset_in
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.verify.findings import LogFindingKind, Report, Severity
from fenceline.log.verify.indexes import IndexCheck
from fenceline.log.verify.partition import VerifySettings
from fenceline.log.verify.places import FilePlace
from fenceline.log.verify.records import RecordChecks
from fenceline.log.verify.segment import Flaw, Rows, SegmentWalk
from fenceline.records.batch import BATCH_OVERHEAD, peek_header
from fenceline.records.decode import decode_batch

_FOOTER: Final = 4
_SNAPSHOT_ADVICE: Final = (
    "See `fenceline snapshot verify`. Move the file away if the log reaches back to an older snapshot, or if other "
    "voters have their metadata."
)
_EVIDENCE_ADVICE: Final = (
    "This was cut from its log, perhaps for that reason. Its complete batches can be exported: `fenceline losses "
    "export`."
)


def verify_file(disk: Disk, place: FilePlace, settings: VerifySettings) -> Report:
    """Check every byte of a file. A read error is a finding, too."""
    report = Report(place.path, place.topic_partition)
    name = os.path.basename(place.path)
    try:
        found = disk.stat(place.path)
        size_bytes = 0 if found is None else found.size_bytes
        if is_metadata_snapshot(name):
            _, epoch = frozen_snapshot(name) or (-1, -1)
            _snapshot(disk, place, settings, report, size_bytes, epoch)
        else:
            _Segment(disk, place, settings, report).run(size_bytes)
    except FileNotFoundError:
        report.findings.note(
            LogFindingKind.GONE,
            place.path,
            "does not exist any more",
            "A running node removes files that it no longer needs.",
        )
    except OSError as error:
        report.findings.error(
            LogFindingKind.UNREADABLE, place.path, f"cannot be read: {error.strerror or error}", "Check the disk."
        )
    return report


class _Segment:
    """One pass over a segment, and its results."""

    def __init__(self, disk: Disk, place: FilePlace, settings: VerifySettings, report: Report) -> None:
        self._disk = disk
        self._path = place.path
        self._settings = settings
        self._report = report
        self._severity = Severity.NOTE if place.evidence else Severity.ERROR
        self._torn_severity = Severity.NOTE if place.being_written else self._severity
        self._records = RecordChecks(settings.deep, settings.sequences, report.findings, self._severity)
        self._base = offset_in(os.path.basename(place.path), LOG_SUFFIX)
        self._index = self._index_of(place)
        self._is_evidence = os.path.basename(os.path.dirname(place.path)) == EVIDENCE_DIR
        self._complete = True
        self._holes = self._gaps = 0
        self._first_gap = (-1, -1, -1)

    def _index_of(self, place: FilePlace) -> IndexCheck | None:
        if self._base is None:
            return None
        stem = place.path.removesuffix(LOG_SUFFIX)
        return IndexCheck(self._disk, stem, self._base, self._torn_severity, self._report.findings)

    def run(self, size_bytes: int) -> None:
        report = self._report
        due = self._base if self._base is not None else _first_offset(self._disk, self._path)
        report.segments, report.start_offset = 1, due
        walk = SegmentWalk(self._disk, self._path, end=size_bytes, next_offset=due)
        for step in walk:
            if isinstance(step, Rows):
                self._process(step, due)
            else:
                self._complete = False
                self._records.missed()
                severity = self._torn_severity if step.torn else self._severity
                _report(step, self._path, severity, report, _EVIDENCE_ADVICE if self._is_evidence else "")
            due = walk.next_offset
            if self._settings.progress is not None:
                self._settings.progress(walk.position - report.size_bytes)
            report.size_bytes = walk.position
        report.end_offset = walk.next_offset
        if self._gaps and self._complete and not self._holes and not self._settings.allow_gaps:
            self._report_gaps()
        if self._index is not None:
            self._index.finish(self._path, complete=self._complete)

    def _process(self, rows: Rows, due: int) -> None:
        totals = rows.totals
        self._report.batches += rows.count
        self._report.records += totals["records"]
        self._holes += totals["holes"]
        if totals["gaps"]:
            row = totals["first_gap_row"]
            previous_end = rows.value("last_offset", row - 1) + 1 if row else due
            if not self._gaps:
                self._first_gap = previous_end, rows.value("base_offset", row), rows.value("position", row)
            self._gaps += totals["gaps"]
        if self._index is not None:
            self._index.see(rows)
            if totals["control_batches"]:
                self._records.markers(rows, self._index.marker)
        if self._records.wanted:
            self._records.see(rows, self._path)

    def _report_gaps(self) -> None:
        start, end, position = self._first_gap
        more = f", and more in {self._gaps - 1} places" if self._gaps > 1 else ""
        self._report.findings.add_new(
            self._severity,
            LogFindingKind.GAP,
            self._path,
            f"offsets {start} to {end - 1} are missing{more}",
            "This is normal in a compacted topic (--allow-gaps). In any other topic, compare with the other replicas.",
            position=position,
            offset=start,
        )


def _first_offset(disk: Disk, path: str) -> int:
    """The offset in the first batch, if it is plausible: evidence may begin in the middle of a segment."""
    fd = disk.open_read(path)
    try:
        return max(peek_header(disk.pread(fd, BATCH_OVERHEAD, 0)).base_offset, 0)
    except PeerError:
        return 0
    finally:
        disk.close(fd)


def _snapshot(
    disk: Disk, place: FilePlace, settings: VerifySettings, report: Report, size_bytes: int, epoch: int
) -> None:
    """Complete batches without a gap, of the epoch in the name, with a footer at the end (`gaps.md G24`)."""
    walk = SegmentWalk(disk, place.path, end=size_bytes)
    has_footer, complete = False, True
    for step in walk:
        if isinstance(step, Flaw):
            complete = False
            _report(step, place.path, Severity.ERROR, report)
            continue
        report.batches += step.count
        report.records += step.totals["records"]
        if step.totals["gaps"]:
            row = step.totals["first_gap_row"]
            report.findings.error(
                LogFindingKind.METADATA_SNAPSHOT,
                place.path,
                f"records are missing before number {step.value('base_offset', row)}",
                _SNAPSHOT_ADVICE,
                position=step.value("position", row),
            )
        other = [each for each in step.column("leader_epoch") if each != epoch]
        if epoch >= 0 and other:
            report.findings.error(
                LogFindingKind.METADATA_SNAPSHOT,
                place.path,
                f"has batches of epoch {other[0]}, but its name has epoch {epoch}",
                _SNAPSHOT_ADVICE,
            )
        has_footer = _is_footer(step.content(step.count - 1))
        if settings.progress is not None:
            settings.progress(walk.position - report.size_bytes)
        report.size_bytes = walk.position
    report.end_offset = walk.next_offset
    if complete and not has_footer:
        report.findings.error(
            LogFindingKind.METADATA_SNAPSHOT, place.path, "ends without a footer: it is incomplete", _SNAPSHOT_ADVICE
        )


def _is_footer(content: memoryview) -> bool:
    header = peek_header(content)
    if not header.is_control:
        return False
    try:
        records = decode_batch(content, header)
    except PeerError:
        return False
    return bool(records) and int.from_bytes((records[-1].key or b"")[2:4], "big") == _FOOTER


def _report(flaw: Flaw, path: str, severity: Severity, report: Report, advice: str = "") -> None:
    offset = flaw.header.base_offset if flaw.header is not None else -1
    for problem in flaw.problems:
        report.findings.add_new(
            severity,
            problem.kind,
            path,
            problem.message,
            advice or problem.advice,
            position=flaw.position,
            offset=offset,
        )
    if flaw.header is not None:
        report.batches += 1
        report.records += max(flaw.header.record_count, 0)
