"""`fenceline verify`: checks log directories on disk, without a node. Reads Kafka's files as well."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fenceline.cli.output import AsJson, examples, show
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid

if TYPE_CHECKING:
    from fenceline.log.verify.findings import LogFinding, Report

VERIFY_EXAMPLES = examples(
    ("fenceline verify ./data", "all partitions of a node"),
    ("fenceline verify node-1/data node-2/data", "and compare their replicas"),
    ("fenceline verify --deep ./data/orders-0", "one partition, including each record"),
    ("fenceline verify ./data/orders-0/lost+found", "the evidence of truncated records"),
)
_MB = 1_000_000
_PROGRESS_S = 0.2
_MANY = 40
"""Above this number of reports, the table only has those with findings."""


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="data directories, partition directories, lost+found directories or segment files"
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="also decompress every batch and read its records")] = False,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="also check the sequence numbers of idempotent producers")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="compare the replicas of each partition")
    ] = True,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="treat every topic as compacted: offset gaps are not errors")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check logs: checksums, offsets, leader epochs, indexes, checkpoints; and compare replicas.

    Read-only; the node may be running. Exit codes: 0 no errors, 1 errors were found, 2 a path has no log.
    """
    from fenceline.log.core.disk import OsDisk
    from fenceline.log.verify.verify import VerifySettings, find_places, groups_of, size_of_group, verify_group

    disk = OsDisk()
    try:
        places = find_places(disk, [str(path) for path in paths])
    except OperatorError as error:
        _usage(error.message, error.advice)
    except OSError as error:
        _usage(
            f"{error.filename or paths[0]}: {error.strerror or error}",
            "Run the command as a user with read permission.",
        )
    groups = groups_of(places, compare_replicas=compare)
    progress = _Progress(sum(size_of_group(disk, group) for group in groups))
    settings = VerifySettings(deep=deep, sequences=sequences, allow_gaps=allow_gaps, progress=progress.add)
    out: _Documents | _Text = _Documents() if as_json else _Text(progress, sum(map(len, groups)) > _MANY)
    for report in places.reports:
        out.add(report)
    for group in groups:
        for report in verify_group(disk, group, settings):
            out.add(report)
    progress.clear()
    out.finish()
    if out.errors:
        raise typer.Exit(1)


def _usage(message: str, advice: str) -> NoReturn:
    print(f"fenceline: {message}\n  {advice}", file=sys.stderr)
    raise typer.Exit(2)


class _Progress:
    """A progress line on standard error, if it is a terminal."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._done = 0
        self._started = self._printed_at = time.monotonic()
        self._shown = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        now = time.monotonic()
        if self._shown and now - self._printed_at > _PROGRESS_S:
            self._printed_at = now
            share = 100 * self._done // max(self._total, self._done, 1)
            speed = self._done / _MB / max(now - self._started, 1e-9)
            print(f"\r{share:3d} % of {self._total / _MB:,.0f} MB, {speed:,.0f} MB/s ", end="", file=sys.stderr)

    def clear(self) -> None:
        """Erase the progress line."""
        if self._shown:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


class _Documents:
    """Prints a JSON array, one object at a time, without keeping them."""

    def __init__(self) -> None:
        self.errors = 0
        self._count = 0

    def add(self, report: Report) -> None:
        self.errors += report.findings.errors
        print("," if self._count else "[")
        print(indent(json.dumps(_document(report), indent=2), "  "), end="")
        self._count += 1

    def finish(self) -> None:
        print("\n]" if self._count else "[]")


class _Text:
    """Prints findings at once, then a table and a summary line. Keeps a row for each report; if there are many, only
    for those with findings.
    """

    def __init__(self, progress: _Progress, many: bool) -> None:
        self.errors = 0
        self._progress = progress
        self._many = many
        self._rows: list[dict[str, Any]] = []
        self._unshown = self._notes = self._size_bytes = 0
        self._advice = ""

    def add(self, report: Report) -> None:
        findings = report.findings
        self.errors += findings.errors
        self._notes += findings.notes
        self._size_bytes += report.size_bytes
        if self._many and not findings.kept:
            self._unshown += 1
        else:
            self._rows.append(_row(report))
        if findings.kept:
            self._progress.clear()
            for finding in findings.kept:
                self._print_finding(finding)
            if findings.left_out:
                print(f"... and {findings.left_out} more findings in {report.path}")
            sys.stdout.flush()

    def _print_finding(self, finding: LogFinding) -> None:
        at = f" at byte {finding.position}" if finding.position >= 0 else ""
        print(f"{finding.severity.value.upper()} {finding.kind.value}: {finding.path}{at}: {finding.message}")
        if finding.advice != self._advice:
            print(f"  {finding.advice}")
        self._advice = finding.advice

    def finish(self) -> None:
        if self._rows:
            show(self._rows, as_json=False, optional=("segments", "batches", "bytes", "epochs"))
        if self._unshown:
            print(f"{self._unshown} more partitions and files without findings.")
        found = "nothing found"
        if self.errors or self._notes:
            found = f"{_count(self.errors, 'error')}, {_count(self._notes, 'note')}"
        size, seconds = self._size_bytes / _MB, self._progress.seconds
        print(f"{size:,.1f} MB in {seconds:.1f} s ({size / max(seconds, 1e-9):,.0f} MB/s): {found}.")


def _document(report: Report) -> dict[str, Any]:
    where = report.topic_partition
    return {
        "path": report.path,
        "topic": where.topic if where is not None else None,
        "partition": where.partition if where is not None else None,
        "topic_id": encode_uuid(report.topic_id) if report.topic_id is not None else None,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.size_bytes,
        "start_offset": report.start_offset,
        "end_offset_exclusive": report.end_offset,
        "high_watermark": report.high_watermark,
        "leader_epochs": [[run.epoch, run.first_offset] for run in report.runs],
        "errors": report.findings.errors,
        "notes": report.findings.notes,
        "findings": [_finding(each) for each in report.findings.kept],
    }


def _finding(finding: LogFinding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "path": finding.path,
        "position": None if finding.position < 0 else finding.position,
        "offset": None if finding.offset < 0 else finding.offset,
        "message": finding.message,
        "advice": finding.advice,
    }


def _short(path: str) -> str:
    """Relative to the working directory, if the path is below it."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _row(report: Report) -> dict[str, Any]:
    epochs = [run.epoch for run in report.runs]
    lowest, highest = min(epochs, default=-1), max(epochs, default=-1)
    return {
        "path": _short(report.path),
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.size_bytes,
        "start": report.start_offset,
        "end": report.end_offset,
        "epochs": f"{lowest}..{highest}" if lowest < highest else str(lowest) if epochs else "",
        "errors": report.findings.errors,
        "notes": report.findings.notes,
    }
