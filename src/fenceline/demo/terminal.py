"""The demo's output: progress bars on a terminal, lines elsewhere, each event as it is added, and the summary."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fenceline.demo.report import DemoReport, Sample
from fenceline.demo.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS_A_LINE: Final = 5.0
"""Interval of progress lines if the output is not a terminal."""


class DemoProgress:
    """Use as a context manager. `total`: number of flights."""

    def __init__(self, total: int, timeline: Timeline) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        names = ("records in the log", "rows in the raw table", "flights in the aggregate")
        self._tasks = [self._bars.add_task(name, total=total) for name in names]
        self._timeline = timeline
        self._printed = 0
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print_events()
        self._bars.__exit__(kind, error, trace)

    def show(self, sample: Sample) -> None:
        """Print new events and update the progress."""
        self._print_events()
        counts = (sample.in_log, sample.in_table, sample.in_aggregate)
        for task, count in zip(self._tasks, counts, strict=True):
            self._bars.update(task, completed=count)
        if not self._bars.console.is_terminal and time.monotonic() - self._printed_at >= _SECONDS_A_LINE:
            self._printed_at = time.monotonic()
            print(
                "         {:,} records in the log, {:,} rows in the raw table, {:,} flights in the aggregate".format(
                    *counts
                ),
                flush=True,
            )

    def _print_events(self) -> None:
        events = self._timeline.events
        while self._printed < len(events):
            event = events[self._printed]
            self._printed += 1
            self._bars.console.print(f"[dim]{event.at_s:5.1f} s[/]  {event.text}", soft_wrap=True, highlight=False)


def print_summary(report: DemoReport, report_path: Path, directory: Path) -> None:
    """Print the checks, the result of the connector and the paths of all outputs."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Checks: input, log and tables", title_justify="left")
    for column in ("check", "expected", "found", ""):
        table.add_column(column)
    for each in report.checks:
        table.add_row(each.name, each.expected, each.found, "[green]ok[/]" if each.passed else "[red]WRONG[/]")
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    texts = [
        f"{report.lost_records:,} acknowledged records were lost, reported, deleted from the tables and sent again.",
        *([report.published_text] if report.published_text else []),
        _connector(report),
        f"Streaming took {report.streaming_s:.0f} s for {report.produced:,} records, the demo {report.total_s:.0f} s.",
        f"Tables: {directory}/flights and {directory}/hourly_delays. Data directories: {directory}/cluster",
        f"Report: {report_path}",
    ]
    for line in texts:
        console.print(line, soft_wrap=True)


def _connector(report: DemoReport) -> str:
    found = report.connector
    if found is None:
        return f"Spark's own Kafka connector did not run: {report.connector_skipped}."
    how = "failed with an error" if found.error else "reported nothing"
    return (
        f"Spark's own Kafka connector read the same topic and {how}: {found.stale_rows:,} of its rows are not in the"
        f" log, {found.missing_rows:,} records of the log have no row."
    )
