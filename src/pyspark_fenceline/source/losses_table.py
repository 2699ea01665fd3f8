"""The table of losses: `spark.read.format("fenceline").option("losses", True)`.

Owns the table's columns and how loss receipts (`loss_ledger`) become rows. Reads the complete losses topic in one task:
it has only one record per update of a loss. Apache Kafka has no such topic: its table is empty.
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

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import InternalError, OperatorError
from fenceline.ids import LOSSES_TOPIC
from pyspark_fenceline.common import connect, workers
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.given_options import GivenOptions
from pyspark_fenceline.common.loss_ledger import ledger_ranges, read_ledger
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, with_retries
from pyspark_fenceline.common.schema import arrow_schema
from pyspark_fenceline.common.task_login import of_tasks, token_login
from pyspark_fenceline.source.options import client_properties
from pyspark_fenceline.source.tasks import RangesPartition

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
    """All receipts in the losses topic when the query is planned, oldest loss first."""

    def __init__(
        self, client: Mapping[str, str], topics: frozenset[str] | None, cluster: SourceCluster | None = None
    ) -> None:
        self._client = dict(client)
        self._topics = topics
        self._cluster = cluster

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_client": of_tasks(self._client)}

    def partitions(self) -> list[InputPartition]:
        cluster = self._cluster or connect.reached(self._client)
        ledger = with_retries(lambda: ledger_ranges(cluster), DEFAULT_RETRIES)
        return [RangesPartition(ledger.ranges, ledger.topic_ids, login=token_login(self._client))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        receipts = self.receipts(partition)
        if receipts:
            yield pa.RecordBatch.from_pylist([_row(receipt) for receipt in receipts], schema=arrow_schema(SCHEMA))
        workers.freeze_gc()

    def receipts(self, partition: InputPartition) -> list[LossReceipt]:
        """The receipts of one task, each in its last version, oldest loss first."""
        if not isinstance(partition, RangesPartition):
            return []
        found = _receipts({**self._client, **partition.login}, partition.task, partition.topic_ids)
        return [one for one in found if self._topics is None or one.topic in self._topics]


def known_losses(cluster: SourceCluster, client: Mapping[str, str]) -> list[LossReceipt]:
    """All receipts of the cluster, oldest loss first."""
    ledger = ledger_ranges(cluster)
    return _receipts(client, ledger.ranges, ledger.topic_ids)


def losses_reader(options: Mapping[str, str]) -> LossesReader:
    """The reader for these options; `subscribe` selects the losses of these topics."""
    given = GivenOptions(options)
    for name in ("subscribePattern", "assign", "startingOffsets", "endingOffsets", "lostReceipt"):
        if name in given:
            raise OperatorError(f"Option '{name}' cannot be used with 'losses'", "Filter the table's rows instead.")
    names = given.text("subscribe")
    topics = None if names is None else frozenset(name.strip() for name in names.split(",")) - {""}
    return LossesReader(client_properties(options), topics)


def _receipts(
    client: Mapping[str, str], ranges: tuple[PlannedRange, ...], topic_ids: Mapping[str, str | None]
) -> list[LossReceipt]:
    ledger = read_ledger(client, ranges, topic_ids)
    if ledger.unknown:
        raise InternalError(f"{LOSSES_TOPIC} contains a record that is no loss receipt: {ledger.unknown[0][:200]!r}")
    return ledger.receipts


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
