"""A partition whose logs diverge: an unclean election under readers, on a cluster of Fenceline or of Apache Kafka.

Owns the stage, no reader's expectations. Three brokers: the first is never away, the others hold the replicas. One of
them is down while the other takes records alone; then that one goes down, and the first is elected without them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from fenceline.client import Consumer, LogTruncationError, NewTopic, Producer, TopicPartition
from fenceline.client.admin.admin import Admin
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from tests.support.kafka_start import quick_environment
from tests.support.leaders import UNCLEAN, elect, order_replicas
from tests.support.mixed_stage import SETTINGS

KEPT: Final = 100
LOST: Final = 50
WAIT_S: Final = 120
FIRST: Final = 2
"""Leads at the beginning, and takes what is lost."""
SECOND: Final = 3
_KINDS: Final = ("broker,controller", "broker", "broker")
_RACKS: Final = {1: "a", FIRST: "b", SECOND: "c"}
_SETTINGS: Final = {
    **SETTINGS,
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
_numbers = itertools.count()


def cluster_of(kind: str, root: Path) -> MixedCluster:
    """Three nodes of `fenceline` or `kafka`, each in a rack of its own."""
    kinds, environment = list(_KINDS), None
    if kind == "kafka":
        scratch = root / "scratch"
        scratch.mkdir()
        kinds, environment = ["kafka:" + roles for roles in _KINDS], quick_environment(scratch)
    made = MixedCluster(root, kinds, settings=_SETTINGS, heap="320m", environment=environment)
    for node_id, rack in _RACKS.items():
        made.node(node_id).settings["broker.rack"] = rack
    return made


class UncleanStory:
    """One topic of it."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.is_kafka = cluster.node(1).is_kafka
        self.bootstrap = ",".join(node.bootstrap for node in cluster.nodes)
        self.tp = TopicPartition(f"story-{next(_numbers)}", 0)
        with Admin(self.bootstrap) as admin:
            configs = {"min.insync.replicas": "1", "retention.ms": "-1", "unclean.leader.election.enable": "true"}
            admin.create_topics([NewTopic(self.tp.topic, assignments={0: [FIRST, SECOND]}, configs=configs)])
        self.await_partition(lambda it: it.leader == FIRST and set(it.isr) == {FIRST, SECOND}, "it begins")

    # -- the partition

    def partition(self) -> PartitionMetadata | None:
        with Admin(self.bootstrap) as admin:
            found = admin.metadata([self.tp.topic]).topics.get(self.tp.topic)
        return None if found is None else found.partitions.get(0)

    def await_partition(self, holds: Callable[[PartitionMetadata], bool], what: str) -> None:
        def look() -> bool:
            found = self.partition()
            return found is not None and holds(found)

        eventually(look, what, wait_s=WAIT_S)

    def write(self, count: int, stem: str) -> list[bytes]:
        """All acknowledged; their values."""
        values = [f"{stem}{number}".encode() for number in range(count)]
        with Producer({"bootstrap.servers": self.bootstrap, "acks": "all"}) as producer:
            for delivery in [producer.send(self.tp.topic, value, partition=0) for value in values]:
                delivery.result(WAIT_S)
        return values

    # -- what happens to it

    def part(self) -> tuple[list[bytes], list[bytes]]:
        """Both hold the records up to KEPT, the leader alone LOST more; the values of both."""
        kept = self.write(KEPT, "kept")
        self.cluster.node(SECOND).kill()
        self.await_partition(lambda it: it.isr == (FIRST,), "it leads alone")
        return kept, self.write(LOST, "lost")

    def lead_uncleanly(self, node_id: int, *, instead_of: int) -> None:
        """The one that was down is elected while the one that led is down."""
        self.cluster.node(instead_of).kill()
        self.cluster.node(node_id).start()
        self.cluster.node(node_id).wait_ready()

        def is_elected() -> bool:
            elect(self.cluster.node(1).port, self.tp.topic, [0], UNCLEAN)
            found = self.partition()
            return found is not None and found.leader == node_id

        eventually(is_elected, f"node {node_id} is elected uncleanly", wait_s=WAIT_S)

    def await_leader_known(self, consumer: Consumer) -> None:
        """Until the consumer's own metadata name the partition's present leader: from then on it hands out nothing that
        was fetched before, unless that leader has it."""
        found = self.partition()
        assert found is not None
        core = consumer._async

        def is_known() -> bool:
            return consumer._on_loop(lambda: core.cluster.metadata.leader(self.tp)).epoch >= found.leader_epoch

        eventually(is_known, "the consumer knows the leader", wait_s=WAIT_S)

    def move_to(self, node_id: int) -> None:
        """A clean election, with all of them there."""
        port = self.cluster.node(1).port
        order_replicas(port, self.tp.topic, {0: [node_id, FIRST + SECOND - node_id]})

        def is_elected() -> bool:
            elect(port, self.tp.topic, [0])
            found = self.partition()
            return found is not None and found.leader == node_id

        eventually(is_elected, f"node {node_id} leads", wait_s=WAIT_S)

    def restart(self, node_id: int) -> None:
        self.cluster.node(node_id).start()
        self.cluster.node(node_id).wait_ready()
        self.in_sync()

    def in_sync(self) -> None:
        self.await_partition(lambda it: set(it.isr) == {FIRST, SECOND}, "both are in sync")

    def mend(self) -> None:
        """Leave the cluster as it was found."""
        for node in self.cluster.nodes:
            if not node.is_running:
                node.start()
        self.cluster.wait_ready()
        self.cluster.wait_complete()

    # -- its readers

    def consumer(self, **config: Any) -> Consumer:
        made = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "auto.offset.reset": "none",
                "enable.auto.commit": False,
                "metadata.max.age.ms": 2000,
                **config,
            }
        )
        made.assign([self.tp])
        return made


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """So many values, no more."""
    found: list[bytes | None] = []
    end_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records came"
        found += [record.value for record in consumer.poll(1000, max_records=count - len(found))]
    return found


def reported(consumer: Consumer) -> LogTruncationError:
    """The truncation that poll raises, before it gives any record."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        try:
            assert consumer.poll(1000) == [], "the reader did not detect the truncation"
        except LogTruncationError as error:
            return error
    raise AssertionError("the truncation is not reported")


def said(errors: Sequence[LogTruncationError]) -> list[tuple[int, int]]:
    """The position of each, and where the logs part."""
    return [(error.truncated_from, error.divergent_offset) for error in errors]
