"""The victim of `test_killed_exactly_once.py`: a driver that copies a topic exactly once until it is killed or done.

Arguments: a folder for Spark's temporary files, bootstrap servers, source topic, target topic, checkpoint, and how it
ends: `done`, or `endless` if only a kill ends it.
"""

from __future__ import annotations

import sys

from pyspark_fenceline import exactly_once
from tests.spark.queries import stream
from tests.spark.sessions import session

ROWS_A_BATCH = 500


def main(folder: str, bootstrap: str, topic: str, target: str, checkpoint: str, end: str) -> None:
    spark = session("local[2]", folder)
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
