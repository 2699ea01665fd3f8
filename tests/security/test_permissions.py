"""What users with few rights may do: answers of Apache Kafka 4.3.1 to every request of `permission_requests`.

Rules: security.md A44, A53 to A55.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from fenceline.node.api.tables import raw_apis
from fenceline.testing.apache_kafka import free_port, small_kafka
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import unknown_fields
from tests.node.api.handlers.fakes import FakeBroker, image_of
from tests.security.permission_requests import BROKER, CONTROLLER, requests, users
from tests.security.permission_session import answers, settings
from tests.support.recorded import Answer


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


def test_every_request_has_an_answer(answer: Answer) -> None:
    recorded = answer("permission_answers", lambda found: found)
    assert [each["request"] for each in recorded] == [each.name for each in requests()]


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
