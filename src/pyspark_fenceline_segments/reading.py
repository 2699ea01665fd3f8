"""Reads segment files on executors and returns Arrow record batches in Spark's exact form.

Owns a task's reading. The files are opened where the task runs: every worker must have them at the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fenceline.errors import FencelineError, OperatorError, PeerError
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.file_names import LOG_SUFFIX, offset_in
from fenceline.log.verify.findings import Report
from fenceline.log.verify.places import Place
from fenceline.log.verify.segment import Flaw, Rows, SegmentWalk
from fenceline.log.verify.verify import VerifySettings, verify_group
from fenceline.records.arrow import ArrowDecoder
from pyspark_fenceline.common import workers
from pyspark_fenceline.common.schema import arrow_schema, client_columns, to_spark
from pyspark_fenceline_segments.batch_rows import batch_rows
from pyspark_fenceline_segments.options import Mode, SegmentOptions
from pyspark_fenceline_segments.planning import SegmentFile, replica_of

if TYPE_CHECKING:
    from fenceline.log.verify.findings import LogFinding

BATCH_BYTES: Final = 8 << 20
"""Approximate size of the records in one record batch."""
_SKIP_HINT: Final = ". Set failOnDamage=false to skip it."


class DamagedSegment(FencelineError):
    """A file is damaged, and its records cannot be read completely."""


class FilesPartition(InputPartition):
    """One Spark task's files."""

    def __init__(self, files: list[SegmentFile]) -> None:
        super().__init__(files)
        self.files = files


class PlacesPartition(InputPartition):
    """One Spark task's groups of places to verify; `reports` are findings of the driver."""

    def __init__(self, groups: list[list[Place]], reports: list[Report]) -> None:
        super().__init__(groups)
        self.groups = groups
        self.reports = reports


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    options: SegmentOptions
    schema: StructType


def read_task(plan: SegmentPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    target = arrow_schema(plan.schema)
    if isinstance(partition, PlacesPartition):
        yield from _findings(plan.options, partition, target)
    elif isinstance(partition, FilesPartition):
        for file in partition.files:
            read = _batches if plan.options.mode is Mode.BATCHES else _records
            yield from read(plan.options, file, target)
    workers.freeze_gc()


def _batches(options: SegmentOptions, file: SegmentFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from batch_rows(
        file, _walk(file, options), target, verified=options.verify, is_reported=lambda flaw: _is_damage(file, flaw)
    )


def _records(options: SegmentOptions, file: SegmentFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    decoder = ArrowDecoder(**client_columns(target), check_crc=False)
    own = {"replica": file.replica, "file": file.path, "evidence": file.evidence}
    for step in _walk(file, options):
        for content in _contents(options, file, step):
            try:
                decoder.append(file.topic or "", -1 if file.partition is None else file.partition, content)
            except PeerError as error:
                if options.fail_on_damage:
                    raise DamagedSegment(f"{file.path}: {error.message}{_SKIP_HINT}") from error
            if decoder.size_bytes >= BATCH_BYTES:
                yield to_spark(decoder.finish(), target, own)
    if decoder.row_count:
        yield to_spark(decoder.finish(), target, own)


def _contents(options: SegmentOptions, file: SegmentFile, step: Rows | Flaw) -> Iterator[memoryview]:
    """The batches with readable records. Raises DamagedSegment."""
    if isinstance(step, Rows):
        yield from map(step.content, range(step.count))
        return
    if options.fail_on_damage and _is_damage(file, step):
        problems = "; ".join(problem.message for problem in step.problems)
        raise DamagedSegment(f"{file.path}: at byte {step.position}: {problems}{_SKIP_HINT}")
    if step.content is not None:
        yield step.content


def _walk(file: SegmentFile, options: SegmentOptions) -> SegmentWalk:
    disk = OsDisk()
    found = disk.stat(file.path)
    if found is None:
        raise OperatorError(
            f"This Spark task does not find {file.path}",
            "Every worker must have the directories at the same path as the driver. If a node uses them,"
            " retention may have deleted the segment: run the query again.",
        )
    base = offset_in(os.path.basename(file.path), LOG_SUFFIX)
    return SegmentWalk(disk, file.path, end=found.size_bytes, next_offset=base or 0, check_crc=options.verify)


def _is_damage(file: SegmentFile, flaw: Flaw) -> bool:
    """Whether the flaw is damage; a torn end is none while a node may be writing the file."""
    return not (flaw.torn and file.may_be_torn)


# -- findings ---------------------------------------------------------------------------------------------------------


def _findings(options: SegmentOptions, partition: PlacesPartition, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    settings = VerifySettings(deep=options.deep, allow_gaps=options.allow_gaps)
    for report in partition.reports:
        yield from _report_rows(report, target)
    for group in partition.groups:
        for report in verify_group(OsDisk(), group, settings):
            yield from _report_rows(report, target)


def _report_rows(report: Report, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = [_finding_row(report, finding) for finding in report.findings.kept]
    if rows:
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _finding_row(report: Report, finding: LogFinding) -> dict[str, object]:
    where = report.topic_partition
    return {
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "topic": where.topic if where is not None else None,
        "partition": where.partition if where is not None else None,
        "replica": replica_of(f"{report.path}/file") if where is not None else report.path,
        "file": finding.path,
        "position": finding.position if finding.position >= 0 else None,
        "offset": finding.offset if finding.offset >= 0 else None,
        "message": finding.message,
        "advice": finding.advice,
    }
