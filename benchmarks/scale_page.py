"""docs/scale.md from the results: `python -m benchmarks.scale_page` writes its tables and pictures.

Owns slope, limit and verdict of each curve. A slope is the exponent of the least squares line through the logarithms
of size and value: 0 if the value does not depend on the size, 1 if it grows with it. A curve's figures come from the
newest result file that has them; `tests/test_scale_page.py` fails if the page or a picture is older.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import RESULTS, ROOT
from fenceline.errors import OperatorError

PAGE: Final = ROOT / "docs" / "scale.md"
PICTURES: Final = ROOT / "docs" / "images" / "scale"
_FIGURE: Final = re.compile(r"(?P<curve>[^:]+), (?P<size>[\d,]+): (?P<measure>.+)")
_PART: Final = re.compile(r"<!-- curve: (?P<curve>[^>]+) -->\n.*?<!-- end -->", re.DOTALL)
_LARGEST_EXPONENT: Final = 1.15
"""Of a total: 15 % above the work, for each factor of e in size."""
_LONGEST_PAUSE_MS: Final = 20
_ACTIVE: Final = "active producer"
_WIDTH, _HEIGHT, _ROW, _ACROSS = 225, 120, 150, 4
_LEFT, _TOP = 12, 34


class Curve(NamedTuple):
    """Values by size, in order."""

    measure: str
    unit: str
    values: Mapping[int, float]

    @property
    def slope(self) -> float | None:
        """None without two sizes with a value above 0."""
        points = [(math.log(size), math.log(value)) for size, value in self.values.items() if value > 0]
        if len(points) < 2:
            return None
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)

    @property
    def limit(self) -> str:
        """What is wanted."""
        if self.measure.endswith(("disk and cores", "before: p99", "opens them: p99")) or self.unit == "records/s":
            return ""
        if self.unit == "x":
            return "2"
        if "pause" in self.measure:
            return f"{_LONGEST_PAUSE_MS} ms"
        if self.measure.startswith("idle"):
            return "1 %"
        if self.unit in ("s", "ms", "MB"):
            return "the size"
        return "no growth"

    @property
    def is_within(self) -> bool:
        """The largest size counts: small ones measure the machine."""
        largest = self.values[max(self.values)]
        slope = self.slope or 0.0
        match self.limit:
            case "":
                return True
            case "no growth":
                return slope <= _LARGEST_EXPONENT - 1
            case "the size":
                return slope <= _LARGEST_EXPONENT
            case "2":
                return largest <= 2
            case "1 %":
                return largest <= 1
            case _:
                return largest <= _LONGEST_PAUSE_MS


def curves() -> dict[str, list[Curve]]:
    """The curves of the newest results that have them, by name. Raises OperatorError without any."""
    found: dict[str, dict[str, tuple[str, dict[int, float]]]] = {}
    for path in sorted(RESULTS.glob("*.json"), key=_measured, reverse=True):
        figures = json.loads(path.read_text())["results"].get("scale", {}).get("figures", {})
        newer = set(found)
        for name, sides in figures.items():
            match = _FIGURE.fullmatch(name)
            if match is None or match["curve"] in newer or "fenceline" not in sides:
                continue
            measures = found.setdefault(match["curve"], {})
            measures.setdefault(match["measure"], (sides["fenceline"]["unit"], {}))[1][
                int(match["size"].replace(",", ""))
            ] = sides["fenceline"]["median"]
    if not found:
        raise OperatorError("There are no results of the benchmark `scale`", "Run `python -m benchmarks scale` first.")
    return {
        name: _with_ratio(
            [Curve(measure, unit, dict(sorted(values.items()))) for measure, (unit, values) in measures.items()]
        )
        for name, measures in found.items()
    }


def _measured(path: Path) -> str:
    """When a file was written, as ISO 8601: older files have the date of their names only. Its modification time would
    be that of the checkout."""
    return str(json.loads(path.read_text()).get("measured", path.name[:10]))


def _with_ratio(measured: list[Curve]) -> list[Curve]:
    """Of the p99 of others, meanwhile over before."""
    by_name = {each.measure: each.values for each in measured}
    before, meanwhile = by_name.get(f"{_ACTIVE} before: p99"), by_name.get(f"{_ACTIVE} meanwhile: p99")
    if before is None or meanwhile is None:
        return measured
    ratios = {size: meanwhile[size] / before[size] for size in before.keys() & meanwhile.keys()}
    return [*measured, Curve(f"{_ACTIVE}: p99 meanwhile over before", "x", dict(sorted(ratios.items())))]


# --- the page ---------------------------------------------------------------------------------------------------------


def rendered(page: str, found: Mapping[str, Sequence[Curve]]) -> str:
    """The page with the tables of its curves. Raises OperatorError for a curve that was not measured."""

    def part(match: re.Match[str]) -> str:
        name = match["curve"]
        if name not in found:
            raise OperatorError(f"The curve {name!r} was not measured", "Run `python -m benchmarks scale`.")
        return f"<!-- curve: {name} -->\n{_table(name, found[name])}<!-- end -->"

    return _PART.sub(part, page)


def named_curves(page: str) -> list[str]:
    return [match["curve"] for match in _PART.finditer(page)]


def picture_name(curve: str) -> str:
    return curve.replace(" ", "-").lower() + ".svg"


def _table(name: str, measured: Sequence[Curve]) -> str:
    sizes = sorted({size for each in measured for size in each.values})
    lines = [
        f"![{name}](images/scale/{picture_name(name)})",
        "",
        "| | " + " | ".join(f"{size:,}" for size in sizes) + " | slope | limit | |",
        "|---|" + "---|" * len(sizes) + "---|---|---|",
    ]
    for each in measured:
        cells = [shown(each.values[size]) if size in each.values else "" for size in sizes]
        slope = "" if each.slope is None or each.limit == "" else f"{each.slope:.2f}"
        verdict = "" if each.limit == "" else "yes" if each.is_within else "**no**"
        lines.append(f"| {each.measure}, {each.unit} | {' | '.join(cells)} | {slope} | {each.limit} | {verdict} |")
    return "\n".join(lines) + "\n"


def shown(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(name: str, measured: Sequence[Curve]) -> str:
    """A panel for each measure, both axes logarithmic; the dashed line grows with the size."""
    drawn = [each for each in measured if sum(value > 0 for value in each.values.values()) > 1]
    rows = -(-len(drawn) // _ACROSS)
    width, height = _WIDTH * min(_ACROSS, len(drawn)), _ROW * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="sans-serif"'
        f' font-size="10" fill="#555"><title>{html.escape(name)}</title>'
        "<style>@media (prefers-color-scheme: dark) { svg { fill: #bbb } }</style>"
    ]
    for number, each in enumerate(drawn):
        x, y = _WIDTH * (number % _ACROSS), _ROW * (number // _ACROSS)
        parts.append(f'<g transform="translate({x} {y})">{_panel(each)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(curve: Curve) -> str:
    points = [(size, value) for size, value in curve.values.items() if value > 0]
    right, bottom = _WIDTH - 2 * _LEFT, _HEIGHT
    low_x, high_x = math.log(points[0][0]), math.log(points[-1][0])
    lows = [math.log(value) for _, value in points]
    # At least as high as wide in the scale of the axis: what is flat looks flat.
    middle, span = (min(lows) + max(lows)) / 2, max(max(lows) - min(lows), high_x - low_x)

    def place(size: float, log_value: float) -> tuple[float, float]:
        across = (math.log(size) - low_x) / (high_x - low_x)
        up = (log_value - middle) / span + 0.5
        return _LEFT + across * (right - _LEFT), bottom - 8 - up * (bottom - _TOP - 16)

    spots = [place(size, math.log(value)) for size, value in points]
    colour = "#2a7de1" if curve.is_within else "#d1495b"
    first = math.log(points[0][1])
    guide = [place(points[0][0], first), place(points[-1][0], first + high_x - low_x)]
    slope = "" if curve.slope is None else f"slope {curve.slope:.2f}"
    title = curve.measure.replace(", with waits for disk and cores", " + waits")
    return "".join(
        (
            f'<text x="{_LEFT}" y="12">{html.escape(title[:40])}</text>',
            f'<text x="{_LEFT}" y="25">{html.escape(curve.unit)}, {slope}</text>',
            # Cut off where the guide leaves the panel.
            f'<svg y="{_TOP}" width="{_WIDTH}" height="{bottom - _TOP}" viewBox="0 {_TOP} {_WIDTH} {bottom - _TOP}">',
            f'<polyline points="{_path(guide)}" fill="none" stroke="#999" stroke-dasharray="3 3"/></svg>',
            f'<polyline points="{_path(spots)}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots),
            f'<text x="{_LEFT}" y="{bottom + 12}">{points[0][0]:,}: {shown(points[0][1])}</text>',
            f'<text x="{right}" y="{bottom + 12}" text-anchor="end">{points[-1][0]:,}: {shown(points[-1][1])}</text>',
        )
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def write(page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Raises OperatorError."""
    found = curves()
    text = page.read_text()
    page.write_text(rendered(text, found))
    pictures.mkdir(parents=True, exist_ok=True)
    for name in named_curves(text):
        (pictures / picture_name(name)).write_text(picture(name, found[name]))


if __name__ == "__main__":
    write()
