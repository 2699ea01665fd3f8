"""How many connections are accepted, and how fast. Rules: security.md A63."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.node.net.connection_limits import Admission, ConnectionLimits, parse_overrides


class Node:
    """Listeners CLIENTS and BROKERS; the latter is between brokers."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {key.replace("__", "/").replace("_", "."): str(value) for key, value in settings.items()}
        self.quotas: dict[Any, dict[str, float]] = {}
        self.now_ms = 0
        self.limits = ConnectionLimits(
            self.settings.get,
            lambda listener: lambda key: self.settings.get(f"{listener}/{key}"),
            lambda: self.quotas,
            lambda: self.now_ms,
            exempt_listener="BROKERS",
        )

    def open(self, address: str = "1.1.1.1", listener: str = "CLIENTS") -> Admission:
        return self.limits.open(listener, address)


def test_the_number_of_all_connections() -> None:
    node = Node(max_connections=2)
    assert [node.open().refusal for _ in range(3)] == [None, None, "too many connections (max.connections)"]
    assert node.open(listener="BROKERS").refusal is None, "brokers do not compete with clients"
    for _ in range(2):
        node.limits.closed("CLIENTS", "1.1.1.1")
    assert node.open().refusal is None


def test_the_number_of_one_listener() -> None:
    node = Node(CLIENTS__max_connections=1)
    assert node.open().refusal is None
    assert "listener.name.clients.max.connections" in (node.open().refusal or "")
    assert node.open(listener="BROKERS").refusal is None


def test_the_number_from_one_address() -> None:
    node = Node(max_connections_per_ip=1, max_connections_per_ip_overrides="2.2.2.2:2, 3.3.3.3:0")
    assert node.open().refusal is None
    assert "max.connections.per.ip" in (node.open().refusal or "")
    assert [node.open("2.2.2.2").refusal is None for _ in range(3)] == [True, True, False]
    assert node.open("3.3.3.3").refusal is not None


def test_changed_settings_are_in_force() -> None:
    node = Node()
    for _ in range(5):
        assert node.open().refusal is None
    node.settings["max.connections"] = "3"
    node.limits.settings_changed()
    assert node.limits.surplus() == 2
    assert node.open().refusal is not None


@pytest.mark.parametrize("key", ["max_connection_creation_rate", "CLIENTS__max_connection_creation_rate"])
def test_connections_that_come_too_fast_wait(key: str) -> None:
    node = Node(**{key: 1})
    assert [node.open() for _ in range(10)] == [Admission()] * 10, "ten in the ten seconds of the window"
    assert node.open() == Admission(None, 1_000)
    node.now_ms = 11_000
    assert node.open() == Admission()


def test_an_address_above_its_quota_is_held_and_closed() -> None:
    node = Node()
    node.quotas = {(("ip", "1.1.1.1"),): {"connection_creation_rate": 1.0}}
    assert [node.open().refusal for _ in range(10)] == [None] * 10
    refused = node.open()
    assert "connection_creation_rate=1" in (refused.refusal or "")
    assert refused.delay_ms == 1_000
    assert node.open("2.2.2.2") == Admission()


def test_counts_are_forgotten() -> None:
    node = Node()
    for number in range(100):
        node.open(str(number))
        node.limits.closed("CLIENTS", str(number))
    assert not node.limits._from
    assert not node.limits._open


@pytest.mark.parametrize("text", ["1.2.3.4", "1.2.3.4:x", ":5", "no host here:5"])
def test_overrides_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(OperatorError, match=r"max\.connections\.per\.ip\.overrides"):
        parse_overrides(text)
