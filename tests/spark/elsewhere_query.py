"""What `test_elsewhere.py` runs in a process of its own: one query in each way, on a Spark that is not in the process.

Arguments: where Spark is (`spark://...` for a standalone cluster, `connect` for a Spark Connect server of its own),
bootstrap servers, topic, a folder for its output. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def session(where: str, scratch: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder = builder.remote("local[2]") if where == "connect" else builder.master(where)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": scratch,
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def await_executors(spark: Any, count: int) -> int:
    """How many executors the driver has, once there are enough of them."""
    context = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + 200
    while (found := context.getExecutorMemoryStatus().size() - 1) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(found)


def main(where: str, bootstrap: str, topic: str, folder: str) -> None:
    from pyspark_fenceline.errors import parse

    spark = session(where, folder + "/local")
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeLeaderEpoch": "true"}
    found: dict[str, Any] = {"executors": await_executors(spark, 2) if where != "connect" else 1}
    frame = spark.read.format("fenceline").options(**given, minPartitions="4").load()
    found["batch"] = sorted([row.partition, row.offset, row.leader_epoch] for row in frame.collect())
    stream = spark.readStream.format("fenceline").options(
        **given, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    query = writer.trigger(availableNow=True).start(folder + "/out")
    query.awaitTermination()
    rows = spark.read.parquet(folder + "/out").collect()
    found["stream"] = sorted([row.partition, row.offset, row.leader_epoch] for row in rows)
    found["batches"] = query.lastProgress["batchId"] + 1
    expired = spark.readStream.format("fenceline").options(
        **given, startingOffsets=json.dumps({topic: {"0": 0, "1": 0}})
    )
    writer = expired.load().writeStream.format("noop").option("checkpointLocation", folder + "/expired")
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        found["losses"] = [
            [str(loss.kind), loss.partition, loss.offset, loss.log_start_offset] for loss in parse(error) or ()
        ]
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
