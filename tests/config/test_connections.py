"""Limits of connections that cannot work. Rules: security.md A63."""

from __future__ import annotations

import pytest

from fenceline.config.connections import connection_overrides
from fenceline.config.dynamic import check_broker_update
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError, PeerError

OF_A_LISTENER = "listener.name.clients.max.connections"


def loaded(**settings: str) -> NodeConfig:
    return NodeConfig.load(None, {key.replace("_", "."): value for key, value in settings.items()}, {})


@pytest.mark.parametrize("name", ["max.connections", "max.connection.creation.rate", OF_A_LISTENER])
@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", " 00 "])
def test_a_node_does_not_start_without_room_for_clients(name: str, value: str) -> None:
    with pytest.raises(OperatorError, match=name.replace(".", r"\.")):
        NodeConfig.load(None, {name: value}, {})


def test_no_connection_of_an_address_needs_exceptions() -> None:
    with pytest.raises(OperatorError, match="can be set to zero only if"):
        loaded(max_connections_per_ip="0")
    found = loaded(max_connections_per_ip="0", max_connections_per_ip_overrides="10.0.0.1:5")
    assert found.get_int("max.connections.per.ip") == 0


def test_overrides_are_addresses_with_counts() -> None:
    assert connection_overrides("") == ()
    assert connection_overrides(" a.example:5 , [::1]:6,10.0.0.1:0,") == (
        ("a.example", 5),
        ("::1", 6),
        ("10.0.0.1", 0),
    )
    for text in ("x", ":5", "x:", "x:y", "x:-1", "x:1.5"):
        with pytest.raises(OperatorError, match="is not of the form address:count"):
            connection_overrides(text)


@pytest.mark.parametrize("cluster_default", [True, False])
def test_limits_of_a_listener_may_be_set_for_all_brokers(cluster_default: bool) -> None:
    node = loaded()
    check_broker_update(node, {OF_A_LISTENER: "5"}, {}, cluster_default=cluster_default)
    for value in ("0", "x", "-1"):
        with pytest.raises(PeerError):
            check_broker_update(node, {OF_A_LISTENER: value}, {}, cluster_default=cluster_default)
    with pytest.raises(PeerError, match="broker id must be specified"):
        check_broker_update(node, {"listener.name.clients.ssl.keystore.type": "PEM"}, {}, cluster_default=True)
