from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fenceline.config.topic import VALIDATE_COMPRESSED
from fenceline.controller.requests import SUCCESS, AlterConfigsAnswer, AlteredResource
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import ConfigResource, ConfigResourceType
from fenceline.node import logs
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, ask, broker_image, image_of, topic_image

TOPIC, BROKER, LOGGER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER


def resource(kind: int, name: str, *configs: tuple[str, str | None]) -> dict[str, Any]:
    rows = [{"name": key, "value": value} for key, value in configs]
    return {"resource_type": kind, "resource_name": name, "configs": rows}


def alter(broker: FakeBroker, *resources: dict[str, Any], legacy: bool = False) -> list[tuple[int, str | None]]:
    key, version = (ApiKey.ALTER_CONFIGS, 2) if legacy else (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
    answer = asyncio.run(ask(broker, key, version, resources=resources))
    return [(each.error_code, each.error_message) for each in answer.responses]


def describe(broker: FakeBroker, kind: int, name: str, **fields: Any) -> dict[str, Any]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = asyncio.run(ask(broker, ApiKey.DESCRIBE_CONFIGS, 4, resources=[row], **fields))
    assert answer.results[0].error_code == 0
    return {each.name: each for each in answer.results[0].configs}


@pytest.mark.parametrize("legacy", [True, False])
def test_duplicate_resource_is_rejected(legacy: bool) -> None:
    """Kafka 4.3.1 does not answer the legacy request."""
    broker = FakeBroker(image_of([topic_image("t")]))
    refused = (42, "Each resource must appear at most once.")
    assert alter(broker, resource(TOPIC, "t"), resource(TOPIC, "t"), legacy=legacy) == [refused, refused]
    assert broker.controller.asked == []


def test_answers_keep_the_order_of_the_request() -> None:
    broker = FakeBroker(image_of([topic_image("a"), topic_image("b")]))
    broker.controller.answer = AlterConfigsAnswer(
        tuple(AlteredResource(ConfigResource(TOPIC, name), SUCCESS) for name in "ab")
    )
    codes = alter(
        broker,
        resource(TOPIC, "a", ("retention.ms", "1")),
        resource(BROKER, "7", ("log.retention.ms", "1")),
        resource(TOPIC, "b", ("retention.ms", "1")),
    )
    assert [code for code, _ in codes] == [0, 42, 0]


def test_controller_error_is_returned_per_resource() -> None:
    broker = FakeBroker(image_of([topic_image("a")]))
    broker.controller.answer = PeerError(ErrorCode.NOT_CONTROLLER, "gone")
    assert alter(broker, resource(TOPIC, "a", ("retention.ms", "1"))) == [(ErrorCode.NOT_CONTROLLER, "gone")]


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("cordoned.log.dirs", "/x", "must be present in log.dirs or log.dir. Missing entries : /x"),
        ("listeners", "PLAINTEXT://:1", "cannot be changed"),
        ("log.retention.ms", "0", "at least 1"),
        ("fenceline.metrics.port", "9100", "Cannot update these configs dynamically"),
        ("leader.replication.throttled.rate", "-1", "at least 0"),
        ("fenceline.validate.compressed.records", "perhaps", "Expected value to be either true or false"),
    ],
)
def test_invalid_or_static_broker_config_is_rejected(name: str, value: str, part: str) -> None:
    code, message = alter(FakeBroker(image_of()), resource(BROKER, "1", (name, value)))[0]
    assert code == ErrorCode.INVALID_REQUEST
    assert message is not None
    assert part in message


def test_record_validation_is_dynamically_configurable() -> None:
    broker = FakeBroker(image_of([topic_image("t")], configs={(BROKER, "1"): {VALIDATE_COMPRESSED: "true"}}))
    reported = describe(broker, TOPIC, "t", include_synonyms=True)[VALIDATE_COMPRESSED]
    assert (reported.value, reported.config_source, [each.source for each in reported.synonyms]) == ("true", 2, [2, 5])
    assert not describe(broker, BROKER, "1")[VALIDATE_COMPRESSED].read_only
    broker.controller.answer = AlterConfigsAnswer((AlteredResource(ConfigResource(BROKER, "1"), SUCCESS),))
    assert alter(broker, resource(BROKER, "1", (VALIDATE_COMPRESSED, "false"))) == [(0, None)]


def test_unregistered_config_is_described_where_it_is_set() -> None:
    name = "leader.replication.throttled.rate"
    broker = FakeBroker(image_of(configs={(BROKER, "1"): {name: "1000"}}))
    row = describe(broker, BROKER, "1", include_documentation=True)[name]
    assert (row.value, row.is_sensitive, row.read_only, row.documentation) == ("1000", False, False, None)
    assert name not in describe(FakeBroker(image_of()), BROKER, "1")


def test_sensitive_and_unknown_values_are_hidden() -> None:
    broker = FakeBroker(
        image_of(configs={(BROKER, ""): {"who.knows": "x"}}),
        {"ssl.keystore.password": "hush", "some.plugin.password": "hush"},
    )
    reported = describe(broker, BROKER, "1", include_synonyms=True)
    for name in ("ssl.keystore.password", "some.plugin.password", "who.knows"):
        row = reported[name]
        assert (row.value, row.is_sensitive) == (None, True)
        assert all(each.value is None for each in row.synonyms)
    assert "hush" not in repr(reported)


INTERNAL = "listener.name.internal."
LISTENERS = {
    "listeners": "INTERNAL://:1",
    "advertised.listeners": "INTERNAL://h:1",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    INTERNAL + "ssl.client.auth": "required",
}


@pytest.mark.parametrize(
    ("broker", "name", "value", "part"),
    [
        ("1", INTERNAL + "ssl.keystore.location", "/x", None),
        ("", INTERNAL + "ssl.keystore.location", "/x", "broker id must be specified"),
        ("", INTERNAL + "max.connections", "7", None),
        ("1", "ssl.keystore.location", "/x", "only per-listener using the listener prefix"),
        ("", "ssl.truststore.certificates", "x", "only per-listener using the listener prefix"),
        ("1", INTERNAL + "ssl.client.auth", "maybe", "must be one of"),
        ("1", INTERNAL + "ssl.client.auth", "none", "restart it: [listener.name.internal.ssl.client.auth]"),
        ("1", INTERNAL + "ssl.client.auth", "required", None),
        ("1", INTERNAL + "plain.sasl.jaas.config", "x", "Only the certificate stores"),
        ("1", INTERNAL + "sasl.enabled.mechanisms", "PLAIN", "Only the certificate stores"),
        ("1", INTERNAL + "max.connections", "7", None),
        ("1", INTERNAL + "who.knows", "7", None),
        ("1", "listener.name.other.ssl.client.auth", "none", None),
    ],
)
def test_configs_of_a_listener(broker: str, name: str, value: str, part: str | None) -> None:
    """Rules: security.md A10, A11."""
    fake = FakeBroker(image_of(), LISTENERS)
    fake.controller.answer = AlterConfigsAnswer((AlteredResource(ConfigResource(BROKER, broker), SUCCESS),))
    [(code, message)] = alter(fake, resource(BROKER, broker, (name, value)))
    assert code == (ErrorCode.NONE if part is None else ErrorCode.INVALID_REQUEST), message
    if part is not None:
        assert message is not None
        assert part in message


def test_config_of_a_listener_that_was_stored_elsewhere_does_not_prevent_others() -> None:
    stored = {INTERNAL + "ssl.client.auth": "none"}
    fake = FakeBroker(image_of(configs={(BROKER, "1"): stored}), LISTENERS)
    fake.controller.answer = AlterConfigsAnswer((AlteredResource(ConfigResource(BROKER, "1"), SUCCESS),))
    assert alter(fake, resource(BROKER, "1", ("log.cleaner.threads", "2"))) == [(0, None)]


@pytest.mark.parametrize("legacy", [True, False])
def test_unusable_certificates_are_not_forwarded(legacy: bool) -> None:
    asked: list[tuple[dict[str, str], list[str]]] = []

    async def refuse(overrides: Mapping[str, str], named: Iterable[str]) -> None:
        asked.append((dict(overrides), list(named)))
        raise PeerError(ErrorCode.INVALID_REQUEST, "no such file")

    known = {INTERNAL + "ssl.keystore.type": "PEM"}
    fake = FakeBroker(image_of(configs={(BROKER, "1"): known}), LISTENERS, ports={"check_certificates": refuse})
    name = INTERNAL + "ssl.keystore.location"
    assert alter(fake, resource(BROKER, "1", (name, "/x")), legacy=legacy) == [(42, "no such file")]
    assert fake.controller.asked == []
    assert asked == [({name: "/x"} if legacy else {**known, name: "/x"}, [name])]


def test_controllers_accept_certificates_of_any_broker() -> None:
    """They do not have its files (KIP-919)."""
    fake = FakeBroker(image_of(), LISTENERS, ports={"check_certificates": None})
    fake.controller.answer = AlterConfigsAnswer((AlteredResource(ConfigResource(BROKER, "7"), SUCCESS),))
    row = resource(BROKER, "7", (INTERNAL + "ssl.keystore.location", "/x"))
    row["configs"] = [{**each, "config_operation": 0} for each in row["configs"]]
    answer = asyncio.run(ask(fake, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "CONTROLLER", resources=[row]))
    assert [each.error_code for each in answer.responses] == [0]


def test_configs_of_a_listener_are_described_as_their_keys() -> None:
    secrets = {
        INTERNAL + "ssl.keystore.password": "hush",
        INTERNAL + "ssl.key.password": "hush",
        INTERNAL + "ssl.keystore.key": "hush",
        INTERNAL + "ssl.keystore.certificate.chain": "hush",
        INTERNAL + "ssl.truststore.certificates": "hush",
        INTERNAL + "plain.sasl.jaas.config": "hush",
        INTERNAL + "who.knows": "hush",
    }
    name = INTERNAL + "ssl.keystore.location"
    settings = {**LISTENERS, "ssl.keystore.location": "/static", "ssl.keystore.password": "hush"}
    fake = FakeBroker(image_of(configs={(BROKER, "1"): {**secrets, name: "/x"}}), settings)
    reported = describe(fake, BROKER, "1", include_synonyms=True, include_documentation=True)
    assert (reported[name].value, reported[name].is_sensitive, reported[name].read_only) == ("/x", False, True)
    assert reported[name].documentation is None
    layers = [(each.name, each.value, each.source) for each in reported[name].synonyms]
    assert layers == [(name, "/x", 2), ("ssl.keystore.location", "/static", 4)]
    for secret in secrets:
        assert (reported[secret].value, reported[secret].is_sensitive) == (None, True)
    assert "hush" not in repr(reported)


def test_every_config_has_documentation() -> None:
    broker = FakeBroker(image_of([topic_image("t")]))
    for kind, name in ((BROKER, "1"), (TOPIC, "t"), (32, "g"), (16, "m")):
        reported = describe(broker, kind, name, include_documentation=True)
        assert all(len(row.documentation) > 10 for row in reported.values())
        assert all(row.documentation is None for row in describe(broker, kind, name).values())


def test_internal_configs_are_described_only_where_set() -> None:
    broker = FakeBroker(
        image_of([topic_image("t"), topic_image("u")], configs={(TOPIC, "t"): {"internal.segment.bytes": "9"}})
    )
    assert describe(broker, TOPIC, "t")["internal.segment.bytes"].value == "9"
    assert "internal.segment.bytes" not in describe(broker, TOPIC, "u")


def test_log_level_can_be_altered() -> None:
    before = logs.level()
    try:
        assert alter(FakeBroker(image_of()), resource(LOGGER, "1", ("root", "TRACE"))) == [(0, None)]
        assert logs.level() == "debug"
        assert describe(FakeBroker(image_of()), LOGGER, "1")["root"].value == "DEBUG"
    finally:
        logs.set_level(before)


def test_fenced_brokers_are_not_listed() -> None:
    broker = FakeBroker(image_of([], (broker_image(1), broker_image(2, fenced=True))))
    answer = asyncio.run(ask(broker, ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[4]))
    assert [each.resource_name for each in answer.config_resources] == ["1"]
