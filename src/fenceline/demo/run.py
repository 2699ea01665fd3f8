"""The main job from start to end: cluster, flights, stream, loss, repair, checks, page.

Owns the order of things. Whatever happens, Ctrl-C included, the nodes and Spark end.
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

from fenceline.demo.beside import WHY_NOT, connector_jars
from fenceline.demo.checks import Accounts, check, check_accounts, log_errors, read_tables, row_count
from fenceline.demo.cluster import BROKERS, Cluster
from fenceline.demo.delays import delays
from fenceline.demo.feed import Feed
from fenceline.demo.flights import Flights
from fenceline.demo.leaders import Leaders
from fenceline.demo.logs import held_against, look, rows_at, runs_of
from fenceline.demo.narration import Narration
from fenceline.demo.pipeline import Pipeline
from fenceline.demo.play import BusyPartition, Play
from fenceline.demo.quiet import quiet
from fenceline.demo.repairs import Repair, repairs_of
from fenceline.demo.stopping import Stopping
from fenceline.demo.story import Sample, Story
from fenceline.demo.story_page import write_page
from fenceline.demo.terminal import Progress, summary
from fenceline.demo.watcher import Watcher, lost_as_told
from fenceline.demo.worker import Repeated, Worker
from fenceline.errors import OperatorError
from pyspark_fenceline.log_matching import LogEpochs

TOPIC: Final = "flights"
PARTITIONS: Final = 4
MONTHS: Final = 12
_A_MONTH_S: Final = 1.0
_GIVE_UP_S: Final = 600.0
_LOOK_EVERY_S: Final = 0.3
_DERIVE_EVERY_S: Final = 1.0
_NOTE_EVERY_S: Final = 2.0


def run_demo(directory: Path, report: Path, *, months: int = MONTHS) -> bool:
    """Run everything on the flights of so many months; whether every check passed.

    Raises OperatorError when something that it needs is missing, and KeyboardInterrupt, with `directory` removed, when
    it is stopped by a signal.
    """
    _require_java()
    with quiet(), Stopping() as stopping:
        _clear(directory)
        try:
            return _Demo(directory, months, stopping).run(report)
        except KeyboardInterrupt:
            shutil.rmtree(directory, ignore_errors=True)
            raise


class _Demo:
    """One run. Its parts know of each other only what is handed to them here."""

    def __init__(self, directory: Path, months: int, stopping: Stopping) -> None:
        print("Reading the flights of 2013 ...", flush=True)
        self._directory = directory
        self._stopping = stopping
        self._flights = Flights(months)
        self._before = (months - 1) // 2
        self._story = Story(topic=TOPIC, brokers=BROKERS)
        self._narration = Narration()
        self._leaders = Leaders()
        self._ends: dict[int, int] = {}
        """Of the logs, at the last look."""
        self._repairs: list[Repair] = []
        self._cluster = Cluster(directory / "cluster", TOPIC, PARTITIONS, self._flights.busiest_partition(PARTITIONS))

    def run(self, report: Path) -> bool:
        """See `run_demo`."""
        story, cluster = self._story, self._cluster
        with ExitStack() as running:
            with self._stopping.held():
                running.enter_context(cluster)
            cluster.create_topic()
            print(f"Three brokers and a controller are up: {cluster.bootstrap}. Starting Spark ...", flush=True)
            jars = connector_jars()
            pipeline = running.enter_context(Pipeline(cluster.bootstrap, TOPIC, self._directory, self._stopping, jars))
            beside = "" if jars else f" Its own Kafka connector does not run beside: {WHY_NOT}."
            print(f"Spark is up.{beside} The flights follow, month by month:", flush=True)
            watcher = Watcher(cluster.bootstrap, TOPIC, range(PARTITIONS), self._narration)

            def have_read(ends: Mapping[int, int]) -> bool:
                in_table = row_count(pipeline.raw_table) == sum(ends.values())
                return in_table and watcher.has_read(ends) and pipeline.connector_has_read(ends)

            feed = Feed(cluster.bootstrap, TOPIC, self._flights.months(PARTITIONS), cluster.busy)
            stage = BusyPartition(cluster, feed, have_read)
            play = Play(stage, feed, self._narration, before=self._before, pause_s=_A_MONTH_S)
            workers = [
                watcher,
                play,
                Repeated("leaders", self._see_leaders, _LOOK_EVERY_S, patient=True),
                Repeated("ends", self._see_ends, _LOOK_EVERY_S, patient=True),
                Repeated("aggregate", pipeline.derive, _DERIVE_EVERY_S),
            ]
            for worker in workers:
                worker.start()
                running.callback(worker.stop)
            started = time.monotonic()
            with Progress(len(self._flights), self._narration) as progress:
                self._follow(pipeline, play, workers, progress, lambda: have_read(self._ends))
            story.streaming_s = time.monotonic() - started
            print("Everybody has read everything. Comparing, then stopping Spark and the cluster ...", flush=True)
            watcher.stop()
            audit = pipeline.audit().outcome
            story.connector, story.connector_skipped = pipeline.connector(), "" if jars else WHY_NOT
            logs = look(cluster.bootstrap, TOPIC, range(PARTITIONS))
        story.produced, story.producing_s = feed.produced, feed.producing_s
        story.lost = lost_as_told(stage.receipts, watcher.told)
        self._tell_of_tables(pipeline.raw_table, play, logs)
        tables = read_tables(pipeline.raw_table, pipeline.hourly_table)
        story.checks = check_accounts(
            Accounts(
                written=stage.taken,
                with_receipt=story.lost_records,
                ranges=len(story.lost),
                told=sum(lost.told_s is not None for lost in story.lost),
                taken_out=sum(repair.rows for repair in self._repairs),
                sent_again=play.sent_again,
                audit=audit,
                log_errors=log_errors(cluster.data_dirs),
            )
        ) + check(tables, self._flights.expected(), {partition: log.end_offset for partition, log in logs.items()})
        story.moments = self._narration.moments
        story.total_s = self._narration.now_s()
        write_page(report, story, more=delays(tables.hourly))
        summary(story, report, self._directory)
        return story.passed

    def _follow(
        self,
        pipeline: Pipeline,
        play: Play,
        workers: Sequence[Worker],
        progress: Progress,
        everybody_has_read: Callable[[], bool],
    ) -> None:
        """Until everything is sent, read and aggregated, with one stop and restart from the checkpoints on the way."""
        total = len(self._flights)
        give_up_at = time.monotonic() + _GIVE_UP_S
        noted_at, was_restarted = time.monotonic(), False
        pipeline.start()
        while True:
            for worker in workers:
                if worker.error is not None:
                    raise worker.error
            if pipeline.keep_running():
                self._narration.tell("Spark's Python worker was late on this busy machine: the stream is started again")
            rows = row_count(pipeline.raw_table)
            if time.monotonic() - noted_at > _NOTE_EVERY_S:
                self._note_repairs(pipeline)
                noted_at = time.monotonic()
            sample = Sample(self._narration.now_s(), sum(self._ends.values()), rows, pipeline.flights)
            self._story.samples.append(sample)
            progress.show(sample)
            if play.is_over and rows == pipeline.flights == total and everybody_has_read():
                self._note_repairs(pipeline)
                return
            if not was_restarted and rows >= total // 6:
                was_restarted = True
                self._narration.tell(f"the stream is stopped at {rows:,} rows, and goes on from its checkpoint")
                pipeline.stop()
                pipeline.start()
            if time.monotonic() > give_up_at:
                raise OperatorError(
                    f"The stream stands at {rows:,} of {total:,} rows after {_GIVE_UP_S:.0f} s",
                    "The machine may be overloaded; run the demo again when it is not.",
                )
            time.sleep(_LOOK_EVERY_S)

    def _see_leaders(self) -> None:
        self._leaders.seen(self._narration.now_s(), self._cluster.leaders())

    def _see_ends(self) -> None:
        self._ends = self._cluster.ends()

    def _note_repairs(self, pipeline: Pipeline) -> None:
        narration = self._narration
        for rewind in pipeline.note_rewinds():
            narration.tell(str(rewind), narration.at_wall_s(rewind.at_wall_s))
        for repair in repairs_of(pipeline.raw_table)[len(self._repairs) :]:
            self._repairs.append(repair)
            narration.tell(str(repair), narration.at_wall_s(repair.at_wall_s))

    def _tell_of_tables(self, raw_table: Path, play: Play, logs: Mapping[int, LogEpochs]) -> None:
        """Who led, and what the raw table held before its first repair and holds now, against the logs."""
        story, loss = self._story, play.loss
        assert loss is not None, "the play is over"
        story.isolated = loss.cut_off_s, loss.back_s
        story.reigns = self._leaders.reigns(logs, unclean={(self._cluster.busy, loss.successor.epoch)})
        if self._repairs:
            repair = self._repairs[0]
            before = runs_of(rows_at(raw_table, repair.version - 1))
            story.before = held_against("before the repair", before, logs, play.ends_after)
            story.repair_words = f"In one entry, {repair}, and the aggregate takes them away with it."
        story.after = held_against("at the end", runs_of(rows_at(raw_table)), logs)


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
