"""The victim of `test_killed.py`: a driver that streams a topic into a Delta table until it is killed or done.

Arguments: bootstrap servers, topic, table, checkpoint.
"""

from __future__ import annotations

import sys


def main(bootstrap: str, topic: str, table: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("fenceline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500)
        .option("includeLeaderEpoch", True)
        .load()
    )
    writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
