"""Property names, values and validation."""

from __future__ import annotations

import logging

import pytest

from fenceline.client.core.config import ClientConfig
from fenceline.errors import OperatorError


def test_kafka_librdkafka_and_underscore_names_are_equivalent() -> None:
    spellings = [{"linger.ms": "7"}, {"queue.buffering.max.ms": 7}, {"linger_ms": 7}]
    assert [ClientConfig.parse("producer", "h:1", s)["linger.ms"] for s in spellings] == [7, 7, 7]


def test_bootstrap_as_text_list_or_mapping() -> None:
    expected = (("a", 1), ("b", 9092))
    assert ClientConfig.parse("admin", "a:1,b:9092", {}).bootstrap == expected
    assert ClientConfig.parse("admin", ["a:1", "PLAINTEXT://b:9092"], {}).bootstrap == expected
    assert ClientConfig.parse("admin", {"bootstrap.servers": "a:1,b:9092"}, {}).bootstrap == expected
    assert ClientConfig.parse("admin", "[::1]:5", {}).bootstrap == (("::1", 5),)


def test_missing_bootstrap_servers_is_rejected_with_a_hint() -> None:
    with pytest.raises(OperatorError, match=r"localhost:9092"):
        ClientConfig.parse("admin", None, {})


@pytest.mark.parametrize("address", ["localhost", "broker.example", "PLAINTEXT://h", "[::1]", "a:1,b"])
def test_address_without_a_port_is_rejected(address: str) -> None:
    with pytest.raises(OperatorError, match=r"is not the address of a broker: it has no port\nWrite HOST:PORT"):
        ClientConfig.parse("admin", address, {})


@pytest.mark.parametrize("address", [":9092", "host:port", "host:70000", "host:"])
def test_malformed_address_is_rejected_immediately(address: str) -> None:
    with pytest.raises(OperatorError, match="is not the address of a broker"):
        ClientConfig.parse("admin", [address], {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "2"}, "all, 1 or 0"),
        ({"linger.ms": "-1"}, "between"),
        ({"transactional.id": ""}, "must not be empty"),
        ({"transactional.id": "t", "acks": 1}, "acks=all"),
        ({"transactional.id": "t", "enable.idempotence": False}, "idempotent"),
        ({"transactional.id": "t", "transaction.timeout.ms": 0}, "between"),
        ({"transactional.id": "t", "transaction.timeout.ms": 2**40}, "between"),
        ({"transactional.id": "t", "transaction.timeout.ms": 5, "linger.ms": 6}, r"linger\.ms"),
        ({"key.serializer": "x"}, "keys are bytes"),
        ({"enable.idempotence": True, "acks": 1}, "acks=all"),
        ({"enable.idempotence": True, "max.in.flight": 6}, "at most 5"),
        ({"security.protocol": "SASL_SSL"}, "sasl.username"),
        ({"compression.type": "brotli"}, "one of"),
    ],
)
def test_invalid_values_are_rejected_with_a_message(settings: dict[str, object], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        ClientConfig.parse("producer", "h:1", settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group.protocol": "streams"}, "one of classic, consumer"),
        ({"group.protocol": "consumer", "session.timeout.ms": 10_000}, "has no meaning with group.protocol=consumer"),
        ({"group.protocol": "consumer", "partition.assignment.strategy": "range"}, r"group\.remote\.assignor"),
        ({"on.truncation": "callback"}, "the function itself"),
        ({"on.truncation": "ignore"}, "fail, rewind, latest, reset or a function"),
        ({"auto.offset.reset": "sometimes"}, "earliest, latest, none or by_duration"),
        ({"auto.offset.reset": "by_duration:"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:P"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:PT"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:P1DT"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:PT-1H"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:-PT1H"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:1h"}, "PnDTnHnMn.nS"),
        ({"auto.offset.reset": "by_duration:P1M"}, "PnDTnHnMn.nS"),
        ({"heartbeat.interval.ms": 9, "session.timeout.ms": 9}, "lower than session"),
    ],
)
def test_invalid_consumer_values_are_rejected(settings: dict[str, object], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        ClientConfig.parse("consumer", "h:1", settings)


def test_idempotence_is_the_default_unless_acks_is_lowered() -> None:
    assert ClientConfig.parse("producer", "h:1", {})["enable.idempotence"] is True
    assert ClientConfig.parse("producer", "h:1", {"acks": "1"})["enable.idempotence"] is False


def test_unknown_properties_are_logged_except_those_of_other_clients(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fenceline.client"):
        ClientConfig.parse("admin", "h:1", {"linger.ms": 5, "ligner.ms": 5})
    assert [r.getMessage() for r in caplog.records] == ["unknown client property ligner.ms is ignored"]


def test_java_sasl_config_sets_user_and_password() -> None:
    text = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p=1";'
    config = ClientConfig.parse("reader", "h:1", {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": text})
    assert (config["sasl.username"], config["sasl.password"]) == ("u", "p=1")


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT0S", 0),
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("pt2m", 120_000),
        ("P2DT3H4M5.678S", 183_845_678),
        ("PT0,25S", 250),
        ("PT1.0009S", 1_000),
        ("P999999999999D", 999_999_999_999 * 86_400_000),
    ],
)
def test_reset_by_duration(text: str, duration_ms: int) -> None:
    config = ClientConfig.parse("consumer", "h:1", {"auto.offset.reset": f"by_duration:{text}"})
    assert config["auto.offset.reset"] == duration_ms
