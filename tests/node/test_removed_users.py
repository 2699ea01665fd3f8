"""Connections of a user whose SCRAM credential is removed: they are closed, whatever they wait for (security.md A69).

Kafka serves them until they close.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode
from fenceline.sasl.scram import NUMBERS, ClientExchange, salted_password
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.password_node import password_node
from tests.support.raw import ConnectionClosed, RawConnection

SALT: Final = b"salt of the tests"
FEWEST_ITERATIONS: Final = 4096
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=password_node(*MECHANISMS, anna="secret")) as node:
        yield node


class Administrator:
    def __init__(self, node: EmbeddedNode) -> None:
        self.connection = RawConnection(node.port)
        self.connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        answer = self.connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0anna\0secret"})
        assert answer.error_code == 0

    def add(self, user: str, password: str, mechanism: str = MECHANISMS[0]) -> None:
        row = {
            "name": user,
            "mechanism": NUMBERS[mechanism],
            "iterations": FEWEST_ITERATIONS,
            "salt": SALT,
            "salted_password": salted_password(mechanism, password, SALT, FEWEST_ITERATIONS),
        }
        self._alter({"deletions": [], "upsertions": [row]})

    def remove(self, user: str, mechanism: str = MECHANISMS[0]) -> None:
        self._alter({"deletions": [{"name": user, "mechanism": NUMBERS[mechanism]}], "upsertions": []})

    def _alter(self, fields: dict[str, Any]) -> None:
        answer = self.connection.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, fields)
        assert [row.error_code for row in answer.results] == [0]


@pytest.fixture
def administrator(node: EmbeddedNode) -> Iterator[Administrator]:
    made = Administrator(node)
    with made.connection:
        yield made


class Login:
    def __init__(self, node: EmbeddedNode, user: str, password: str, mechanism: str = MECHANISMS[0]) -> None:
        self.connection = RawConnection(node.port)
        self.connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        self._exchange = ClientExchange(mechanism, user, password, "nonce", {})
        self._challenge = self._send(self._exchange.first()).auth_bytes

    def finish(self) -> int:
        """The error code."""
        return int(self._send(self._exchange.answer(self._challenge)).error_code)

    def _send(self, message: bytes) -> Any:
        return self.connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": message})


def logged_in(node: EmbeddedNode, user: str, password: str, mechanism: str = MECHANISMS[0]) -> RawConnection:
    login = Login(node, user, password, mechanism)
    assert login.finish() == 0
    return login.connection


def is_closed_without_a_request(connection: RawConnection) -> bool:
    """Waits for the end of the connection."""
    return connection.socket.recv(1) == b""


def is_served(connection: RawConnection) -> bool:
    try:
        return bool(connection.call(ApiKey.METADATA, 12, {"topics": []}).brokers)
    except ConnectionClosed:
        return False


def test_connections_of_a_removed_user_are_closed(node: EmbeddedNode, administrator: Administrator) -> None:
    for user in ("ben", "cleo"):
        administrator.add(user, "pw")
    with logged_in(node, "ben", "pw") as ben, logged_in(node, "cleo", "pw") as cleo:
        assert is_served(ben)
        administrator.remove("ben")
        assert is_closed_without_a_request(ben)
        assert is_served(cleo)
        assert is_served(administrator.connection)


def test_only_the_removed_mechanism_ends(node: EmbeddedNode, administrator: Administrator) -> None:
    for mechanism in MECHANISMS:
        administrator.add("dora", "pw", mechanism)
    with (
        logged_in(node, "dora", "pw", MECHANISMS[0]) as first,
        logged_in(node, "dora", "pw", MECHANISMS[1]) as second,
    ):
        administrator.remove("dora", MECHANISMS[1])
        assert is_closed_without_a_request(second)
        assert is_served(first)


def test_a_changed_password_leaves_connections_alone(node: EmbeddedNode, administrator: Administrator) -> None:
    administrator.add("emil", "pw")
    with logged_in(node, "emil", "pw") as connection:
        administrator.add("emil", "new")
        assert Login(node, "emil", "pw").finish() == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert is_served(connection)


def test_a_login_does_not_outlive_the_removal(node: EmbeddedNode, administrator: Administrator) -> None:
    """The user is removed between the challenge and its answer."""
    administrator.add("fred", "pw")
    login = Login(node, "fred", "pw")
    administrator.remove("fred")
    assert login.finish() == ErrorCode.SASL_AUTHENTICATION_FAILED
