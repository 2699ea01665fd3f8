"""What users with few rights may do: answers of Apache Kafka 4.3.1 to every request of `permission_requests`.

Rules: security.md A44, A53 to A55.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from fenceline.ids import LOSSES_TOPIC
from fenceline.node.api.tables import raw_apis
from fenceline.testing.apache_kafka import free_port, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import unknown_fields
from tests.node.api.handlers.fakes import FakeBroker, image_of
from tests.security.permission_requests import BROKER, CONTROLLER, MADE, requests, users
from tests.security.permission_session import answers, settings
from tests.support.recorded import Answer

OWN = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "controller.listener.names": "CONTROLLER",
    "process.roles": "broker,controller",
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def _without_created(answer: Any) -> Any:
    """A topic that is created is in the answer at once (`docs/protocol.md`); Kafka answers 3 first."""
    return [row for row in answer["topics"] if row["name"] != MADE]


def _without_ledger(answer: Any) -> Any:
    """The topic of loss receipts."""
    found = answer.get("config_resources", ())
    return answer["error_code"], [row for row in found if row["resource_name"] != LOSSES_TOPIC]


def _refused_or_not(answer: Any) -> Any:
    """A change that the user may not make is refused before it is found to be wrong (A69)."""
    return [row["error_code"] != 0 for row in answer["responses"]]


INTENDED: dict[str, Callable[[Any], Any]] = {
    "Metadata that creates": _without_created,
    "ListConfigResources": _without_ledger,
    "AlterConfigs with an error": _refused_or_not,
    "IncrementalAlterConfigs with an error": _refused_or_not,
}
"""Requests with intended differences: what is compared of an answer."""


@pytest.fixture
def permission_answers() -> Iterator[list[dict[str, Any]]]:
    """Of Apache Kafka's standard authorizer."""
    port, controller_port = free_port(), free_port()
    own, of_controllers = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    overrides = {
        **settings(own, of_controllers),
        "controller.quorum.bootstrap.servers": of_controllers,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    with small_kafka(port=port, overrides=overrides):
        yield answers({BROKER: port, CONTROLLER: controller_port})


def own_answers() -> list[dict[str, Any]]:
    port, controller_port = free_port(), free_port()
    own, of_controllers = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    overrides = {**settings(own, of_controllers), **OWN, "controller.quorum.bootstrap.servers": of_controllers}
    overrides.pop("inter.broker.listener.name")  # the node names the protocol
    with EmbeddedNode(port=port, overrides=overrides, security_protocol="SASL_PLAINTEXT"):
        return answers({BROKER: port, CONTROLLER: controller_port})


def by_user(row: dict[str, Any]) -> dict[str, Any]:
    """The answer to each user."""
    [others] = [each["answer"] for each in row["answers"] if each["users"] == "others"]
    named = {user: each["answer"] for each in row["answers"] if each["users"] != "others" for user in each["users"]}
    return {user: named.get(user, others) for user in users()}


def test_every_request_of_every_user_is_answered_as_by_kafka(answer: Answer) -> None:
    recorded = answer("permission_answers", lambda found: found)
    assert [each["request"] for each in recorded] == [each.name for each in requests()]
    different = []
    for theirs, ours in zip(recorded, json.loads(json.dumps(own_answers(), default=str)), strict=True):
        name = theirs["request"]
        changed = INTENDED.get(name, lambda found: found)
        told = by_user(ours)
        different += [
            f"{name} as {user}: Kafka {expected}, own {told[user]}"
            for user, expected in by_user(theirs).items()
            if changed(expected) != changed(told[user])
        ]
    assert not different, "\n".join(different[:20])


def test_every_api_is_asked() -> None:
    node = FakeBroker(image_of())
    spoken = {api.key for api in (*node.apis, *node.controller_apis)} | set(raw_apis(Mock(), Mock()))
    # Both are exchanged before there is a user.
    assert {each.api for each in requests()} == spoken - {ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE}


def test_users_differ() -> None:
    found = users()
    assert len({*found.values()}) == len(found)


def test_fields_have_names_of_the_protocol() -> None:
    """A misspelt one would be left out."""
    for request in requests():
        assert not unknown_fields(request.api, request.fields, is_request=True), request.name
