"""`mergeSchema` under Spark: a query with a new column continues to write its table, also across a truncation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import pyspark_fenceline
from fenceline.testing.node import EmbeddedNode
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.queries import keep_equal, tracked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]


def test_columns_added_later_are_merged_when_requested(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    table, topic = str(tmp_path / "table"), "grown"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1020))

        frame = tracked(spark, broker.bootstrap, topic).selectExpr("*", "cast(cast(value as string) as int) number")
        version = DeltaTable(table).version()
        with pytest.raises(Exception, match=r"(?s)column number .*not in the table.*mergeSchema"):
            keep_equal(frame, table, checkpoint, broker.bootstrap)
        assert DeltaTable(table).version() == version
        keep_equal(frame, table, checkpoint, broker.bootstrap, mergeSchema=True)
        assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
        found = DeltaTable(table).to_pyarrow_table().sort_by("offset")
        # Earlier rows have no number, in the rewritten file either.
        assert found["number"].to_pylist() == [None] * 100 + [*range(1000, 1020)]
        # The unchanged query still works.
        broker.produce(topic, range(5))
        keep_equal(tracked(spark, broker.bootstrap, topic), table, checkpoint, broker.bootstrap)
        found = DeltaTable(table).to_pyarrow_table().sort_by("offset")
        assert found["number"].to_pylist()[-6:] == [1019] + [None] * 5
        assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
