"""Who coordinates transactions, as a node tells it that does not itself: brokers of Kafka in its cluster may."""

from __future__ import annotations

import asyncio
from typing import Any

from fenceline.errors import ErrorCode
from fenceline.groups.partitioning import partition_for
from fenceline.ids import NO_LEADER, TRANSACTION_STATE_TOPIC
from fenceline.node.handlers.find_coordinator import TRANSACTION_KEY_TYPE, find_coordinator
from fenceline.wire.apis import ApiKey

from .fakes import FakeBroker, ask, broker_image, image_of, partition, topic_image


def coordinator_of(key: str, *leaders: int) -> Any:
    """By node 1, where partition i of the topic is led by `leaders[i]`, and node 3 is fenced."""
    partitions = [partition((max(leader, 1),), leader=leader) for leader in leaders]
    topics = [topic_image(TRANSACTION_STATE_TOPIC, *partitions)] if leaders else []
    brokers = (broker_image(1), broker_image(2), broker_image(3, fenced=True))
    fields = {"key_type": TRANSACTION_KEY_TYPE, "coordinator_keys": [key]}
    broker = FakeBroker(image_of(topics, brokers))
    answer = asyncio.run(ask(find_coordinator, broker, ApiKey.FIND_COORDINATOR, 4, **fields))
    (found,) = answer.coordinators
    return found


def test_transactions_are_coordinated_where_their_partition_is_led() -> None:
    other = partition_for("orders", 2)
    leaders = [1, 1]
    leaders[other] = 2
    found = coordinator_of("orders", *leaders)
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.NONE, 2, "host2", 9092)
    leaders[other] = 1
    leaders[1 - other] = 2
    assert coordinator_of("orders", *leaders).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_nobody_coordinates_transactions_of_a_partition_without_a_leader_that_can() -> None:
    for leaders in ((), (NO_LEADER,), (1,), (3,)):
        found = coordinator_of("orders", *leaders)
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
