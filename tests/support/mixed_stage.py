"""A cluster of Fenceline's and Kafka's brokers, and what stories of it look at and do.

Owns no story. `third` is never away, and asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Librdkafka

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.support.kafka_start import quick_environment
from tests.support.leaders import elect
from tests.support.partition_files import log_bytes

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def init_transactions(producer: Librdkafka) -> None:
    """Until it may begin one: a coordinator may have to be elected first."""

    def is_ready() -> bool:
        try:
            producer.init_transactions(30)
        except KafkaException as error:
            raise AssertionError(str(error)) from error
        return True

    eventually(is_ready, "transactions", wait_s=120)


class MixedStage:
    """Brokers 1 to 3, of which one is `ours`, one is `theirs`, and a third."""

    def __init__(
        self, root: Path, kinds: Sequence[str], *, ours: int, theirs: int, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        scratch = root / "scratch"
        scratch.mkdir()
        self.cluster = MixedCluster(root, kinds, settings=settings, environment=quick_environment(scratch))
        self.ours, self.theirs = self.cluster.node(ours), self.cluster.node(theirs)
        self.third = next(node for node in self.cluster.nodes if node.node_id not in (ours, theirs))
        self.ids = [node.node_id for node in self.cluster.nodes]

    def _begin(self) -> None:
        self.cluster.wait_ready()
        self.cluster.wait_complete()

    def _stop(self) -> None:
        # Kafka waits for a controller that lets it go, Fenceline only where there can be one.
        for node in sorted(self.cluster.nodes, key=lambda node: (node.is_controller, not node.is_kafka)):
            node.stop()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> list[str]:
        return [node.bootstrap for node in self.cluster.nodes]

    def partition(self, topic: str, index: int) -> PartitionMetadata:
        """As the broker tells it that is never away."""
        with Admin(self.third.bootstrap) as admin:
            return admin.metadata([topic]).topics[topic].partitions[index]

    def _leads(self, topic: str, index: int, node_id: int) -> None:
        eventually(
            lambda: self.partition(topic, index).leader == node_id, f"{node_id} leads {topic}-{index}", wait_s=120
        )

    def _in_sync(self, topic: str, index: int, wanted: Collection[int]) -> None:
        eventually(
            lambda: set(self.partition(topic, index).isr) == set(wanted),
            f"{sorted(wanted)} are in sync for {topic}-{index}",
            wait_s=120,
        )

    def _equal(self, topic: str, index: int, nodes: Collection[MixedNode]) -> None:
        def look() -> bool:
            logs = {log_bytes(node.log_dir, topic, index) for node in nodes}
            return len(logs) == 1 and logs != {b""}

        eventually(look, f"the replicas of {topic}-{index} are equal", wait_s=120)

    # -- doing ---------------------------------------------------------------------------------------------------------

    def _order(self, first: int) -> list[int]:
        first %= len(self.ids)
        return self.ids[first:] + self.ids[:first]

    def _write(self, topic: str, index: int, values: Sequence[str], **config: object) -> None:
        """All acknowledged, in their order."""
        with Producer(self.bootstrap, **config) as producer:
            sent = [producer.send(topic, value.encode(), partition=index) for value in values]
            producer.flush()
            for each in sent:
                each.result()

    def _transactional(self, name: str) -> Librdkafka:
        """Ready to begin."""
        producer = Librdkafka(
            {
                "bootstrap.servers": ",".join(self.bootstrap),
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
                "compression.type": "snappy",
                "log_level": 0,
            }
        )
        init_transactions(producer)
        return producer

    def _first(self, node: MixedNode) -> list[int]:
        return self._order(self.ids.index(node.node_id))

    def _elect(self, topic: str, node: MixedNode, index: int = 0) -> None:
        """It is the preferred leader."""

        def elected() -> bool:
            elect(self.third.port, topic, [index])
            return self.partition(topic, index).leader == node.node_id

        eventually(elected, f"{node.node_id} leads {topic}-{index}", wait_s=120)

    def _read_committed(self, topic: str, count: int) -> list[bytes]:
        """Partition 0, from its start."""
        found: list[bytes] = []
        with Consumer(self.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition(topic, 0)])

            def all_read() -> bool:
                found.extend(record.value or b"" for record in consumer.poll(500))
                return len(found) >= count

            eventually(all_read, f"{topic} is read", wait_s=120)
        return found
