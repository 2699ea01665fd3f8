"""Requests about single partitions, features and brokers, from the wire to a real controller and back."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import FeatureUpdate, UpdateFeatures, UpgradeType
from fenceline.errors import ErrorCode, PeerError
from fenceline.wire.apis import ApiKey
from tests.controller.helpers import Cluster
from tests.node.api.handlers.fakes import FakeBroker, FakeController, ask, image_of


class RealController(FakeController):
    """The controller of a cluster; raises `down` if it is set."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.down: PeerError | None = None

    async def submit(self, request: Any, client: object = None) -> Any:
        self.asked.append(request)
        if self.down is not None:
            raise self.down
        return self.cluster.ask(request)


class Node:
    """A broker whose controller knows three brokers and the topic `t` with two partitions on 1 and 2."""

    def __init__(self) -> None:
        self.cluster = Cluster(3)
        self.topic = self.cluster.create("t", (1, 2), (2, 1))
        self.controller = RealController(self.cluster)
        self.broker = FakeBroker(image_of(), controller=self.controller)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        return asyncio.run(ask(self.broker, key, version, **fields))

    def alter(self, version: int, *, epoch: int = 0, **change: Any) -> Any:
        topics = [{"topic_id": self.topic, "partitions": [{"partition_index": 0, "partition_epoch": 0, **change}]}]
        fields = {"broker_id": 1, "broker_epoch": self.cluster.epochs[1] + epoch, "topics": topics}
        return self.ask(ApiKey.ALTER_PARTITION, version, **fields)


@pytest.fixture
def node() -> Node:
    return Node()


def test_alter_partition_in_both_versions(node: Node) -> None:
    """Version 2 carries no broker epochs of members, and none is checked (KIP-903)."""
    reported = node.alter(2, new_isr=[1]).topics[0]
    (done,) = reported.partitions
    assert reported.topic_id == node.topic
    assert (done.error_code, done.leader_id, done.isr, done.partition_epoch) == (ErrorCode.NONE, 1, (1,), 1)
    members = [{"broker_id": 1, "broker_epoch": node.cluster.epochs[1]}, {"broker_id": 2, "broker_epoch": 1}]
    answer = node.alter(3, partition_epoch=1, new_isr_with_epochs=members)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    assert node.alter(2, epoch=1, new_isr=[1]).error_code is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("state", [7, -1, 127])
def test_invalid_recovery_state_is_rejected(node: Node, state: int) -> None:
    """G22: Kafka's controller fails on it."""
    answer = node.alter(3, new_isr_with_epochs=[{"broker_id": 1, "broker_epoch": -1}], leader_recovery_state=state)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.INVALID_REQUEST


def test_assign_replicas_to_directories(node: Node) -> None:
    directory = node.cluster.image.brokers[1].log_dirs[0]
    wanted = [
        {
            "id_": directory,
            "topics": [{"topic_id": node.topic, "partitions": [{"partition_index": i} for i in (0, 5)]}],
        }
    ]
    fields = {"broker_id": 1, "broker_epoch": node.cluster.epochs[1], "directories": wanted}
    answer = node.ask(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, **fields)
    (reported,) = answer.directories
    rows = [(each.partition_index, each.error_code) for each in reported.topics[0].partitions]
    assert (reported.id_, rows) == (directory, [(0, ErrorCode.NONE), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])
    fields["broker_epoch"] = 1
    stale = node.ask(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, **fields)
    assert stale.error_code is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elect_leaders(node: Node, version: int) -> None:
    node.cluster.heartbeat(1, want_fence=True)
    named = [{"topic": "t", "partitions": [0, 1]}]
    answer = node.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=named, timeout=1, election_type=0)
    rows = [(each.partition_id, each.error_code) for each in answer.replica_election_results[0].partition_result]
    assert rows == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELECTION_NOT_NEEDED)]
    node.controller.down = PeerError(ErrorCode.NOT_CONTROLLER, "gone")
    for wanted in (named, None):
        answer = node.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=wanted, timeout=1)
        reported = [each.error_code for topic in answer.replica_election_results for each in topic.partition_result]
        assert reported == ([ErrorCode.NOT_CONTROLLER] * 2 if wanted else [])
        assert version == 0 or answer.error_code is ErrorCode.NOT_CONTROLLER


def test_reassignment_is_altered_and_listed(node: Node) -> None:
    def move(**more: Any) -> Any:
        partitions = [{"partition_index": 0, "replicas": [3, 2]}, {"partition_index": 1, "replicas": None}]
        topics = [{"name": "t", "partitions": partitions}]
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        return node.ask(key, 1, topics=topics, timeout=1, **more)

    def listed(topics: Any) -> Any:
        key = ApiKey.LIST_PARTITION_REASSIGNMENTS
        return node.ask(key, 0, topics=topics, timeout=1)

    rows = [(each.partition_index, each.error_code) for each in move().responses[0].partitions]
    assert rows == [(0, ErrorCode.NONE), (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]
    for wanted in (None, [{"name": "t", "partition_indexes": [0, 1]}]):
        (moving,) = listed(wanted).topics[0].partitions
        assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ((3, 2, 1), (3,), (1,))
    node.controller.down = PeerError(ErrorCode.POLICY_VIOLATION, "too much")
    refused = move()
    assert (refused.error_code, refused.responses[0].partitions[0].error_message) == (
        ErrorCode.POLICY_VIOLATION,
        "too much",
    )
    assert listed(None).error_code is ErrorCode.POLICY_VIOLATION


def test_upgrade_type_of_each_version(node: Node) -> None:
    """Version 0 has a flag for downgrades; unknown types are passed on as UNKNOWN."""
    update = {"feature": "group.version", "max_version_level": 0}
    for version, more, kind in (
        (0, {"allow_downgrade": True}, UpgradeType.SAFE_DOWNGRADE),
        (0, {"allow_downgrade": False}, UpgradeType.UPGRADE),
        (1, {"upgrade_type": 3}, UpgradeType.UNSAFE_DOWNGRADE),
        (2, {"upgrade_type": 99}, UpgradeType.UNKNOWN),
    ):
        node.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=[{**update, **more}], timeout=1)
        assert node.controller.asked[-1] == UpdateFeatures((FeatureUpdate("group.version", 0, kind),))


def test_rejected_feature_has_no_results(node: Node) -> None:
    update = {"feature": "nope", "max_version_level": 1}
    answer = node.ask(ApiKey.UPDATE_FEATURES, 1, feature_updates=[update], timeout=1)
    assert (answer.error_code, answer.results) == (ErrorCode.INVALID_UPDATE_VERSION, ())


def test_broker_is_unregistered_once(node: Node) -> None:
    codes = [node.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=3).error_code for _ in range(2)]
    assert codes == [ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED]
    assert UUID(int=10_003) not in {d for broker in node.cluster.image.brokers.values() for d in broker.log_dirs}
