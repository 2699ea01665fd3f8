"""Reads loss receipts from the ledger topic, and lost records from the evidence on the disk of the node that truncated.

`fenceline losses list` and `fenceline losses export` print the same data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.client import Admin, RangeReader
from fenceline.client.core.loss_receipts import newest_versions
from fenceline.errors import ErrorCode
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.log.core.disk import OsDisk
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.receipt import Receipt, decode

if TYPE_CHECKING:
    import pyarrow as pa


def receipts(admin: Admin, bootstrap: str) -> list[Receipt]:
    """The newest version of every receipt, oldest loss first. Raises FencelineError."""
    known = admin.metadata([LOSSES_TOPIC]).topics.get(LOSSES_TOPIC)
    if known is None or known.error is not ErrorCode.NONE:
        return []  # the topic is created with the first receipt
    ledger = [TopicPartition(LOSSES_TOPIC, partition) for partition in known.partitions]
    ends = admin.list_offsets(dict.fromkeys(ledger, "latest"))
    starts = admin.list_offsets(dict.fromkeys(ledger, "earliest"))
    found: list[Receipt] = []
    with RangeReader(bootstrap) as reader:
        for batch in reader.read({tp: (starts[tp].offset, ends[tp].offset) for tp in ledger}):
            found += [decode(value) for value in batch.column("value").to_pylist() if value is not None]
    return newest_versions(found)


def lost_records(receipt: Receipt) -> pa.Table:
    """Key and value of each lost record, in offset order. Raises OSError if the evidence cannot be read."""
    import pyarrow as pa

    from fenceline.records.arrow import batches_to_arrow

    reader = EvidenceReader(OsDisk(), receipt, receipt.evidence)
    # The reader reuses the buffer of a batch: copy it.
    content = [(receipt.topic, receipt.partition, bytes(batch)) for header, batch in reader.batches()]
    rows = batches_to_arrow(
        content,
        start_offsets=[receipt.start_offset] * len(content),
        end_offsets_exclusive=[receipt.end_offset_exclusive] * len(content),
    )
    return pa.Table.from_batches([rows]).select(["key", "value"])
