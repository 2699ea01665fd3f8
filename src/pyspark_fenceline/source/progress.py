"""The lag of a query, from its progress reports.

Owns the figures that Spark's Kafka source reports as metrics (`minOffsetsBehindLatest`, `avgOffsetsBehindLatest`,
`maxOffsetsBehindLatest`). Spark accepts source metrics only from the JVM, not from a source in Python (`pyspark.md`
S13); they are computed here from `endOffset` and `latestOffset` of a progress report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.offsets import SourceOffset, decode


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets behind the latest one, of each partition of the query's Fenceline sources."""

    partitions: Mapping[TopicPartition, int]

    @property
    def minimum(self) -> int:
        return min(self.partitions.values(), default=0)

    @property
    def maximum(self) -> int:
        return max(self.partitions.values(), default=0)

    @property
    def average(self) -> float:
        return sum(self.partitions.values()) / len(self.partitions) if self.partitions else 0.0

    def metrics(self) -> dict[str, str]:
        """With the names and in the form of Spark's Kafka source."""
        return {
            "minOffsetsBehindLatest": str(self.minimum),
            "avgOffsetsBehindLatest": str(self.average),
            "maxOffsetsBehindLatest": str(self.maximum),
        }

    def __str__(self) -> str:
        """For a log line: `Fenceline[flights-0: 12, flights-1: 0 behind]`, largest first."""
        ordered = sorted(self.partitions.items(), key=lambda one: (-one[1], one[0]))
        shown = ", ".join(f"{tp}: {behind}" for tp, behind in ordered[:8])
        more = f", and {len(ordered) - 8} more" if len(ordered) > 8 else ""
        return f"Fenceline[{shown}{more} behind]" if ordered else "Fenceline[]"


def lag_of(progress: Any) -> Lag:
    """The lag in a progress report (`query.lastProgress`, or that of a listener's event). Other kinds of sources are
    ignored; for a partition that the query has not read yet, offsets count from 0.
    """
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    found: dict[TopicPartition, int] = {}
    for source in sources:
        end, latest = (_offset(_field(source, name)) for name in ("endOffset", "latestOffset"))
        if latest is None:
            continue
        for tp, newest in latest.positions.items():
            position = None if end is None else end.positions.get(tp)
            behind = max(0, newest.offset - (0 if position is None else position.offset))
            found[tp] = max(behind, found.get(tp, 0))
    return Lag(found)


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name)


def _offset(encoded: Any) -> SourceOffset | None:
    try:
        found = decode(json.loads(encoded) if isinstance(encoded, str) else encoded)
    except (ValueError, OperatorError):
        return None
    return found if isinstance(found, SourceOffset) and not found.is_of_connector else None
