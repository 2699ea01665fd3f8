"""What a cluster's loss receipts say of the partitions of an audit.

Owns the reading of the ledger for rows that carry no epoch: where a receipt says that records were lost, such a row may
be one of them. A receipt proves nothing of a single row, and that there is none proves nothing either (a node delivers
it when it can): receipts only say where to look. Apache Kafka has no ledger, which is no error; a ledger that cannot be
read is a note in the verdict, and no reason to stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fenceline.client.errors import BrokersUnreachable, OffsetOutOfRangeError, TimedOut
from fenceline.client.loss_receipts import LossReceipt, parse_receipt
from fenceline.errors import PeerError
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from pyspark_fenceline import connect
from pyspark_fenceline.audit_judge import Lost
from pyspark_fenceline.cluster import Cluster

_ATTEMPTS: Final = 3
_DELETED_ON_PURPOSE: Final = "expired"
_TOPIC_DELETED: Final = "topic_deleted"


@dataclass(frozen=True, slots=True)
class Receipts:
    """`lost`: of each partition. `replaced`: topics of which an earlier one of the same name was deleted or lost
    records. `notes`: why not all receipts are known.
    """

    lost: Mapping[TopicPartition, tuple[Lost, ...]] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def read_receipts(
    cluster: Cluster, client: Mapping[str, str], topic_ids: Mapping[TopicPartition, str | None]
) -> Receipts:
    """The receipts of these partitions, whose topics have these ids."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return sort_receipts(*_ledger(cluster, client), topic_ids)
        except OffsetOutOfRangeError as error:
            # The ledger's start moved on meanwhile.
            trouble: Exception = error
        except (PeerError, BrokersUnreachable, TimedOut) as error:
            trouble = error
            connect.forget("reader", client)
        if attempt == _ATTEMPTS:
            break
    return Receipts(notes=(f"the loss receipts in {LOSSES_TOPIC} cannot be read: {trouble}",))


def sort_receipts(
    values: Iterable[bytes | None], starts: Collection[int], topic_ids: Mapping[TopicPartition, str | None]
) -> Receipts:
    """`values`: of the ledger's records, oldest first. `starts`: where the ledger's partitions begin."""
    newest: dict[str, LossReceipt] = {}
    unknown = 0
    for value in values:
        if value is None:
            continue
        receipt = parse_receipt(value)
        if receipt is None:
            unknown += 1
        else:
            newest[receipt.id] = receipt
    names = {tp.topic: id for tp, id in topic_ids.items()}
    lost: dict[TopicPartition, list[Lost]] = {}
    replaced: set[str] = set()
    for one in sorted(newest.values(), key=lambda receipt: (receipt.time_ms, receipt.id)):
        if one.topic not in names:
            continue
        id = names[one.topic]
        is_of_another = bool(one.topic_id) and id is not None and one.topic_id != id
        if is_of_another or one.cause == _TOPIC_DELETED:
            replaced.add(one.topic)
        elif one.loss_class != _DELETED_ON_PURPOSE and one.start_offset < one.end_offset_exclusive:
            tp = TopicPartition(one.topic, one.partition)
            lost.setdefault(tp, []).append(
                Lost(one.start_offset, one.end_offset_exclusive, one.leader_epochs, f"receipt {one}")
            )
    notes = []
    if unknown:
        notes.append(f"{unknown} records of {LOSSES_TOPIC} are of a form that is not known here")
    if any(start > 0 for start in starts):
        notes.append(f"{LOSSES_TOPIC} does not begin at its first receipt any more: older losses are not known")
    return Receipts({tp: tuple(each) for tp, each in lost.items()}, frozenset(replaced), tuple(notes))


def _ledger(cluster: Cluster, client: Mapping[str, str]) -> tuple[list[bytes | None], list[int]]:
    """All values of the ledger, and where its partitions begin."""
    known = cluster.topics([LOSSES_TOPIC]).get(LOSSES_TOPIC)
    if known is None:
        return [], []
    partitions = [TopicPartition(LOSSES_TOPIC, index) for index in known.partitions]
    starts, ends = cluster.log_starts(partitions), cluster.log_ends(partitions)
    ranges = {tp: (starts[tp], ends[tp].offset) for tp in partitions if starts[tp] < ends[tp].offset}
    values: list[bytes | None] = []
    if ranges:
        for batch in connect.reader(client).read(ranges):
            values += batch.column("value").to_pylist()
    return values, list(starts.values())
