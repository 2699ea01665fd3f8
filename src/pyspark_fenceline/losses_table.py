"""What logs have lost, as a table: `spark.read.format("fenceline").option("losses", True)`.

Owns the table's columns and how loss receipts become rows; what a receipt is, the client knows. What is said later of
the same loss counts (its evidence went). Reads all of the ledger in one task: it is as long as the list of losses.
Apache Kafka's brokers tell nobody what they lose, so theirs is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fenceline.client.loss_receipts import LossReceipt, parse_receipt
from fenceline.errors import InternalError, OperatorError
from fenceline.ids import LOSSES_TOPIC
from pyspark_fenceline import connect, workers
from pyspark_fenceline.cluster import Cluster
from pyspark_fenceline.given_options import GivenOptions
from pyspark_fenceline.options import client_properties
from pyspark_fenceline.patience import USUAL, with_retries
from pyspark_fenceline.planning import OffsetRange
from pyspark_fenceline.ranges import take_snapshot
from pyspark_fenceline.schema import arrow_schema
from pyspark_fenceline.tasks import RangesPartition

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = StructType(
    [
        StructField("id", StringType()),
        StructField("time", TimestampType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("start_offset", LongType()),
        StructField("end_offset_exclusive", LongType()),
        StructField("leader_epochs", ArrayType(IntegerType())),
        StructField("records", LongType()),
        StructField("bytes", LongType()),
        StructField("class", StringType()),
        StructField("known_by", StringType()),
        StructField("cause", StringType()),
        StructField("reason", StringType()),
        StructField("replica", IntegerType()),
        StructField("leader", IntegerType()),
        StructField("leader_epoch", IntegerType()),
        StructField("evidence", ArrayType(StringType())),
        StructField("evidence_note", StringType()),
        StructField("group", StringType()),
    ]
)


class LossesReader(DataSourceReader):
    """All receipts that the ledger holds when the query is planned, oldest loss first."""

    def __init__(
        self, client: Mapping[str, str], topics: frozenset[str] | None, cluster: Cluster | None = None
    ) -> None:
        self._client = dict(client)
        self._topics = topics
        self._cluster = cluster

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    def partitions(self) -> list[InputPartition]:
        cluster = self._cluster or connect.connect(self._client)
        ranges, topic_ids = with_retries(lambda: _ledger(cluster), USUAL)
        return [RangesPartition(ranges, topic_ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        told = self.receipts(partition)
        if told:
            yield pa.RecordBatch.from_pylist([_row(receipt) for receipt in told], schema=arrow_schema(SCHEMA))
        workers.settle()

    def receipts(self, partition: InputPartition) -> list[LossReceipt]:
        """Those of one task, each as it was last written, oldest loss first."""
        if not isinstance(partition, RangesPartition) or not partition.task:
            return []
        found = _receipts(self._client, partition.task, partition.topic_ids)
        return [one for one in found if self._topics is None or one.topic in self._topics]


def known_losses(cluster: Cluster, client: Mapping[str, str]) -> list[LossReceipt]:
    """All receipts of the cluster's ledger, oldest loss first; none from a cluster that has no ledger."""
    ranges, topic_ids = _ledger(cluster)
    return _receipts(client, ranges, topic_ids) if ranges else []


def losses_reader(options: Mapping[str, str]) -> LossesReader:
    """The reader that the options ask for; `subscribe` keeps the losses of these topics only."""
    given = GivenOptions(options)
    for name in ("subscribePattern", "assign", "startingOffsets", "endingOffsets"):
        if name in given:
            raise OperatorError(f"Option '{name}' means nothing with 'losses'", "Filter the table's rows instead.")
    names = given.text("subscribe")
    topics = None if names is None else frozenset(name.strip() for name in names.split(",")) - {""}
    return LossesReader(client_properties(options), topics)


def _ledger(cluster: Cluster) -> tuple[tuple[OffsetRange, ...], Mapping[str, str | None]]:
    """What the ledger holds now, and its id."""
    snapshot = take_snapshot(cluster, cluster.topics([LOSSES_TOPIC]))
    ranges = [OffsetRange(tp, start, snapshot.ends[tp].offset) for tp, start in snapshot.starts.items()]
    return tuple(one for one in ranges if one.record_count > 0), snapshot.topic_ids


def _receipts(
    client: Mapping[str, str], ranges: tuple[OffsetRange, ...], topic_ids: Mapping[str, str | None]
) -> list[LossReceipt]:
    """Each as it was last written, oldest loss first."""
    found: dict[str, LossReceipt] = {}
    for batch in connect.read_arrow(connect.reader(client), ranges, topic_ids, {}):
        for value in batch.column("value").to_pylist():
            receipt = _receipt(value)
            if receipt is not None:
                found[receipt.id] = receipt
    return sorted(found.values(), key=lambda receipt: (receipt.time_ms, receipt.id))


def _receipt(value: bytes | None) -> LossReceipt | None:
    if value is None:
        return None
    found = parse_receipt(value)
    if found is None:
        raise InternalError(f"{LOSSES_TOPIC} holds what is no loss receipt: {value[:200]!r}")
    return found


def _row(receipt: LossReceipt) -> dict[str, Any]:
    """Under the columns' names."""
    fields = receipt._asdict()
    named = {
        "time": receipt.time_ms * 1000,
        "topic_id": receipt.topic_id or None,
        "bytes": receipt.size_bytes,
        "class": receipt.loss_class,
    }
    return {name: named.get(name, fields.get(name)) for name in SCHEMA.names}
