"""Narrows offset ranges by pushed-down filters.

Owns the interpretation of Spark's filters on `topic`, `partition`, `offset` and `timestamp`. Removes only ranges
without matching rows; Spark applies every filter again. Pure except for the look-up of timestamps.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import SourceCluster

T = TypeVar("T")
_FAR: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds that every matching row satisfies. None: no bound.

    Timestamps only move starts: the offset for a timestamp is the first record that is not older, but later records may
    be older again, so no end follows from an upper bound.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset_exclusive: int = _FAR
    first_timestamp_ms: int | None = None

    def apply(
        self, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], cluster: SourceCluster
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Narrower starts and ends of the partitions that can hold matching rows.

        The broker's offset for a timestamp is that of the first record at or after it, so every record before it is
        older: starting there loses nothing, whatever the order of timestamps.
        """
        kept = [
            tp
            for tp in starts
            if (self.topics is None or tp.topic in self.topics)
            and (self.partitions is None or tp.partition in self.partitions)
        ]
        first = {tp: max(starts[tp], self.first_offset) for tp in kept}
        last = {tp: min(ends[tp], self.end_offset_exclusive) for tp in kept}
        if self.first_timestamp_ms is not None and kept:
            found = cluster.offsets_at(dict.fromkeys(kept, max(0, self.first_timestamp_ms)))
            for tp, offset in found.items():
                first[tp] = last[tp] if offset is None else max(first[tp], offset)
        return first, last


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    """The bounds that follow from all `filters` together (they are joined by AND)."""
    found = Narrowing()
    for one in filters:
        found = _and(found, one)
    return found


def _and(found: Narrowing, one: Filter) -> Narrowing:
    match one:
        case EqualTo(("topic",), str(value)):
            return replace(found, topics=_both(found.topics, {value}))
        case In(("topic",), values) if all(isinstance(value, str) for value in values):
            return replace(found, topics=_both(found.topics, set(values)))
        case EqualTo(("partition",), int(value)):
            return replace(found, partitions=_both(found.partitions, {value}))
        case In(("partition",), values) if all(isinstance(value, int) for value in values):
            return replace(found, partitions=_both(found.partitions, set(values)))
        case EqualTo(("offset",), int(value)):
            return _offsets(found, value, value + 1)
        case GreaterThanOrEqual(("offset",), int(value)):
            return _offsets(found, value, _FAR)
        case GreaterThan(("offset",), int(value)):
            return _offsets(found, value + 1, _FAR)
        case LessThan(("offset",), int(value)):
            return _offsets(found, 0, value)
        case LessThanOrEqual(("offset",), int(value)):
            return _offsets(found, 0, value + 1)
        case (
            GreaterThan(("timestamp",), datetime.datetime() as value)
            | GreaterThanOrEqual(("timestamp",), datetime.datetime() as value)
            | EqualTo(("timestamp",), datetime.datetime() as value)
        ) if value.tzinfo is not None:
            since = value.timestamp() * 1000 // 1
            return replace(found, first_timestamp_ms=int(max(since, found.first_timestamp_ms or since)))
    return found


def _both(known: frozenset[T] | None, given: set[T]) -> frozenset[T]:
    return frozenset(given) if known is None else known & given


def _offsets(found: Narrowing, first: int, end: int) -> Narrowing:
    return replace(
        found,
        first_offset=max(found.first_offset, first),
        end_offset_exclusive=min(found.end_offset_exclusive, end),
    )
