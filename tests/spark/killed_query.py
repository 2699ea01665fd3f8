"""The victim of `test_killed.py`: a driver that streams a topic into a Delta table until it is killed or done.

Arguments: bootstrap servers, topic, table, checkpoint, a folder for what Spark leaves lying about, and how it ends:
`done`, or `endless` where only a kill ends it.
"""

from __future__ import annotations

import sys

ROWS_A_BATCH = 500


def main(bootstrap: str, topic: str, table: str, checkpoint: str, scratch: str, end: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", scratch)
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("fenceline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_BATCH)
        .option("includeLeaderEpoch", True)
        .load()
    )
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="0 seconds") if end == "endless" else writer.trigger(availableNow=True)
    writer.start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
