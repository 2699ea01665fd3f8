"""Directories to verify, and ways to damage them."""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.log.core.disk import Disk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.verify.findings import Severity
from fenceline.log.verify.verify import Report, VerifySettings, find_places, verify_places
from tests.log.helpers import DIRECTORY, SMALL, append, open_log

QUIET = VerifySettings(wait=lambda seconds: None)


def content_of(disk: Disk, path: str) -> bytes:
    fd = disk.open_read(path)
    try:
        found = disk.stat(path)
        assert found is not None
        return disk.pread(fd, found.size_bytes, 0)
    finally:
        disk.close(fd)


def put(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file."""
    if disk.stat(path) is not None:
        disk.unlink(path)
    fd = disk.open_append(path)
    try:
        while content:
            content = content[disk.write(fd, content) :]
    finally:
        disk.close(fd)


def flip(disk: Disk, path: str, position: int, mask: int = 1) -> None:
    damaged = bytearray(content_of(disk, path))
    damaged[position] ^= mask
    put(disk, path, bytes(damaged))


def rain(disk: Disk, directory: str = DIRECTORY, *, epochs: Sequence[int] = (0, 0, 1, 3)) -> PartitionLog:
    """A closed log of several segments: five batches for each of the epochs."""
    log = open_log(disk, directory, config=SMALL)
    for number, epoch in enumerate(epochs):
        for _ in range(5):
            append(log, 1 + number % 3, epoch=epoch, timestamp=1_000 + log.log_end_offset)
    log.close()
    return log


def verified(disk: Disk, *paths: str, settings: VerifySettings = QUIET, compare: bool = True) -> list[Report]:
    places = find_places(disk, paths or (DIRECTORY,))
    return list(verify_places(disk, places, settings, compare_replicas=compare))


def said(reports: Sequence[Report], severity: Severity | None = None) -> list[tuple[str, str]]:
    """(kind, message) of every finding."""
    return [
        (finding.kind.value, finding.message)
        for report in reports
        for finding in report.findings.kept
        if severity in (None, finding.severity)
    ]


def errors(reports: Sequence[Report]) -> list[str]:
    return [kind for kind, _ in said(reports, Severity.ERROR)]


def notes(reports: Sequence[Report]) -> list[str]:
    return [kind for kind, _ in said(reports, Severity.NOTE)]


def logs(disk: Disk, directory: str = DIRECTORY) -> list[str]:
    return [f"{directory}/{name}" for name in sorted(disk.listdir(directory)) if name.endswith(".log")]
