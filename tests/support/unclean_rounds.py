"""Unclean elections under load, one after the other, and what receipts and evidence tell of them afterwards.

Owns the course of a round and how the ledger is read. Every partition has two replicas, and the third node keeps the
quorum. What must hold is for the tests to say.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from fenceline.client import Consumer
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.core.offsets import LATEST
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.log.core.disk import OsDisk
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.receipt import LossClass, Receipt, decode
from fenceline.records.decode import decode_batch
from fenceline.testing.history_checks import LossRange
from fenceline.testing.waiting import eventually
from tests.support.replicated_senders import Sender

TOPIC: Final = "torn"
PAIRS: Final = ((1, 2), (2, 1), (2, 3), (3, 2), (3, 1), (1, 3))
"""The replicas of each partition."""
_SOME: Final = 20
"""Records that every sender has acknowledged in each partition before a round goes on."""


def create(bootstrap: str) -> None:
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "retention.ms": "-1"}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(TOPIC, assignments=dict(enumerate(PAIRS)), configs=configs)])


class Rounds:
    """In each, one node of a pair misses what the other one acknowledges, and is all that there is then."""

    def __init__(self, cluster: LocalCluster, senders: Sequence[Sender], rng: random.Random) -> None:
        self._cluster, self._senders, self._rng = cluster, senders, rng
        self._nodes = [place.node_id for place in cluster.layout.nodes]
        self.story: list[str] = []
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        behind, ahead = self._rng.sample(self._nodes, 2)
        self.story.append(f"{behind} misses what {ahead} acknowledges")
        pair = [index for index, replicas in enumerate(PAIRS) if set(replicas) == {behind, ahead}]
        self._await_more()
        self._cluster.kill(behind)
        self._until(pair, lambda each: each.isr == (ahead,) and each.leader == ahead, f"{ahead} leads alone")
        self._await_more()
        self._cluster.kill(ahead)
        self._cluster.restart(behind)
        self._until(pair, lambda each: each.leader == behind, f"{behind} is elected though it lacks records")
        self._await_more()
        self._cluster.restart(ahead)
        everywhere = list(range(len(PAIRS)))
        self._until(everywhere, lambda each: len(each.isr) == len(each.replicas), "all are in sync")
        self.done["unclean rounds"] += 1

    def _until(self, partitions: Sequence[int], holds: Callable[[PartitionMetadata], bool], what: str) -> None:
        def look() -> bool:
            with Admin({"bootstrap.servers": self._cluster.bootstrap}) as admin:
                found: dict[int, PartitionMetadata] = dict(admin.metadata([TOPIC]).topics[TOPIC].partitions)
            return all(holds(found[index]) for index in partitions)

        eventually(look, what, wait_s=120, step_s=0.1)

    def _await_more(self) -> None:
        for sender in self._senders:
            sender.await_more(_SOME)


def all_receipts(cluster: LocalCluster) -> list[Receipt]:
    """What the ledger tells, once no node has anything more to tell."""

    def is_all_told() -> bool:
        return not [
            path
            for place in cluster.layout.nodes
            for pattern in ("*/lost+found/*.due", "*/lost+found/*.intended", "*.due")
            for path in place.data_dir.glob(pattern)
        ]

    eventually(is_all_told, "all receipts are in the ledger", wait_s=120)
    ledger = TopicPartition(LOSSES_TOPIC, 0)
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        end = admin.list_offsets({ledger: LATEST})[ledger].offset
    receipts: dict[str, Receipt] = {}
    with Consumer({"bootstrap.servers": cluster.bootstrap}) as consumer:
        consumer.assign([ledger])
        consumer.seek(ledger, 0)

        def is_all_read() -> bool:
            for record in consumer.poll(200):
                assert record.value is not None
                receipt = decode(bytes(record.value))
                receipts[receipt.id] = receipt
            return consumer.position(ledger) >= end

        eventually(is_all_read, "the ledger is read", wait_s=120)
    return [each for each in receipts.values() if each.topic == TOPIC]


def loss_of(receipt: Receipt) -> LossRange:
    """With the values that its evidence holds. Nothing of it was acknowledged where the receipt says so."""
    values = frozenset() if receipt.loss_class is LossClass.NEVER_ACKNOWLEDGED else frozenset(_values(receipt))
    return LossRange((receipt.topic, receipt.partition), receipt.start_offset, receipt.end_offset_exclusive, values)


def _values(receipt: Receipt) -> list[int]:
    return [
        int(bytes(record.value or b""))
        for header, content in EvidenceReader(OsDisk(), receipt, receipt.evidence).batches()
        if not header.is_control
        for record in decode_batch(content, header)
        if receipt.start_offset <= record.offset < receipt.end_offset_exclusive
    ]
