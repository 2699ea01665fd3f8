"""Finds what can be verified at a path: data directories, partition directories, evidence, single files.

Owns how they are recognized, and what a data directory's checkpoints say about its partitions. Opens no segment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import OperatorError
from fenceline.ids import METADATA_TOPIC, TopicPartition
from fenceline.log.core.checkpoints import BadCheckpoint, read_identity, read_incarnations, read_offsets
from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import (
    BOOTSTRAP_FILE,
    LOG_SUFFIX,
    METADATA_FILE,
    frozen_snapshot,
    is_metadata_snapshot,
    is_segment,
)
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.core.meta_properties import META_FILE
from fenceline.log.directories.log_dir import CLEAN_FILE
from fenceline.log.directories.log_dir_offsets import (
    CLEANED,
    HIGH_WATERMARKS,
    INCARNATIONS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from fenceline.log.directories.partition_dir import parse_removed_name, partition_of
from fenceline.log.verify.findings import LogFindingKind, Report

_SEGMENT_LIKE: Final = re.compile(r"\d{20}\.log(\.deleted|\.cleaned|\.swap|\.\d+|\.from-\d+\.\d+)?")


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition directory. `closed`: the node was shut down cleanly, or this is a copy outside of any data directory.

    Offsets are those of the data directory's checkpoints: None without an entry. The high watermark of the metadata log
    is at least the end of its newest snapshot.
    """

    path: str
    topic_partition: TopicPartition | None
    closed: bool = True
    high_watermark: int | None = None
    recovery_point: int | None = None
    log_start_offset: int = 0
    """A lower bound: without a checkpoint of a clean shutdown, records may have been deleted beyond it."""
    log_start_is_exact: bool = False
    cleaned: bool = False
    """Whether it was compacted here."""
    is_removed: bool = False
    """Being deleted, stray, or moving to another directory: not a replica of its partition."""

    @property
    def topic(self) -> str:
        return self.topic_partition.topic if self.topic_partition is not None else ""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A single file. `evidence`: it was cut from a log, and may be damaged. `being_written`: a node that was not shut
    down cleanly may write to it."""

    path: str
    topic_partition: TopicPartition | None
    evidence: bool
    being_written: bool = False


Place = PartitionPlace | FilePlace


@dataclass(slots=True)
class Places:
    """`reports`: of data directories whose own files are wrong."""

    found: list[Place] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


def places_at(disk: Disk, path: str) -> Places:
    """Raises OperatorError if there is nothing to verify, OSError."""
    path = os.path.abspath(path)
    found = disk.stat(path)
    if found is None:
        raise OperatorError(f"{path} does not exist", "Give a data directory, a partition directory or a segment file.")
    places = Places()
    if not found.is_directory:
        places.found.append(_file(disk, path))
    elif os.path.basename(path) == EVIDENCE_DIR:
        _add_evidence(disk, os.path.dirname(path), places, own=True)
    elif _is_data_dir(disk, path):
        _add_data_dir(disk, path, places)
    elif _is_partition(disk, path):
        _add_partition(disk, path, _Facts(disk, os.path.dirname(path), Report("")), places)
    else:
        for child in _data_dirs_below(disk, path):
            _add_data_dir(disk, child, places)
    if not places.found and not places.reports and not _is_data_dir(disk, path):
        raise OperatorError(
            f"{path} contains no log", "Give a node's data directory, a partition directory, or a file of one."
        )
    return places


class _Facts:
    """The contents of a data directory's files. A file that cannot be read is a finding of `report`."""

    def __init__(self, disk: Disk, path: str, report: Report) -> None:
        self.is_data_dir = _is_data_dir(disk, path)
        self._disk = disk
        self._path = path
        is_node = disk.stat(f"{path}/{META_FILE}") is not None
        self.closed = not is_node or disk.stat(f"{path}/{CLEAN_FILE}") is not None
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._incarnations = self._read_incarnations(report) if self.is_data_dir else None
        for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANED):
            try:
                self._offsets[name] = read_offsets(disk, f"{path}/{name}") if self.is_data_dir else {}
            except (BadCheckpoint, UnicodeDecodeError) as error:
                self._offsets[name] = {}
                report.findings.error(
                    LogFindingKind.OFFSET_CHECKPOINT,
                    f"{path}/{name}",
                    str(error).removeprefix(f"{path}/{name}: "),
                    "The node determines these offsets again at its start, and checks the records above them.",
                )
            except OSError as error:
                self._offsets[name] = {}
                report.findings.error(
                    LogFindingKind.UNREADABLE,
                    f"{path}/{name}",
                    f"cannot be read: {error.strerror or error}",
                    "Run as a user with read permission, and check the disk.",
                )

    def _read_incarnations(self, report: Report) -> dict[TopicPartition, str] | None:
        """None: it is unknown which directories the offsets describe."""
        path = f"{self._path}/{INCARNATIONS}"
        try:
            return read_incarnations(self._disk, path)
        except (BadCheckpoint, UnicodeDecodeError) as error:
            report.findings.error(
                LogFindingKind.OFFSET_CHECKPOINT,
                path,
                str(error).removeprefix(f"{path}: "),
                "After an unclean shutdown the node checks every log from its start.",
            )
        except OSError as error:
            report.findings.error(
                LogFindingKind.UNREADABLE,
                path,
                f"cannot be read: {error.strerror or error}",
                "Run as a user with read permission, and check the disk.",
            )
        return {}

    def _apply_to(self, path: str, where: TopicPartition) -> bool:
        """Whether the checkpoints describe this directory, or, if that is unknown, its name."""
        if self._incarnations is None or where.topic == METADATA_TOPIC:
            return True
        try:
            found = read_identity(self._disk, f"{path}/{METADATA_FILE}")
        except (BadCheckpoint, OSError):
            return False
        named = self._incarnations.get(where)
        return named == found.text or (self.closed and (named is None or found.incarnation is None))

    def _snapshot_end(self, path: str) -> int:
        """The metadata log has no high watermark checkpoint; its snapshots hold only committed records."""
        frozen = [found for name in self._disk.listdir(path) if (found := frozen_snapshot(name)) is not None]
        return max((end_offset for end_offset, _ in frozen), default=0)

    def place(self, path: str, where: TopicPartition | None, *, is_removed: bool) -> PartitionPlace:
        is_known = where is not None and self._apply_to(path, where)

        def known(name: str) -> int | None:
            return self._offsets[name].get(where) if where is not None and is_known else None

        high_watermark = known(HIGH_WATERMARKS)
        is_metadata = where is not None and where.topic == METADATA_TOPIC
        if is_metadata:
            high_watermark = self._snapshot_end(path)
        return PartitionPlace(
            path,
            where,
            closed=self.closed,
            high_watermark=None if is_removed else high_watermark,
            recovery_point=None if is_removed else known(RECOVERY_POINTS),
            log_start_offset=(not is_removed and known(LOG_STARTS)) or 0,
            # The metadata log's start is in no checkpoint (gaps.md G31).
            log_start_is_exact=not (is_removed or is_metadata)
            and self.closed
            and self._disk.stat(f"{self._path}/{LOG_STARTS}") is not None,
            cleaned=where is not None and where in self._offsets[CLEANED],
            is_removed=is_removed,
        )


def _add_data_dir(disk: Disk, path: str, places: Places) -> None:
    report = Report(path)
    facts = _Facts(disk, path, report)
    if report.findings.kept:
        places.reports.append(report)
    for name in sorted(disk.listdir(path)):
        child = f"{path}/{name}"
        if name == BOOTSTRAP_FILE:
            places.found.append(FilePlace(child, None, evidence=False))
        elif _partition_in(name) is not None:
            _add_partition(disk, child, facts, places)


def _add_partition(disk: Disk, path: str, facts: _Facts, places: Places) -> None:
    name = os.path.basename(path)
    plain = partition_of(name)
    is_removed = plain is None or "." in name.removeprefix(plain.topic)
    where = plain or parse_removed_name(name)
    places.found.append(facts.place(path, where, is_removed=is_removed))
    try:
        names = sorted(disk.listdir(path))
    except OSError:
        return  # reported when the partition is verified
    places.found += [FilePlace(f"{path}/{each}", where, evidence=False) for each in names if is_metadata_snapshot(each)]
    if EVIDENCE_DIR in names:
        _add_evidence(disk, path, places, own=False)


def _add_evidence(disk: Disk, partition_path: str, places: Places, *, own: bool) -> None:
    folder = f"{partition_path}/{EVIDENCE_DIR}"
    name = os.path.basename(partition_path)
    where = _partition_in(name)
    for each in sorted(disk.listdir(folder)):
        if _SEGMENT_LIKE.fullmatch(each):
            places.found.append(FilePlace(f"{folder}/{each}", where, evidence=not own))


def _file(disk: Disk, path: str) -> FilePlace:
    name, parent = os.path.basename(path), os.path.dirname(path)
    if not _SEGMENT_LIKE.fullmatch(name) and not is_metadata_snapshot(name) and not name.endswith(LOG_SUFFIX):
        raise OperatorError(f"{path} is not a segment", "Give a .log file, a .checkpoint file, or a directory.")
    if os.path.basename(parent) == EVIDENCE_DIR:
        parent = os.path.dirname(parent)
        being_written = False
    else:
        is_newest = name == max((each for each in disk.listdir(parent) if is_segment(each)), default="")
        being_written = is_newest and not _Facts(disk, os.path.dirname(parent), Report("")).closed
    where = _partition_in(os.path.basename(parent))
    return FilePlace(path, where, evidence=False, being_written=being_written)


def _partition_in(name: str) -> TopicPartition | None:
    """By a directory's name, also a deleted or stray one."""
    return partition_of(name) or parse_removed_name(name)


def _is_data_dir(disk: Disk, path: str) -> bool:
    if disk.stat(f"{path}/{META_FILE}") is not None or disk.stat(f"{path}/{HIGH_WATERMARKS}") is not None:
        return True
    names = disk.listdir(path) if (found := disk.stat(path)) is not None and found.is_directory else ()
    return any(_partition_in(name) and _is_partition(disk, f"{path}/{name}") for name in names)


def _is_partition(disk: Disk, path: str) -> bool:
    found = disk.stat(path)
    if found is None or not found.is_directory:
        return False
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return False  # deleted just now
    return METADATA_FILE in names or any(is_segment(name) or is_metadata_snapshot(name) for name in names)


def _data_dirs_below(disk: Disk, path: str) -> list[str]:
    """Of several nodes: `node/`, or `node/data/`."""
    below = []
    for name in sorted(disk.listdir(path)):
        for child in (f"{path}/{name}", f"{path}/{name}/data"):
            if (found := disk.stat(child)) is not None and found.is_directory and _is_data_dir(disk, child):
                below.append(child)
                break
    return below


def size_of(disk: Disk, place: Place) -> int:
    """Approximate bytes to read; 0 if that is unknown."""
    try:
        if isinstance(place, FilePlace):
            names = [place.path]
        else:
            names = [f"{place.path}/{name}" for name in disk.listdir(place.path) if is_segment(name)]
        return sum(found.size_bytes for name in names if (found := disk.stat(name)) is not None)
    except OSError:
        return 0
