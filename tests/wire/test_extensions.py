"""Tagged fields of Fenceline's nodes: who gets them (`wire.extensions`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.api.handlers.api_versions import ApiVersions, api_ranges
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import message_schema, read_request, read_response, write_request
from fenceline.wire.extensions import LEVEL_TAG, REQUESTS, RESPONSES, SOFTWARE_NAME, WATCHES_SILENCE, without_extensions
from tests.wire import kio_schemas
from tests.wire.strategies import kio_read, kio_write

HEARTBEAT: dict[str, Any] = {
    "broker_id": 1,
    "broker_epoch": 5,
    "current_metadata_offset": 7,
    "silent_brokers": [{"broker_id": 2, "broker_epoch": 9}],
}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_heartbeat_with_silent_brokers(version: int) -> None:
    body = write_request(ApiKey.BROKER_HEARTBEAT, version, HEARTBEAT)
    (silent,) = read_request(ApiKey.BROKER_HEARTBEAT, version, body).silent_brokers
    assert (silent.broker_id, silent.broker_epoch) == (2, 9)


def test_heartbeat_without_silent_brokers_is_that_of_kafka() -> None:
    """kio has Kafka's schema: a field without a value leaves no trace."""
    fields = without_extensions(HEARTBEAT)
    assert "silent_brokers" not in fields
    body = write_request(ApiKey.BROKER_HEARTBEAT, 2, fields)
    cls = kio_schemas.kio_class(ApiKey.BROKER_HEARTBEAT, 2, is_request=True)
    assert kio_write(kio_read(cls, body)) == body
    assert read_request(ApiKey.BROKER_HEARTBEAT, 2, body).silent_brokers == ()


def test_tags_are_none_of_kafkas() -> None:
    for extensions, is_request in ((REQUESTS, True), (RESPONSES, False)):
        for key in extensions:
            tags = [each.tag for each in message_schema(key, is_request=is_request).root.fields if each.tag is not None]
            assert all(tag < LEVEL_TAG for tag in tags)


@pytest.mark.parametrize(
    ("software", "level", "announced"),
    [(SOFTWARE_NAME, WATCHES_SILENCE, 1), ("apache-kafka-java", WATCHES_SILENCE, 0), (SOFTWARE_NAME, 0, 0)],
)
@pytest.mark.parametrize("version", [3, 4])
def test_level_is_announced_to_fenceline_only(software: str, level: int, announced: int, version: int) -> None:
    """In any order: encoded answers are kept."""
    node: Any = SimpleNamespace(image=EMPTY_IMAGE)
    answering = ApiVersions(node, api_ranges((), {}), supported={}, finalized=dict, fenceline_level=level)

    def ask(name: str) -> Any:
        fields = {"client_software_name": name, "client_software_version": "1"}
        context: Any = SimpleNamespace(api_version=version, throttle_ms=0, correlation_id=1)
        body = memoryview(write_request(ApiKey.API_VERSIONS, version, fields))
        frame = b"".join(bytes(part) for part in answering.handle(context, body))
        return read_response(ApiKey.API_VERSIONS, version, frame[8:])

    for name in ("other", SOFTWARE_NAME, software, software):
        answer = ask(name)
        expected = announced if name == software else level if name == SOFTWARE_NAME else 0
        assert answer.fenceline_level == expected, name
