"""Transaction coordinators as reported by a node that is none: Kafka brokers of its cluster may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER, TRANSACTION_STATE_TOPIC
from fenceline.node.api.handlers.find_coordinator import TRANSACTION_KEY_TYPE
from fenceline.node.transactions.support import REFUSAL
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import (
    FakeBroker,
    FakeTransactionSupport,
    ask,
    broker_image,
    image_of,
    partition,
    topic_image,
)


def coordinator_of(key: str, *leaders: int) -> Any:
    """As found by node 1, if `leaders[i]` leads partition i of the topic and node 3 is fenced."""
    partitions = [partition((max(leader, 1),), leader=leader) for leader in leaders]
    topics = [topic_image(TRANSACTION_STATE_TOPIC, *partitions)] if leaders else []
    brokers = (broker_image(1), broker_image(2), broker_image(3, fenced=True))
    fields = {"key_type": TRANSACTION_KEY_TYPE, "coordinator_keys": [key]}
    broker = FakeBroker(image_of(topics, brokers))
    answer = asyncio.run(ask(broker, ApiKey.FIND_COORDINATOR, 4, **fields))
    (found,) = answer.coordinators
    return found


def test_transaction_coordinator_is_the_partition_leader() -> None:
    other = partition_for("orders", 2)
    leaders = [1, 1]
    leaders[other] = 2
    found = coordinator_of("orders", *leaders)
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.NONE, 2, "host2", 9092)
    leaders[other] = 1
    leaders[1 - other] = 2
    assert coordinator_of("orders", *leaders).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_no_transaction_coordinator_without_a_capable_leader() -> None:
    for leaders in ((), (NO_LEADER,), (1,), (3,)):
        found = coordinator_of("orders", *leaders)
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (2, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (3, ErrorCode.UNSUPPORTED_VERSION),
        (6, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
@pytest.mark.parametrize("leaders", [(), (1,), (2,)])
def test_without_any_transaction_coordinator_the_error_is_fatal(
    version: int, code: ErrorCode, leaders: tuple[int, ...]
) -> None:
    """Also if another Fenceline broker leads partitions that Kafka brokers created."""
    topics = [topic_image(TRANSACTION_STATE_TOPIC, *(partition((each,)) for each in leaders))] if leaders else []
    transactions = FakeTransactionSupport(False)
    broker = FakeBroker(image_of(topics, (broker_image(1), broker_image(2))), ports={"transactions": transactions})
    fields: dict[str, Any] = {"key": "orders"} if version < 4 else {"coordinator_keys": ["orders"]}
    fields["key_type"] = TRANSACTION_KEY_TYPE
    answer = asyncio.run(ask(broker, ApiKey.FIND_COORDINATOR, version, **fields))
    found = answer if version < 4 else answer.coordinators[0]
    assert found.error_code is code
    assert found.error_message == REFUSAL
    assert transactions.reported == ["orders"]


@pytest.mark.parametrize(
    ("elsewhere", "transactional_id", "code"),
    [
        (True, "", ErrorCode.INVALID_REQUEST),
        (True, "orders", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (False, "orders", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_no_producer_id_for_a_transactional_id(elsewhere: bool, transactional_id: str, code: ErrorCode) -> None:
    broker = FakeBroker(image_of(), ports={"transactions": FakeTransactionSupport(elsewhere)})
    fields = {"transactional_id": transactional_id, "transaction_timeout_ms": 1_000}
    answer = asyncio.run(ask(broker, ApiKey.INIT_PRODUCER_ID, 4, **fields))
    assert (answer.error_code, answer.producer_id) == (code, -1)


@pytest.mark.parametrize(
    ("of_controller", "code"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER),
    ],
)
def test_temporary_lack_of_producer_ids_is_retriable(of_controller: ErrorCode, code: ErrorCode) -> None:
    """A producer of aiokafka failed to start because the controller's disk was full for a moment."""

    class NoIds:
        async def next_id(self) -> int:
            raise PeerError(of_controller, "no space left on the device")

    broker = FakeBroker(image_of(), ports={"producer_ids": NoIds()})
    answer = asyncio.run(ask(broker, ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None))
    assert (answer.error_code, answer.producer_id) == (code, -1)
