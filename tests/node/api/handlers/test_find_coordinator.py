"""FindCoordinator: the leader of the key's partition, and the creation of a coordinator's topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, NO_LEADER, TRANSACTION_STATE_TOPIC
from fenceline.node.api.handlers.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, ask, broker_image, image_of, partition, topic_image

TOPICS = [(GROUP_KEY_TYPE, CONSUMER_OFFSETS_TOPIC), (TRANSACTION_KEY_TYPE, TRANSACTION_STATE_TOPIC)]


def coordinator_of(key_type: int, topic: str, key: str, *leaders: int) -> Any:
    """As found by node 1, if `leaders[i]` leads partition i of the topic and node 3 is fenced."""
    partitions = [partition((max(leader, 1),), leader=leader) for leader in leaders]
    brokers = (broker_image(1), broker_image(2), broker_image(3, fenced=True))
    broker = FakeBroker(image_of([topic_image(topic, *partitions)], brokers))
    fields = {"key_type": key_type, "coordinator_keys": [key]}
    answer = asyncio.run(ask(broker, ApiKey.FIND_COORDINATOR, 4, **fields))
    (found,) = answer.coordinators
    return found


@pytest.mark.parametrize(("key_type", "topic"), TOPICS)
def test_coordinator_is_the_partition_leader(key_type: int, topic: str) -> None:
    """transactions.md X24: for groups and for transactional ids."""
    for leader in (1, 2):
        leaders = [3 - leader, 3 - leader]
        leaders[partition_for("orders", 2)] = leader
        found = coordinator_of(key_type, topic, "orders", *leaders)
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, leader)
        assert (found.host, found.port) == (f"host{leader}", 9092)


@pytest.mark.parametrize(("key_type", "topic"), TOPICS)
@pytest.mark.parametrize("leader", [NO_LEADER, 3])
def test_no_coordinator_without_a_leader_that_serves(key_type: int, topic: str, leader: int) -> None:
    found = coordinator_of(key_type, topic, "orders", leader)
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("version", [1, 3, 4, 6])
@pytest.mark.parametrize(("key_type", "topic"), TOPICS)
def test_first_lookup_creates_the_topic(key_type: int, topic: str, version: int) -> None:
    """transactions.md X25, X30: 15 until there is a leader."""
    created: list[str] = []

    def creation(name: str) -> Any:
        async def create() -> None:
            created.append(name)

        return create

    ports = {
        "create_offsets_topic": creation(CONSUMER_OFFSETS_TOPIC),
        "create_transaction_topic": creation(TRANSACTION_STATE_TOPIC),
    }
    broker = FakeBroker(image_of(), ports=ports)
    fields: dict[str, Any] = {"key": "orders"} if version < 4 else {"coordinator_keys": ["orders"]}
    answer = asyncio.run(ask(broker, ApiKey.FIND_COORDINATOR, version, **fields, key_type=key_type))
    found = answer if version < 4 else answer.coordinators[0]
    assert found.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert created == [topic]


def test_unknown_type_of_key() -> None:
    found = asyncio.run(ask(FakeBroker(image_of()), ApiKey.FIND_COORDINATOR, 4, key_type=9, coordinator_keys=["a"]))
    assert found.coordinators[0].error_code is ErrorCode.INVALID_REQUEST
