"""What the demo says while it runs: bars on a terminal, lines elsewhere, and each moment when it is told.

Owns the output and nothing else.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fenceline.demo.narration import Narration
from fenceline.demo.story import Sample, Story

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS_A_LINE: Final = 5.0
"""How often progress is said where there is no terminal to draw on."""


class Progress:
    """Use as a context manager. `total`: flights."""

    def __init__(self, total: int, narration: Narration) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        names = ("records in the log", "rows in the raw table", "flights in the aggregate")
        self._tasks = [self._bars.add_task(name, total=total) for name in names]
        self._narration = narration
        self._told = 0
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._moments()
        self._bars.__exit__(kind, error, trace)

    def show(self, sample: Sample) -> None:
        """Where everything stands."""
        self._moments()
        counts = (sample.in_log, sample.in_table, sample.in_aggregate)
        for task, count in zip(self._tasks, counts, strict=True):
            self._bars.update(task, completed=count)
        if not self._bars.console.is_terminal and time.monotonic() - self._told_at >= _SECONDS_A_LINE:
            self._told_at = time.monotonic()
            print("  {:,} in the log, {:,} in the table, {:,} aggregated".format(*counts), flush=True)

    def _moments(self) -> None:
        moments = self._narration.moments
        while self._told < len(moments):
            moment = moments[self._told]
            self._told += 1
            self._bars.console.print(f"[dim]{moment.at_s:5.1f} s[/]  {moment.text}", soft_wrap=True, highlight=False)


def summary(story: Story, report: Path, directory: Path) -> None:
    """The checks, and where to look."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Input, log and tables compared", title_justify="left")
    for column in ("check", "expected", "found", ""):
        table.add_column(column)
    for each in story.checks:
        table.add_row(each.name, each.expected, each.found, "[green]ok[/]" if each.passed else "[red]WRONG[/]")
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    words = [
        f"{story.lost_records:,} acknowledged records were lost, told of, taken out of the tables and sent again.",
        _connector(story),
        f"The stream took {story.streaming_s:.0f} s for {story.produced:,} records, everything {story.total_s:.0f} s.",
        f"Tables: {directory}/flights and {directory}/hourly_delays. The brokers' logs: {directory}/cluster",
        f"Report: {report}",
    ]
    for line in words:
        console.print(line, soft_wrap=True)


def _connector(story: Story) -> str:
    found = story.connector
    if found is None:
        return f"Spark's own Kafka connector did not run beside it: {story.connector_skipped}."
    how = "ended with an error" if found.ended_with else "said nothing"
    return (
        f"Spark's own Kafka connector read the same topic and {how}: {found.stale_rows:,} of its rows are not in the"
        f" log, {found.missing_rows:,} records of the log have no row."
    )
