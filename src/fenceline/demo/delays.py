"""Charts of the aggregate table: mean departure delay by day, and by month and hour.

Owns these two charts, as SVG text. Reads every figure from the table that the pipeline wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import pyarrow as pa

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NEW_YORK: Final = ZoneInfo("America/New_York")
_FIRST_HOUR: Final = 5
_LAST_HOUR: Final = 23


def delays(hourly: pa.Table) -> str:
    """The two sections of the page, as HTML."""
    daily, grid = _means(hourly)
    return (
        f"<h2>Mean departure delay by day, minutes</h2>{_line(daily)}"
        f"<h2>Mean departure delay by month and scheduled hour, minutes</h2>{_heatmap(grid)}"
    )


def _means(hourly: pa.Table) -> tuple[dict[date, float], dict[tuple[int, int], float]]:
    """Mean delay by day, and by (month, hour of the day in New York), of flights that departed."""
    days: dict[date, list[float]] = {}
    cells: dict[tuple[int, int], list[float]] = {}
    columns = ("time_hour", "flights", "cancelled", "departure_delay_minutes")
    for hour, flights, cancelled, minutes in zip(*(hourly[name].to_pylist() for name in columns), strict=True):
        departed = flights - cancelled
        if not departed:
            continue
        local = hour.astimezone(_NEW_YORK)
        for sums in (
            days.setdefault(local.date(), [0.0, 0.0]),
            cells.setdefault((local.month, local.hour), [0.0, 0.0]),
        ):
            sums[0] += minutes
            sums[1] += departed
    return (
        {day: total / count for day, (total, count) in sorted(days.items())},
        {cell: total / count for cell, (total, count) in cells.items()},
    )


def _line(daily: Mapping[date, float]) -> str:
    width, height, left, bottom = 900, 220, 34, 22
    if not daily:
        return "<p>No flights.</p>"
    low, high = min(0.0, *daily.values()), max(daily.values())
    first = min(daily)
    span = max((max(daily) - first).days, 1)

    def x(day: date) -> float:
        return left + (width - left) * (day - first).days / span

    def y(value: float) -> float:
        return (height - bottom) * (1 - (value - low) / (high - low or 1)) + 4

    points = " ".join(f"{x(day):.1f},{y(value):.1f}" for day, value in daily.items())
    marks = "".join(
        f'<line x1="{left}" x2="{width}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="var(--line)"/>'
        f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.0f}</text>'
        for v in _ticks(low, high)
    )
    labels = "".join(
        f'<text x="{x(date(first.year, month, 1)) + 4:.1f}" y="{height - 4}">{name}</text>'
        for month, name in enumerate(_MONTHS, start=1)
        if date(first.year, month, 1) >= first
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Mean departure delay by day">{marks}'
        f'<polyline points="{points}" fill="none" stroke="var(--mark)" stroke-width="1.5"/>{labels}</svg>'
    )


def _ticks(low: float, high: float) -> Sequence[float]:
    step = 20 if high - low > 60 else 10
    return [float(value) for value in range(int(low // step) * step, int(high) + 1, step) if value >= low]


def _heatmap(grid: Mapping[tuple[int, int], float]) -> str:
    cell_width, cell_height, left, top = 45, 24, 40, 20
    hours = range(_FIRST_HOUR, _LAST_HOUR + 1)
    months = range(1, max((month for month, _ in grid), default=0) + 1)
    width, height = left + cell_width * len(hours), top + cell_height * len(months) + 4
    highest = max(grid.values(), default=1.0)
    parts = [
        f'<text x="{left + cell_width * i + cell_width / 2:.0f}" y="13" text-anchor="middle">{hour}h</text>'
        for i, hour in enumerate(hours)
    ]
    for month in months:
        name = _MONTHS[month - 1]
        row = top + cell_height * (month - 1)
        parts.append(f'<text x="{left - 6}" y="{row + 16}" text-anchor="end">{name}</text>')
        for i, hour in enumerate(hours):
            mean = grid.get((month, hour))
            if mean is None:
                continue
            strength = max(0.0, min(1.0, mean / highest))
            parts.append(
                f'<rect x="{left + cell_width * i}" y="{row}" width="{cell_width - 2}" height="{cell_height - 2}"'
                f' rx="3" fill="var(--mark)" fill-opacity="{0.06 + 0.9 * strength:.2f}">'
                f"<title>{name}, {hour}h: {mean:.1f} min</title></rect>"
                f'<text x="{left + cell_width * i + cell_width / 2 - 1:.0f}" y="{row + 15}"'
                f' text-anchor="middle" style="fill:var(--{"back" if strength > 0.6 else "ink"})">{round(mean)}</text>'
            )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Mean departure delay by month and hour">'
        f"{''.join(parts)}</svg>"
    )
