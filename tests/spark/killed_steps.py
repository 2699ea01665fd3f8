"""The victim of `test_killed_steps.py` and `test_killed_while_cut.py`: a stream into a table that is compared with the
log, whose processes are killed or suspended at one step at a time (`kill_plans`).

Arguments: a folder for Spark's temporary files, bootstrap servers, topic, table, checkpoint, the folder of plans.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark_fenceline.delta import checkpoint_positions
from pyspark_fenceline.delta import commit as delta_commit
from pyspark_fenceline.delta import evidence as delta_evidence
from pyspark_fenceline.delta import files as delta_files
from pyspark_fenceline.delta import plan as delta_plan
from pyspark_fenceline.delta import sink as delta
from pyspark_fenceline.delta import table_cache as delta_table_cache
from pyspark_fenceline.delta.sink import DeltaDataSource, DeltaStreamWriter
from tests.spark.kill_plans import Steps, arm, plans_of
from tests.spark.queries import stream
from tests.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXECUTOR_STEPS: Steps = {
    "file": (delta_files.FileWriter, "_open"),
    "end of file": (delta_files.FileWriter, "_close"),
    "question": (delta_evidence, "gather_evidence"),
}
DRIVER_STEPS: Steps = {
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


def plans(side: str) -> list[str]:
    return plans_of(EXECUTOR_STEPS if side == "executor" else DRIVER_STEPS)


class KillableWriter(DeltaStreamWriter):
    folder = ""

    def write(self, iterator: Any) -> Any:
        arm(self.folder, "executor", EXECUTOR_STEPS)
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        arm(self.folder, "driver", DRIVER_STEPS)
        super().commit(messages, batchId)


class KillableDelta(DeltaDataSource):
    """`fenceline_delta` with the option plans."""

    @classmethod
    def name(cls) -> str:
        return "deadly_delta"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given = dict(self.options)
        folder = given.pop("plans")
        arm(folder, "driver", DRIVER_STEPS)
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
