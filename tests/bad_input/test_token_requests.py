"""Requests about delegation tokens that no client sends, and logins by them: the right code or a closed connection, and
the node answers the next request. Rules: security.md A26, A33 to A35, A69."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.sasl.delegation_tokens import token_password
from fenceline.sasl.scram import ClientExchange
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from tests.support.password_node import password_node
from tests.support.raw import ConnectionClosed, RawConnection

CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
LONGEST, SHORTEST = 2**63 - 1, -(2**63)
ODD_NAMES = ("", ":", "a:b", "a,b=c", "\0", "ä\U0001f600", "x" * 30_000, "../..", "User:User:")


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    overrides = password_node("SCRAM-SHA-512", anna="secret")
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides, log_level="info") as started:
        yield started


def opened(node: EmbeddedNode) -> RawConnection:
    connection = RawConnection(node.port)
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0anna\0secret"})
    return connection


@pytest.fixture
def connection(node: EmbeddedNode) -> Iterator[RawConnection]:
    """The node still answers after the test."""
    with opened(node) as connection:
        yield connection
    with opened(node) as another:
        assert another.call(DESCRIBE, 3, {"owners": []}).error_code == 0
    assert node.is_running
    assert "request failed" not in node.errors
    assert "Traceback" not in node.errors


def user(name: str) -> dict[str, str]:
    return {"principal_type": "User", "principal_name": name}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(node: EmbeddedNode, connection: RawConnection, name: str) -> None:
    """They are stored, described and logged in as they are; an empty one means the client itself."""
    fields = {"owner_principal_type": "User", "owner_principal_name": name, "renewers": [user(name)]}
    made = connection.call(CREATE, 3, fields)
    assert (made.error_code, made.principal_name) == (0, name or "anna")
    [found] = [each for each in connection.call(DESCRIBE, 3, {"owners": None}).tokens if each.token_id == made.token_id]
    assert (found.principal_name, [each.principal_name for each in found.renewers]) == (name or "anna", [name])
    exchange = ClientExchange("SCRAM-SHA-512", made.token_id, token_password(made.hmac), "nonce", {"tokenauth": "true"})
    with RawConnection(node.port) as another:
        another.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
        first = another.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": exchange.first()})
        last = another.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": exchange.answer(first.auth_bytes)})
        assert last.error_code == 0
        assert another.call(ApiKey.METADATA, 12, {"topics": []}).brokers


@pytest.mark.parametrize("time_ms", [LONGEST, SHORTEST, 0, -1, 2**53])
def test_times_at_their_limits(connection: RawConnection, time_ms: int) -> None:
    made = connection.call(CREATE, 3, {"max_lifetime": time_ms})
    assert made.error_code == 0
    assert connection.call(RENEW, 2, {"hmac": made.hmac, "renew_period": time_ms}).error_code == 0
    assert connection.call(EXPIRE, 2, {"hmac": made.hmac, "expiry_time_period": time_ms}).error_code == 0


@pytest.mark.parametrize(("count", "code"), [(2_000, 0), (20_000, 42)])
def test_many_renewers(connection: RawConnection, count: int, code: int) -> None:
    answer = connection.call(CREATE, 3, {"renewers": [user(f"renewer-{number}") for number in range(count)]})
    assert answer.error_code == code


def test_damaged_requests(node: EmbeddedNode, connection: RawConnection) -> None:
    """Cut, longer, and with other bytes."""
    rng = random.Random(7)
    hmac = connection.call(CREATE, 3, {}).hmac
    bodies: list[tuple[ApiKey, int, dict[str, Any]]] = [
        (CREATE, 3, {"owner_principal_type": "User", "owner_principal_name": "otto", "renewers": [user("eve")]}),
        (CREATE, 1, {"renewers": [user("eve"), user("otto")]}),
        (RENEW, 2, {"hmac": hmac, "renew_period": 5}),
        (EXPIRE, 1, {"hmac": hmac, "expiry_time_period": 50_000}),
        (DESCRIBE, 3, {"owners": [user("otto"), user("eve")]}),
        (DESCRIBE, 1, {"owners": [user("otto")]}),
    ]
    for _ in range(300):
        key, version, fields = rng.choice(bodies)
        body = bytearray(write_request(key, version, fields))
        for _ in range(rng.randrange(1, 4)):
            match rng.randrange(3):
                case 0:
                    del body[rng.randrange(len(body) + 1) :]
                case 1:
                    body += rng.randbytes(rng.randrange(9))
                case 2 if body:
                    body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        with opened(node) as damaged:
            try:
                damaged.exchange(key, version, bytes(body))
            except ConnectionClosed:
                continue
