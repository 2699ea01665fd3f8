"""Hourly delays, derived from the row changes of the raw table, so that every repair reaches them.

Owns the sums by hour and airport, and their Delta table. Each version of this table records, in the same commit, the
version of the raw table that it was computed from: after a restart or a crash no row is counted twice or left out.
Never reads the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import InternalError

if TYPE_CHECKING:
    import pyarrow as pa

_RAW_VERSION: Final = "fenceline.demo.raw_version"
_INSERT: Final = "insert"
Key = tuple[datetime, str]
"""Hour and airport."""


@dataclass(slots=True)
class FlightSums:
    """A cancelled flight counts as a flight and has no delay."""

    flights: int = 0
    departure_delay_minutes: float = 0.0
    cancelled: int = 0


class Hourly:
    """The sums as of one version of the raw table; -1 before the first version."""

    def __init__(self) -> None:
        self.raw_version = -1
        self.cells: dict[Key, FlightSums] = {}

    @property
    def flights(self) -> int:
        return sum(cell.flights for cell in self.cells.values())

    def apply(self, changes: Iterable[Mapping[str, Any]], raw_version: int) -> None:
        """Apply the changes of the raw table's versions up to `raw_version`: rows with `_change_type`, `time_hour`,
        `origin`, and the sums `flights`, `departure_delay_minutes` and `cancelled`.

        Raises InternalError if more flights are deleted than were inserted. Do not save the sums then.
        """
        for row in changes:
            sign = 1 if row["_change_type"] == _INSERT else -1
            key = (row["time_hour"], row["origin"])
            cell = self.cells.setdefault(key, FlightSums())
            cell.flights += sign * row["flights"]
            cell.departure_delay_minutes += sign * (row["departure_delay_minutes"] or 0.0)
            cell.cancelled += sign * row["cancelled"]
        for key, cell in list(self.cells.items()):
            if cell.flights < 0 or cell.cancelled < 0:
                raise InternalError(f"more flights of {key} were deleted than inserted: {cell}")
            if not cell.flights:
                del self.cells[key]
        self.raw_version = raw_version

    def as_table(self) -> pa.Table:
        import pyarrow as pa

        keys = sorted(self.cells)
        cells = [self.cells[key] for key in keys]
        return pa.table(
            {
                "time_hour": pa.array([hour for hour, _ in keys], pa.timestamp("us", "UTC")),
                "origin": pa.array([origin for _, origin in keys], pa.string()),
                "flights": pa.array([cell.flights for cell in cells], pa.int64()),
                "departure_delay_minutes": pa.array([cell.departure_delay_minutes for cell in cells], pa.float64()),
                "mean_departure_delay_minutes": pa.array([_mean(cell) for cell in cells], pa.float64()),
                "cancelled": pa.array([cell.cancelled for cell in cells], pa.int64()),
            }
        )

    def save(self, path: Path) -> None:
        """Replace the contents of the table with these sums, in one commit."""
        from deltalake import CommitProperties, write_deltalake

        properties = CommitProperties(custom_metadata={_RAW_VERSION: str(self.raw_version)})
        write_deltalake(str(path), self.as_table(), mode="overwrite", commit_properties=properties)

    @classmethod
    def load(cls, path: Path) -> Hourly:
        """The sums that were last saved; empty if there is no table."""
        from deltalake import DeltaTable

        found = cls()
        if not DeltaTable.is_deltatable(str(path)):
            return found
        table = DeltaTable(str(path))
        found.raw_version = int(table.history(1)[0][_RAW_VERSION])
        for row in table.to_pyarrow_table().to_pylist():
            found.cells[row["time_hour"], row["origin"]] = FlightSums(
                row["flights"], row["departure_delay_minutes"], row["cancelled"]
            )
        return found


def _mean(cell: FlightSums) -> float | None:
    departed = cell.flights - cell.cancelled
    return cell.departure_delay_minutes / departed if departed else None
