"""A structured streaming query on Spark's own Kafka connector, as its documentation shows it.

SPARK_JARS: the connector's jars, comma-separated. Spark keeps its offsets in a checkpoint, not in the group: the
checkpoint is in the temporary folder, under the group's name, so that a program that has crashed continues there.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


def process(batch: DataFrame, _: int) -> None:
    for row in batch.select("value").collect():
        print(bytes(row.value or b"").decode(errors="replace"), flush=True)


def run(source: str) -> None:
    """Run the query with `format(source)` until SIGTERM, or until it fails."""
    # The JVM inherits this: the query ends before Spark does, even if SIGTERM goes to the whole process group.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(tempfile.gettempdir()) / f"spark-{source}-{os.environ['KAFKA_GROUP']}"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.environ.get("SPARK_JARS", ""))
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -Djava.io.tmpdir={tempfile.gettempdir()}")
        .config("spark.local.dir", tempfile.gettempdir())
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )
    signal.signal(signal.SIGTERM, stop)
    query = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
        .option("subscribe", os.environ["KAFKA_TOPIC"])
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        while not stopping and not query.awaitTermination(1):
            pass
    except Exception as error:
        print(f"error: the query has failed: {error}", file=sys.stderr, flush=True)
        # The checkpoint stays for the next start.
        os._exit(1)
    finally:
        with contextlib.suppress(Exception):
            query.stop()
            spark.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run("kafka")
