"""What the table's own log tells of its repairs: which version took out how many stale rows, and of which ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KEY = "fenceline"
"""Of the sink, in the metadata of its commits."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One entry of the table's log. `at_wall_s`: seconds since 1970."""

    version: int
    at_wall_s: float
    rows: int
    ranges: tuple[str, ...]

    def __str__(self) -> str:
        return f"version {self.version} of the raw table takes out {self.rows:,} stale rows ({', '.join(self.ranges)})"


def repairs_of(table: Path) -> list[Repair]:
    """Oldest first; empty while there is no table."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return []
    found = []
    for entry in reversed(DeltaTable(str(table)).history()):
        told: Any = (entry.get(_KEY) or {}).get("repair")
        if told is not None:
            words = tuple(_words(told["ranges"]))
            found.append(Repair(entry["version"], entry["timestamp"] / 1000, told["removed_rows"], words))
    return found


def _words(ranges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each file has its own range; those that go on in the next file are one."""
    joined: list[list[Any]] = []
    for one in sorted(ranges, key=lambda one: (one["topic"], one["partition"], one["epoch"], one["first_offset"])):
        name, epoch, first = f"{one['topic']}-{one['partition']}", one["epoch"], one["first_offset"]
        if joined and joined[-1][:2] == [name, epoch] and joined[-1][3] + 1 == first:
            joined[-1][3] = one["last_offset"]
        else:
            joined.append([name, epoch, first, one["last_offset"]])
    for name, epoch, first, last in joined:
        yield f"{name} {first:,} to {last:,} of epoch {epoch}"
