"""The victim of `test_killed_steps.py` and `test_killed_while_cut.py`: a stream into a table that is compared with the
log, whose processes are killed at one step at a time.

A file in the folder of plans names a step. The process that reaches the step removes the file and dies by SIGKILL: only
a Python worker on the executors' side, the whole driver with its JVM on the driver's side. If the file says so, only
the driver's Python process that plans or commits dies, and its query with it, or the process is suspended instead
(SIGSTOP), and the test resumes it after another driver has taken over.

Arguments: a folder for Spark's temporary files, bootstrap servers, topic, table, checkpoint, the folder of plans.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_fenceline.delta import checkpoint_positions
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta import evidence as delta_evidence
from pyspark_fenceline.delta import files as delta_files
from pyspark_fenceline.delta import plan as delta_plan
from pyspark_fenceline.delta import sink as delta
from pyspark_fenceline.delta import table_cache as delta_table_cache
from pyspark_fenceline.delta.sink import DeltaDataSource, DeltaStreamWriter
from tests.spark.queries import stream
from tests.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXECUTOR_STEPS: Mapping[str, tuple[Any, str]] = {
    "file": (delta_files.FileWriter, "_open"),
    "end of file": (delta_files.FileWriter, "_close"),
    "question": (delta_evidence, "gather_evidence"),
}
DRIVER_STEPS: Mapping[str, tuple[Any, str]] = {
    "look": (delta_table_cache, "cached_table"),
    "table": (delta_commit, "_create"),
    "columns": (delta_commit, "_add_columns"),
    "checkpoint": (checkpoint_positions, "positions_after"),
    "copy": (delta_plan, "rewrite"),
    # In a batch with stale rows the first commit is the repair.
    "entry": (delta_commit, "commit_entry"),
    "append": (delta_commit, "_commit_append"),
    "left-overs": (delta_commit, "delete_files"),
}
ROWS_A_BATCH = 150
MORE = "more"
"""A column added later."""
ALONE = "alone"
DEAD = "dead"
"""A file that signals that a single process has died."""
STAND_STILL = "stand still"
SLEEPER = "sleeper"
"""A file with the id of the suspended process."""


def plans(side: str) -> list[str]:
    steps = EXECUTOR_STEPS if side == "executor" else DRIVER_STEPS
    return [f"{moment} {step}" for step in steps for moment in ("before", "after")]


def die(folder: str, side: str, plan: str) -> None:
    """Dies only if this process claims the plan."""
    file = Path(folder, f"{side} {plan}")
    try:
        what = file.read_text()
        if what == STAND_STILL:
            Path(folder, SLEEPER).write_text(str(os.getpid()))
        os.unlink(file)
    except FileNotFoundError:
        return
    if what == STAND_STILL:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if what == ALONE:
        Path(folder, DEAD).touch()
    elif side == "driver":
        # Spark's daemons have their own process groups; their session is still the one that the driver leads.
        os.killpg(os.getsid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_armed: set[str] = set()


def arm(folder: str, side: str) -> None:
    """Once per process: wrap each step in a check for the plan."""
    if side in _armed:
        return
    _armed.add(side)

    def killable(step: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*positional: Any, **named: Any) -> Any:
            die(folder, side, f"before {step}")
            result = real(*positional, **named)
            die(folder, side, f"after {step}")
            return result

        return run

    for step, (owner, name) in (EXECUTOR_STEPS if side == "executor" else DRIVER_STEPS).items():
        setattr(owner, name, killable(step, getattr(owner, name)))


class KillableWriter(DeltaStreamWriter):
    folder = ""

    def write(self, iterator: Any) -> Any:
        arm(self.folder, "executor")
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        arm(self.folder, "driver")
        super().commit(messages, batchId)


class KillableDelta(DeltaDataSource):
    """`fenceline_delta` with the option plans."""

    @classmethod
    def name(cls) -> str:
        return "deadly_delta"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given = dict(self.options)
        folder = given.pop("plans")
        arm(folder, "driver")
        made = delta.DeltaDataSource(given).streamWriter(schema, overwrite)
        writer = KillableWriter(made._tasks, overwrite=overwrite)
        writer.folder = folder
        return writer


def killable(frame: DataFrame, bootstrap: str, checkpoint: str, plans_folder: str) -> DataStreamWriter:
    writer = frame.writeStream.format("deadly_delta").option("checkpointLocation", checkpoint)
    return writer.options(**{"kafka.bootstrap.servers": bootstrap, "plans": plans_folder, "mergeSchema": True})


def main(folder: str, bootstrap: str, topic: str, table: str, checkpoint: str, plans_folder: str) -> None:
    # Imported by name, so that Spark's workers find the class in this module.
    from tests.spark import killed_steps

    # Tasks may fail often: each loses its worker.
    spark = session("local[2,100]", folder, spark__log__level="OFF")
    spark.dataSource.register(killed_steps.KillableDelta)
    frame = stream(spark, bootstrap, topic, maxOffsetsPerTrigger=ROWS_A_BATCH, includeLeaderEpoch=True)
    # A column missing from the table when the query starts.
    writer = killed_steps.killable(frame.withColumn(MORE, frame["offset"]), bootstrap, checkpoint, plans_folder)
    writer.trigger(availableNow=True).start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
