"""The aggregate equals the sum over the raw table after any inserts and deletes."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.demo.aggregate import FlightSums, Hourly
from fenceline.errors import InternalError

Flight = tuple[int, str, float | None]
"""Hour, airport, delay; None is cancelled."""

flights = st.tuples(st.integers(0, 3), st.sampled_from(["JFK", "LGA"]), st.none() | st.integers(-20, 300).map(float))


def changes(kind: str, rows: list[Flight]) -> list[dict[str, Any]]:
    """Grouped as Spark does it: null if no row has a delay."""
    groups: dict[tuple[int, str], list[float | None]] = defaultdict(list)
    for hour, origin, delay in rows:
        groups[hour, origin].append(delay)
    return [
        {
            "_change_type": kind,
            "time_hour": datetime(2013, 1, 1, hour, tzinfo=UTC),
            "origin": origin,
            "flights": len(delays),
            "departure_delay_minutes": sum(known) if (known := [d for d in delays if d is not None]) else None,
            "cancelled": delays.count(None),
        }
        for (hour, origin), delays in groups.items()
    ]


def summed(rows: list[Flight]) -> dict[tuple[datetime, str], FlightSums]:
    made = Hourly()
    made.apply(changes("insert", rows), 0)
    return made.cells


@given(st.lists(st.tuples(st.lists(flights, max_size=8), st.sets(st.integers(0, 60), max_size=6)), max_size=6))
def test_the_aggregate_is_the_sum_of_the_remaining_rows(steps: list[tuple[list[Flight], set[int]]]) -> None:
    """Each step inserts rows and deletes earlier ones."""
    hourly, there = Hourly(), []
    for version, (come, go) in enumerate(steps):
        there += come
        gone = [there[index] for index in sorted(go) if index < len(there)]
        there = [row for index, row in enumerate(there) if index not in go]
        hourly.apply([*changes("delete", gone), *changes("insert", come)], version)
        assert hourly.cells == summed(there)
        assert hourly.raw_version == version
        assert hourly.flights == len(there)


def test_deleting_more_than_was_inserted_is_an_error() -> None:
    hourly = Hourly()
    hourly.apply(changes("insert", [(1, "JFK", 5.0)]), 0)
    with pytest.raises(InternalError, match="more flights"):
        hourly.apply(changes("delete", [(1, "JFK", 5.0), (1, "JFK", 7.0)]), 1)


def test_the_aggregate_continues_from_its_table(tmp_path: Path) -> None:
    path = tmp_path / "hourly"
    assert (Hourly.load(path).raw_version, Hourly.load(path).cells) == (-1, {})
    hourly = Hourly()
    hourly.apply(changes("insert", [(1, "JFK", 5.0), (1, "JFK", None), (2, "LGA", None)]), 4)
    hourly.save(path)
    again = Hourly.load(path)
    assert (again.raw_version, again.cells) == (4, hourly.cells)
    again.apply(changes("delete", [(2, "LGA", None)]), 6)
    again.save(path)
    assert Hourly.load(path).raw_version == 6
    table = Hourly.load(path).as_table()
    assert table.column_names == [
        "time_hour", "origin", "flights", "departure_delay_minutes", "mean_departure_delay_minutes", "cancelled"
    ]  # fmt: skip
    (row,) = table.to_pylist()
    assert (row["flights"], row["mean_departure_delay_minutes"], row["cancelled"]) == (2, 5.0, 1)


def test_an_hour_without_departures_has_no_mean() -> None:
    hourly = Hourly()
    hourly.apply(changes("insert", [(2, "LGA", None)]), 0)
    assert hourly.as_table()["mean_departure_delay_minutes"].to_pylist() == [None]
