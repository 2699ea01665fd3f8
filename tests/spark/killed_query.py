"""The victim of `test_killed.py`: a driver that streams a topic into a Delta table until it is killed or done.

Arguments: a folder for Spark's temporary files, bootstrap servers, topic, table, checkpoint, and how it ends: `done`,
or `endless` if only a kill ends it.
"""

from __future__ import annotations

import sys

from tests.spark.queries import stream
from tests.spark.sessions import session

ROWS_A_BATCH = 500


def main(folder: str, bootstrap: str, topic: str, table: str, checkpoint: str, end: str) -> None:
    spark = session("local[2]", folder)
    frame = stream(spark, bootstrap, topic, maxOffsetsPerTrigger=ROWS_A_BATCH, includeLeaderEpoch=True)
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="0 seconds") if end == "endless" else writer.trigger(availableNow=True)
    writer.start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
