"""Reads the repairs of a table from its transaction log: the version, the number of stale rows and their ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_fenceline.delta.state import KEY


@dataclass(frozen=True, slots=True)
class DemoRepair:
    """One version of the table that deleted stale rows. `at_wall_s`: seconds since 1970."""

    version: int
    at_wall_s: float
    rows: int
    ranges: tuple[str, ...]

    def __str__(self) -> str:
        return f"Version {self.version} of the raw table deletes {self.rows:,} stale rows: {', '.join(self.ranges)}"


def repairs_of(table: Path) -> list[DemoRepair]:
    """All repairs, oldest first; empty while there is no table."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return []
    found = []
    for entry in reversed(DeltaTable(str(table)).history()):
        repair: Any = (entry.get(KEY) or {}).get("repair")
        if repair is not None:
            ranges = tuple(_ranges(repair["ranges"]))
            found.append(DemoRepair(entry["version"], entry["timestamp"] / 1000, repair["removed_rows"], ranges))
    return found


def _ranges(ranges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Join the ranges of the files that are contiguous."""
    joined: list[list[Any]] = []
    for one in sorted(ranges, key=lambda one: (one["topic"], one["partition"], one["epoch"], one["first_offset"])):
        name, epoch, first = f"{one['topic']}-{one['partition']}", one["epoch"], one["first_offset"]
        if joined and joined[-1][:2] == [name, epoch] and joined[-1][3] + 1 == first:
            joined[-1][3] = one["last_offset"]
        else:
            joined.append([name, epoch, first, one["last_offset"]])
    for name, epoch, first, last in joined:
        yield f"{name} {first:,} to {last:,} of epoch {epoch}"
