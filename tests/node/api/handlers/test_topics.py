from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.controller.requests import (
    SUCCESS,
    CreatePartitionsAnswer,
    CreateTopicResult,
    CreateTopicsAnswer,
    DeletedTopic,
    DeleteTopicsAnswer,
    NamedOutcome,
    RequestOutcome,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.image import ConfigResourceType
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, ask, image_of, topic_image


def create(broker: FakeBroker, *topics: dict[str, Any], version: int = 7) -> Any:
    return asyncio.run(ask(broker, ApiKey.CREATE_TOPICS, version, topics=topics))


def test_created_topic_returns_configs_with_sources() -> None:
    broker = FakeBroker(
        image_of(configs={(ConfigResourceType.BROKER, ""): {"message.max.bytes": "7"}}), {"log.roll.hours": "1"}
    )
    created = CreateTopicResult("t", SUCCESS, ZERO_UUID, 1, 1, {"retention.ms": "5"})
    broker.controller.answer = CreateTopicsAnswer((created,))
    reported = {each.name: (each.value, each.config_source) for each in create(broker, {"name": "t"}).topics[0].configs}
    assert reported["retention.ms"] == ("5", 1)
    assert reported["max.message.bytes"] == ("7", 3)
    assert reported["segment.ms"] == ("3600000", 4)
    assert reported["segment.bytes"] == ("1073741824", 5)
    assert "internal.segment.bytes" not in reported


def test_controller_error_applies_to_every_topic() -> None:
    broker = FakeBroker(image_of())
    broker.controller.answer = PeerError(ErrorCode.NOT_CONTROLLER, "gone")
    answer = create(broker, {"name": "a"}, {"name": "b"})
    assert [(each.name, each.error_code, each.error_message) for each in answer.topics] == [
        ("a", ErrorCode.NOT_CONTROLLER, "gone"),
        ("b", ErrorCode.NOT_CONTROLLER, "gone"),
    ]


def test_duplicate_names_are_not_sent_to_the_controller() -> None:
    broker = FakeBroker(image_of())
    create(broker, {"name": "a"}, {"name": "a"}, {"name": "__cluster_metadata"})
    assert broker.controller.asked == []


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_disabled(version: int, code: int) -> None:
    broker = FakeBroker(image_of([topic_image("t")]))
    refused = RequestOutcome(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    broker.controller.answer = DeleteTopicsAnswer((DeletedTopic("t", ZERO_UUID, refused),))
    answer = asyncio.run(ask(broker, ApiKey.DELETE_TOPICS, version, topic_names=["t"], topics=[{"name": "t"}]))
    assert [each.error_code for each in answer.responses] == [code]


def test_topic_given_by_name_and_id_is_not_deleted() -> None:
    topic = topic_image("t")
    broker = FakeBroker(image_of([topic]))
    answer = asyncio.run(
        ask(
            broker,
            ApiKey.DELETE_TOPICS,
            6,
            topics=[{"name": "t"}, {"name": None, "topic_id": topic.id}],
        )
    )
    assert broker.controller.asked == []
    assert [(each.name, each.topic_id, each.error_code) for each in answer.responses] == [
        ("t", topic.id, ErrorCode.INVALID_REQUEST)
    ]


def test_create_partitions_omits_message_for_unknown_topic() -> None:
    broker = FakeBroker(image_of())
    unknown = RequestOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "words")
    broker.controller.answer = CreatePartitionsAnswer((NamedOutcome("t", unknown),))
    answer = asyncio.run(ask(broker, ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "t", "count": 2}]))
    assert (answer.results[0].error_code, answer.results[0].error_message) == (3, None)
