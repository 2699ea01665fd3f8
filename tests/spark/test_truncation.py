"""A log that is cut under a running checkpoint and grows again beyond it: the case that offsets alone never show
(`pyspark.md` S32). The cut is made in the stopped node's files, as an unclean election would leave them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.errors import LossKind, parse
from tests.spark.conftest import Broker
from tests.spark.test_source import batch, drain, rows, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def cut(log_dir: Path, topic: str, offset: int) -> None:
    """Remove everything from `offset` on (a batch begins there) from the stopped node's partition 0."""
    (folder,) = log_dir.rglob(f"{topic}-0")
    (segment,) = folder.glob("*.log")
    records = segment.read_bytes()
    position = next(header.position for header in iter_headers(records) if header.base_offset == offset)
    with segment.open("r+b") as file:
        file.truncate(position)
    for derived in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
        derived.unlink()
    for mark in log_dir.rglob(".kafka_cleanshutdown"):
        mark.unlink()


def test_a_cut_log_that_grew_again_ends_the_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    table, topic = str(tmp_path / "table"), "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        drain(stream(spark, broker, topic), table, checkpoint)
        assert len(rows(table)) == 150

        node.stop()
        cut(node.log_dir, topic, 100)
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1100))
        assert batch(spark, broker, topic).count() == 200

        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            drain(stream(spark, broker, topic), table, checkpoint)
        losses = parse(caught.value)
        assert losses is not None
        (loss,) = losses
        assert (loss.kind, loss.offset, loss.divergence_offset) == (LossKind.LOG_TRUNCATED, 150, 100)
        assert len(rows(table)) == 150

        # Told to go on, it reads all of the new history, from the divergence point.
        drain(stream(spark, broker, topic, failOnDataLoss=False), table, checkpoint)
        new = [value for _, offset, value in rows(table) if offset >= 100 and int(value) >= 1000]
        assert new == [b"%d" % value for value in range(1000, 1100)]
