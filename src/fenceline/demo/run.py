"""The main job from start to end: node, producer, pipeline with a restart in the middle, checks, report.

Owns the order of things and the progress on the terminal. Whatever happens, Ctrl-C included, the node and Spark end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fenceline.client.admin import Admin, NewTopic
from fenceline.client.producer import Producer
from fenceline.demo.checks import check, read_tables, row_count
from fenceline.demo.facts import Facts
from fenceline.demo.flights import Flights
from fenceline.demo.pipeline import Pipeline
from fenceline.demo.report import write_report
from fenceline.demo.stopping import Stopping
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode

TOPIC = "flights"
PARTITIONS = 4
_SECONDS_A_MONTH: Final = 1.0
_GIVE_UP_S: Final = 300.0
_FEED_END_S: Final = 10.0
_SECONDS_A_LINE: Final = 5.0
"""How often progress is said where there is no terminal to draw on."""


class _Feed(threading.Thread):
    """Sends one month after the other, a little slower than it could, so that the stream has something to follow."""

    def __init__(self, bootstrap: str, flights: Flights, facts: Facts) -> None:
        super().__init__(name="flights-feed", daemon=True)
        self._address = bootstrap
        self._flights = flights
        self._facts = facts
        self._stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self._address, **{"compression.type": "lz4"}) as producer:
                for _, records in self._flights.months():
                    if self._stopped.is_set():
                        return
                    started = time.perf_counter()
                    producer.send_arrow(records, TOPIC, key="key", value="value").result()
                    self._facts.producing_s += time.perf_counter() - started
                    self._facts.produced += records.num_rows
                    self._stopped.wait(_SECONDS_A_MONTH)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stopped.set()
        self.join(_FEED_END_S)


def run_demo(directory: Path, report: Path) -> bool:
    """Run everything; whether every check passed. Raises OperatorError when something that it needs is missing, and
    KeyboardInterrupt, with `directory` removed, when it is stopped by a signal.
    """
    _require_java()
    with Stopping() as stopping:
        _clear(directory)
        try:
            return _run(directory, report, stopping)
        except KeyboardInterrupt:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _run(directory: Path, report: Path, stopping: Stopping) -> bool:
    facts = Facts()
    print("Reading the flights of 2013 ...", flush=True)
    flights = Flights()
    with ExitStack() as running:
        with stopping.held():
            node = running.enter_context(EmbeddedNode(data_dir=directory / "node"))
        print(f"Node is up at {node.bootstrap}. Starting Spark ...", flush=True)
        admin = running.enter_context(Admin(node.bootstrap))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
        pipeline = running.enter_context(Pipeline(node.bootstrap, TOPIC, directory, stopping))
        print("Spark is up. Two streams follow the flights, month by month:", flush=True)
        feed = _Feed(node.bootstrap, flights, facts)
        feed.start()
        try:
            _stream(pipeline, feed, flights, facts)
        finally:
            feed.stop()
        print("Both streams have read everything. Stopping Spark and the node ...", flush=True)
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        facts.log_ends = {tp.partition: at.offset for tp, at in ends.items()}
    print("Checking every row against the input ...", flush=True)
    tables = read_tables(pipeline.raw_table, pipeline.hourly_table)
    facts.checks = check(tables, flights.expected(), facts.log_ends)
    write_report(report, facts, tables)
    _summary(facts, report, directory)
    return all(each.passed for each in facts.checks)


def _stream(pipeline: Pipeline, feed: _Feed, flights: Flights, facts: Facts) -> None:
    """Follow the feed to its end, with one stop and restart from the checkpoints on the way."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total = len(flights)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    started = time.perf_counter()
    pipeline.start()
    with Progress(*columns) as progress:
        produced = progress.add_task("produced to the log", total=total)
        stored = progress.add_task("rows in the raw table", total=total)
        aggregated = progress.add_task("flights in the aggregate", total=total)
        rows = 0
        told_at = started
        while True:
            if feed.error is not None:
                raise feed.error
            pipeline.check()
            rows = row_count(pipeline.raw_table)
            in_aggregate = _aggregated(pipeline.hourly_table)
            progress.update(produced, completed=facts.produced)
            progress.update(stored, completed=rows)
            progress.update(aggregated, completed=in_aggregate)
            if not progress.console.is_terminal and time.perf_counter() - told_at >= _SECONDS_A_LINE:
                told_at = time.perf_counter()
                print(f"  {facts.produced:,} produced, {rows:,} in the table, {in_aggregate:,} aggregated", flush=True)
            if not facts.restarted_at_rows and rows >= total // 3:
                facts.restarted_at_rows = rows
                progress.console.print(
                    f"Stopping both streams in the middle, at {rows:,} rows; they go on from their checkpoints ...",
                    soft_wrap=True,
                )
                pipeline.stop()
                pipeline.start()
            if rows >= total and in_aggregate >= total:
                break
            if time.perf_counter() - started > _GIVE_UP_S:
                raise OperatorError(
                    f"The stream stands at {rows:,} of {total:,} rows after {_GIVE_UP_S:.0f} s",
                    "The machine may be overloaded; run the demo again when it is not.",
                )
            time.sleep(0.3)
    facts.streaming_s = time.perf_counter() - started


def _aggregated(table: Path) -> int:
    import deltalake
    import pyarrow.compute as pc

    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return 0
    return int(pc.sum(deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["flights"])["flights"]).as_py() or 0)


def _require_java() -> None:
    """Raises OperatorError when Spark would find no Java, or one that is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home:
        advice = "Set JAVA_HOME to the directory of a newer Java, or unset it to use the one on PATH."
    else:
        advice = "Install one (Debian/Ubuntu: apt-get install default-jre-headless), or set JAVA_HOME to its directory."
    if java is None or not os.access(java, os.X_OK):
        found = f"JAVA_HOME is {home}, which has no bin/java" if home else "none is on PATH"
        raise OperatorError(f"Spark needs Java 17 or newer: {found}", advice)
    probe = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    words = probe.stderr.split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    if major.isdigit() and int(major) < 17:
        raise OperatorError(f"Spark needs Java 17 or newer: {java} is {words[1]}", advice)


def _clear(directory: Path) -> None:
    """Remove what an earlier demo left; refuse a directory that is not a demo's."""
    marker = directory / ".fenceline-demo"
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise OperatorError(f"{directory} is not empty and not an earlier demo's", "Choose another --dir.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.touch()


def _summary(facts: Facts, report: Path, directory: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Input, log and tables compared", title_justify="left")
    for column in ("check", "expected", "found", ""):
        table.add_column(column)
    for each in facts.checks:
        table.add_row(each.name, each.expected, each.found, "[green]ok[/]" if each.passed else "[red]WRONG[/]")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(
        f"Two streams took {facts.streaming_s:.0f} s for {facts.produced:,} flights, with a stop and a restart at"
        f" {facts.restarted_at_rows:,} rows. While it was sending, the producer wrote"
        f" {facts.produced / facts.producing_s:,.0f} records/s.",
        soft_wrap=True,
    )
    console.print(f"Tables: {directory}/flights and {directory}/hourly_delays", soft_wrap=True)
    console.print(f"Report: {report}", soft_wrap=True)
