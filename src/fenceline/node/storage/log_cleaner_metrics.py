"""The metrics of compaction, computed when they are scraped.

Owns only their names, which `docs/metrics.md` explains. Runs in the scraper's thread and never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fenceline.node.metric_families import counters, gauges

if TYPE_CHECKING:
    from fenceline.node.storage.log_cleaner import LogCleaner


class CleanerCollector:
    """Yields them to prometheus-client."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner

    def collect(self) -> Iterator[Any]:
        totals = self._cleaner.stats
        uncleanable = [replica for replica, _ in tuple(self._cleaner.uncleanable.values())]
        stuck_bytes = sum(segment.size_bytes for replica in uncleanable for segment in tuple(replica.log.segments)[:-1])
        yield from counters(
            ("fenceline_cleaner_runs", "Compactions of a log", totals.runs),
            ("fenceline_cleaner_read_bytes", "Bytes that compaction has read, in both passes", totals.bytes_read),
            (
                "fenceline_cleaner_removed_bytes",
                "Bytes that compaction has freed",
                max(0, totals.bytes_before - totals.bytes_after),
            ),
            ("fenceline_cleaner_removed_records", "Records that compaction has removed", totals.records_removed),
        )
        yield from gauges(
            ("fenceline_cleaner_max_dirty_percent", "Percent of the dirtiest log", 100 * totals.dirtiest_ratio),
            ("fenceline_cleaner_overdue_seconds", "Most behind max.compaction.lag.ms", totals.overdue_ms / 1000),
            ("fenceline_cleaner_max_clean_seconds", "Duration of the longest compaction", totals.longest_s),
            ("fenceline_cleaner_recopy_percent", "Bytes kept by the last compaction", 100 * totals.recopied),
            ("fenceline_cleaner_max_buffer_percent", "Highest use of the memory for keys", 100 * totals.fullest_map),
            ("fenceline_cleaner_uncleanable_partitions", "Partitions with a failed compaction", len(uncleanable)),
            ("fenceline_cleaner_uncleanable_bytes", "Bytes of their sealed segments", stuck_bytes),
        )
