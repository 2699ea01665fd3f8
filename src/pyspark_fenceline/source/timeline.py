"""Where the time of a micro-batch goes: Spark's phases, the planner's calls and the tasks on one time axis.

Owns the join of a progress report with the spans that the source's processes recorded (option `timelineDirectory`), and
its two forms, text and SVG. Spark reports the length of each phase (`durationMs`), not its begin: the phases follow one
another from the report's timestamp, which has milliseconds; time between them that Spark assigns to none is at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.spans import PLANNER, Span, recorded_spans

_PHASES: Final = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "commitBatch")
"""In the order in which Spark runs them."""
_SPARK: Final = "Spark"
_CLOCK_MS: Final = 2.0
"""How far a report's timestamp may be behind the spans, as it has no fractions."""
_WIDTH, _ROW, _LEFT, _SPAN = 960, 24, 150, 16
_COLORS: Final = {_SPARK: "#9db7d5", PLANNER: "#e8b36b", "worker": "#8fc49a"}


@dataclass(frozen=True, slots=True)
class BatchTimeline:
    """Spans of one micro-batch, by process: Spark's phases first, then the planner, then the tasks' workers."""

    batch_id: int
    row_count: int
    begin_ms: float
    duration_ms: float
    spans: Sequence[Span]

    def __str__(self) -> str:
        lines = [f"batch {self.batch_id}: {self.row_count} rows, {self.duration_ms:.0f} ms"]
        for span in self.spans:
            begin = span.begin_ms - self.begin_ms
            lines.append(f"{begin:8.1f} ms  {span.duration_ms:8.1f} ms  {span.process:<16} {span.name}")
        return "\n".join(lines)

    def svg(self) -> str:
        """A picture, which needs nothing else to be shown."""
        rows = _rows(self.spans)
        scale = (_WIDTH - _LEFT - 20) / max(self.duration_ms, 1.0)
        height = 40 + _ROW * len(rows) + 26
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
            f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
            f'<text x="10" y="20" font-size="13">{escape(str(self).splitlines()[0])}</text>',
        ]
        for number in range(11):
            x = _LEFT + number * self.duration_ms / 10 * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="32" x2="{x:.1f}" y2="{height - 22}" stroke="#ddd"/>'
                f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">'
                f"{number * self.duration_ms / 10:.0f} ms</text>"
            )
        for index, (process, spans) in enumerate(rows):
            y = 38 + index * _ROW
            if index == 0 or rows[index - 1][0] != process:
                parts.append(f'<text x="10" y="{y + 12}">{escape(process)}</text>')
            color = _COLORS.get(process.split("-")[0], "#cccccc")
            for span in spans:
                x, width = _LEFT + (span.begin_ms - self.begin_ms) * scale, max(span.duration_ms * scale, 1.0)
                name = f"{span.name} {span.duration_ms:.1f} ms"
                label = name if width > 6 * len(name) else span.name if width > 6 * len(span.name) else ""
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_SPAN}" fill="{color}" stroke="#555" '
                    f'stroke-width="0.5"><title>{escape(name)}</title></rect>'
                    f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label)}</text>'
                )
        return "\n".join([*parts, "</svg>", ""])


def batch_timeline(progress: Any, directory: str | Path) -> BatchTimeline:
    """The timeline of a batch. `progress`: its report (`query.lastProgress`, one of `query.recentProgress`, or that of
    a listener's event); `directory`: the query's `timelineDirectory`. Raises OperatorError if nothing was recorded.
    """
    timestamp, batch_id, row_count, durations = (
        progress[name] if isinstance(progress, Mapping) else getattr(progress, name)
        for name in ("timestamp", "batchId", "numInputRows", "durationMs")
    )
    begin_ms = datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000
    duration_ms = float(durations.get("triggerExecution", 0))
    recorded = [
        span
        for span in recorded_spans(directory)
        if span.end_ms >= begin_ms and span.begin_ms <= begin_ms + duration_ms + _CLOCK_MS
    ]
    if not recorded:
        raise OperatorError(
            f"{directory} has nothing about batch {batch_id}",
            "Set timelineDirectory on the stream; workers on other machines record in that directory there.",
        )
    phases: list[Span] = []
    at_ms = begin_ms
    for name in _PHASES:
        if length := durations.get(name, 0):
            phases.append(Span(_SPARK, name, at_ms, at_ms + length))
            at_ms += length
    by_process = sorted(recorded, key=lambda span: (not span.process.startswith(PLANNER), span.process, span.begin_ms))
    return BatchTimeline(batch_id, row_count, begin_ms, duration_ms, [*phases, *by_process])


def _rows(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """The lines of a picture: a span within another one of its process is a line below it."""
    rows: list[tuple[str, list[Span]]] = []
    for process in dict.fromkeys(span.process for span in spans):
        lines: list[list[Span]] = []
        for span in sorted(
            (one for one in spans if one.process == process), key=lambda one: (one.begin_ms, -one.end_ms)
        ):
            for line in lines:
                if line[-1].end_ms <= span.begin_ms:
                    line.append(span)
                    break
            else:
                lines.append([span])
        rows += [(process, line) for line in lines]
    return rows
