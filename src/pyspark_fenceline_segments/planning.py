"""Which files a query reads, and in which tasks. Owns listing the directories, on the driver; opens no segment."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from fenceline.errors import OperatorError
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.file_names import LOG_SUFFIX, segment_bases, stem
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.verify.places import FilePlace, PartitionPlace, Place, Places
from fenceline.log.verify.verify import find_places
from pyspark_fenceline_segments.options import SegmentOptions

TASK_BYTES: Final = 256 << 20
"""A Spark task reads about this much, if there are more tasks than cores."""
_CHECKPOINT: Final = ".checkpoint"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`replica`: the parent of the partition's directory. `may_be_torn`: a node may be writing to the file."""

    path: str
    replica: str
    topic: str | None
    partition: int | None
    evidence: bool
    may_be_torn: bool
    size_bytes: int


def places_of(options: SegmentOptions) -> Places:
    """Raises `OperatorError` if a path does not exist."""
    places = find_places(OsDisk(), _expanded(options.paths))
    places.found = [place for place in places.found if _is_wanted(place, options)]
    return places


def files_of(places: Sequence[Place]) -> list[SegmentFile]:
    """Every file with batches, in the order of offsets within a partition. Raises OSError."""
    found: list[SegmentFile] = []
    for place in places:
        if isinstance(place, PartitionPlace):
            paths = _segments_in(place.path)
            found += [
                _file(place, path, False, not place.closed and number == len(paths) - 1)
                for number, path in enumerate(paths)
            ]
        elif not place.path.endswith(_CHECKPOINT):
            found.append(_file(place, place.path, _is_evidence(place.path), False))
    return found


def task_count(options: SegmentOptions, sizes: Sequence[int]) -> int:
    """The option's value; else one per core of the driver, and more for larger inputs."""
    if options.max_partitions is not None:
        return options.max_partitions
    return max(os.cpu_count() or 1, -(-sum(sizes) // TASK_BYTES))


def pack(items: Sequence[T], sizes: Sequence[int], tasks: int) -> list[list[T]]:
    """`items` in at most `tasks` lists of about equal size, each in the given order."""
    loads = [0] * max(1, min(tasks, len(items)))
    chosen: list[list[int]] = [[] for _ in loads]
    for number in sorted(range(len(items)), key=lambda n: -sizes[n]):
        least = loads.index(min(loads))
        loads[least] += max(sizes[number], 1)
        chosen[least].append(number)
    return [[items[number] for number in sorted(numbers)] for numbers in chosen if numbers]


def replica_of(path: str) -> str:
    """The replica of a partition's directory, or of a file in one."""
    parent = os.path.dirname(path)
    if os.path.basename(parent) == EVIDENCE_DIR:
        parent = os.path.dirname(parent)
    return os.path.dirname(parent)


def _expanded(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        if not glob.has_magic(path) or os.path.exists(path):
            found.append(path)
            continue
        hits = sorted(glob.glob(path))
        if not hits:
            raise OperatorError(
                f"No file on the driver's machine matches {path}", "The driver lists the files: check the path there."
            )
        found += hits
    return found


def _is_wanted(place: Place, options: SegmentOptions) -> bool:
    if isinstance(place, FilePlace) and _is_evidence(place.path) and not options.evidence:
        return False
    return not options.topics or (place.topic_partition is not None and place.topic_partition.topic in options.topics)


def _is_evidence(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == EVIDENCE_DIR


def _segments_in(directory: str) -> list[str]:
    return [stem(directory, base) + LOG_SUFFIX for base in segment_bases(os.listdir(directory))]


def _file(place: Place, path: str, evidence: bool, may_be_torn: bool) -> SegmentFile:
    where = place.topic_partition
    try:
        size_bytes = os.stat(path).st_size
    except FileNotFoundError:
        size_bytes = 0
    return SegmentFile(
        path,
        replica_of(path),
        where.topic if where is not None else None,
        where.partition if where is not None else None,
        evidence,
        may_be_torn,
        size_bytes,
    )
