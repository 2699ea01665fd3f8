"""Limits of connections at a running node: changed while it runs, and for whom they hold.

Which values are accepted is compared with answers of Apache Kafka 4.3.1. The decisions themselves:
`tests/node/net/test_connection_limits.py`.

Rules: security.md A63.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.client_quotas import ClientQuotaAlteration
from fenceline.errors import FencelineError
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.certificates import TestAuthority
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.recorded import Answer

pytestmark = pytest.mark.timeout(180)

LISTENER: Final = "listener.name.plaintext."
LIMIT: Final = 8


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as running:
        yield running


@contextmanager
def configured(node: EmbeddedNode, key: str, value: str, *, broker: str = "") -> Iterator[None]:
    """While the block runs."""
    change(node, broker, key, value)
    try:
        yield
    finally:
        change(node, broker, key, None)


def change(node: EmbeddedNode, broker: str, key: str, value: str | None) -> None:
    with Admin(node.bootstrap) as admin:
        admin.alter_configs({("broker", broker): {key: value}})


def is_served(connection: RawConnection) -> bool:
    try:
        return bool(connection.call(ApiKey.API_VERSIONS, 0).error_code == 0)
    except (ConnectionClosed, ConnectionError):
        return False


def served(stack: ExitStack, node: EmbeddedNode, count: int) -> list[RawConnection]:
    """Of so many connections, those that get an answer."""
    opened = [stack.enter_context(RawConnection(node.port)) for _ in range(count)]
    return [connection for connection in opened if is_served(connection)]


def check_room(node: EmbeddedNode, count: int) -> None:
    """Once all connections of others are closed."""

    def same() -> bool:
        with ExitStack() as stack:
            found = len(served(stack, node, LIMIT * 2))
        assert found == count, found
        return True

    eventually(same)


@pytest.mark.parametrize("broker", ["", "1"])
@pytest.mark.parametrize("key", ["max.connections", "max.connections.per.ip", f"{LISTENER}max.connections"])
def test_a_limit_holds_once_it_is_set(node: EmbeddedNode, key: str, broker: str) -> None:
    with configured(node, key, str(LIMIT), broker=broker):
        check_room(node, LIMIT)
    check_room(node, LIMIT * 2)


def test_limits_of_other_listeners_and_addresses_do_not_matter(node: EmbeddedNode) -> None:
    with (
        configured(node, "listener.name.other.max.connections", "1"),
        configured(node, "max.connections.per.ip.overrides", "192.0.2.7:1"),
    ):
        check_room(node, LIMIT * 2)


def test_an_override_of_an_address(node: EmbeddedNode) -> None:
    with (
        configured(node, "max.connections.per.ip", "100"),
        configured(node, "max.connections.per.ip.overrides", f"127.0.0.1:{LIMIT}"),
    ):
        check_room(node, LIMIT)


def test_connections_above_a_lowered_limit_are_closed(node: EmbeddedNode) -> None:
    with ExitStack() as stack:
        opened = served(stack, node, LIMIT * 2)
        assert len(opened) == LIMIT * 2
        with configured(node, "max.connections", str(LIMIT)):
            eventually(lambda: sum(map(is_served, opened)) <= LIMIT)
            assert sum(map(is_served, opened)) > 0


def test_an_address_above_its_quota_is_not_served(node: EmbeddedNode) -> None:
    entity = {"ip": "127.0.0.1"}
    with Admin(node.bootstrap) as admin:
        admin.alter_client_quotas([ClientQuotaAlteration(entity, {"connection_creation_rate": 1})])
        try:
            eventually(lambda: admin.describe_client_quotas(entity) != [])
            with ExitStack() as stack:
                opened = served(stack, node, 30)
                # Ten in ten seconds, and few more while the test runs.
                assert 0 < len(opened) < 30
                assert all(map(is_served, opened)), "those that were accepted stay"
        finally:
            admin.alter_client_quotas([ClientQuotaAlteration(entity, {"connection_creation_rate": None})])


def test_connections_that_shake_hands_count(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    settings = {
        **authority.broker_settings(),
        "max.connections.per.ip": str(LIMIT),
    }
    with EmbeddedNode(security_protocol="SSL", overrides=settings) as node:

        def room() -> int:
            with ExitStack() as stack:
                opened = [stack.enter_context(RawConnection(node.port)) for _ in range(LIMIT * 2)]
                eventually(lambda: sum(map(_is_closed, opened)) >= LIMIT)
                return sum(not _is_closed(connection) for connection in opened)

        for _ in range(3):
            # Connections of the round before may not be gone yet.
            eventually(lambda: room() == LIMIT)
        eventually(lambda: _can_connect(authority, node))


def _is_closed(connection: RawConnection) -> bool:
    """Otherwise the node waits for the handshake."""
    connection.socket.setblocking(False)
    try:
        return connection.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _can_connect(authority: TestAuthority, node: EmbeddedNode) -> bool:
    settings = {"bootstrap.servers": node.bootstrap, "security.protocol": "SSL", "ssl.ca.location": str(authority.ca)}
    with Admin(settings) as admin:
        return bool(admin.describe_cluster().brokers)


VALUES: Final = [
    (broker, key, value)
    for broker in ("", "1")
    for key, values in (
        ("max.connections", ("7", "0", "-1", "x")),
        ("max.connections.per.ip", ("7", "0", "-1", "x")),
        ("max.connection.creation.rate", ("7", "0", "-1", "x")),
        (f"{LISTENER}max.connections", ("7", "0", "-1", "x")),
        (f"{LISTENER}max.connection.creation.rate", ("7", "0", "x")),
        ("listener.name.nope.max.connections", ("7",)),
        ("max.connections.per.ip.overrides", ("127.0.0.1:9", "x", "127.0.0.1:y")),
    )
    for value in values
]


@pytest.fixture(scope="module")
def kafka_with_limits() -> Iterator[ApacheKafka]:
    with small_kafka() as kafka:
        yield kafka


def test_values_are_accepted_as_by_kafka(answer: Answer, node: EmbeddedNode) -> None:
    def asked(target: ApacheKafka | EmbeddedNode) -> list[list[str]]:
        found = []
        with Admin(target.bootstrap) as admin:
            for broker, key, value in VALUES:
                try:
                    admin.alter_configs({("broker", broker): {key: value}})
                    outcome = "accepted"
                except FencelineError:
                    outcome = "refused"
                admin.alter_configs({("broker", broker): {key: None}})
                found.append([broker, key, value, outcome])
        return found

    assert asked(node) == answer("kafka_with_limits", asked)
