"""Logins by delegation token on a node, and when their connections end. Rules: security.md A26, A32, A36, A69."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fenceline.sasl.delegation_tokens import token_password
from fenceline.sasl.scram import ClientExchange
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.password_node import TOKEN_SECRET, password_node
from tests.support.raw import ConnectionClosed, RawConnection


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    overrides = {
        **password_node("SCRAM-SHA-256", "SCRAM-SHA-512", anna="secret"),
        "delegation.token.expiry.check.interval.ms": "100",
    }
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides, log_level="info") as node:
        yield node


def authenticate(connection: RawConnection, mechanism: str, *messages: Any) -> Any:
    """The last answer. A message may be made of the one before."""
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    answer: Any = None
    for message in messages:
        made = message(answer.auth_bytes) if callable(message) else message
        answer = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": made})
        if answer.error_code:
            break
    return answer


class Anna:
    """Logged in by her password."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.connection = RawConnection(node.port)
        assert authenticate(self.connection, "PLAIN", b"\0anna\0secret").error_code == 0

    def create(self, max_lifetime_ms: int = -1) -> Any:
        made = self.connection.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {"max_lifetime": max_lifetime_ms})
        assert made.error_code == 0
        return made

    def expire(self, token: Any, period_ms: int) -> None:
        fields = {"hmac": token.hmac, "expiry_time_period": period_ms}
        assert self.connection.call(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, fields).error_code == 0

    def tokens(self) -> set[str]:
        found = self.connection.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
        assert found.error_code == 0
        return {each.token_id for each in found.tokens}


@pytest.fixture
def anna(node: EmbeddedNode) -> Iterator[Anna]:
    made = Anna(node)
    with made.connection:
        yield made


def log_in(connection: RawConnection, token: Any, mechanism: str = "SCRAM-SHA-512") -> Any:
    exchange = ClientExchange(mechanism, token.token_id, token_password(token.hmac), "nonce", {"tokenauth": "true"})
    return authenticate(connection, mechanism, exchange.first(), exchange.answer)


def is_served(connection: RawConnection) -> bool:
    try:
        return bool(connection.call(ApiKey.METADATA, 12, {"topics": []}).brokers)
    except ConnectionClosed:
        return False


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_session_ends_with_the_token(node: EmbeddedNode, anna: Anna, mechanism: str) -> None:
    made = anna.create()
    with RawConnection(node.port) as connection:
        answer = log_in(connection, made, mechanism)
        left: datetime = made.expiry_timestamp - made.issue_timestamp
        assert answer.error_code == 0
        assert timedelta(0) < answer.session_lifetime <= left
        assert is_served(connection)


def test_the_principal_is_the_owner(node: EmbeddedNode, anna: Anna) -> None:
    """Who logged in by a token makes and changes none."""
    made = anna.create()
    with RawConnection(node.port) as connection:
        log_in(connection, made)
        for key, fields in (
            (ApiKey.CREATE_DELEGATION_TOKEN, {"max_lifetime": -1}),
            (ApiKey.EXPIRE_DELEGATION_TOKEN, {"hmac": made.hmac, "expiry_time_period": -1}),
        ):
            assert connection.call(key, 2, fields).error_code == 64


def test_connections_of_a_removed_token_end(node: EmbeddedNode, anna: Anna) -> None:
    """Kafka serves them until they close (A69)."""
    made, other = anna.create(), anna.create()
    with RawConnection(node.port) as connection, RawConnection(node.port) as another:
        log_in(connection, made)
        log_in(another, other)
        assert is_served(connection)
        anna.expire(made, -1)
        assert not is_served(connection)
        assert is_served(another)
        assert is_served(anna.connection)


def test_connections_of_a_token_that_is_expired_early_end(node: EmbeddedNode, anna: Anna) -> None:
    made = anna.create()
    with RawConnection(node.port) as connection:
        log_in(connection, made)
        assert is_served(connection)
        anna.expire(made, 0)
        eventually(lambda: not is_served_by_new_login(node, made), "the token is refused", wait_s=30)
        assert not is_served(connection)


def is_served_by_new_login(node: EmbeddedNode, token: Any) -> bool:
    with RawConnection(node.port) as connection:
        return bool(log_in(connection, token).error_code == 0)


def test_expired_tokens_are_removed(node: EmbeddedNode, anna: Anna) -> None:
    short, long = anna.create(max_lifetime_ms=1), anna.create()
    eventually(lambda: short.token_id not in anna.tokens(), "the sweep", wait_s=30)
    assert long.token_id in anna.tokens()


def test_a_session_is_renewed_with_a_token_that_was_renewed(node: EmbeddedNode, anna: Anna) -> None:
    made = anna.create()
    with RawConnection(node.port) as connection:
        log_in(connection, made)

        def again() -> bool:
            """At most once a second."""
            shaken = connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
            return bool(shaken.error_code == 0)

        eventually(again, "the connection authenticates again", wait_s=30)
        exchange = ClientExchange(
            "SCRAM-SHA-512", made.token_id, token_password(made.hmac), "nonce", {"tokenauth": "true"}
        )
        first = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": exchange.first()})
        last = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": exchange.answer(first.auth_bytes)})
        assert last.error_code == 0
        assert is_served(connection)


def test_tokens_survive_a_restart(tmp_path: Path) -> None:
    """With the same secret; with another one, or none, they are worth nothing."""
    settings = password_node("SCRAM-SHA-512", anna="secret")
    made: Any = None
    for secret, expected in ((TOKEN_SECRET, 0), ("another", 58), ("", 58), (TOKEN_SECRET, 0)):
        overrides = {**settings, "delegation.token.secret.key": secret}
        with EmbeddedNode(data_dir=tmp_path, security_protocol="SASL_PLAINTEXT", overrides=overrides) as node:
            if made is None:
                anna = Anna(node)
                with anna.connection:
                    made = anna.create()
            with RawConnection(node.port) as connection:
                assert log_in(connection, made).error_code == expected


def test_secrets_are_not_logged(node: EmbeddedNode, anna: Anna) -> None:
    made = anna.create()
    assert TOKEN_SECRET not in node.errors
    for text in (made.hmac.hex(), token_password(made.hmac)):
        assert text not in node.errors
