"""A cluster's loss receipts for the partitions of an audit.

Owns what receipts mean for rows without an epoch: where a receipt reports lost records, such a row may be one of them.
A receipt proves nothing about a single row, and neither does its absence (a node may not have delivered it yet). If the
losses topic cannot be read, the verdict gets a note and the audit continues. A torn transaction is named whatever the
table has of it: no repair can make it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fenceline.client.core.errors import BrokersUnreachable, OffsetOutOfRangeError, TimedOut
from fenceline.errors import PeerError
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from pyspark_fenceline.auditing.judge import LostRecords
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.loss_ledger import Ledger, ledger_ranges, read_ledger

_ATTEMPTS: Final = 3
_DELETED_ON_PURPOSE: Final = "expired"
_TOPIC_DELETED: Final = "topic_deleted"


@dataclass(frozen=True, slots=True)
class LedgerReceipts:
    """`lost`: of each partition. `replaced`: topics for which an earlier topic of the same name was deleted or lost
    records. `torn`: transactions of which a part can be read and another is lost. `notes`: why receipts may be missing.
    """

    lost: Mapping[TopicPartition, tuple[LostRecords, ...]] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    torn: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_receipts(
    cluster: SourceCluster, client: Mapping[str, str], topic_ids: Mapping[TopicPartition, str | None]
) -> LedgerReceipts:
    """The receipts of these partitions, whose topics have these ids."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            found = ledger_ranges(cluster)
            ledger = read_ledger(client, found.ranges, found.topic_ids)
            return receipts_of(ledger, topic_ids, is_complete=found.is_complete)
        except OffsetOutOfRangeError as error:
            # Retention moved the topic's start meanwhile.
            trouble: Exception = error
        except (PeerError, BrokersUnreachable, TimedOut) as error:
            trouble = error
            connect.forget("reader", client)
        if attempt == _ATTEMPTS:
            break
    return LedgerReceipts(notes=(f"the loss receipts in {LOSSES_TOPIC} cannot be read: {trouble}",))


def receipts_of(
    ledger: Ledger, topic_ids: Mapping[TopicPartition, str | None], *, is_complete: bool = True
) -> LedgerReceipts:
    """Those of the partitions of `topic_ids`. `is_complete`: see `LedgerRanges`."""
    names = {tp.topic: id for tp, id in topic_ids.items()}
    lost: dict[TopicPartition, list[LostRecords]] = {}
    torn: list[str] = []
    replaced: set[str] = set()
    for one in ledger.receipts:
        if one.topic not in names:
            continue
        id = names[one.topic]
        is_of_another = bool(one.topic_id) and id is not None and one.topic_id != id
        if is_of_another or one.cause == _TOPIC_DELETED:
            replaced.add(one.topic)
        elif one.loss_class != _DELETED_ON_PURPOSE and one.start_offset < one.end_offset_exclusive:
            tp = TopicPartition(one.topic, one.partition)
            torn += [f"{each} is torn: receipt {one}" for each in one.transactions if each.is_torn]
            lost.setdefault(tp, []).append(
                LostRecords(one.start_offset, one.end_offset_exclusive, one.leader_epochs, f"receipt {one}")
            )
    notes = []
    if ledger.unknown:
        notes.append(f"{len(ledger.unknown)} records of {LOSSES_TOPIC} have an unknown format")
    if not is_complete:
        notes.append(f"{LOSSES_TOPIC} has lost its first receipts to retention: older losses are not known")
    ranges = {tp: tuple(each) for tp, each in lost.items()}
    return LedgerReceipts(ranges, frozenset(replaced), tuple(torn), tuple(notes))
