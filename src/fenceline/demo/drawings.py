"""Charts of the demo's page, as SVG text: bars over time or offsets, and lines. Knows nothing of logs.

Owns scales, axes, hatching and the fitting of labels. Every mark has a `<title>` with its figures; colours are CSS
variables of the page, and no information is shown by colour alone. Escapes all texts.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 900
LEFT: Final = 84
"""Room for the names of rows."""
_RIGHT: Final = 20
_ROW: Final = 40
_BAR: Final = 20
_AXIS: Final = 22
_TOP: Final = 6
_MARKERS: Final = 22
"""Room for the marker numbers above the rows."""
_CHARACTER: Final = 6.3
"""Approximate width of a character, in units of the chart."""
_MARKER: Final = 9


@dataclass(frozen=True, slots=True)
class Bar:
    """`row` counts from the top. `style`: a class of the page. `below`: drawn half a row lower."""

    row: int
    start: float
    end: float
    label: str
    title: str
    style: str
    below: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """A numbered line through all rows."""

    at: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    points: Sequence[tuple[float, float]]
    style: str
    label: str


def bars(
    names: Sequence[str],
    content: Sequence[Bar],
    end: float,
    *,
    label: str,
    unit: Callable[[float], str],
    markers: Sequence[Marker] = (),
    shade: tuple[float, float] | None = None,
) -> str:
    """Rows of bars over one axis from 0 to `end`. `label` names the chart; `unit` formats a value of the axis."""
    height = _TOP + _ROW * len(names) + _AXIS
    x = _scale(end)
    parts = []
    if shade is not None:
        parts.append(
            f'<rect class="shade" x="{x(shade[0]):.1f}" y="{_TOP}" width="{max(x(shade[1]) - x(shade[0]), 1):.1f}"'
            f' height="{_ROW * len(names)}"/>'
        )
    parts += _axis(end, height, x, unit)
    for row, name in enumerate(names):
        middle = _TOP + _ROW * row + _BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{_text(name)}</text>')
    parts += [_bar(bar, x) for bar in content]
    parts += _markers(markers, x, height)
    return _svg(height, label, parts, above=_MARKERS if markers else 0)


def lines(
    content: Sequence[Line], end: float, *, label: str, unit: Callable[[float], str], shade: tuple[float, float] | None
) -> str:
    """Curves over one axis from 0 to `end`, with a legend."""
    height, top = 240, 14
    highest = max((y for line in content for _, y in line.points), default=0) or 1
    x = _scale(end)
    bottom = height - _AXIS

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / highest

    parts = []
    if shade is not None:
        parts.append(
            f'<rect class="shade" x="{x(shade[0]):.1f}" y="{top}" width="{max(x(shade[1]) - x(shade[0]), 1):.1f}"'
            f' height="{bottom - top}"/>'
        )
    parts += _axis(end, height, x, unit, top=top)
    for value in steps(highest, 4):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
    for number, line in enumerate(content):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
        parts.append(f'<polyline class="{line.style}" points="{points}" fill="none">{_title(line.label)}</polyline>')
        at = top + 12 + 16 * number
        parts.append(
            f'<line class="{line.style}" x1="{LEFT + 12}" x2="{LEFT + 36}" y1="{at}" y2="{at}"/>'
            f'<text x="{LEFT + 42}" y="{at + 4}">{_text(line.label)}</text>'
        )
    return _svg(height, label, parts)


def steps(highest: float, about: int) -> list[float]:
    """Round values from 0 up to `highest`; `about` is their approximate number."""
    if highest <= 0:
        return [0.0]
    raw = highest / about
    magnitude = 10.0 ** (len(str(int(raw))) - 1) if raw >= 1 else 1.0
    step = next((factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw), 10 * magnitude)
    return [step * number for number in range(int(highest // step) + 1)]


def _scale(end: float) -> Callable[[float], float]:
    room = WIDTH - LEFT - _RIGHT
    return lambda value: LEFT + room * min(max(value, 0.0), end) / (end or 1)


def _axis(
    end: float, height: float, x: Callable[[float], float], unit: Callable[[float], str], *, top: float = _TOP
) -> list[str]:
    return [
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top}" y2="{height - _AXIS}"/>'
        f'<text x="{x(value):.1f}" y="{height - 6}" text-anchor="middle">{_text(unit(value))}</text>'
        for value in steps(end, 8)
    ]


def _bar(bar: Bar, x: Callable[[float], float]) -> str:
    left, right = x(bar.start), x(bar.end)
    width = max(right - left, 1.5)
    top = _TOP + _ROW * bar.row + 4 + (_BAR - 4 if bar.below else 0)
    height = _BAR - 4 if bar.below else _BAR
    parts = [
        f'<rect class="{bar.style}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="2">'
        f"{_title(bar.title)}</rect>"
    ]
    if bar.label and len(bar.label) * _CHARACTER < width:
        parts.append(
            f'<text class="on" x="{left + width / 2:.1f}" y="{top + (12 if bar.below else 14)}" text-anchor="middle">'
            f"{_text(bar.label)}</text>"
        )
    return "".join(parts)


def _markers(markers: Sequence[Marker], x: Callable[[float], float], height: float) -> list[str]:
    """Lines at their positions; numbers that would overlap are moved apart."""
    drawn = []
    for marker, place in zip(
        markers, spread_apart([x(marker.at) for marker in markers], 2.0 * _MARKER + 2), strict=True
    ):
        at = x(marker.at)
        drawn.append(
            f'<g class="marker">{_title(marker.title)}'
            f'<polyline points="{place:.1f},{_TOP - 4} {at:.1f},{_TOP} {at:.1f},{height - _AXIS}"/>'
            f'<circle cx="{place:.1f}" cy="{_TOP - _MARKER - 3}" r="{_MARKER}"/>'
            f'<text x="{place:.1f}" y="{_TOP - _MARKER + 1}" text-anchor="middle">{_text(marker.label)}</text></g>'
        )
    return drawn


def spread_apart(places: Sequence[float], distance: float, highest: float = WIDTH - _RIGHT - _MARKER) -> list[float]:
    """Sorted positions, moved so that they are at least `distance` apart and not above `highest`."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + distance) if moved else place)
    limit = highest
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - distance
    return moved


def hatching() -> str:
    """The pattern of hatched marks; the page includes it once."""
    return (
        '<svg style="position:absolute;width:0;height:0" aria-hidden="true"><defs>'
        '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="hatch-back" width="6" height="6"/>'
        '<line class="hatch-line" x1="0" y1="0" x2="0" y2="6"/></pattern></defs></svg>'
    )


def _svg(height: float, label: str, parts: Sequence[str], *, above: int = 0) -> str:
    box = f"0 {-above} {WIDTH} {height + above:.0f}"
    return f'<svg viewBox="{box}" role="img" aria-label="{_text(label)}">{"".join(parts)}</svg>'


def _title(value: str) -> str:
    return f"<title>{_text(value)}</title>"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
