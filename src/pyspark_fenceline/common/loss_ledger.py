"""The cluster's loss receipts, read from its losses topic.

Owns which offsets of the topic are read, and which record of a receipt counts: the last one written. Never decides
what a loss means for a query or a table. A cluster without the topic, such as Apache Kafka, has no receipts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fenceline.client.core.loss_receipts import LossReceipt, newest_versions, parse_receipt
from fenceline.ids import LOSSES_TOPIC
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import SourceCluster, partitions_of
from pyspark_fenceline.common.planning import PlannedRange


class LedgerRanges(NamedTuple):
    """The topic's bounds at one moment. `is_complete`: its first receipt has not been deleted."""

    ranges: tuple[PlannedRange, ...]
    topic_ids: Mapping[str, str | None]
    is_complete: bool


class Ledger(NamedTuple):
    """`receipts`: oldest loss first. `unknown`: values of records that are no receipts of a known format."""

    receipts: list[LossReceipt]
    unknown: list[bytes]


def ledger_ranges(cluster: SourceCluster) -> LedgerRanges:
    """Raises the client's errors if the brokers do not answer."""
    topics = cluster.topics([LOSSES_TOPIC])
    partitions = partitions_of(topics)
    starts = cluster.log_starts(partitions) if partitions else {}
    ends = cluster.log_ends(partitions) if partitions else {}
    ranges = [PlannedRange(tp, start, ends[tp].offset) for tp, start in starts.items()]
    return LedgerRanges(
        tuple(one for one in ranges if one.record_count > 0),
        {name: facts.id for name, facts in topics.items()},
        not any(starts.values()),
    )


def read_ledger(
    client: Mapping[str, str], ranges: tuple[PlannedRange, ...], topic_ids: Mapping[str, str | None]
) -> Ledger:
    """`client`: properties of the client. Raises its errors, also if the records expired meanwhile."""
    if not ranges:
        return Ledger([], [])
    batches = connect.read_arrow(connect.reader(client), ranges, topic_ids, {})
    return sort_receipts(value for batch in batches for value in batch.column("value").to_pylist())


def sort_receipts(values: Iterable[bytes | None]) -> Ledger:
    """`values`: of the topic's records, oldest first."""
    known: list[LossReceipt] = []
    unknown: list[bytes] = []
    for value in values:
        if value is None:
            continue
        receipt = parse_receipt(value)
        if receipt is None:
            unknown.append(value)
        else:
            known.append(receipt)
    return Ledger(newest_versions(known), unknown)
