"""The program that `test_elsewhere.py` runs in a separate process: queries of each kind, on a remote Spark.

Arguments: a folder for all output, the Spark master (`spark://...` for a standalone cluster, `connect` for a Spark
Connect server started by the program), bootstrap servers, a topic with two partitions; `CUT` is the topic to truncate.
Prints one JSON object.

The parent process truncates the log once a file signals that a batch is planned; another file signals completion.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from fenceline.demo.pipeline import LATE_WORKER
from tests.spark.sessions import CONNECT, session

CUT: Final = "cut"
PLANNED: Final = "is-planned"
DONE: Final = "is-cut"


def await_executors(spark: Any, count: int) -> int:
    """How many executors the driver has, once there are enough of them."""
    context = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + 200
    while (found := context.getExecutorMemoryStatus().size() - 1) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(found)


def places(rows: Any) -> list[list[int]]:
    return sorted([row.partition, row.offset, row.leader_epoch] for row in rows)


def ended(writer: Any, folder: str, name: str) -> Any:
    """Run the query, with a checkpoint of that name, until it has processed all available records.

    Spark gives the Python worker of a stream ten seconds to start, and has no setting for that; on a busy machine the
    worker of Spark Connect has needed more. Nothing is planned or read by then, so the query is simply restarted.
    """
    writer = writer.option("checkpointLocation", f"{folder}/{name}-state").trigger(availableNow=True)
    for is_last in (False, False, False, True):
        try:
            query = writer.start()
            query.awaitTermination()
        except Exception as error:
            if is_last or LATE_WORKER not in str(error):
                raise
        else:
            break
    return query


def read(spark: Any, given: dict[str, str], folder: str) -> dict[str, Any]:
    frame = spark.read.format("fenceline").options(**given, minPartitions="4").load()
    found: dict[str, Any] = {"batch": places(frame.collect())}
    stream = spark.readStream.format("fenceline").options(
        **given, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    writer = stream.load().writeStream.format("parquet").option("path", folder + "/out")
    query = ended(writer, folder, "out")
    found["stream"] = places(spark.read.parquet(folder + "/out").collect())
    found["batches"] = query.lastProgress["batchId"] + 1
    return found


def expired(spark: Any, given: dict[str, str], folder: str) -> list[list[Any]]:
    from pyspark_fenceline.errors import parse

    start = json.dumps({given["subscribe"]: {"0": 0, "1": 0}})
    frame = spark.readStream.format("fenceline").options(**given, startingOffsets=start).load()
    try:
        ended(frame.writeStream.format("noop"), folder, "expired")
    except Exception as error:
        return [[str(loss.kind), loss.partition, loss.offset, loss.log_start_offset] for loss in parse(error) or ()]
    return []


def truncated(spark: Any, given: dict[str, str], folder: str) -> dict[str, Any]:
    """A stream whose log is truncated between planning and reading a batch: first with the fail policy, then with
    rewind."""
    from pyspark_fenceline.errors import losses_of, parse

    given = {**given, "startingOffsets": "earliest"}

    def write(frame: Any, batch_id: int) -> None:
        if not Path(folder, DONE).exists():
            # By now Spark has the batch's tasks, and has run none of them.
            Path(folder, PLANNED).touch()
            while not Path(folder, DONE).exists():
                time.sleep(0.05)
        frame.write.mode("append").parquet(f"{folder}/rows")

    def run(policy: str) -> Any:
        frame = spark.readStream.format("fenceline").options(**given, onTruncation=policy, statefulQuery=False).load()
        return ended(frame.writeStream.foreachBatch(write), folder, "rows")

    def loss_fields(losses: Any) -> list[list[Any]]:
        # Losses that the driver finds while planning include the topic id.
        return [
            [str(loss.kind), loss.divergent_offset, loss.offset, "driver" if loss.found_topic_id else "executor"]
            for loss in losses or ()
        ]

    found: dict[str, Any] = {}
    for attempt in ("first", "replay"):
        try:
            run("fail")
        except Exception as error:
            found[attempt] = loss_fields(parse(error))
            found[f"{attempt} text"] = str(error)[:4000]
    query = run("rewind")
    found["rewound"] = loss_fields(loss for progress in query.recentProgress for loss in losses_of(progress))
    found["values"] = sorted({int(row.value) for row in spark.read.parquet(f"{folder}/rows").collect()})
    return found


def sink(spark: Any, given: dict[str, str], folder: str) -> None:
    """Write all records to a table that is kept equal to the log."""
    options = {**given, "startingOffsets": "earliest", "onTruncation": "rewind", "statefulQuery": "false"}
    frame = spark.readStream.format("fenceline").options(**options)
    writer = frame.load().writeStream.format("fenceline_delta").option("path", f"{folder}/table")
    ended(writer.option("kafka.bootstrap.servers", given["kafka.bootstrap.servers"]), folder, "table")


def main(folder: str, where: str, bootstrap: str, topic: str) -> None:
    spark = session(where, folder, spark__executor__memory="512m", spark__executor__cores="1", spark__cores__max="2")
    given = {"kafka.bootstrap.servers": bootstrap, "includeLeaderEpoch": "true"}
    whole, cut = {**given, "subscribe": topic}, {**given, "subscribe": CUT}
    found: dict[str, Any] = {"executors": await_executors(spark, 2) if where != CONNECT else 1}
    found |= read(spark, whole, folder)
    found["losses"] = expired(spark, whole, folder)
    sink(spark, cut, folder)
    found["truncated"] = truncated(spark, cut, folder)
    sink(spark, cut, folder)
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
