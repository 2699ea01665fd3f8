"""A coordinator is cut off from the other nodes and replaced, while clients still reach it: it gives no answer from
memory that the next coordinator has made wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client import Admin, NewTopic
from fenceline.errors import ErrorCode
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.committed_offsets import commit, coordinator_of, fetch
from tests.support.raw import RawConnection
from tests.testing.echo_peer import need_cuts

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
GROUP, TOPIC = "copier", "t"
TRANSACTION = 1
"""The type of a key of FindCoordinator."""
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "offsets.commit.timeout.ms": "1000",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "replica.lag.time.max.ms": "3000",
}


class Nodes:
    """Three nodes; the coordinator is asked by bare requests."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        addresses = cluster.bootstrap.split(",")
        self.ports = {node: int(address.rsplit(":", 1)[1]) for node, address in enumerate(addresses, 1)}

    def coordinator(self, seen_by: int, *, instead_of: int = -1, key_type: int = 0) -> int:
        """The broker, once there is one that is not `instead_of`."""

        def found() -> int:
            node = coordinator_of(self.ports[seen_by], GROUP, key_type)
            assert node not in (None, instead_of), "no coordinator"
            return node or -1

        return eventually(found, "the group has a coordinator", wait_s=60)

    def cut_off(self, node: int) -> None:
        """From the other nodes, not from clients."""
        self.cluster.isolate(node, peers=[each for each in self.ports if each != node])

    def other(self, node: int) -> int:
        return next(each for each in self.ports if each != node)

    def commit(self, node: int, offset: int) -> None:
        def committed() -> bool:
            with RawConnection(self.ports[node]) as connection:
                return commit(connection, GROUP, TOPIC, {0: offset}) == {ErrorCode.NONE}

        eventually(committed, f"{offset} is committed", wait_s=60)

    def position(self, node: int, *, stable: bool) -> int | ErrorCode:
        with RawConnection(self.ports[node]) as connection:
            found = fetch(connection, GROUP, TOPIC, [0], require_stable=stable)
        return found if isinstance(found, ErrorCode) else found[0][0]

    def begin(self, node: int, producer: tuple[int, int]) -> ErrorCode:
        """A partition enters the transaction of the id, whose name is the group's."""
        fields = {
            "v3_and_below_transactional_id": GROUP,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
        }
        with RawConnection(self.ports[node]) as connection:
            answer = connection.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def end(self, node: int, producer: tuple[int, int]) -> ErrorCode:
        """Commit it, as clients of transaction versions 0 and 1 do."""
        producer_id, epoch = producer
        fields = {"transactional_id": GROUP, "producer_id": producer_id, "producer_epoch": epoch, "committed": True}
        with RawConnection(self.ports[node]) as connection:
            return ErrorCode(connection.call(ApiKey.END_TXN, 3, fields).error_code)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    need_cuts()
    with LocalCluster(3, overrides=SETTINGS | getattr(request, "param", {})) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3)])
        yield Nodes(cluster)


def test_replaced_coordinator_returns_no_stable_offset(nodes: Nodes) -> None:
    old = nodes.coordinator(1)
    nodes.commit(old, 8)
    eventually(lambda: nodes.position(old, stable=True) == 8, "the stable offset is read", wait_s=60)
    nodes.cut_off(old)
    new = nodes.coordinator(nodes.other(old), instead_of=old)
    nodes.commit(new, 9)
    assert nodes.coordinator(old) == old, "it does not know that it was replaced"
    assert nodes.position(old, stable=False) == 8
    assert nodes.position(old, stable=True) is ErrorCode.NOT_COORDINATOR
    assert nodes.position(new, stable=True) == 9
    nodes.cluster.heal(old)
    eventually(lambda: nodes.position(old, stable=False) == ErrorCode.NOT_COORDINATOR, "it has resigned", wait_s=60)


@pytest.mark.parametrize("nodes", [{"fenceline.coordinator.confirmation.enable": "false"}], indirect=True)
def test_without_confirmation_it_answers_as_kafka_does(nodes: Nodes) -> None:
    old = nodes.coordinator(1)
    nodes.commit(old, 8)
    nodes.cut_off(old)
    new = nodes.coordinator(nodes.other(old), instead_of=old)
    nodes.commit(new, 9)
    assert nodes.position(old, stable=True) == 8


def test_replaced_coordinator_commits_no_transaction_from_memory(nodes: Nodes) -> None:
    """An earlier transaction of the same epoch was committed there."""
    old = nodes.coordinator(1, key_type=TRANSACTION)

    def identity() -> tuple[int, int]:
        fields = {"transactional_id": GROUP, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        with RawConnection(nodes.ports[old]) as connection:
            answer = connection.call(ApiKey.INIT_PRODUCER_ID, 4, fields)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    producer = eventually(identity, "the producer has an identity", wait_s=60)
    eventually(lambda: nodes.begin(old, producer) is ErrorCode.NONE, "the first transaction begins", wait_s=60)
    for _ in range(2):
        eventually(lambda: nodes.end(old, producer) is ErrorCode.NONE, "the first transaction is complete", wait_s=60)
    nodes.cut_off(old)
    new = nodes.coordinator(nodes.other(old), instead_of=old, key_type=TRANSACTION)
    eventually(lambda: nodes.begin(new, producer) is ErrorCode.NONE, "the second transaction begins", wait_s=60)
    assert nodes.coordinator(old, key_type=TRANSACTION) == old, "it does not know that it was replaced"
    assert nodes.end(old, producer) is ErrorCode.NOT_COORDINATOR
    assert nodes.end(new, producer) is ErrorCode.NONE


def test_stable_offsets_are_read_once_a_lost_follower_has_left_the_isr(nodes: Nodes) -> None:
    coordinator = nodes.coordinator(1)
    nodes.commit(coordinator, 8)
    nodes.cut_off(nodes.other(coordinator))

    def is_read() -> bool:
        now = nodes.coordinator(coordinator)
        return nodes.position(now, stable=True) == 8

    eventually(is_read, "the stable offset is read", wait_s=60)
