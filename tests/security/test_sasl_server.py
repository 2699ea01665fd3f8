"""The server's side of PLAIN and SCRAM. Rules: security.md A23, A24, A68, A69."""

from __future__ import annotations

import pytest

from fenceline.sasl.scram import ClientExchange, credential_of, salted_password
from fenceline.security.sasl_server import AuthenticationFailed, KnownCredential, PlainExchange, ScramExchange
from fenceline.wire.principal import Principal

ANNA = Principal(name="anna")
WRONG = "Authentication failed: Invalid username or password"


def test_plain() -> None:
    for message in (b"\0anna\0secret", b"anna\0anna\0secret"):
        exchange = PlainExchange({"anna": "secret"})
        assert exchange.answer(message) == b""
        assert exchange.outcome is not None
        assert exchange.outcome.principal == ANNA


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0anna\0wrong", WRONG),
        (b"\0anna\0secre", WRONG),
        (b"\0anna\0secret ", WRONG),
        (b"\0nobody\0secret", WRONG),
        (b"\0empty\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0anna\0", "Authentication failed: password not specified"),
        (
            b"admin\0anna\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0anna\0\xff", None),
    ],
)
def test_plain_refusals(message: bytes, text: str | None) -> None:
    exchange = PlainExchange({"anna": "secret", "empty": ""})
    with pytest.raises(AuthenticationFailed) as error:
        exchange.answer(message)
    assert error.value.message == text
    assert exchange.outcome is None


def scram_server(**users: str) -> ScramExchange:
    mechanism = "SCRAM-SHA-256"
    known = {
        name: KnownCredential(
            credential_of(mechanism, salted_password(mechanism, password, b"salt" * 4, 8192), b"salt" * 4, 8192),
            Principal(name=name),
        )
        for name, password in users.items()
    }
    return ScramExchange(mechanism, lambda name, _: known.get(name), nonce="server", secret=b"secret of the node")


def log_in(server: ScramExchange, user: str, password: str) -> bytes:
    client = ClientExchange("SCRAM-SHA-256", user, password, "client", {})
    final = server.answer(client.answer(server.answer(client.first())))
    client.check(final)
    return final


def test_scram() -> None:
    server = scram_server(anna="secret")
    log_in(server, "anna", "secret")
    assert server.outcome is not None
    assert server.outcome.principal == ANNA


@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_unknown_user_fails_where_a_wrong_password_does(user: str) -> None:
    """Kafka tells them apart by the round that fails (A24)."""
    server = scram_server(anna="secret")
    client = ClientExchange("SCRAM-SHA-256", user, "wrong", "client", {})
    final = client.answer(server.answer(client.first()))
    with pytest.raises(AuthenticationFailed) as error:
        server.answer(final)
    assert (error.value.message, str(error.value)) == (None, "invalid credentials")
    assert server.outcome is None


def test_challenge_of_an_unknown_user_is_always_the_same_and_its_own() -> None:
    challenges = [scram_server().answer(f"n,,n={user},r=client".encode()) for user in ("a", "a", "b")]
    assert challenges[0] == challenges[1] != challenges[2]


@pytest.mark.parametrize("message", [b"", b"p=x,,n=anna,r=client", b"n,a=admin,n=anna,r=client", b"n,,m=1,n=anna,r=c"])
def test_scram_refusals(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        scram_server(anna="secret").answer(message)


def test_messages_after_the_end_are_refused() -> None:
    server = scram_server(anna="secret")
    with pytest.raises(AuthenticationFailed):
        server.answer(log_in(server, "anna", "secret"))
