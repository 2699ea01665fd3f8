"""`option("losses", True)`: the losses of logs, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from fenceline.errors import InternalError, OperatorError
from fenceline.ids import LOSSES_TOPIC, encode_uuid
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline.common import connect
from pyspark_fenceline.source.losses_table import LossesReader, losses_reader
from pyspark_fenceline.source.source import FencelineDataSource
from tests.spark.conftest import Broker
from tests.spark.fakes import FakeCluster
from tests.spark.receipts import receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = {"kafka.bootstrap.servers": "h:1", "losses": "true"}


def read(monkeypatch: pytest.MonkeyPatch, reader: LossesReader, *values: bytes | None) -> list[dict[str, Any]]:
    cluster = FakeCluster(**{LOSSES_TOPIC: 1})
    cluster.log(LOSSES_TOPIC).append(len(values))
    monkeypatch.setattr(connect, "connect", lambda properties: cluster)
    monkeypatch.setattr(connect, "reader", lambda properties: None)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    monkeypatch.setattr(connect, "read_arrow", lambda *given: iter([batch]))
    (task,) = reader.partitions()
    return [row for found in reader.read(task) for row in found.to_pylist()]


def test_the_latest_receipt_of_each_loss_counts_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(
        monkeypatch,
        losses_reader(GIVEN),
        receipt("b", 2_000, evidence=["/x"]),
        receipt("a", 1_000, group="g", evidence_note="gone", topic_id=encode_uuid(UUID(int=7))),
        None,
        receipt("b", 2_000, evidence=[], what_a_later_release_says=1),
    )
    assert [(row["id"], row["evidence"]) for row in found] == [("a", []), ("b", [])]
    first, second = found
    assert (first["group"], first["evidence_note"], first["topic_id"]) == ("g", "gone", encode_uuid(UUID(int=7)))
    assert second.pop("time").timestamp() == 2.0
    assert second == {
        "id": "b",
        "topic": "t",
        "topic_id": None,
        "partition": 0,
        "start_offset": 10,
        "end_offset_exclusive": 17,
        "leader_epochs": [1, 3],
        "records": 7,
        "bytes": 700,
        "class": "committed",
        "known_by": "a high watermark",
        "cause": "divergence",
        "reason": "an election",
        "replica": 2,
        "leader": 1,
        "leader_epoch": 4,
        "evidence": [],
        "evidence_note": "",
        "group": "",
    }


def test_records_that_are_no_receipts_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InternalError, match="no loss receipt"):
        read(monkeypatch, losses_reader(GIVEN), receipt("a", 1), b'{"id": "b"}')


def test_losses_can_be_limited_to_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = losses_reader({**GIVEN, "subscribe": "t, u"})
    found = read(monkeypatch, reader, receipt("a", 1), receipt("b", 2, "u"), receipt("c", 3, "v"))
    assert [row["id"] for row in found] == ["a", "b"]


def test_a_cluster_without_losses_has_an_empty_table() -> None:
    (task,) = LossesReader({}, None, FakeCluster()).partitions()
    assert list(LossesReader({}, None).read(task)) == []


def test_contradictory_options_are_rejected() -> None:
    with pytest.raises(OperatorError, match="cannot be used with 'losses'"):
        losses_reader({**GIVEN, "startingOffsets": "latest"})
    with pytest.raises(OperatorError, match=r"kafka\.bootstrap\.servers"):
        losses_reader({"losses": "true"})
    refused = FencelineDataSource(GIVEN).streamReader(FencelineDataSource(GIVEN).schema())
    with pytest.raises(OperatorError, match=LOSSES_TOPIC):
        refused.initialOffset()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_losses_of_a_node_under_spark(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        reader = spark.read.format("fenceline").option("kafka.bootstrap.servers", node.bootstrap)
        assert reader.option("losses", True).load().count() == 0
        broker.create("t")
        for first in (0, 10):
            broker.produce("t", range(first, first + 10))
        broker.admin.close()
        node.kill()
        (segment,) = next(node.log_dir.rglob("t-0")).glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-3])
        node.start()
        reader = spark.read.format("fenceline").option("kafka.bootstrap.servers", node.bootstrap)
        table = reader.option("losses", True).load()
        (row,) = eventually(lambda: table.where("topic = 't'").collect(), "the receipt")
        assert (row.partition, row.start_offset, row.end_offset_exclusive) == (0, 10, 20)
        assert row["cause"] == "recovery"
        assert row.time is not None
