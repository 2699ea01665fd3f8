"""Verifies log directories without a broker: every file of every partition, and replicas against each other.

Owns the order of the work: find the places, verify each by itself, then compare the replicas of each partition. Reads
only, and is safe while the node is running. Blocks: not for the loop.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fenceline.ids import TopicPartition
from fenceline.log.core.disk import Disk
from fenceline.log.verify.compare import compare, reference_of
from fenceline.log.verify.file import verify_file
from fenceline.log.verify.findings import LogFindingKind, Report, Severity
from fenceline.log.verify.partition import VerifySettings, verify_partition
from fenceline.log.verify.places import PartitionPlace, Place, Places, places_at, size_of

__all__ = [
    "LogFindingKind",
    "Report",
    "Severity",
    "VerifySettings",
    "find_places",
    "groups_of",
    "size_of_group",
    "verify_group",
    "verify_places",
]


def find_places(disk: Disk, paths: Sequence[str]) -> Places:
    """Everything to verify in these paths; a duplicate counts once. Raises OperatorError, OSError."""
    everything = Places()
    seen = set()
    for path in paths:
        places = places_at(disk, path)
        everything.reports += places.reports
        for place in places.found:
            real = os.path.realpath(place.path)
            if real not in seen:
                seen.add(real)
                everything.found.append(place)
    return everything


def groups_of(places: Places, *, compare_replicas: bool = True) -> list[list[Place]]:
    """The groups to verify: each place by itself, and last the replicas of each partition that has several.

    Metadata logs are replicas, too: all voters hold the same records.
    """
    replicas: dict[TopicPartition, list[Place]] = defaultdict(list)
    for place in places.found:
        if compare_replicas and (of := _replica_of(place)) is not None:
            replicas[of].append(place)
    several = [group for group in replicas.values() if len(group) > 1]
    grouped = {id(place) for group in several for place in group}
    return [[place] for place in places.found if id(place) not in grouped] + several


def _replica_of(place: Place) -> TopicPartition | None:
    return place.topic_partition if isinstance(place, PartitionPlace) and not place.is_removed else None


def size_of_group(disk: Disk, group: Sequence[Place]) -> int:
    """Approximate total bytes of the progress reports; bytes that a comparison reads again count again."""
    sizes = [size_of(disk, place) for place in group]
    return sum(sizes) + (sum(sizes) - max(sizes) if len(group) > 1 else 0)


def verify_group(disk: Disk, group: Sequence[Place], settings: VerifySettings) -> list[Report]:
    """A report for each place of one group of `groups_of`. Replicas are compared with the one that has the newest
    history.

    If one of them was compacted, the others may have its gaps: a replica that fetched them has no record of that.
    """
    if any(isinstance(place, PartitionPlace) and place.cleaned for place in group):
        group = [replace(place, cleaned=True) if isinstance(place, PartitionPlace) else place for place in group]
    reports = [_verify(disk, place, settings) for place in group]
    if len(group) > 1:
        reference = reference_of(reports)
        for report in reports:
            if report is not reference:
                _compare(disk, reference, report, settings)
    return reports


def verify_places(
    disk: Disk, places: Places, settings: VerifySettings, *, compare_replicas: bool = True
) -> Iterator[Report]:
    """A report for each place, one group after the other; keeps only one group's reports in memory."""
    yield from places.reports
    for group in groups_of(places, compare_replicas=compare_replicas):
        yield from verify_group(disk, group, settings)


def _verify(disk: Disk, place: Place, settings: VerifySettings) -> Report:
    if isinstance(place, PartitionPlace):
        return verify_partition(disk, place, settings)
    return verify_file(disk, place, settings)


def _compare(disk: Disk, reference: Report, report: Report, settings: VerifySettings) -> None:
    try:
        finding = compare(disk, reference, report, settings.progress)
    except OSError as error:
        report.findings.error(
            LogFindingKind.UNREADABLE,
            error.filename or report.path,
            f"could not be compared with {reference.path}: {error.strerror or error}",
            "A running node deletes and truncates segments: verify again.",
        )
        return
    if finding is not None:
        report.findings.add(finding)
