"""The records of a loss: `spark.read.format("fenceline").option("lostReceipt", id)`.

Owns the lookup of the receipts when Spark plans the query, and one task for each of them, which reads the evidence from
the node whose log lost the records. The columns are those of a topic. If the evidence lacks records of the receipt the
query fails, unless `failOnDataLoss` is false: then the task logs how many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fenceline.client.core.errors import EvidenceIncompleteError
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import OperatorError, PeerError
from pyspark_fenceline.common import connect, workers
from pyspark_fenceline.common.given_options import GivenOptions
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, with_retries
from pyspark_fenceline.common.schema import arrow_schema, client_columns, to_spark
from pyspark_fenceline.source.options import client_properties

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("pyspark_fenceline")
_CONTRADICTING: Final = ("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "losses")


class LossPartition(InputPartition):
    """The loss that one task reads."""

    def __init__(self, receipt: LossReceipt) -> None:
        super().__init__(receipt)
        self.receipt = receipt


class LostReceiptReader(DataSourceReader):
    """`receipt_ids`: or beginnings of them."""

    def __init__(
        self, client: Mapping[str, str], schema: StructType, receipt_ids: tuple[str, ...], *, fail_on_data_loss: bool
    ) -> None:
        self._client = dict(client)
        self._schema = schema
        self._receipt_ids = receipt_ids
        self._fails = fail_on_data_loss

    def partitions(self) -> list[InputPartition]:
        reader = connect.lost_records(self._client)
        receipts = with_retries(lambda: [reader.receipt(each) for each in self._receipt_ids], DEFAULT_RETRIES)
        for receipt in receipts:
            if not receipt.evidence:
                raise OperatorError(
                    f"There is no evidence of loss receipt {receipt.id[:12]}",
                    receipt.evidence_note or "No log was truncated: records were deleted before a group had read them.",
                )
        return [LossPartition(receipt) for receipt in dict.fromkeys(receipts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LossPartition):
            # Spark passes a partition of its own if a batch query has none.
            return
        target = arrow_schema(self._schema)
        try:
            for batch in connect.lost_records(self._client).read(partition.receipt, **client_columns(target)):
                yield to_spark(batch, target)
        except EvidenceIncompleteError as error:
            if self._fails:
                raise
            _log.warning("%s", error.message)
        except (OperatorError, PeerError):
            # The next attempt of the task uses new connections and new metadata.
            connect.forget("lost records", self._client)
            raise
        workers.freeze_gc()


def lost_receipt_reader(options: Mapping[str, str], schema: StructType) -> LostReceiptReader:
    """The reader for these options. Raises OperatorError."""
    given = GivenOptions(options)
    for name in _CONTRADICTING:
        if name in given:
            raise OperatorError(
                f"Option '{name}' cannot be used with 'lostReceipt'",
                "A receipt has its topic and its offsets. Filter the rows instead.",
            )
    receipt_ids = tuple(each.strip() for each in (given.text("lostReceipt") or "").split(",") if each.strip())
    if not receipt_ids:
        raise OperatorError("Option 'lostReceipt' is empty", "List the receipts with option 'losses'.")
    return LostReceiptReader(
        client_properties(options), schema, receipt_ids, fail_on_data_loss=given.boolean("failOnDataLoss", True)
    )
