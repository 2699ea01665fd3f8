"""The cost of a decision: proportional to its changes, never to the size of the cluster (docs/how-it-works.md
\"Cost\").

Cost is counted, not timed: lines of this package that run while a request is decided and its records are applied. A
cluster of ten times as many partitions, none of which the request is about, must not run one line more for each of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    BalanceLeaders,
    ElectUncleanLeaders,
    IsrChange,
    IsrMember,
    ListPartitionReassignments,
    Reassignment,
)
from fenceline.controller.requests import (
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreateAcls,
    CreateDelegationToken,
    CreateTopics,
    DeleteAcls,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    RegisterBroker,
    RemoveExpiredTokens,
    Request,
    TopicToCreate,
    UnregisterBroker,
)
from fenceline.metadata.acl_index import AclFilter, AclRule
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import ConfigResource, ConfigResourceType, Endpoint
from tests.controller.helpers import CLUSTER, Cluster
from tests.counting import lines_of

FEW, MANY = 20, 200
"""Topics that have nothing to do with the request."""
SLACK: Final = 15
"""Lines; a scan of the others would run at least `MANY - FEW` more."""


def _lines_of(cluster: Cluster, request: Request) -> int:
    """Of the request's decision and its records."""
    controller = cluster.controller

    def work() -> None:
        decision = controller.decide(request, cluster.now_ms, cluster.rng)
        if decision.records:
            controller.replay(decision.records, controller.next_offset + len(decision.records) - 1, 1)

    return lines_of(work)


def _cluster(others: int) -> Cluster:
    """Brokers 1 and 2 have three partitions; 3, 4 and 5 have all others."""
    cluster = Cluster(5, token_secret=b"secret")
    cluster.create("mine", (1, 2), (2, 1), (1, 2))
    for number in range(others):
        cluster.create(f"other-{number}", (3, 4, 5), (4, 5, 3))
    rules = [AclRule(2, f"other-{number}", 3, "User:a", "*", 3, 3) for number in range(others)]
    cluster.ask(CreateAcls((AclRule(2, "mine", 3, "User:a", "*", 3, 3), *rules)))
    cluster.ask(BalanceLeaders())  # an index is built once, at its first use
    cluster.ask(CreateTopics((TopicToCreate("warm_up", 1, 1),), validate_only=True))
    return cluster


def _stale(cluster: Cluster) -> Request:
    cluster.now_ms = 9000
    for broker in (2, 3, 4, 5):
        cluster.heartbeat(broker)
    return FenceStaleBroker()


def _back(cluster: Cluster) -> Request:
    cluster.heartbeat(1, want_fence=True)
    return BrokerHeartbeat(1, cluster.epochs[1], cluster.controller.next_offset)


def _new_incarnation(cluster: Cluster) -> Request:
    cluster.now_ms = 9000
    return RegisterBroker(
        1, CLUSTER, UUID(int=1), (Endpoint("PLAINTEXT", "h", 1, 0),), SUPPORTED, None, (UUID(int=10_001),)
    )


def _shrink(cluster: Cluster) -> Request:
    change = IsrChange(0, 0, 0, (IsrMember(1),))
    return AlterPartition(1, cluster.epochs[1], ((cluster.image.topics_by_name["mine"].id, (change,)),))


def _heartbeat(cluster: Cluster, **more: Any) -> Request:
    return BrokerHeartbeat(1, cluster.epochs[1], cluster.controller.next_offset, **more)


def _config(key: str, value: str, topic: str = "mine") -> Callable[[Cluster], Request]:
    change = ConfigChange(key, ConfigOperation.SET, value)
    kind = ConfigResourceType.TOPIC if topic else ConfigResourceType.BROKER
    return lambda cluster: IncrementalAlterConfigs(((ConfigResource(kind, topic), (change,)),))


REQUESTS: Final[dict[str, Callable[[Cluster], Request]]] = {
    "a heartbeat": _heartbeat,
    "fencing": lambda cluster: _heartbeat(cluster, want_fence=True),
    "a session that ends": _stale,
    "unfencing": _back,
    "controlled shutdown": lambda cluster: _heartbeat(cluster, want_shut_down=True),
    "a directory that fails": lambda cluster: _heartbeat(cluster, offline_log_dirs=(UUID(int=10_001),)),
    "a new incarnation": _new_incarnation,
    "unregistering": lambda cluster: UnregisterBroker(1),
    "an ISR that shrinks": _shrink,
    "a move": lambda cluster: AlterPartitionReassignments((("mine", (Reassignment(0, (3, 4)),)),)),
    "listing moves": lambda cluster: ListPartitionReassignments(),
    "balancing leaders": lambda cluster: BalanceLeaders(),
    "unclean elections": lambda cluster: ElectUncleanLeaders(),
    "a topic's config": _config("retention.ms", "1"),
    "a topic's min.insync.replicas": _config("min.insync.replicas", "2"),
    "unclean elections for all": _config("unclean.leader.election.enable", "true", ""),
    "a new ACL": lambda cluster: CreateAcls((AclRule(2, "mine", 3, "User:a", "*", 4, 3),)),
    "an ACL less": lambda cluster: DeleteAcls((AclFilter(2, "mine", 3, None, None, 1, 1),)),
    "ACLs of a name": lambda cluster: DeleteAcls((AclFilter(1, "mine", 2, None, None, 1, 1),)),
    "a delegation token": lambda cluster: CreateDelegationToken("User:a", "User:a", (), -1, 1_000),
    "expired tokens": lambda cluster: RemoveExpiredTokens(1_000),
    "a new topic": lambda cluster: CreateTopics((TopicToCreate("new", assignments=((0, (1, 2)),)),)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_other_partitions_cost_nothing(name: str) -> None:
    few, many = _cluster(FEW), _cluster(MANY)
    lines = [_lines_of(cluster, REQUESTS[name](cluster)) for cluster in (few, many)]
    assert abs(lines[1] - lines[0]) <= SLACK, lines


FEW_BROKERS, MANY_BROKERS = 100, 400


@pytest.mark.parametrize("rack", [lambda broker: None, lambda broker: f"rack-{broker % 5}", str])
def test_other_brokers_cost_a_new_topic_nothing(rack: Callable[[int], str | None]) -> None:
    """Automatic placement; a small cluster is drawn as a whole (`placement.py`)."""

    def lines_in(brokers: int) -> int:
        cluster = Cluster(0)
        for broker in range(brokers):
            cluster.register(broker, rack=rack(broker))
            cluster.heartbeat(broker)
        cluster.ask(CreateTopics((TopicToCreate("first", 1, 3),)))  # the brokers are looked through once
        cluster.ask(CreateTopics((TopicToCreate("warm_up", 1, 1),), validate_only=True))
        return _lines_of(cluster, CreateTopics((TopicToCreate("new", 1, 3),)))

    lines = [lines_in(FEW_BROKERS), lines_in(MANY_BROKERS)]
    assert abs(lines[1] - lines[0]) <= SLACK, lines
