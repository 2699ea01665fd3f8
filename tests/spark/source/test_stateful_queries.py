"""Stateful queries over a log that is truncated and grows again: they fail rather than return wrong results. The
tests also show the wrong results, by an option that declares the query stateless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.errors import LossKind, parse
from tests.spark.conftest import Broker
from tests.spark.cut_log import node_to_cut, restart_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """With a topic `t` of 150 records, which a truncation cuts to 100."""
    with node_to_cut() as running:
        yield running


class Query:
    """A query over `t` that is restarted repeatedly; `results` has the results of its last run."""

    def __init__(self, spark: SparkSession, node: EmbeddedNode, checkpoint: str, plan: Any, mode: str) -> None:
        self._spark, self._node, self._checkpoint, self._plan, self._mode = spark, node, checkpoint, plan, mode
        self.results: list[Any] = []

    def run(self, **options: Any) -> StreamingQuery:
        given = {"kafka.bootstrap.servers": self._node.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        frame = self._spark.readStream.format("fenceline").options(**given, onTruncation="rewind", **options).load()
        writer = self._plan(frame).writeStream.outputMode(self._mode).foreachBatch(self._keep)
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _keep(self, frame: DataFrame, _: int) -> None:
        self.results.extend(frame.collect())


def cut_and_grow(node: EmbeddedNode, values: range) -> None:
    """The log keeps 100 of its records, followed by others."""
    restart_cut(node, "t", 100)
    Broker("fenceline", node.bootstrap).produce("t", values)


def assert_refused(error: BaseException, checkpoint: str) -> None:
    (loss,) = parse(error) or ()
    assert (loss.kind, loss.divergent_offset, loss.offset) == (LossKind.LOG_TRUNCATED, 100, 150)
    assert f"The query keeps state ({checkpoint}/state)" in str(error)
    assert "offsets 100 to 149" in str(error)


def test_a_count_fails_rather_than_being_wrong(spark: SparkSession, node: EmbeddedNode, checkpoint: str) -> None:
    query = Query(spark, node, checkpoint, lambda frame: frame.groupBy().count(), "complete")
    query.run(checkpointLocation=checkpoint)
    assert query.results[-1]["count"] == 150
    cut_and_grow(node, range(1000, 1100))
    for hint in ({"checkpointLocation": checkpoint}, {"statefulQuery": True}, {}):
        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            query.run(**hint)
        if "checkpointLocation" in hint:
            assert_refused(caught.value, checkpoint)
    assert query.results[-1]["count"] == 150
    # The log holds 200 records: the result of a false declaration.
    query.run(statefulQuery=False)
    assert query.results[-1]["count"] == 250


def test_deduplication_drops_no_new_records(spark: SparkSession, node: EmbeddedNode, checkpoint: str) -> None:
    query = Query(spark, node, checkpoint, lambda frame: frame.select("value").dropDuplicates(), "append")
    query.run(checkpointLocation=checkpoint)
    assert len(query.results) == 150
    # The producers resend the lost records in another order.
    cut_and_grow(node, range(149, 99, -1))
    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        query.run(checkpointLocation=checkpoint)
    assert_refused(caught.value, checkpoint)
    # A sink that removes the stale rows would never have received the new ones.
    query.results.clear()
    query.run(statefulQuery=False)
    assert query.results == []


def test_a_query_without_state_rewinds(spark: SparkSession, node: EmbeddedNode, checkpoint: str) -> None:
    query = Query(spark, node, checkpoint, lambda frame: frame.select("value"), "append")
    query.run(checkpointLocation=checkpoint)
    cut_and_grow(node, range(1000, 1100))
    query.results.clear()
    query.run(checkpointLocation=checkpoint)
    assert sorted(int(row.value) for row in query.results) == [*range(1000, 1100)]
