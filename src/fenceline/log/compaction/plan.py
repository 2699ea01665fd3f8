"""Decides which part of a log can be compacted, and whether that is due now. No I/O and no clock.

Owns the rules of Apache Kafka 4.3.1. Data below the checkpoint is clean. Data past the high watermark, the last stable
offset or the last recovery point on the disk, in the active segment, or in a segment with a record younger than
`min.compaction.lag.ms`, is not compacted. A log is due if its dirty bytes exceed `min.cleanable.dirty.ratio` of the
bytes to rewrite, or if its oldest dirty record is older than `max.compaction.lag.ms`. Only complete segments count.
Decides by these numbers only.

The recovery point is Fenceline's own bound: past it, recovery after a crash reads epochs from the batches, which do not
show the start of an epoch whose first batch was compacted away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fenceline.log.core.config import MAX_INT64, LogConfig


class SegmentFacts(NamedTuple):
    """Timestamps are read only if a lag is set, else -1: `first` of the first batch, `largest` of all."""

    base_offset: int
    size_bytes: int
    first_timestamp_ms: int
    largest_timestamp_ms: int


class LogFacts(NamedTuple):
    """One log. `segments` ends with the active one. Below `limit_offset` everything is committed, stable and safe on
    the disk. `checkpoint`: the offset up to which the log was compacted, None if it never was."""

    segments: Sequence[SegmentFacts]
    log_start_offset: int
    log_end_offset: int
    limit_offset: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """Compact [first_dirty, end) together with the data before it."""

    first_dirty: int
    end: int
    dirty_bytes: int
    ratio: float
    overdue_ms: int = 0
    """How long it has been due by `max.compaction.lag.ms`, regardless of the ratio."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """Check again at this time, or, if None, when another segment is sealed."""

    at_ms: int | None
    ratio: float = 0.0


Verdict: TypeAlias = Due | NotDue


def judge(log: LogFacts, config: LogConfig, now_ms: int) -> Verdict:
    """Whether a log is due for compaction, and which part of it."""
    segments = log.segments
    if len(segments) < 2:
        return NotDue(None)
    first_dirty = _first_dirty(log)
    end, check_again_ms = segments[-1].base_offset, MAX_INT64
    for number, segment in enumerate(segments[:-1]):
        after = segments[number + 1].base_offset
        if after <= first_dirty:
            continue
        if after > log.limit_offset:
            end, check_again_ms = segment.base_offset, now_ms
            break
        young_until_ms = segment.largest_timestamp_ms + config.min_compaction_lag_ms
        if config.min_compaction_lag_ms > 0 and young_until_ms > now_ms:
            end, check_again_ms = segment.base_offset, young_until_ms
            break
    afters = [segment.base_offset for segment in segments[1:]]
    ranges = list(zip(segments, afters, strict=False))
    dirty = [segment for segment, after in ranges if after > first_dirty and after <= end]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return NotDue(check_again_ms if check_again_ms < MAX_INT64 else None)
    clean_bytes = sum(segment.size_bytes for segment, after in ranges if after <= first_dirty)
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    due_at_ms = _due_at_ms(dirty, config)
    if ratio > config.min_cleanable_dirty_ratio or due_at_ms < now_ms:
        return Due(first_dirty, end, dirty_bytes, ratio, max(0, now_ms - due_at_ms))
    at_ms = min(check_again_ms, due_at_ms + 1)
    return NotDue(at_ms if at_ms < MAX_INT64 else None, ratio)


def dirtiest(logs: Sequence[Due]) -> list[int]:
    """Indexes of the logs, dirtiest first; equal ones keep their order."""
    return sorted(range(len(logs)), key=lambda position: -logs[position].ratio)


def _first_dirty(log: LogFacts) -> int:
    checkpoint = log.checkpoint
    if checkpoint is None or not log.log_start_offset <= checkpoint <= log.log_end_offset:
        return log.log_start_offset
    return checkpoint


def _due_at_ms(dirty: Sequence[SegmentFacts], config: LogConfig) -> int:
    known = [segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms > 0]
    return min(known) + config.max_compaction_lag_ms if known else MAX_INT64


class SegmentGroup(NamedTuple):
    """Segments [start, end) that become one."""

    start: int
    end: int


def groups(
    segments: Sequence[tuple[int, int, int]], *, end: int, segment_bytes: int, index_bytes: int, most: int
) -> list[SegmentGroup]:
    """Group segments, each (base offset, bytes, bytes of its larger index), so that each group fits into one segment.

    `end`: the first offset after them. `most`: maximum number of segments in a group, as a group is replaced in one
    step.
    """
    found: list[SegmentGroup] = []
    start = size = index_size = 0
    for position, (_, segment_size, segment_index) in enumerate(segments):
        after = segments[position + 1][0] if position + 1 < len(segments) else end
        fits = (
            position - start < most
            and size + segment_size <= segment_bytes
            and index_size + segment_index <= index_bytes
            and after - 1 - segments[start][0] <= (1 << 31) - 1
        )
        if position > start and not fits:
            found.append(SegmentGroup(start, position))
            start, size, index_size = position, 0, 0
        size += segment_size
        index_size += segment_index
    if segments:
        found.append(SegmentGroup(start, len(segments)))
    return found
