"""Elections, shutdowns and reassignments on a cluster of real brokers: the leader afterwards, and its records."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.producer.delivery import Delivery
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.testing.mixed_cluster import BROKER, CONTROLLER, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.node.replicated_topics import evidence, replicas_are_equal
from tests.support.leaders import UNCLEAN, elect
from tests.support.raw import RawConnection

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

UNCLEAN_CONFIG = "unclean.leader.election.enable"


class Brokers:
    """Brokers 2, 3 and 4 of a controller, node 1, where no session expires during the tests."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster

    def __getitem__(self, node_id: int) -> MixedNode:
        return self.cluster.node(node_id)

    @property
    def running(self) -> list[MixedNode]:
        return [node for node in self.cluster.nodes[1:] if node.is_running]

    @property
    def bootstrap(self) -> list[str]:
        return [node.bootstrap for node in self.running]

    @property
    def port(self) -> int:
        return self.running[0].port

    def create(self, topic: str, *replicas: int, **configs: str) -> None:
        reported = {name.replace("_", "."): value for name, value in configs.items()}
        with Admin(self.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, assignments={0: list(replicas)}, configs=reported)])
        self.is_led(topic, replicas[0])

    def partition(self, topic: str) -> PartitionMetadata:
        with Admin(self.bootstrap) as admin:
            return admin.metadata([topic]).topics[topic].partitions[0]

    def is_led(self, topic: str, leader: int) -> None:
        eventually(lambda: self.partition(topic).leader == leader, f"{leader} leads {topic}")

    def are_in_sync(self, topic: str, *wanted: int) -> None:
        eventually(lambda: set(self.partition(topic).isr) == set(wanted), f"{wanted} are in sync")

    def serves(self, node_id: int) -> bool:
        with Admin(self.bootstrap) as admin:
            return node_id in admin.metadata().brokers

    def write(self, topic: str, *values: str, **config: object) -> None:
        with Producer(self.bootstrap, **config) as producer:
            for each in [producer.send(topic, value.encode(), partition=0) for value in values]:
                each.result()

    def read(self, topic: str, count: int) -> list[str]:
        found: list[str] = []
        with Consumer(self.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])

            def is_complete() -> bool:
                found.extend((record.value or b"").decode() for record in consumer.poll(200))
                return len(found) >= count

            eventually(is_complete, f"{count} records of {topic}")
        return found

    def set_config(self, resource: tuple[str, str], name: str, value: str | None) -> None:
        with Admin(self.bootstrap) as admin:
            admin.alter_configs({resource: {name: value}})

    def reassign(self, topic: str, replicas: Collection[int] | None) -> None:
        """Start a reassignment; None cancels it."""
        wanted = None if replicas is None else list(replicas)
        partitions = [{"partition_index": 0, "replicas": wanted}]
        fields = {"timeout": 20_000, "topics": [{"name": topic, "partitions": partitions}]}
        with RawConnection(self.port) as connection:
            answer = connection.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)
        assert answer.error_code == ErrorCode.NONE
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE

    def is_moving(self, topic: str) -> bool:
        fields = {"timeout": 20_000, "topics": [{"name": topic, "partition_indexes": [0]}]}
        with RawConnection(self.port) as connection:
            answer = connection.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, fields)
        return bool(answer.topics)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self[node_id].start()
        for node_id in node_ids:
            self[node_id].wait_ready()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    settings = {"broker.session.timeout.ms": "600000", "leader.imbalance.check.interval.seconds": "1"}
    root = tmp_path_factory.mktemp("elections")
    with MixedCluster(root, [CONTROLLER, BROKER, BROKER, BROKER], settings=settings) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield Brokers(cluster)


@pytest.fixture
def brokers(started: Brokers) -> Iterator[Brokers]:
    """All brokers, running; they are started again after each test."""
    yield started
    started.start(*(node.node_id for node in started.cluster.nodes[1:] if not node.is_running))
    eventually(lambda: all(started.serves(node_id) for node_id in (2, 3, 4)), "all brokers serve")


# -- unclean elections -------------------------------------------------------------------------------------------------


def by_topic_config(brokers: Brokers, topic: str) -> None:
    brokers.set_config(("topic", topic), UNCLEAN_CONFIG, "true")


def by_cluster_config(brokers: Brokers, topic: str) -> None:
    everybody = ("broker", "")
    brokers.set_config(everybody, UNCLEAN_CONFIG, "true")
    brokers.set_config(everybody, UNCLEAN_CONFIG, None)


def by_request(brokers: Brokers, topic: str) -> None:
    elect(brokers.port, topic, [0], UNCLEAN)


@pytest.mark.parametrize("allow", [by_topic_config, by_cluster_config, by_request])
def test_unclean_election_runs_as_soon_as_it_is_enabled(
    brokers: Brokers, allow: Callable[[Brokers, str], None]
) -> None:
    """G45, V11, C29: until it is enabled there is no leader; the periodic check would take five minutes."""
    topic = allow.__name__
    brokers.create(topic, 2, 3)
    brokers.write(topic, "kept")
    brokers.are_in_sync(topic, 2, 3)
    brokers[3].kill()
    brokers.are_in_sync(topic, 2)
    brokers.write(topic, "lost")
    brokers[2].kill()
    eventually(lambda: brokers.partition(topic).leader == -1, "nobody leads")
    brokers.start(3)
    eventually(lambda: brokers.serves(3), "broker 3 serves")
    assert brokers.partition(topic).leader == -1
    allow(brokers, topic)
    brokers.is_led(topic, 3)
    brokers.write(topic, "new")
    assert brokers.read(topic, 2) == ["kept", "new"]
    brokers.start(2)
    brokers.are_in_sync(topic, 2, 3)
    replicas_are_equal([brokers[2], brokers[3]], topic)
    assert b"lost" in evidence(brokers[2], topic)


def test_cleanly_stopped_broker_is_eligible_below_min_insync(brokers: Brokers) -> None:
    """KIP-966: below min.insync.replicas no acks=all write succeeds, so a broker that stops then has all of them.

    Its previous broker epoch proves that it stopped cleanly (G47).
    """
    topic = "eligible"
    brokers.create(topic, 2, 3, 4, min_insync_replicas="2")
    brokers.write(topic, "kept")
    brokers.are_in_sync(topic, 2, 3, 4)
    brokers[4].kill()
    brokers.are_in_sync(topic, 2, 3)
    assert brokers[3].stop() == 0
    brokers.are_in_sync(topic, 2)
    brokers[2].kill()
    brokers.start(4)
    eventually(lambda: brokers.serves(4), "broker 4 serves")
    assert brokers.partition(topic).leader == -1
    brokers.start(3)
    brokers.is_led(topic, 3)
    brokers.are_in_sync(topic, 3, 4)
    brokers.write(topic, "after")
    assert brokers.read(topic, 2) == ["kept", "after"]


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_controlled_shutdown_loses_no_idempotent_records(brokers: Brokers) -> None:
    """C14: leaders move first, all brokers learn of it, then it stops. Every record is stored once, in order."""
    topic = "stopped"
    brokers.create(topic, 2, 3, 4)
    brokers.are_in_sync(topic, 2, 3, 4)
    epoch = brokers.partition(topic).leader_epoch
    sent: list[Delivery] = []
    with Producer([brokers[3].bootstrap, brokers[4].bootstrap], linger_ms=0) as producer:

        def send(count: int) -> None:
            for _ in range(count):
                sent.append(producer.send(topic, b"%d" % len(sent), partition=0))

        send(100)
        producer.flush()
        brokers[2].send_signal(signal.SIGTERM)
        while brokers[2].is_running:
            send(1)
            sent[-1].result()
        send(100)
        producer.flush()
    assert brokers[2].stop() == 0
    for each in sent:
        each.result()
    assert brokers.read(topic, len(sent)) == [str(number) for number in range(len(sent))]
    after = brokers.partition(topic)
    assert after.leader in (3, 4)
    assert after.leader_epoch == epoch + 1, "leadership moved once"
    assert "in time" not in brokers[2].output


def test_preferred_leader_is_restored_automatically(brokers: Brokers) -> None:
    """C30: checked once a second in this test, and moved to the preferred replica when it is in sync."""
    brokers.create("balanced", 4, 2, 3)
    brokers[4].kill()
    eventually(lambda: brokers.partition("balanced").leader in (2, 3), "another leader")
    brokers.start(4)
    brokers.is_led("balanced", 4)


# -- reassignments -----------------------------------------------------------------------------------------------------


def has_replica(node: MixedNode, topic: str) -> bool:
    return (node.log_dir / f"{topic}-0").exists()


def test_reassignment_to_another_broker(brokers: Brokers) -> None:
    """C32, C33, C35: the new replica catches up, the old one is deleted with its files. Throttles are accepted."""
    topic = "moved"
    brokers.create(topic, 2, 3)
    brokers.write(topic, "before")
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        brokers.set_config(("topic", topic), name, "*")
    for name in ("leader.replication.throttled.rate", "follower.replication.throttled.rate"):
        brokers.set_config(("broker", "2"), name, "1000000")
    brokers.reassign(topic, [3, 4])
    eventually(lambda: brokers.partition(topic).replicas == (3, 4), "the move is over")
    brokers.is_led(topic, 3)
    brokers.write(topic, "after")
    brokers.are_in_sync(topic, 3, 4)
    replicas_are_equal([brokers[3], brokers[4]], topic)
    assert brokers.read(topic, 2) == ["before", "after"]
    eventually(lambda: not has_replica(brokers[2], topic), "the replica that left is gone")
    assert not brokers.is_moving(topic)


def test_reassignment_to_a_dead_broker_is_cancelled(brokers: Brokers) -> None:
    """C34: the old assignment is restored; the dead broker has no replica when it returns."""
    topic = "cancelled"
    brokers.create(topic, 2, 3)
    brokers.write(topic, "before")
    brokers[4].kill()
    eventually(lambda: not brokers.serves(4), "broker 4 is fenced")
    brokers.reassign(topic, [4, 3])
    assert brokers.is_moving(topic)
    assert set(brokers.partition(topic).replicas) == {2, 3, 4}
    brokers.reassign(topic, None)
    assert not brokers.is_moving(topic)
    eventually(lambda: set(brokers.partition(topic).replicas) == {2, 3}, "as it was")
    brokers.start(4)
    brokers.write(topic, "after")
    brokers.are_in_sync(topic, 2, 3)
    replicas_are_equal([brokers[2], brokers[3]], topic)
    assert not has_replica(brokers[4], topic)


def test_reassignment_completes_when_its_broker_returns(brokers: Brokers) -> None:
    topic = "grown"
    brokers.create(topic, 2)
    brokers.write(topic, "before")
    brokers[4].kill()
    eventually(lambda: not brokers.serves(4), "broker 4 is fenced")
    brokers.reassign(topic, [2, 3, 4])
    eventually(lambda: 3 in brokers.partition(topic).isr, "the one that lives has come")
    assert brokers.is_moving(topic)
    brokers.start(4)
    eventually(lambda: not brokers.is_moving(topic), "the move is over")
    brokers.are_in_sync(topic, 2, 3, 4)
    brokers.write(topic, "after")
    replicas_are_equal([brokers[2], brokers[3], brokers[4]], topic)
    brokers.reassign(topic, [3])
    eventually(lambda: brokers.partition(topic).replicas == (3,), "one is left")
    brokers.is_led(topic, 3)
    eventually(lambda: not has_replica(brokers[2], topic) and not has_replica(brokers[4], topic), "the others are gone")
    assert brokers.read(topic, 2) == ["before", "after"]
