"""The victim of `test_retractions_replayed.py`: a driver that counts what a topic holds, and retracts records that its
log lost.

Arguments: a folder for Spark's temporary files, bootstrap servers, checkpoint, a copy of the data directory of the
replica that lost records, a folder for the rows given to each attempt at a batch, and `killed` if the driver dies as
soon as it has received retracted rows, before Spark commits the batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(folder: str, bootstrap: str, checkpoint: str, evidence: str, given: str, end: str) -> None:
    from pyspark.sql import functions as f

    spark = session("local[2]", folder)

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted([row.value.decode(), row.n] for row in frame.collect())
        (Path(given) / f"{batch}-{end}.json").write_text(json.dumps(rows))
        if end == "killed" and any(count < 1 for _, count in rows):
            os.killpg(0, signal.SIGKILL)

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": "t",
        "startingOffsets": "earliest",
        "onTruncation": "rewind",
        "includeRetractions": "true",
        "retractionEvidence": evidence,
    }
    frame = spark.readStream.format("fenceline").options(**options).load()
    change = f.when(f.col("_change_type") == "delete", -1).otherwise(1)
    counted = frame.groupBy("value").agg(f.sum(change).alias("n"))
    writer = counted.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
