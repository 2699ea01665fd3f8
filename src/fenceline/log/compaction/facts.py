"""The facts about a log's segments that compaction is planned by. Reads timestamps only if a setting needs them.

Owns nothing; may wait for the disk to read timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.log.compaction.plan import SegmentFacts
from fenceline.log.core.config import MAX_INT64, LogConfig
from fenceline.log.core.segment import Segment


def segment_facts(segments: Sequence[Segment], config: LogConfig) -> list[SegmentFacts]:
    """The active segment's timestamps are never needed. For a thread if a lag is set. Raises OSError, BadBatch."""
    asks_first, asks_largest = config.max_compaction_lag_ms < MAX_INT64, config.min_compaction_lag_ms > 0
    found = []
    for position, segment in enumerate(segments):
        is_sealed = position + 1 < len(segments)
        first_ms = segment.first_batch_timestamp_ms() if asks_first and is_sealed else -1
        largest_ms = segment.largest_timestamp_ms() if asks_largest and is_sealed else -1
        found.append(SegmentFacts(segment.base_offset, segment.size_bytes, first_ms, largest_ms))
    return found
