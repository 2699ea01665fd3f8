"""Runs the demo from start to end: cluster, flights, stream, loss, repair, checks, page.

Owns the order of the steps. The nodes and Spark are stopped in every case, also after Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fenceline.demo.checks import LossCounts, check, check_loss, log_errors, read_tables, row_count
from fenceline.demo.cluster import BROKERS, DemoCluster
from fenceline.demo.connector_comparison import NO_JARS, connector_jars
from fenceline.demo.delays import delays
from fenceline.demo.feed import Feed
from fenceline.demo.flights import Flights
from fenceline.demo.leader_history import LeaderHistory
from fenceline.demo.logs import compare_with_logs, read_logs, rows_at, runs_of
from fenceline.demo.pipeline import Pipeline
from fenceline.demo.published import check_published, describe, read_topic
from fenceline.demo.quiet import quiet
from fenceline.demo.repairs import DemoRepair, repairs_of
from fenceline.demo.report import DemoReport, Sample
from fenceline.demo.report_page import write_page
from fenceline.demo.scenario import BusyPartition, DemoScenario
from fenceline.demo.stopping import Stopping
from fenceline.demo.terminal import DemoProgress, print_summary
from fenceline.demo.timeline import Timeline
from fenceline.demo.watcher import Watcher, lost_ranges
from fenceline.demo.worker import RepeatingWorker, Worker
from fenceline.errors import OperatorError
from pyspark_fenceline.common.log_matching import LogEpochs

TOPIC: Final = "flights"
PARTITIONS: Final = 4
MONTHS: Final = 12
_MONTH_S: Final = 1.0
_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 0.3
_AGGREGATE_EVERY_S: Final = 1.0
_REPAIRS_EVERY_S: Final = 2.0


def run_demo(directory: Path, report_path: Path, *, months: int = MONTHS) -> bool:
    """Run the demo on the flights of the first `months` months. Returns whether all checks passed.

    Raises OperatorError if a requirement is missing, and KeyboardInterrupt, with `directory` removed, after a signal.
    """
    _require_java()
    with quiet(), Stopping() as stopping:
        _clear(directory)
        try:
            return _Demo(directory, months, stopping).run(report_path)
        except KeyboardInterrupt:
            shutil.rmtree(directory, ignore_errors=True)
            raise


class _Demo:
    """One run. Its parts know only what is passed to them here."""

    def __init__(self, directory: Path, months: int, stopping: Stopping) -> None:
        print("Reading the flights of 2013 ...", flush=True)
        self._directory = directory
        self._stopping = stopping
        self._flights = Flights(months)
        self._before = (months - 1) // 2
        self._report = DemoReport(topic=TOPIC, brokers=BROKERS)
        self._timeline = Timeline()
        self._leaders = LeaderHistory()
        self._ends: dict[int, int] = {}
        """End offsets at the last poll."""
        self._repairs: list[DemoRepair] = []
        self._cluster = DemoCluster(
            directory / "cluster", TOPIC, PARTITIONS, self._flights.busiest_partition(PARTITIONS)
        )

    def run(self, report_path: Path) -> bool:
        """See `run_demo`."""
        report, cluster = self._report, self._cluster
        with ExitStack() as running:
            with self._stopping.held():
                running.enter_context(cluster)
            cluster.create_topics()
            print(f"Started three brokers and a controller. Bootstrap servers: {cluster.bootstrap}", flush=True)
            print("Starting Spark ...", flush=True)
            jars = connector_jars()
            pipeline = running.enter_context(Pipeline(cluster.bootstrap, TOPIC, self._directory, self._stopping, jars))
            skipped = "" if jars else f" Its own Kafka connector, for comparison, is skipped: {NO_JARS}."
            print(f"Started Spark.{skipped}", flush=True)
            print("Sending the flights, month by month:", flush=True)
            watcher = Watcher(cluster.bootstrap, TOPIC, range(PARTITIONS), self._timeline)

            def readers_caught_up(ends: Mapping[int, int]) -> bool:
                in_table = row_count(pipeline.raw_table) == sum(ends.values())
                return in_table and watcher.has_read(ends) and pipeline.connector_caught_up(ends)

            feed = Feed(cluster.bootstrap, TOPIC, self._flights.months(PARTITIONS), cluster.busy)
            partition = BusyPartition(cluster, feed, readers_caught_up)
            scenario = DemoScenario(partition, feed, self._timeline, before=self._before, pause_s=_MONTH_S)
            workers = [
                watcher,
                scenario,
                RepeatingWorker("leaders", self._record_leaders, _POLL_S, retries=True),
                RepeatingWorker("ends", self._record_ends, _POLL_S, retries=True),
                RepeatingWorker("aggregate", pipeline.update_aggregate, _AGGREGATE_EVERY_S),
            ]
            for worker in workers:
                worker.start()
                running.callback(worker.stop)
            started = time.monotonic()
            with DemoProgress(len(self._flights), self._timeline) as progress:
                self._follow(pipeline, scenario, workers, progress, lambda: readers_caught_up(self._ends))
            report.streaming_s = time.monotonic() - started
            print("All flights are sent, read and aggregated. Running the audit ...", flush=True)
            watcher.stop()
            audit = pipeline.audit().outcome
            report.connector, report.connector_skipped = pipeline.connector(), "" if jars else NO_JARS
            published = read_topic(cluster.bootstrap)
            logs = read_logs(cluster.bootstrap, TOPIC, range(PARTITIONS))
        report.produced, report.producing_s = feed.produced, feed.producing_s
        report.lost = lost_ranges(partition.receipts, watcher.truncations)
        self._report_tables(pipeline.raw_table, scenario, logs)
        tables = read_tables(pipeline.raw_table, pipeline.hourly_table)
        report.checks = check_loss(
            LossCounts(
                acknowledged=partition.acknowledged,
                with_receipt=report.lost_records,
                ranges=len(report.lost),
                reported=sum(lost.reported_s is not None for lost in report.lost),
                removed_rows=sum(repair.rows for repair in self._repairs),
                resent=scenario.resent,
                audit=audit,
                log_errors=log_errors(cluster.data_dirs),
            )
        )
        report.checks += check(
            tables, self._flights.expected(), {partition: log.end_offset for partition, log in logs.items()}
        )
        report.checks += check_published(published, tables.hourly, pipeline.publisher)
        report.published_text = describe(pipeline.publisher, published)
        report.events = self._timeline.events
        report.total_s = self._timeline.now_s()
        write_page(report_path, report, more=delays(tables.hourly))
        print_summary(report, report_path, self._directory)
        return report.passed

    def _follow(
        self,
        pipeline: Pipeline,
        scenario: DemoScenario,
        workers: Sequence[Worker],
        progress: DemoProgress,
        all_caught_up: Callable[[], bool],
    ) -> None:
        """Poll until everything is sent, read and aggregated; restart the stream once from its checkpoint."""
        total = len(self._flights)
        deadline = time.monotonic() + _TIMEOUT_S
        repairs_read_at, was_restarted = time.monotonic(), False
        pipeline.start()
        while True:
            for worker in workers:
                if worker.error is not None:
                    raise worker.error
            if pipeline.keep_running():
                self._timeline.add(
                    "Spark's Python worker did not start in time on this busy machine: the stream is restarted"
                )
            rows = row_count(pipeline.raw_table)
            if time.monotonic() - repairs_read_at > _REPAIRS_EVERY_S:
                self._record_repairs(pipeline)
                repairs_read_at = time.monotonic()
            sample = Sample(self._timeline.now_s(), sum(self._ends.values()), rows, pipeline.flights)
            self._report.samples.append(sample)
            progress.show(sample)
            if scenario.is_finished and rows == pipeline.flights == total and all_caught_up():
                self._record_repairs(pipeline)
                return
            if not was_restarted and rows >= total // 6:
                was_restarted = True
                self._timeline.add(f"The stream is stopped at {rows:,} rows and restarted from its checkpoint")
                pipeline.stop()
                pipeline.start()
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"The raw table has {rows:,} of {total:,} rows after {_TIMEOUT_S:.0f} s",
                    "The machine may be overloaded. Run the demo again when it is less busy.",
                )
            time.sleep(_POLL_S)

    def _record_leaders(self) -> None:
        self._leaders.record(self._timeline.now_s(), self._cluster.leaders())

    def _record_ends(self) -> None:
        self._ends = self._cluster.ends()

    def _record_repairs(self, pipeline: Pipeline) -> None:
        timeline = self._timeline
        for rewind in pipeline.collect_rewinds():
            timeline.add(str(rewind), timeline.at_wall_s(rewind.at_wall_s))
        for repair in repairs_of(pipeline.raw_table)[len(self._repairs) :]:
            self._repairs.append(repair)
            timeline.add(str(repair), timeline.at_wall_s(repair.at_wall_s))

    def _report_tables(self, raw_table: Path, scenario: DemoScenario, logs: Mapping[int, LogEpochs]) -> None:
        """Add the leaders, and the raw table before its first repair and at the end, compared with the logs."""
        report, loss = self._report, scenario.loss
        assert loss is not None, "the scenario has not finished"
        report.isolated = loss.isolated_s, loss.reconnected_s
        report.leadership_periods = self._leaders.periods(logs, unclean={(self._cluster.busy, loss.successor.epoch)})
        if self._repairs:
            repair = self._repairs[0]
            before = runs_of(rows_at(raw_table, repair.version - 1))
            report.before = compare_with_logs("before the repair", before, logs, scenario.ends_after)
            report.repair_text = f"{repair}. The aggregate subtracts them."
        report.after = compare_with_logs("at the end", runs_of(rows_at(raw_table)), logs)


def _require_java() -> None:
    """Raises OperatorError if Spark would find no Java, or one that is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home:
        advice = "Set JAVA_HOME to the directory of a newer Java, or unset it to use the one on PATH."
    else:
        advice = "Install one (Debian/Ubuntu: apt-get install default-jre-headless), or set JAVA_HOME to its directory."
    if java is None or not os.access(java, os.X_OK):
        found = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on PATH"
        raise OperatorError(f"Spark needs Java 17 or newer: {found}", advice)
    probe = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    parts = probe.stderr.split('"')
    major = parts[1].split(".")[0] if len(parts) > 1 else ""
    if major.isdigit() and int(major) < 17:
        raise OperatorError(f"Spark needs Java 17 or newer: {java} is {parts[1]}", advice)


def _clear(directory: Path) -> None:
    """Remove the files of an earlier demo. Raises OperatorError for any other directory with files."""
    marker = directory / ".fenceline-demo"
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise OperatorError(f"{directory} is not empty and was not created by the demo", "Choose another --dir.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.touch()
