"""The demo's checks must be able to fail: each kind of damage to a table is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from fenceline.demo.checks import LossCounts, Tables, check, check_loss
from fenceline.demo.delays import delays
from fenceline.demo.flights import ExpectedFlights

EXPECTED = ExpectedFlights(
    flights=4, distance_miles=1000, departure_delay_minutes=30.0, by_carrier={"AA": 3, "UA": 1}, hours=2
)
ENDS = {0: 3, 1: 1, 2: 0}


def raw(**changes: list[object]) -> pa.Table:
    columns: dict[str, list[object]] = {
        "partition": [0, 0, 0, 1],
        "offset": [0, 1, 2, 0],
        "carrier": ["AA", "AA", "AA", "UA"],
        "dep_delay": [10.0, None, 5.0, 15.0],
        "distance": [100, 200, 300, 400],
    }
    return pa.table({**columns, **changes})


def hourly(flights: int = 2) -> pa.Table:
    hour = datetime(2013, 7, 1, 12, tzinfo=UTC)
    return pa.table(
        {
            "time_hour": pa.array([hour, hour.replace(hour=13)], pa.timestamp("us", "UTC")),
            "origin": ["JFK", "LGA"],
            "flights": [flights, 2],
            "departure_delay_minutes": [10.0, 20.0],
            "cancelled": [1, 0],
        }
    )


def failed(tables: Tables) -> set[str]:
    return {each.name for each in check(tables, EXPECTED, ENDS) if not each.passed}


def test_equal_tables_pass() -> None:
    assert failed(Tables(raw(), hourly())) == set()


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        (Tables(raw().slice(0, 3), hourly()), "flights in the raw table"),
        (Tables(raw(distance=[100, 200, 300, 401]), hourly()), "miles flown"),
        (Tables(raw(dep_delay=[10.0, None, 5.0, 16.0]), hourly()), "minutes of departure delay"),
        (Tables(raw(carrier=["AA", "AA", "UA", "UA"]), hourly()), "carriers with the right count"),
        (Tables(raw(offset=[0, 1, 1, 0]), hourly()), "duplicate rows"),
        (Tables(raw(offset=[0, 1, 3, 0]), hourly()), "missing offsets"),
        (Tables(raw(offset=[0, 1, 2, 1]), hourly()), "end offsets of the partitions"),
        (Tables(raw(), hourly().slice(0, 1)), "hours and airports in the aggregate"),
        (Tables(raw(), hourly(flights=3)), "flights in the aggregate"),
    ],
)
def test_each_damage_is_found(tables: Tables, found: str) -> None:
    assert found in failed(tables)


def test_each_wrong_count_of_the_loss_is_found() -> None:
    right = LossCounts(
        acknowledged=7_500,
        with_receipt=7_500,
        ranges=1,
        reported=1,
        removed_rows=7_500,
        resent=7_500,
        audit="equal",
        log_errors=0,
    )
    assert all(each.passed for each in check_loss(right))
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"with_receipt": 7_499}, "lost records with a receipt"),
        ({"reported": 0}, "lost ranges reported by the consumer"),
        ({"removed_rows": 0}, "stale rows deleted from the raw table"),
        ({"resent": 0}, "lost records sent again"),
        ({"audit": "behind"}, "audit of the raw table"),
        ({"log_errors": 1}, "errors in the logs of all replicas"),
    ]
    for wrong, name in wrongs:
        assert [each.name for each in check_loss(replace(right, **wrong)) if not each.passed] == [name]


def test_delays_are_drawn_in_new_york_time() -> None:
    drawn = delays(hourly())
    assert "Jul, 8h: 10.0 min" in drawn  # 12:00 UTC is 8 o'clock in New York in July
    assert "http" not in drawn


def test_no_flights_draw_nothing() -> None:
    assert "No flights." in delays(hourly().slice(0, 0))
