"""Verifies log directories without a broker: every file of every partition, and replicas against each other.

Owns the order of the work: places, then each by itself, then the comparison of those that are replicas of one
partition. Reads only, and is safe beside a running node. Blocks: not for the loop.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fenceline.ids import TopicPartition
from fenceline.log.disk import Disk
from fenceline.log.verify_compare import compare, reference_of
from fenceline.log.verify_file import verify_file
from fenceline.log.verify_findings import Kind, Report, Severity
from fenceline.log.verify_partition import Settings, verify_partition
from fenceline.log.verify_places import PartitionPlace, Places, places_at

__all__ = ["Kind", "Report", "Settings", "Severity", "find_places", "verify_places"]


def find_places(disk: Disk, paths: Sequence[str]) -> Places:
    """What all the paths hold; what is named twice counts once. Raises OperatorError, OSError."""
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


def verify_places(disk: Disk, places: Places, settings: Settings, *, compare_replicas: bool = True) -> Iterator[Report]:
    """A report for each place; those of partitions that have replicas among the places come last, compared."""
    yield from places.reports
    replicas = _replicas(places) if compare_replicas else {}
    for place in places.found:
        if isinstance(place, PartitionPlace):
            if place.path not in replicas:
                yield verify_partition(disk, place, settings)
        else:
            yield verify_file(disk, place, settings)
    for group in _groups(replicas):
        reports = [verify_partition(disk, place, settings) for place in group]
        reference = reference_of(reports)
        for report in reports:
            if report is not reference:
                _compare(disk, reference, report)
        yield from reports


def _compare(disk: Disk, reference: Report, report: Report) -> None:
    try:
        finding = compare(disk, reference, report)
    except OSError as error:
        report.findings.error(
            Kind.UNREADABLE,
            error.filename or report.path,
            f"could not be compared with {reference.path}: {error.strerror or error}",
            "A node that runs deletes and cuts segments: verify again.",
        )
        return
    if finding is not None:
        report.findings.add(finding)


def _replicas(places: Places) -> dict[str, PartitionPlace]:
    """By path, those that have a counterpart. Metadata logs are compared too: all voters hold the same."""
    by_partition: dict[TopicPartition, list[PartitionPlace]] = defaultdict(list)
    for place in places.found:
        if isinstance(place, PartitionPlace) and place.topic_partition is not None and not place.put_away:
            by_partition[place.topic_partition].append(place)
    return {place.path: place for group in by_partition.values() if len(group) > 1 for place in group}


def _groups(replicas: dict[str, PartitionPlace]) -> list[list[PartitionPlace]]:
    groups: dict[TopicPartition | None, list[PartitionPlace]] = defaultdict(list)
    for place in replicas.values():
        groups[place.topic_partition].append(place)
    return list(groups.values())
