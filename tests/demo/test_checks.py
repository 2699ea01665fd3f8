"""The demo's checks must be able to fail: each kind of damage to a table is found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from fenceline.demo.checks import Check, Tables, check
from fenceline.demo.facts import Facts
from fenceline.demo.flights import Expected
from fenceline.demo.report import write_report

EXPECTED = Expected(
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
        (Tables(raw(offset=[0, 1, 1, 0]), hourly()), "rows that are there twice"),
        (Tables(raw(offset=[0, 1, 3, 0]), hourly()), "offsets missing before the last one"),
        (Tables(raw(offset=[0, 1, 2, 1]), hourly()), "end offsets of log and table"),
        (Tables(raw(), hourly().slice(0, 1)), "hours and airports in the aggregate"),
        (Tables(raw(), hourly(flights=3)), "flights in the aggregate"),
    ],
)
def test_each_damage_is_found(tables: Tables, found: str) -> None:
    assert found in failed(tables)


def test_the_report_draws_what_the_tables_say(tmp_path: Path) -> None:
    facts = Facts(produced=4, producing_s=2.0, restarted_at_rows=2, streaming_s=3.0, log_ends=ENDS)
    facts.checks = [Check("a <check>", "1", "2")]
    write_report(tmp_path / "report.html", facts, Tables(raw(), hourly()))
    page = (tmp_path / "report.html").read_text()
    assert "The tables do not equal the input." in page
    assert "a &lt;check&gt;" in page
    assert "Jul, 8h: 10.0 min" in page  # 12:00 UTC is 8 o'clock in New York in July
    assert "<script" not in page
    assert "http" not in page.replace("<!doctype html>", "")
