"""The results of verification: findings, and reports that hold them. Owns their types; checks nothing.

A finding is an `ERROR` if something is missing, damaged or contradictory, and a `NOTE` if it is harmless but worth
knowing: leftovers that a start removes, files that are behind on a running node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

from fenceline.ids import TopicPartition

MAX_FINDINGS: Final = 1000
"""Kept for one partition; further ones are only counted."""


class Severity(StrEnum):
    ERROR = "error"
    NOTE = "note"


class LogFindingKind(StrEnum):
    """The subject of a finding."""

    TORN = "torn"
    DAMAGED = "damaged"
    CRC = "crc"
    OLD_FORMAT = "old_format"
    HEADER = "header"
    OFFSETS = "offsets"
    EPOCHS = "epochs"
    GAP = "gap"
    RECORDS = "records"
    SEQUENCE = "sequence"
    SEGMENTS = "segments"
    GONE = "gone"
    UNREADABLE = "unreadable"
    OFFSET_INDEX = "offset_index"
    TIME_INDEX = "time_index"
    TRANSACTION_INDEX = "transaction_index"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    OFFSET_CHECKPOINT = "offset_checkpoint"
    PRODUCER_SNAPSHOT = "producer_snapshot"
    METADATA_SNAPSHOT = "metadata_snapshot"
    PARTITION_METADATA = "partition_metadata"
    LEFTOVER = "leftover"
    DIVERGENCE = "divergence"
    CONTENT = "content"
    TOPIC_ID = "topic_id"


@dataclass(frozen=True, slots=True)
class LogFinding:
    """`position`: byte in the file, -1 if it concerns the complete file. `offset`: in the log, -1 if there is none.

    `advice`: the remedy.
    """

    kind: LogFindingKind
    severity: Severity
    path: str
    position: int
    offset: int
    message: str
    advice: str


class Findings:
    """Collects findings; keeps `MAX_FINDINGS` and counts all."""

    def __init__(self) -> None:
        self.kept: list[LogFinding] = []
        self.errors = 0
        self.notes = 0

    def add(self, finding: LogFinding) -> None:
        if finding.severity is Severity.ERROR:
            self.errors += 1
        else:
            self.notes += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(finding)

    def error(
        self, kind: LogFindingKind, path: str, message: str, advice: str, *, position: int = -1, offset: int = -1
    ) -> None:
        self.add(LogFinding(kind, Severity.ERROR, path, position, offset, message, advice))

    def note(
        self, kind: LogFindingKind, path: str, message: str, advice: str, *, position: int = -1, offset: int = -1
    ) -> None:
        self.add(LogFinding(kind, Severity.NOTE, path, position, offset, message, advice))

    def add_new(
        self,
        severity: Severity,
        kind: LogFindingKind,
        path: str,
        message: str,
        advice: str,
        *,
        position: int = -1,
        offset: int = -1,
    ) -> None:
        self.add(LogFinding(kind, severity, path, position, offset, message, advice))

    @property
    def left_out(self) -> int:
        return self.errors + self.notes - len(self.kept)


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Consecutive batches of one leader epoch."""

    epoch: int
    first_offset: int
    last_offset: int
    path: str
    position: int
    """Of the first batch."""


@dataclass(slots=True)
class Report:
    """Of one partition directory, or of one file if `topic_partition` is empty."""

    path: str
    topic_partition: TopicPartition | None = None
    topic_id: UUID | None = None
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0
    """Exclusive."""
    high_watermark: int | None = None
    """Of the data directory's checkpoint; None without one."""
    compacted: bool = False
    """Whether offsets may be missing."""
    damaged: bool = False
    """Not every batch could be read or trusted: checks that need all of them are skipped."""
    runs: list[EpochRun] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
