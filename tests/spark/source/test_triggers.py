"""Triggers of 0 and of a day: the first batch runs at once, the query stops at once, and loses nothing in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fenceline.testing.waiting import eventually
from tests.spark.conftest import Broker
from tests.spark.queries import tracked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]


def rows_read(query: StreamingQuery) -> int:
    if (failure := query.exception()) is not None:
        raise failure
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_a_trigger_of_a_day_then_one_of_0(
    spark: SparkSession, fenceline_node: Broker, topic: str, checkpoint: str
) -> None:
    fenceline_node.create(topic, 2)
    fenceline_node.produce(topic, range(20), partition=0)

    def start(interval: str) -> StreamingQuery:
        writer = tracked(spark, fenceline_node.bootstrap, topic).writeStream.format("noop")
        return writer.option("checkpointLocation", checkpoint).trigger(processingTime=interval).start()

    daily = start("1 day")
    eventually(lambda: rows_read(daily) == 20, "the first batch of a daily query", wait_s=120)
    fenceline_node.produce(topic, range(20, 50), partition=1)
    daily.stop()
    assert daily.exception() is None
    assert rows_read(daily) == 20
    eager = start("0 seconds")
    try:
        eager.processAllAvailable()
        assert rows_read(eager) == 30
        fenceline_node.produce(topic, range(50, 55), partition=0)
        eager.processAllAvailable()
        assert rows_read(eager) == 35
    finally:
        eager.stop()
