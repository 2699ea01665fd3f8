"""Source and sink of the pipeline. Spark finds both formats if `pyspark_fenceline` is installed."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()
brokers = spark.conf.get("flights.brokers")


@dp.temporary_view
def records() -> DataFrame:
    return (
        spark.readStream.format("fenceline")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", spark.conf.get("flights.topic"))
        .option("startingOffsets", "earliest")
        .option("includeLeaderEpoch", True)
        # After an unclean election the flow rewinds to the divergence offset; the sink removes the rows that were lost.
        .option("onTruncation", "rewind")
        # There is no aggregation, join or deduplication between source and sink.
        .option("statefulQuery", False)
        .load()
    )


dp.create_sink(
    "flights",
    "fenceline_delta",
    {"path": spark.conf.get("flights.table"), "kafka.bootstrap.servers": brokers},
)


@dp.append_flow(target="flights")
def parsed() -> DataFrame:
    return spark.readStream.table("records").select(
        col("value").cast("string").alias("line"), "topic", "partition", "offset", "leader_epoch"
    )
