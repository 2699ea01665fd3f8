"""A query that has read all records: nothing runs in Spark, its driver long-polls the brokers. Counted, not timed."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.spark.conftest import Broker
from tests.spark.queries import tracked

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]
LOOKS: Final = 3


class Requests:
    """The number of requests the node has received, by API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def __call__(self) -> dict[str, int]:
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        (requests,) = (family for family in families if family.name == "fenceline_requests")
        return {sample.labels["api"]: int(sample.value) for sample in requests.samples}


def started_in(spark: Any) -> tuple[int, int]:
    """Jobs and tasks that the session has started so far."""
    context = spark.sparkContext._jsc.sc()
    return context.dagScheduler().numTotalJobs(), context.taskScheduler().nextTaskId()


@pytest.mark.parametrize("into", ["noop", "fenceline_delta"])
def test_an_idle_query_waits_at_the_brokers_and_runs_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, into: str
) -> None:
    port = free_port()
    with EmbeddedNode(overrides={"fenceline.metrics.port": str(port)}) as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create("t", 4)
        broker.produce("t", range(20))
        broker.admin.close()
        count = Requests(port)
        writer = tracked(spark, node.bootstrap, "t").writeStream.format(into).option("checkpointLocation", checkpoint)
        if into != "noop":
            writer = writer.options(**{"path": str(tmp_path / "table"), "kafka.bootstrap.servers": node.bootstrap})
        query = writer.start()
        try:
            query.processAllAvailable()
            jobs, before = started_in(spark), count()
            assert jobs > (0, 0)

            def since(key: ApiKey) -> int:
                return count().get(key.name.lower(), 0) - before.get(key.name.lower(), 0)

            # It periodically looks for new partitions, with two requests, which show that it is alive.
            eventually(lambda: since(ApiKey.LIST_OFFSETS) >= 2 * LOOKS, "looks of an idle query", wait_s=120)
            assert started_in(spark) == jobs
            # Spark polls some 60 times a second (`pyspark.md` S11); a request in flight is not repeated.
            assert since(ApiKey.FETCH) <= 2 * LOOKS
            assert since(ApiKey.METADATA) <= 2 * LOOKS
            assert since(ApiKey.OFFSET_FOR_LEADER_EPOCH) == 0
            assert query.isActive
        finally:
            query.stop()
