"""The victim of `test_killed_exactly_once.py`: a driver that copies a topic exactly once until it is killed or done.

Its processes and those of its executors die at one step at a time (`kill_plans`).

Arguments: a folder for Spark's temporary files, Spark's master, bootstrap servers, source topic, target topic,
checkpoint, the folder of plans, and how it ends: `done`, or `endless` if only a kill ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fenceline.client.producer import transaction_owner
from fenceline.client.producer.producer import Producer
from fenceline.client.producer.transaction_requests import TransactionRequests
from pyspark_fenceline.source import exactly_once as exactly_once_sink
from pyspark_fenceline.source.exactly_once import ExactlyOnceTopic, exactly_once
from pyspark_fenceline.source.transaction_tasks import TransactionTask
from tests.spark.kill_plans import Steps, arm, plans_of
from tests.spark.queries import stream
from tests.spark.sessions import session

FIRST_STEPS: Steps = {
    "begin": (TransactionRequests, "init_producer"),
    "progress": (transaction_owner, "fetch_committed"),
}
"""Only in the first batch of a driver, and after a failure."""
DRIVER_STEPS: Steps = {
    **FIRST_STEPS,
    "records": (ExactlyOnceTopic, "_write"),
    "offset": (TransactionRequests, "commit_offsets"),
    "end": (TransactionRequests, "end"),
}
EXECUTOR_STEPS: Steps = {
    "task": (TransactionTask, "_write"),
    "question": (TransactionTask, "_refuse_written"),
    "send": (Producer, "send_arrow"),
    "flush": (Producer, "flush"),
    "leave": (Producer, "leave_transaction"),
}
ROWS_A_BATCH = 500
_REPOSITORY = Path(__file__).resolve().parents[2]


def plans(side: str) -> list[str]:
    return [f"{side} {plan}" for plan in plans_of(EXECUTOR_STEPS if side == "executor" else DRIVER_STEPS)]


class KillableTask(TransactionTask):
    folder = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arm(self.folder, "executor", EXECUTOR_STEPS)
        yield from super().__call__(batches)


def main(
    folder: str, master: str, bootstrap: str, topic: str, target: str, checkpoint: str, plans_folder: str, end: str
) -> None:
    # Imported by name, so that Spark's workers find the class in this module.
    from tests.spark import exactly_once_query as here

    def killable(*given: Any) -> TransactionTask:
        made = here.KillableTask(*given)
        made.folder = plans_folder
        return made

    exactly_once_sink.TransactionTask = killable  # type: ignore[assignment,misc,attr-defined]
    arm(plans_folder, "driver", DRIVER_STEPS)
    settings = {"spark__executor__memory": "600m", "spark__executorEnv__PYTHONPATH": str(_REPOSITORY)}
    spark = session(master, folder, spark__log__level="OFF", **settings)
    frame = stream(spark, bootstrap, topic, maxOffsetsPerTrigger=ROWS_A_BATCH).selectExpr(
        "key", "concat(cast(partition as string), ' ', cast(offset as string)) value"
    )
    write = exactly_once(target, {"kafka.bootstrap.servers": bootstrap, "topic": target})
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="0 seconds") if end == "endless" else writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
