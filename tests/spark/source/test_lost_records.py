"""`option("lostReceipt", id)`: the records of a loss, from the node that keeps them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.client import EvidenceIncompleteError, LossReceipt
from fenceline.client.core.loss_receipts import parse_receipt
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.records.arrow import batches_to_arrow
from fenceline.records.build import build_batch
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.source.lost_records import LossPartition, lost_receipt_reader
from pyspark_fenceline.source.source import FencelineDataSource
from tests.spark.receipts import receipt
from tests.support.losing_node import lose

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

GIVEN = {"kafka.bootstrap.servers": "h:1", "lostReceipt": "a"}
SCHEMA = spark_schema(include_headers=False, include_leader_epoch=True)


def known(name: str, **fields: Any) -> LossReceipt:
    found = parse_receipt(receipt(name, 1_000, **{"evidence": ["/x"], **fields}))
    assert found is not None
    return found


class FakeReader:
    """Two records of each loss, then the outcome."""

    def __init__(self, *receipts: LossReceipt, outcome: Exception | None = None) -> None:
        self.receipts = {each.id: each for each in receipts}
        self.outcome = outcome

    def receipt(self, receipt_id: str) -> LossReceipt:
        return self.receipts[receipt_id]

    def read(self, loss: LossReceipt, **options: Any) -> Iterator[pa.RecordBatch]:
        content = memoryview(build_batch([(1_000, None, loss.id.encode(), ()) for _ in range(2)]))
        yield batches_to_arrow([(loss.topic, loss.partition, content)], **options)
        if self.outcome is not None:
            raise self.outcome


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(reader: FakeReader) -> None:
        monkeypatch.setattr(connect, "lost_records", lambda properties: reader)

    return install


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(lost_receipt_reader(options, SCHEMA)))
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_each_receipt_is_a_task(use: Any) -> None:
    use(FakeReader(known("a"), known("b")))
    found = rows({**GIVEN, "lostReceipt": "a, b,a"})
    assert [row["value"] for row in found] == [b"a", b"a", b"b", b"b"]
    assert set(found[0]) == set(SCHEMA.names)


def test_receipt_without_evidence(use: Any) -> None:
    use(FakeReader(known("a", evidence=[], evidence_note="The evidence was older.")))
    with pytest.raises(OperatorError, match="no evidence") as error:
        rows(GIVEN)
    assert error.value.advice == "The evidence was older."


def test_missing_records_fail_the_query_unless_they_may_be_missing(use: Any, caplog: pytest.LogCaptureFixture) -> None:
    use(FakeReader(known("a"), outcome=EvidenceIncompleteError(known("a"), 2)))
    with pytest.raises(EvidenceIncompleteError):
        rows(GIVEN)
    with caplog.at_level(logging.WARNING, "pyspark_fenceline"):
        assert len(rows({**GIVEN, "failOnDataLoss": "false"})) == 2
    assert "has 2 of 7 records" in caplog.text


def test_error_of_the_node(use: Any) -> None:
    use(FakeReader(known("a"), outcome=PeerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")))
    with pytest.raises(PeerError):
        rows({**GIVEN, "failOnDataLoss": "false"})


def test_contradictory_options_are_rejected() -> None:
    for name, value in (("subscribe", "t"), ("startingOffsets", "latest"), ("assign", "{}")):
        with pytest.raises(OperatorError, match="cannot be used with 'lostReceipt'"):
            FencelineDataSource({**GIVEN, name: value}).schema()
    with pytest.raises(OperatorError, match="is empty"):
        FencelineDataSource({**GIVEN, "lostReceipt": " , "}).schema()
    with pytest.raises(OperatorError, match=r"kafka\.bootstrap\.servers"):
        FencelineDataSource({"lostReceipt": "a"}).schema()
    refused = FencelineDataSource(GIVEN).streamReader(FencelineDataSource(GIVEN).schema())
    with pytest.raises(OperatorError, match="batch reads only"):
        refused.initialOffset()


def test_columns_are_those_of_a_topic() -> None:
    assert FencelineDataSource(GIVEN).schema() == spark_schema(include_headers=False, include_leader_epoch=False)
    every = {**GIVEN, "includeHeaders": "true", "includeLeaderEpoch": "true"}
    assert FencelineDataSource(every).schema() == spark_schema(include_headers=True, include_leader_epoch=True)


def test_partition_of_spark_has_no_rows() -> None:
    assert list(lost_receipt_reader(GIVEN, SCHEMA).read(object())) == []  # type: ignore[arg-type]
    assert LossPartition(known("a")).receipt.id == "a"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_lost_records_of_a_node_under_spark(spark: SparkSession) -> None:
    with EmbeddedNode(overrides={"fenceline.lost.retention.ms": "-1"}) as node:
        lost = lose(node, "t", {"bootstrap.servers": node.bootstrap})
        reader = spark.read.format("fenceline").option("kafka.bootstrap.servers", node.bootstrap)
        (loss,) = reader.option("losses", True).load().where("topic = 't'").collect()
        assert loss.id == lost.receipt.id
        reader = spark.read.format("fenceline").option("kafka.bootstrap.servers", node.bootstrap)
        table = reader.option("lostReceipt", loss.id[:12]).option("includeLeaderEpoch", True).load()
        found = table.orderBy("offset").collect()
        assert [row.value.decode() for row in found] == lost.values
        assert [row.offset for row in found] == list(range(loss.start_offset, loss.end_offset_exclusive))
        assert {(row.topic, row.partition, row.leader_epoch) for row in found} == {("t", 0, 0)}
        assert table.select("offset").count() == len(found)
