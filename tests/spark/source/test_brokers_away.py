"""Brokers that become unavailable after a batch is planned, under Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.spark.conftest import Broker
from tests.support.refused_attempts import RefusedAttempts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]
API_TIMEOUT_MS = 1000
QUICK: dict[str, Any] = {
    "kafka.default.api.timeout.ms": API_TIMEOUT_MS,
    "kafka.request.timeout.ms": API_TIMEOUT_MS,
    "kafka.retry.backoff.ms": 20,
    "fetchOffset.retryIntervalMs": 50,
    "fetchOffset.numRetries": 60,
}


def test_tasks_tolerate_brokers_unavailable_for_longer_than_one_lookup(spark: SparkSession, checkpoint: str) -> None:
    read: list[int] = []
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create("t")
        broker.produce("t", range(30))
        broker.admin.close()

        def come_back(away: RefusedAttempts) -> None:
            with away:
                eventually(lambda: away.lasted_ms > 3 * API_TIMEOUT_MS, "attempts for longer than a look-up may last")
            node.start()

        def write(frame: DataFrame, _: int) -> None:
            # By now Spark has the batch's tasks, and has run none of them.
            node.stop()
            returning = threading.Thread(target=come_back, args=[RefusedAttempts(node.port)])
            returning.start()
            try:
                read.extend(row.offset for row in frame.collect())
            finally:
                returning.join()

        given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        frame = spark.readStream.format("fenceline").options(**given, **QUICK).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(read) == list(range(30))
